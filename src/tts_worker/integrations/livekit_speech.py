"""An utterance on its way into LiveKit: sound, timed pieces of the original text, and what its end means there.

Owns the translation of words and errors. It knows neither the plugin's options nor where the session comes from.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Callable

from livekit.agents import APIConnectionError, APIError, APIStatusError, APITimeoutError, tts
from livekit.agents.types import TimedString

from tts_worker.client import Session
from tts_worker.errors import HTTP_STATUS, ErrorCode, ErrorInfo, TTSWorkerError
from tts_worker.session.machine import State
from tts_worker.text.decoding import TextDecoder
from tts_worker.types import SAMPLE_RATE_HZ, Ended, Outcome, PcmFrame, Receipt, Words

log = logging.getLogger(__name__)


class Transcript:
    """The original text in pieces that have times and, joined, are that text again: a piece is a word with all that
    stands before it since the last one (space, quotes, Markdown that was not read aloud)."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._rate_hz = sample_rate_hz
        self._decoder = TextDecoder()
        self._text = ""
        self._told_chars = 0

    def write(self, text: str) -> None:
        self._text += self._decoder.feed(text)

    def piece(self, end_char: int, start_sample: int, end_sample: int) -> TimedString:
        while end_char < len(self._text) and not (self._text[end_char].isspace() or self._text[end_char].isalnum()):
            end_char += 1  # what hangs on the word, as far as it is written
        text = self._text[self._told_chars : end_char]
        self._told_chars = max(self._told_chars, end_char)
        return TimedString(text, start_time=start_sample / self._rate_hz, end_time=end_sample / self._rate_hz)

    def rest(self, at_sample: int) -> TimedString | None:
        """What follows the last word."""
        self._text += self._decoder.end()
        return self.piece(len(self._text), at_sample, at_sample) if self._told_chars < len(self._text) else None


async def speak(
    session: Session, emitter: tts.AudioEmitter, text: AsyncIterable[str], note: Callable[[Ended], None]
) -> None:
    """One utterance from text to the emitter, its end also to ``note``. Raises APIError."""
    if session.sample_rate_hz != SAMPLE_RATE_HZ:
        raise APIError(f"the worker speaks at {session.sample_rate_hz} Hz, not {SAMPLE_RATE_HZ}", retryable=False)
    transcript = Transcript(session.sample_rate_hz)
    writer = asyncio.create_task(_write(session, transcript, text))
    try:
        async for item in session:
            if isinstance(item, PcmFrame):
                emitter.push(item.pcm)
            elif isinstance(item, Words):
                for word in item.words:
                    emitter.push_timed_transcript(transcript.piece(word.end_char, word.start_sample, word.end_sample))
            elif isinstance(item, Ended):
                note(item)
                refusal = writer.result() if writer.done() and not writer.cancelled() else None
                _finish(item, emitter, transcript, refusal)
                return
        raise APIConnectionError("the session was closed")
    finally:
        writer.cancel()


async def _write(session: Session, transcript: Transcript, text: AsyncIterable[str]) -> ErrorInfo | None:
    """Returns what the session did not take."""
    try:
        async for token in text:
            transcript.write(token)
            session.speak(token)
        session.end_text()
    except TTSWorkerError as error:
        if session.state is not State.CLOSED:
            session.stop("text_refused")
        return error.info
    return None


def _finish(ended: Ended, emitter: tts.AudioEmitter, transcript: Transcript, refusal: ErrorInfo | None) -> None:
    """What the end of an utterance means to LiveKit. Raises APIError."""
    receipt = ended.receipt
    sent = receipt.samples_sent > 0
    if ended.outcome is Outcome.STOPPED:
        _stopped(receipt, refusal, sent=sent)
        return
    if ended.error is not None:
        raise as_api_error(ended.error, sent=sent)
    if ended.outcome is Outcome.TRUNCATED:
        log.warning("the speech was cut short: %s", receipt.reason)
    if not sent:
        # All of it was emoji, code or the like. LiveKit takes a turn without sound for a fault, so it gets 10 ms of it.
        emitter.push(bytes(2 * (SAMPLE_RATE_HZ // 100)))
    rest = transcript.rest(receipt.samples_sent)
    if rest is not None:
        emitter.push_timed_transcript(rest)


def _stopped(receipt: Receipt, refusal: ErrorInfo | None, *, sent: bool) -> None:
    if refusal is not None:
        raise as_api_error(refusal, sent=sent)
    if receipt.reason == "drain":
        raise as_api_error(ErrorInfo(ErrorCode.DRAINING, "the worker is shutting down", retryable=True), sent=sent)
    if not sent:  # stopped on purpose before it said a word: no fault and no retry
        raise APIStatusError(f"the speech was stopped: {receipt.reason}", status_code=499)


def as_api_error(error: ErrorInfo, *, sent: bool) -> APIError:
    """Our error as LiveKit's. Once something was ``sent``, a retry would say it twice."""
    retryable = error.retryable and not sent
    if error.code is ErrorCode.DEADLINE_EXCEEDED:
        return APITimeoutError(error.message, retryable=retryable)
    if error.code in (ErrorCode.CONNECTION_LOST, ErrorCode.SESSION_CLOSED):
        return APIConnectionError(error.message, retryable=retryable)
    # LiveKit knows 429 as "busy, try again"; our own 503 also says that the worker is not well.
    status = 429 if error.code is ErrorCode.OVER_CAPACITY else HTTP_STATUS[error.code]
    return APIStatusError(error.message, status_code=status, retryable=retryable)
