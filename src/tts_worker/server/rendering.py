"""Synthesis of a whole text: as frames, or encoded in the client's format (a download)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, MutableMapping
from contextlib import aclosing

from tts_worker.audio.encoders import Encoder
from tts_worker.errors import ErrorInfo, InvalidRequest, RemoteError, SynthesisFailed, UnspeakableText
from tts_worker.protocol.session import interruption_by_worker
from tts_worker.session.conversion import Source
from tts_worker.session.hub import SessionHub
from tts_worker.types import (
    BYTES_PER_SAMPLE,
    NEUTRAL,
    SAMPLE_RATE_HZ,
    ChunkMeta,
    Ended,
    Expression,
    Outcome,
    PcmFrame,
    SessionOptions,
    Words,
)

QUIET_TURN_S = 0.1
NOTHING_TO_SPEAK = "nothing_to_speak"
"""Reason of a report."""

SKIPPED_CHARACTERS = "x-skipped-characters"
"""Header with the number of characters that the voice does not speak. Without it, none are known."""


async def synthesize(
    hub: SessionHub,
    options: SessionOptions,
    text: str,
    on_ended: Callable[[Ended], None] = lambda ended: None,
    *,
    headers: MutableMapping[str, str] | None = None,
    accepts_quiet_turn: bool = False,
    expression: Expression = NEUTRAL,
) -> AsyncGenerator[PcmFrame | Words, None]:
    """Synthesize a whole text. Closing the generator frees the session.

    Args:
        hub: Admits the session.
        options: Of the session.
        text: The whole text.
        on_ended: Called with the end of an utterance that was spoken.
        headers: Gets ``SKIPPED_CHARACTERS`` before the first item. For that a text that is not ASCII is read to its
            end; words that the engine finds later to be without pronunciation do not count.
        accepts_quiet_turn: A quiet turn (``is_quiet_turn``) is silence and no error.
        expression: How the text is spoken.

    Yields:
        Frames, and words before the frame in which they start.

    Raises:
        UnspeakableText: The text contains nothing to speak.
        TTSWorkerError: The session was not admitted, or the error that ended the utterance.
    """
    session = await hub.admit(options)
    try:
        if expression != NEUTRAL:
            session.express(expression)
        session.speak(text)
        session.end_text()
        held: list[PcmFrame | Words] = []  # until the headers are known
        holds = headers is not None and not text.isascii()
        async for item in session:
            if isinstance(item, PcmFrame | Words):
                held.append(item)
                if holds and session.skipped_chars is None:
                    continue
                holds = False
                _note_skipped(headers, session.skipped_chars or 0)
            elif isinstance(item, Ended):
                session.close(item.receipt.reason)
                if accepts_quiet_turn and is_quiet_turn(item):
                    pcm = quiet_turn(options.sample_rate or SAMPLE_RATE_HZ)
                    yield PcmFrame(item.key, 0, 0, pcm, ChunkMeta(0, 0, len(text), 0, 0.0))
                    break
                check_spoken(item)
                _note_skipped(headers, sum(run.end - run.start for run in item.receipt.skipped))
            for each in held:
                yield each
            held.clear()
            if isinstance(item, Ended):
                on_ended(item)
                break
    finally:
        session.close("disconnected")


def _note_skipped(headers: MutableMapping[str, str] | None, chars: int) -> None:
    if headers is not None and chars:
        headers[SKIPPED_CHARACTERS] = str(chars)


async def download(
    hub: SessionHub,
    options: SessionOptions,
    text: str,
    encoder: Encoder,
    headers: MutableMapping[str, str] | None = None,
    expression: Expression = NEUTRAL,
) -> AsyncGenerator[bytes, None]:
    """Yield the encoded audio of a whole text, at the rate of ``options``; silence for a quiet turn.

    The rest is as with ``synthesize``.
    """
    spoken = synthesize(hub, options, text, headers=headers, accepts_quiet_turn=True, expression=expression)
    async with aclosing(spoken) as items:
        async for item in items:
            if isinstance(item, PcmFrame) and (data := encoder.encode(item.pcm)):
                yield data
    if data := encoder.finish():
        yield data


def is_quiet_turn(ended: Ended) -> bool:
    """Return whether a text had nothing to say although it was not blank, such as "...", an emoji or a dash.

    Language models write such turns. Clients of vendors take an answer without audio for a failure, and give up after a
    few of them: they get ``QUIET_TURN_S`` of silence. Text in a script that the voice cannot speak is no such turn.
    """
    receipt = ended.receipt
    text = receipt.text_spoken + receipt.text_remaining
    return receipt.reason == NOTHING_TO_SPEAK and not receipt.skipped and bool(text.strip())


def quiet_turn(rate_hz: int) -> bytes:
    """Return the silence of a quiet turn, s16le."""
    return bytes(BYTES_PER_SAMPLE * round(QUIET_TURN_S * rate_hz))


async def converted(
    hub: SessionHub, options: SessionOptions, source: Source, encoder: Encoder
) -> AsyncGenerator[bytes, None]:
    """Yield the encoded audio of a voice conversion, at the rate of ``options``. Closing it frees the session.

    Raises:
        TTSWorkerError: The session was not admitted, the source cannot be converted, or the error that ended the
            utterance.
    """
    conversion = await hub.convert(options, source)
    async with aclosing(conversion.outputs()) as items:
        async for item in items:
            if isinstance(item, PcmFrame) and (data := encoder.encode(item.pcm)):
                yield data
            elif isinstance(item, Ended) and (error := failure(item)) is not None:
                raise RemoteError(error)
    if data := encoder.finish():
        yield data


def check_spoken(ended: Ended) -> None:
    """Check the end of a whole text.

    Raises:
        UnspeakableText: The text contains nothing to speak.
        TTSWorkerError: The error of ``failure``.
    """
    if (error := failure(ended)) is not None:
        raise RemoteError(error)
    if ended.receipt.reason == NOTHING_TO_SPEAK:
        raise UnspeakableText("the text has nothing that can be spoken")


def failure(ended: Ended) -> ErrorInfo | None:
    """Return the error of an utterance that the client did not stop, or None if all its text was spoken.

    Downloads cannot report missing audio otherwise: they end complete or with an error.
    """
    if ended.error is not None:
        return ended.error
    if (error := interruption_by_worker(ended)) is not None:
        return error
    if ended.outcome is Outcome.TRUNCATED:
        return SynthesisFailed("the model lost its way: the speech ends before the text").info
    if ended.outcome is Outcome.STOPPED:
        return InvalidRequest(f"the utterance was stopped: {ended.receipt.reason}").info
    return None
