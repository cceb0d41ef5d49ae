"""Messages of a worker, read: the other direction of ``transports.wire``, which says how they look.

Unknown fields are ignored (a newer worker may send them); a field that is missing or of the wrong type is a
``ProtocolError``. Knows no socket.
"""

from __future__ import annotations

from typing import Any

from tts_worker.errors import ErrorCode, ErrorInfo
from tts_worker.session.hub import SessionOptions
from tts_worker.types import Alignment, Outcome, Receipt, SynthesisParams, Word

Message = dict[str, Any]


class ProtocolError(Exception):
    """The other side does not speak this protocol."""


def integer(message: Message, name: str) -> int:
    value = message.get(name)
    if not isinstance(value, int):
        raise ProtocolError(f"{name} is no integer")
    return value


def string(message: Message, name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"{name} is no string")
    return value


def params_of(message: Message) -> SynthesisParams:
    """Of a "started" message."""
    speed = message.get("speed", 1.0)
    if not isinstance(speed, int | float):
        raise ProtocolError("speed is no number")
    return SynthesisParams(string(message, "voice"), float(speed), integer({"seed": 0, **message}, "seed"))


def words_of(message: Message) -> tuple[Word, ...]:
    """Of "words" messages and receipts."""
    words = message.get("words", [])
    if not isinstance(words, list) or not all(isinstance(word, dict) for word in words):
        raise ProtocolError("words is no list of words")
    return tuple(
        Word(
            string(word, "text"),
            integer(word, "start_char"),
            integer(word, "end_char"),
            integer(word, "start_sample"),
            integer(word, "end_sample"),
        )
        for word in words
    )


def receipt_of(message: Message) -> Receipt:
    """Of the message that ends an utterance."""
    return Receipt(
        reason=string(message, "reason"),
        samples_generated=integer(message, "samples_generated"),
        samples_sent=integer(message, "samples_sent"),
        samples_played=None if message.get("samples_played") is None else integer(message, "samples_played"),
        text_spoken=string(message, "text_spoken"),
        text_remaining=string(message, "text_remaining"),
        words=words_of(message),
        alignment=_alignment(message.get("alignment")),
    )


def _alignment(name: object) -> Alignment:
    return next((known for known in Alignment if known.value == name), Alignment.ESTIMATED)


def outcome_of(message: Message) -> Outcome:
    return next(known for known in Outcome if known.value == message["type"])


def error_of(message: Message) -> ErrorInfo:
    """Of "rejected" and "error" messages. A code that is not known here is INTERNAL, with the worker's own word on
    whether trying again can help."""
    code = next((known for known in ErrorCode if known.value == message.get("code")), ErrorCode.INTERNAL)
    after_s = message.get("retry_after_s")
    return ErrorInfo(
        code,
        str(message.get("message", "the worker reported an error")),
        message.get("retryable") is True,
        float(after_s) if isinstance(after_s, int | float) else None,
    )


def start_message(options: SessionOptions) -> Message:
    """The message that asks for a session with these options."""
    wanted = {
        "voice": options.voice,
        "model": options.model,
        "needs": list(options.needs) or None,
        "speed": options.speed,
        "seed": options.seed,
        "language": options.language,
        "instruct": options.instruct,
        "realtime": options.realtime,
        "lead_ms": options.lead_ms,
        "frame_ms": options.frame_ms,
        "lexicon": None if options.lexicon is None else dict(options.lexicon),
        "markdown": options.markdown,
        "urls": None if options.urls is None else options.urls.value,
        "normalise": options.normalise,
        "pause_timeout_s": options.pause_timeout_s,
        "text_idle_timeout_s": options.text_idle_timeout_s,
        "flush_after_ms": options.flush_after_ms,
    }
    return {"type": "start", **{name: value for name, value in wanted.items() if value is not None}}
