"""Parser for the worker's JSON messages, and the client's ``start`` message (see ``transports.wire``).

Unknown fields are ignored, since a newer worker may send them. A missing field or a wrong type raises
``ProtocolError``.
"""

from __future__ import annotations

from typing import Any

from tts_worker.errors import ErrorCode, ErrorInfo
from tts_worker.types import Alignment, Outcome, Receipt, SessionOptions, SynthesisParams, Word

Message = dict[str, Any]


class ProtocolError(Exception):
    """A message violates the protocol."""


def require_int(message: Message, name: str) -> int:
    value = message.get(name)
    if not isinstance(value, int):
        raise ProtocolError(f"{name} is not an integer")
    return value


def require_str(message: Message, name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"{name} is not a string")
    return value


def parse_params(message: Message) -> SynthesisParams:
    """Parse the voice parameters of a "started" message."""
    speed = message.get("speed", 1.0)
    if not isinstance(speed, int | float):
        raise ProtocolError("speed is not a number")
    return SynthesisParams(require_str(message, "voice"), float(speed), require_int({"seed": 0, **message}, "seed"))


def parse_words(message: Message) -> tuple[Word, ...]:
    """Parse the word timestamps of a "words" or terminal message."""
    words = message.get("words", [])
    if not isinstance(words, list) or not all(isinstance(word, dict) for word in words):
        raise ProtocolError("words is not a list of objects")
    return tuple(
        Word(
            require_str(word, "text"),
            require_int(word, "start_char"),
            require_int(word, "end_char"),
            require_int(word, "start_sample"),
            require_int(word, "end_sample"),
        )
        for word in words
    )


def parse_receipt(message: Message) -> Receipt:
    """Parse the playback report of a terminal message."""
    return Receipt(
        reason=require_str(message, "reason"),
        samples_generated=require_int(message, "samples_generated"),
        samples_sent=require_int(message, "samples_sent"),
        samples_played=None if message.get("samples_played") is None else require_int(message, "samples_played"),
        text_spoken=require_str(message, "text_spoken"),
        text_remaining=require_str(message, "text_remaining"),
        words=parse_words(message),
        alignment=_alignment(message.get("alignment")),
    )


def _alignment(name: object) -> Alignment:
    return next((known for known in Alignment if known.value == name), Alignment.ESTIMATED)


def parse_outcome(message: Message) -> Outcome:
    return next(known for known in Outcome if known.value == message["type"])


def parse_error(message: Message) -> ErrorInfo:
    """Parse a "rejected" or "error" message.

    An unknown code becomes INTERNAL and keeps the worker's ``retryable`` flag.
    """
    code = next((known for known in ErrorCode if known.value == message.get("code")), ErrorCode.INTERNAL)
    after_s = message.get("retry_after_s")
    return ErrorInfo(
        code,
        str(message.get("message", "the worker reported an error")),
        message.get("retryable") is True,
        float(after_s) if isinstance(after_s, int | float) else None,
    )


def start_message(options: SessionOptions) -> Message:
    """Build the "start" message for these options; options that are None are left out."""
    fields = {
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
    return {"type": "start", **{name: value for name, value in fields.items() if value is not None}}
