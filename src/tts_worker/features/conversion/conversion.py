"""Drives a voice conversion: source audio in, the same speech in another voice out.

The speech tokenizer turns the audio into speech tokens, window by window and on a separate thread, and the engine
renders them as it renders those of its language model: in the same steps and within the same credit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

from tts_worker.audio.decode import RECORDING_FORMATS
from tts_worker.audio.window import Window
from tts_worker.errors import InvalidRequest, SessionClosed
from tts_worker.features.conversion.windows import live_windows, recording_windows
from tts_worker.session.conversion import LiveSource, Source, Tokenize
from tts_worker.session.session import LocalSession
from tts_worker.types import Ended, Output, PcmFrame


class SourceConverter:
    """See ``session.conversion.Converter``."""

    def convert(
        self, session: LocalSession, source: Source, tokenize: Tokenize, charge: Callable[[float], None]
    ) -> SourceConversion:
        return SourceConversion(session, source, tokenize, charge)

    def windows(self, recording: bytes | Path) -> list[Window]:
        return recording_windows(recording)


class SourceConversion:
    """One conversion on a session, see ``session.conversion.Conversion``.

    Args:
        session: Speaks with the target voice. Nothing else writes to it.
        source: What it converts.
        tokenize: Returns the speech tokens of a window.
        charge: Called with the seconds of source audio.
    """

    def __init__(
        self, session: LocalSession, source: Source, tokenize: Tokenize, charge: Callable[[float], None]
    ) -> None:
        self.session = session
        self._source = source
        self._tokenize = tokenize
        self._charge = charge
        self._error: Exception | None = None
        self._began_at_s: float | None = None

    async def outputs(self) -> AsyncGenerator[Output, None]:
        feeding = asyncio.create_task(self._feed(), name=f"{self.session.id}-source")
        try:
            async for item in self.session:
                if self._error is not None:
                    raise self._error
                if isinstance(item, PcmFrame) and item.index == 0:
                    self._note_first_audio(item)
                if isinstance(item, Ended):
                    self.session.close(item.receipt.reason)
                    yield item
                    return
                yield item
            if self._error is not None:
                raise self._error
        finally:
            feeding.cancel()
            self.session.close("disconnected")
            await asyncio.wait({feeding})

    async def _feed(self) -> None:
        try:
            async for window in _windows(self._source):
                if self._began_at_s is None:
                    self._began_at_s = asyncio.get_running_loop().time()
                self._charge(window.new_s)
                tokens = await self._tokenize(window)
                self.session.add_speech(tokens)
                self.session.note_source(window.new_s)
            self.session.end_text()
        except SessionClosed:
            return  # stopped meanwhile: the report tells why
        except Exception as error:
            self._error = error
            self.session.close("source_failed")

    def _note_first_audio(self, frame: PcmFrame) -> None:
        if self._began_at_s is not None:
            self.session.note_converted(frame.key, asyncio.get_running_loop().time() - self._began_at_s)


async def _windows(source: Source) -> AsyncIterator[Window]:
    if isinstance(source, LiveSource):
        async for window in live_windows(source.parts, source.rate_hz):
            yield window
        return
    if not source.audio:
        raise InvalidRequest(f"the source audio is empty: send a {RECORDING_FORMATS} file")
    for window in await asyncio.to_thread(recording_windows, source.audio):
        yield window
