"""Forwards one utterance to LiveKit: audio, timed words of the original text, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable

from livekit.agents import APIConnectionError, APIError, APIStatusError, APITimeoutError, tts
from livekit.agents.types import TimedString

from livekit.plugins.tts_worker.log import logger
from tts_worker.client import Session
from tts_worker.errors import HTTP_STATUS, ErrorCode, ErrorInfo, TTSWorkerError
from tts_worker.protocol.session import interruption_by_worker
from tts_worker.text.decoding import TextDecoder
from tts_worker.types import Ended, Outcome, PcmFrame, Skipped, State, Words, text_heard


class Transcript:
    """Splits the original text into timed strings that join to that text again, without what the voice skips.

    Each string is a word together with everything since the previous word (spaces, quotes, Markdown that is not
    spoken).

    Attributes:
        skipped: What the voice skips, as far as it is known: it is not heard, so the agent's history must not have it.
    """

    def __init__(self, sample_rate_hz: int) -> None:
        self._rate_hz = sample_rate_hz
        self._decoder = TextDecoder()
        self._text = ""
        self._emitted_chars = 0
        self.skipped: tuple[Skipped, ...] = ()

    def write(self, text: str) -> None:
        self._text += self._decoder.feed(text)

    def timed_word(self, end_char: int, start_sample: int, end_sample: int) -> TimedString:
        """The text up to ``end_char`` and the punctuation that follows it."""
        while end_char < len(self._text) and not (self._text[end_char].isspace() or self._text[end_char].isalnum()):
            end_char += 1
        text = self._heard(self._emitted_chars, end_char)
        self._emitted_chars = max(self._emitted_chars, end_char)
        return TimedString(text, start_time=start_sample / self._rate_hz, end_time=end_sample / self._rate_hz)

    def _heard(self, start: int, end: int) -> str:
        """What is heard of ``[start, end)``."""
        first = max(0, start - 1)  # the character before it decides about spaces
        runs = [Skipped(run.start - first, run.end - first) for run in self.skipped if start <= run.start < end]
        return text_heard(self._text[first:end], runs)[start - first :]

    def rest(self, at_sample: int) -> TimedString | None:
        """The text after the last word, if any."""
        self._text += self._decoder.end()
        if self._emitted_chars == len(self._text):
            return None
        return self.timed_word(len(self._text), at_sample, at_sample)


async def run_utterance(
    session: Session, emitter: tts.AudioEmitter, text: AsyncIterable[str], on_ended: Callable[[Ended], None]
) -> None:
    """Synthesize one utterance into the emitter.

    Args:
        session: An open session.
        emitter: Receives audio and timed words.
        text: Text deltas.
        on_ended: Called with the terminal event.

    Raises:
        APIError: The utterance failed, or was stopped before any audio.
    """
    transcript = Transcript(session.sample_rate_hz)
    writer = asyncio.create_task(_write(session, transcript, text))
    try:
        async for item in session:
            if isinstance(item, PcmFrame):
                emitter.push(item.pcm)
            elif isinstance(item, Words):
                transcript.skipped = item.skipped
                for word in item.words:
                    timed_word = transcript.timed_word(word.end_char, word.start_sample, word.end_sample)
                    emitter.push_timed_transcript(timed_word)
            elif isinstance(item, Ended):
                on_ended(item)
                refusal = writer.result() if writer.done() and not writer.cancelled() else None
                _finish(item, emitter, transcript, refusal, session.sample_rate_hz)
                return
        raise APIConnectionError("the session was closed")
    finally:
        writer.cancel()


async def _write(session: Session, transcript: Transcript, text: AsyncIterable[str]) -> ErrorInfo | None:
    """Send the text; return the error if the session rejects it."""
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


def _finish(
    ended: Ended, emitter: tts.AudioEmitter, transcript: Transcript, refusal: ErrorInfo | None, sample_rate_hz: int
) -> None:
    """Convert the terminal event to LiveKit's terms. Raises APIError."""
    receipt = ended.receipt
    sent = receipt.samples_sent > 0
    if ended.outcome is Outcome.STOPPED:
        _raise_if_failed(ended, refusal, sent=sent)
        return
    if ended.error is not None:
        raise as_api_error(ended.error, sent=sent)
    if ended.outcome is Outcome.TRUNCATED:
        logger.warning("the utterance was truncated: %s", receipt.reason)
        return  # the text after the last word was not spoken
    if not sent:
        # The text was unspeakable (emoji, code). LiveKit treats a turn without audio as an error: send 10 ms.
        emitter.push(bytes(2 * (sample_rate_hz // 100)))
    transcript.skipped = receipt.skipped
    rest = transcript.rest(receipt.samples_sent)
    if rest:
        emitter.push_timed_transcript(rest)


def _raise_if_failed(ended: Ended, refusal: ErrorInfo | None, *, sent: bool) -> None:
    """Raise the error behind a stopped utterance, if it was not interrupted on purpose."""
    error = refusal or interruption_by_worker(ended)
    if error is not None:
        raise as_api_error(error, sent=sent)
    if not sent:  # stopped on purpose before any audio: not retried
        raise APIStatusError(f"the utterance was stopped: {ended.receipt.reason}", status_code=499)


def as_api_error(error: ErrorInfo, *, sent: bool) -> APIError:
    """Convert an error to LiveKit's. Once audio was ``sent``, it is not retryable: a retry would repeat the audio."""
    retryable = error.retryable and not sent
    if error.code is ErrorCode.DEADLINE_EXCEEDED:
        return APITimeoutError(error.message, retryable=retryable)
    if error.code in (ErrorCode.CONNECTION_LOST, ErrorCode.SESSION_CLOSED):
        return APIConnectionError(error.message, retryable=retryable)
    # LiveKit treats 429 as "busy, retry"; the worker's own 503 also covers an unhealthy worker.
    status = 429 if error.code is ErrorCode.OVER_CAPACITY else HTTP_STATUS[error.code]
    return APIStatusError(error.message, status_code=status, retryable=retryable)
