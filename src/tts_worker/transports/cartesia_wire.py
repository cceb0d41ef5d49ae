"""Cartesia's messages: how requests are read, how sound is encoded and how errors look.

Source of the shapes: Cartesia's public API reference, as its Python SDK, LiveKit's and pipecat's clients send and read
them. The one place that knows the vendor's field names for input; it knows no session and no socket. Fields that mean
nothing here (``model_id``, emotion, volume, pronunciation dictionaries) are accepted and ignored.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.responses import JSONResponse, Response

from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.audio.g711 import encode_alaw, encode_mulaw
from tts_worker.audio.pcm import to_float
from tts_worker.errors import HTTP_STATUS, ErrorInfo, InvalidRequest
from tts_worker.session.hub import SessionOptions
from tts_worker.transports import wire
from tts_worker.transports.rendering import Rendering

Message = dict[str, Any]

_PACE = MappingProxyType({"slow": 0.8, "normal": 1.0, "fast": 1.25})


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Voice(_Model):
    mode: Literal["id"] = "id"
    id: str = Field(max_length=128)


class _Format(_Model):
    container: Literal["raw", "wav", "mp3"]
    encoding: Literal["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"] = "pcm_s16le"
    sample_rate: int = Field(ge=8_000, le=48_000)

    def rendering(self) -> Rendering:
        """Raises InvalidRequest for what does not go together."""
        if self.container == "raw":
            return Rendering(_Raw(self.encoding, self.sample_rate), self.sample_rate)
        if self.container == "wav" and self.encoding != "pcm_s16le":
            raise InvalidRequest("output_format: container wav goes with encoding pcm_s16le")
        return Rendering(open_encoder(AudioFormat(self.container), self.sample_rate), self.sample_rate)


class _GenerationConfig(_Model):
    speed: float | None = None


def _voice_object(value: Any) -> Any:
    """Newer versions of the API name a voice by its id alone."""
    return {"id": value} if isinstance(value, str) else value


class Request(_Model):
    """What a generation needs to know: the first message of a context, and the body of ``/tts/bytes``."""

    transcript: str
    voice: Annotated[_Voice, BeforeValidator(_voice_object)]
    output_format: _Format
    language: str | None = Field(None, max_length=35)
    speed: Literal["slow", "normal", "fast"] | None = None
    generation_config: _GenerationConfig | None = None

    def options(self) -> SessionOptions:
        asked = self.generation_config.speed if self.generation_config is not None else None
        speed = asked if asked is not None else _PACE[self.speed or "normal"]
        return SessionOptions(voice=self.voice.id, speed=speed, language=self.language, realtime=False, raw_chunks=True)


class Continuation(_Model):
    """Every message with text. ``continue`` False ends the context."""

    context_id: str = Field(min_length=1, max_length=128)
    transcript: str
    more: bool | None = Field(None, alias="continue")
    flush: bool | None = None
    add_timestamps: bool | None = None
    max_buffer_delay_ms: int | None = None


class Cancel(_Model):
    context_id: str = Field(min_length=1, max_length=128)
    cancel: Literal[True]


REQUEST, CONTINUATION, CANCEL = TypeAdapter(Request), TypeAdapter(Continuation), TypeAdapter(Cancel)


_ENCODINGS: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType(
    {
        "pcm_s16le": bytes,
        "pcm_f32le": lambda pcm: to_float(pcm).astype("<f4").tobytes(),
        "pcm_mulaw": encode_mulaw,
        "pcm_alaw": encode_alaw,
    }
)


class _Raw:
    """``container: raw``: nothing but samples, at any rate."""

    def __init__(self, encoding: str, rate_hz: int) -> None:
        self.content_type = f"audio/pcm;rate={rate_hz};encoding={encoding};channels=1"
        self._encode = _ENCODINGS[encoding]

    def encode(self, pcm: bytes) -> bytes:
        return self._encode(pcm)

    def finish(self) -> bytes:
        return b""


def checked(adapter: TypeAdapter[Any], data: Message) -> Any:
    try:
        return adapter.validate_python(data)
    except ValidationError as error:
        raise InvalidRequest(wire.explain(error)) from None


def error_message(error: ErrorInfo, context: str | None) -> Message:
    """An error on the socket. ``error`` is what older clients read, ``title`` and ``message`` newer ones.

    ``done`` stays False: LiveKit's client looks at it before it looks at ``type``, and would take a speech that broke
    off for one that ended well.
    """
    return {"type": "error", "done": False, "context_id": context, **error_fields(error)}


def error_fields(error: ErrorInfo) -> Message:
    title = error.code.value.replace("_", " ").capitalize()
    return {
        "status_code": HTTP_STATUS[error.code],
        "error_code": error.code.value,
        "title": title,
        "message": error.message,
        "error": f"{title}: {error.message}",
        "request_id": secrets.token_hex(8),
    }


def refusal(error: ErrorInfo) -> Response:
    headers = {} if error.retry_after_s is None else {"Retry-After": str(max(1, round(error.retry_after_s)))}
    return JSONResponse(error_fields(error), HTTP_STATUS[error.code], headers)
