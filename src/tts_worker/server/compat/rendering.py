"""Encodes a session's audio in the client's format and sample rate, as a stream or for a whole text (a download)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tts_worker.audio.encoders import Encoder
from tts_worker.audio.resampler import Resampler
from tts_worker.errors import Draining, ErrorInfo, InvalidRequest, RemoteError, UnspeakableText
from tts_worker.session.hub import SessionHub
from tts_worker.types import SAMPLE_RATE_HZ, Ended, Outcome, PcmFrame, SessionOptions, Words


class Rendering:
    """One stream of encoded audio.

    Args:
        encoder: Encodes at ``rate_hz``.
        rate_hz: Output sample rate.

    Raises:
        InvalidRequest: The resampler does not support the rate.
    """

    def __init__(self, encoder: Encoder, rate_hz: int) -> None:
        self.content_type = encoder.content_type
        self._encoder = encoder
        self._resampler = Resampler(SAMPLE_RATE_HZ, rate_hz)

    def process(self, pcm: bytes) -> bytes:
        """Encode s16le mono PCM at the session's rate. Returns the bytes that are ready, which may be none."""
        return self._encoder.encode(self._resampler.process(pcm))

    def finish(self) -> bytes:
        """Return the last bytes. Call once."""
        return self._encoder.encode(self._resampler.flush()) + self._encoder.finish()


async def synthesize(hub: SessionHub, options: SessionOptions, text: str) -> AsyncGenerator[PcmFrame | Words, None]:
    """Synthesize a whole text. Closing the generator frees the session.

    Yields:
        Frames, and words before the frame in which they start.

    Raises:
        UnspeakableText: The text contains nothing to speak.
        TTSWorkerError: The session was not admitted, or the error that ended the utterance.
    """
    session = await hub.admit(options)
    try:
        session.speak(text)
        session.end_text()
        async for item in session:
            if isinstance(item, PcmFrame | Words):
                yield item
            elif isinstance(item, Ended):
                if (error := failure(item)) is not None:
                    raise RemoteError(error)
                if item.receipt.reason == "nothing_to_speak":
                    raise UnspeakableText("the text has nothing that can be spoken")
                break
    finally:
        session.close("disconnected")


async def download(
    hub: SessionHub, options: SessionOptions, text: str, rendering: Rendering
) -> AsyncGenerator[bytes, None]:
    """Yield the encoded audio of a whole text. Closes and raises like ``synthesize``."""
    async with aclosing(synthesize(hub, options, text)) as items:
        async for item in items:
            if isinstance(item, PcmFrame) and (data := rendering.process(item.pcm)):
                yield data
    if data := rendering.finish():
        yield data


def failure(ended: Ended) -> ErrorInfo | None:
    """Return the error of an utterance that the client did not stop, or None if it is complete.

    Downloads and compatibility APIs cannot report missing audio otherwise: they end complete or with an error.
    """
    if ended.error is not None:
        return ended.error
    if ended.receipt.reason == "drain":
        return Draining("the worker is shutting down; use another one").info
    if ended.outcome is Outcome.STOPPED:
        return InvalidRequest(f"the utterance was stopped: {ended.receipt.reason}").info
    return None
