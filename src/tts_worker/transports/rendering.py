"""A session's sound as the bytes a client asked for: at its rate, in its format, from the first sample on.

Owns the way from frames to encoded bytes, and a whole text as a stream of them (a download). It knows no HTTP, no
socket and no vendor's names; who sends the bytes, and what an error looks like there, is the caller's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tts_worker.audio.encoders import Encoder
from tts_worker.audio.resampler import Resampler
from tts_worker.errors import Draining, ErrorInfo, InvalidRequest, RemoteError, UnspeakableText
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.types import SAMPLE_RATE_HZ, Ended, Outcome, PcmFrame, Words


class Rendering:
    """One stream of encoded sound. ``rate_hz`` is the encoder's. Raises InvalidRequest for a rate that the resampler
    does not have."""

    def __init__(self, encoder: Encoder, rate_hz: int) -> None:
        self.content_type = encoder.content_type
        self._encoder = encoder
        self._resampler = Resampler(SAMPLE_RATE_HZ, rate_hz)

    def process(self, pcm: bytes) -> bytes:
        """The bytes that are ready after this sound (s16le mono at the session's rate); may be empty."""
        return self._encoder.encode(self._resampler.process(pcm))

    def finish(self) -> bytes:
        """The last bytes. Call once."""
        return self._encoder.encode(self._resampler.flush()) + self._encoder.finish()


async def synthesize(hub: SessionHub, options: SessionOptions, text: str) -> AsyncGenerator[PcmFrame | Words, None]:
    """The frames of a whole text, words before the audio they are about. Closing the generator frees the session.

    Raises what ``hub.admit`` and ``speak`` raise, UnspeakableText, and the error that ended the utterance.
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
    """The encoded audio of a whole text. Closing it frees the session; it raises what ``synthesize`` does."""
    async with aclosing(synthesize(hub, options, text)) as items:
        async for item in items:
            if isinstance(item, PcmFrame) and (data := rendering.process(item.pcm)):
                yield data
    if data := rendering.finish():
        yield data


def failure(ended: Ended) -> ErrorInfo | None:
    """Why an utterance that nobody stopped did not end well; None if it did. A download or a dialect's stream ends
    well or with an error: there is no other way in them to say that sound is missing."""
    if ended.error is not None:
        return ended.error
    if ended.receipt.reason == "drain":
        return Draining("the worker is shutting down; use another one").info
    if ended.outcome is Outcome.STOPPED:
        return InvalidRequest(f"the utterance was stopped: {ended.receipt.reason}").info
    return None
