"""How the vocabulary of ``types`` looks as JSON, and how JSON from a client is checked.

The one place that knows field names on the wire. Client messages are pydantic models: unknown fields are ignored (a
newer client may send them), a wrong type or value is an InvalidRequest that names the field. The protocol is described
in ``docs/protocol.md``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from tts_worker.errors import ErrorInfo, InvalidRequest
from tts_worker.session.hub import SessionOptions
from tts_worker.text.filter import UrlMode
from tts_worker.types import Acknowledged, Ended, Notice, Receipt, Started, Word, Words
from tts_worker.voices import Voice

PROTOCOL_VERSION = 1


class _Message(BaseModel):
    # Strict: "1.5" is no number and 1 is no string; a client that mixes them up should hear of it.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


def _names(value: object) -> object:
    """A JSON array; in a URL, names between commas."""
    if isinstance(value, str):
        return tuple(value.split(","))
    return tuple(value) if isinstance(value, list) else value


class StartMessage(_Message):
    """Configures the session; the first message, or later for the utterances that follow."""

    type: Literal["start"]
    voice: str | None = Field(None, max_length=128)
    model: str | None = Field(None, max_length=128)
    needs: Annotated[tuple[str, ...], BeforeValidator(_names), Field(max_length=16)] = ()
    speed: float = 1.0
    seed: int = 0
    language: str | None = Field(None, max_length=35)
    instruct: str | None = Field(None, max_length=2_000)
    realtime: bool = True
    lead_ms: float | None = None
    frame_ms: int | None = None
    lexicon: dict[str, Any] | None = None
    markdown: bool | None = None
    urls: Literal["drop", "host"] | None = None
    normalise: bool | None = None
    pause_timeout_s: float | None = None
    text_idle_timeout_s: float | None = None
    flush_after_ms: float | None = None

    def options(self) -> SessionOptions:
        values = {name: value for name, value in self if name not in ("type", "urls")}  # a dump copies the lexicon
        return SessionOptions(**values, urls=None if self.urls is None else UrlMode(self.urls))


class TextMessage(_Message):
    """Text of the utterance being written. ``end`` completes it. ``context``: the client's own name for the utterance;
    text for a context that was stopped is dropped, so a writer that lags behind a STOP cannot revive it."""

    type: Literal["text"]
    text: str
    end: bool = False
    context: str | None = Field(None, max_length=128)


class EndMessage(_Message):
    type: Literal["end"]
    context: str | None = Field(None, max_length=128)


class FlushMessage(_Message):
    type: Literal["flush"]


class PauseMessage(_Message):
    type: Literal["pause"]


class ResumeMessage(_Message):
    type: Literal["resume"]


class StopMessage(_Message):
    """``played_samples``: what the listener heard of the current utterance, if the client knows."""

    type: Literal["stop", "clear"]
    played_samples: int | None = Field(None, ge=0)
    reason: str | None = Field(None, max_length=64)


class PlayedMessage(_Message):
    type: Literal["played"]
    samples: int = Field(ge=0)


class PingMessage(_Message):
    type: Literal["ping"]
    id: Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[str, Field(max_length=128)] | None = None


class CloseMessage(_Message):
    type: Literal["close"]


ClientMessage = Annotated[
    StartMessage
    | TextMessage
    | EndMessage
    | FlushMessage
    | PauseMessage
    | ResumeMessage
    | StopMessage
    | PlayedMessage
    | PingMessage
    | CloseMessage,
    Field(discriminator="type"),
]
_CLIENT_MESSAGE: TypeAdapter[ClientMessage] = TypeAdapter(ClientMessage)


def parse_client_message(raw: str) -> ClientMessage:
    """A client's JSON message. Raises InvalidRequest that names the field; the text is never repeated."""
    try:
        # json.loads, not pydantic's parser: it accepts lone surrogates, as clients send that cut text by UTF-16 units.
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidRequest("the message is not valid JSON") from None
    try:
        return _CLIENT_MESSAGE.validate_python(data)
    except ValidationError as error:
        raise InvalidRequest(explain(error, skip=1)) from None


def parse_lexicon(raw: str) -> dict[str, Any] | None:
    """The lexicon that a client's JSON message brings along, None if there is none or the message is wrong."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    lexicon = data.get("lexicon") if isinstance(data, dict) else None
    return lexicon if isinstance(lexicon, dict) else None


def parse_object(raw: str | bytes, what: str) -> dict[str, Any]:
    """A JSON object, ``what`` it is called in the error. Raises InvalidRequest."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"the {what} is not valid JSON") from None
    if not isinstance(data, dict):
        raise InvalidRequest(f"the {what} must be a JSON object")
    return data


def parse_start(fields: Mapping[str, Any]) -> StartMessage:
    """The fields of a ``start``, where a session begins with something else than a message. Raises InvalidRequest."""
    try:
        return StartMessage.model_validate({**fields, "type": "start"})
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None


def explain(error: ValidationError, *, skip: int = 0) -> str:
    """What is wrong and where, without the value. ``skip``: leading parts of the place that say nothing."""
    problem = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"][skip:])
    if problem["type"] == "union_tag_invalid":
        return f"there is no message of that type; there are {problem['ctx']['expected_tags']}"
    if problem["type"] == "union_tag_not_found":
        return 'the message has no "type"'
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])


# -- server -> client -------------------------------------------------------------------------------------------------


def dumps(message: dict[str, Any]) -> str:
    """JSON that every UTF-8 socket can carry. Canonical text holds no lone surrogate; a name that a client chose may
    hold one, and is then written with escapes."""
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(message, separators=(",", ":"))
    return text


def word_json(word: Word) -> dict[str, Any]:
    return {
        "text": word.text,
        "start_char": word.start_char,
        "end_char": word.end_char,
        "start_sample": word.start_sample,
        "end_sample": word.end_sample,
    }


def voice_json(voice: Voice, default: str | None) -> dict[str, Any]:
    """A voice as ``GET /v1/voices`` lists it."""
    return {
        "id": voice.name,
        "voice_id": voice.name,  # what ElevenLabs' clients look for, and its category
        "category": "premade",
        "name": voice.name,
        "engine": voice.engine,
        "languages": list(voice.languages),
        "description": voice.description,
        "sample_rate": voice.info.sample_rate_hz,
        "alignment": voice.info.alignment.value,
        "speed_range": list(voice.info.speed_range),
        "default": voice.name == default,
    }


def receipt_json(receipt: Receipt) -> dict[str, Any]:
    """``samples_played`` is there only if the client told."""
    data: dict[str, Any] = {
        "reason": receipt.reason,
        "samples_generated": receipt.samples_generated,
        "samples_sent": receipt.samples_sent,
        "text_spoken": receipt.text_spoken,
        "text_remaining": receipt.text_remaining,
        "words": [word_json(word) for word in receipt.words],
        "alignment": receipt.alignment.value,
    }
    if receipt.samples_played is not None:
        data["samples_played"] = receipt.samples_played
    return data


def error_json(error: ErrorInfo) -> dict[str, Any]:
    data: dict[str, Any] = {"code": error.code.value, "message": error.message, "retryable": error.retryable}
    if error.retry_after_s is not None:
        data["retry_after_s"] = error.retry_after_s
    return data


def notice_json(notice: Notice) -> dict[str, Any]:
    """The message for a notice. ``utterance`` numbers the utterances of the session."""
    if isinstance(notice, Started):
        params = notice.params
        return {
            "type": "started",
            "utterance": notice.key.generation,
            "voice": params.voice,
            "speed": params.speed,
            "seed": params.seed,
            "synthetic": True,
        }
    if isinstance(notice, Words):
        return {
            "type": "words",
            "utterance": notice.key.generation,
            "words": [word_json(word) for word in notice.words],
        }
    if isinstance(notice, Acknowledged):
        names = {"pause": "paused", "resume": "resumed", "stop": "stopped"}
        return {
            "type": names[notice.command.value],
            "applied": notice.applied,
            "utterance": notice.key.generation if notice.key is not None else None,
            "position_samples": notice.position_samples,
        }
    return _ended_json(notice)


def _ended_json(notice: Ended) -> dict[str, Any]:
    message: dict[str, Any] = {"type": notice.outcome.value, "utterance": notice.key.generation, "synthetic": True}
    if notice.error is not None:
        message |= error_json(notice.error)
    if message["type"] == "stopped":
        message["applied"] = True
    return message | receipt_json(notice.receipt)
