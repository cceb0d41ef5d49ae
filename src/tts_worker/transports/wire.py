"""JSON messages of the worker's protocol (``docs/protocol.md``): models of client messages, encoders of events.

Unknown fields of client messages are ignored, as newer clients may send them. A wrong type or value is an
InvalidRequest that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from tts_worker.errors import ErrorInfo, InvalidRequest
from tts_worker.types import Acknowledged, Ended, Notice, Receipt, SessionOptions, Started, UrlMode, Word, Words
from tts_worker.voices import Voice

PROTOCOL_VERSION = 1


class _Message(BaseModel):
    # Strict: "1.5" is not a number and 1 is not a string.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


def _split_names(value: object) -> object:
    """Convert a JSON array, or comma-separated names in a URL, to a tuple."""
    if isinstance(value, str):
        return tuple(value.split(","))
    return tuple(value) if isinstance(value, list) else value


class StartMessage(_Message):
    """Configures the session: as the first message, or later for subsequent utterances."""

    type: Literal["start"]
    voice: str | None = Field(None, max_length=128)
    model: str | None = Field(None, max_length=128)
    needs: Annotated[tuple[str, ...], BeforeValidator(_split_names), Field(max_length=16)] = ()
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
        """Convert to session options."""
        # model_dump would copy the lexicon.
        values = {name: value for name, value in self if name not in ("type", "urls")}
        return SessionOptions(**values, urls=None if self.urls is None else UrlMode(self.urls))


class TextMessage(_Message):
    """Text of the utterance being written.

    Attributes:
        text: Text to append.
        end: Complete the utterance.
        context: The client's name for the utterance. Text for a stopped context is dropped, so text sent before the
            client knew of a STOP does not start a new utterance.
    """

    type: Literal["text"]
    text: str
    end: bool = False
    context: str | None = Field(None, max_length=128)


class EndMessage(_Message):
    """Completes the utterance."""

    type: Literal["end"]
    context: str | None = Field(None, max_length=128)


class FlushMessage(_Message):
    """Speaks the text so far without waiting for the end of the sentence."""

    type: Literal["flush"]


class PauseMessage(_Message):
    """Pauses the audio."""

    type: Literal["pause"]


class ResumeMessage(_Message):
    """Resumes at the next sample."""

    type: Literal["resume"]


class StopMessage(_Message):
    """Ends all utterances. ``played_samples``: samples of the current utterance that were played, if known."""

    type: Literal["stop", "clear"]
    played_samples: int | None = Field(None, ge=0)
    reason: str | None = Field(None, max_length=64)


class PlayedMessage(_Message):
    """Reports how many samples of the current utterance were played."""

    type: Literal["played"]
    samples: int = Field(ge=0)


class PingMessage(_Message):
    """Answered by ``pong`` with the same ``id``."""

    type: Literal["ping"]
    id: Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[str, Field(max_length=128)] | None = None


class CloseMessage(_Message):
    """Ends the session."""

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
    """Parse a client's JSON message.

    Raises:
        InvalidRequest: Names the invalid field, never its value.
    """
    try:
        # Unlike pydantic's parser, json.loads accepts lone surrogates, sent by clients that split text by UTF-16 units.
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidRequest("the message is not valid JSON") from None
    try:
        return _CLIENT_MESSAGE.validate_python(data)
    except ValidationError as error:
        raise InvalidRequest(explain(error, skip=1)) from None


def parse_lexicon(raw: str) -> dict[str, Any] | None:
    """Return the lexicon in a client's JSON message, or None if it has none or is invalid."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    lexicon = data.get("lexicon") if isinstance(data, dict) else None
    return lexicon if isinstance(lexicon, dict) else None


def parse_object(raw: str | bytes, noun: str) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        raw: JSON text.
        noun: Its name in the error message.

    Raises:
        InvalidRequest: Not valid JSON, or not an object.
    """
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"the {noun} is not valid JSON") from None
    if not isinstance(data, dict):
        raise InvalidRequest(f"the {noun} must be a JSON object")
    return data


def parse_start(fields: Mapping[str, Any]) -> StartMessage:
    """Validate the fields of a ``start`` that were not sent as a message.

    Raises:
        InvalidRequest: Names the invalid field.
    """
    try:
        return StartMessage.model_validate({**fields, "type": "start"})
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None


def explain(error: ValidationError, *, skip: int = 0) -> str:
    """Describe the first problem and its location, without the value.

    Args:
        error: The validation error.
        skip: Leading parts of the location to leave out.
    """
    problem = error.errors(include_input=False, include_url=False)[0]
    location = ".".join(str(part) for part in problem["loc"][skip:])
    if problem["type"] == "union_tag_invalid":
        return f"unknown message type; known types: {problem['ctx']['expected_tags']}"
    if problem["type"] == "union_tag_not_found":
        return 'the message has no "type"'
    return f"{location}: {problem['msg']}" if location else str(problem["msg"])


# -- server -> client -------------------------------------------------------------------------------------------------


def dumps(message: dict[str, Any]) -> str:
    """Encode as JSON that is valid UTF-8.

    Canonical text contains no lone surrogates; a name chosen by a client may, and is then escaped.
    """
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(message, separators=(",", ":"))
    return text


def word_json(word: Word) -> dict[str, Any]:
    """Encode a word timestamp."""
    return {
        "text": word.text,
        "start_char": word.start_char,
        "end_char": word.end_char,
        "start_sample": word.start_sample,
        "end_sample": word.end_sample,
    }


def voice_json(voice: Voice, default: str | None) -> dict[str, Any]:
    """Encode a voice for ``GET /v1/voices``."""
    return {
        "id": voice.name,
        "voice_id": voice.name,  # read by ElevenLabs clients, as is "category"
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
    """Encode a playback report. ``samples_played`` is present only if the client reported it."""
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
    """Encode an error. ``retry_after_s`` is present only if it is known."""
    data: dict[str, Any] = {"code": error.code.value, "message": error.message, "retryable": error.retryable}
    if error.retry_after_s is not None:
        data["retry_after_s"] = error.retry_after_s
    return data


def notice_json(notice: Notice) -> dict[str, Any]:
    """Encode a session event. ``utterance`` numbers the utterances of the session."""
    match notice:
        case Started():
            return {
                "type": "started",
                "utterance": notice.key.generation,
                "voice": notice.params.voice,
                "speed": notice.params.speed,
                "seed": notice.params.seed,
                "synthetic": True,
            }
        case Words():
            return {
                "type": "words",
                "utterance": notice.key.generation,
                "words": [word_json(word) for word in notice.words],
            }
        case Acknowledged():
            names = {"pause": "paused", "resume": "resumed", "stop": "stopped"}
            return {
                "type": names[notice.command.value],
                "applied": notice.applied,
                "utterance": notice.key.generation if notice.key is not None else None,
                "position_samples": notice.position_samples,
            }
        case Ended():
            return _ended_json(notice)


def _ended_json(notice: Ended) -> dict[str, Any]:
    message: dict[str, Any] = {"type": notice.outcome.value, "utterance": notice.key.generation, "synthetic": True}
    if notice.error is not None:
        message |= error_json(notice.error)
    if message["type"] == "stopped":
        message["applied"] = True
    return message | receipt_json(notice.receipt)
