"""ElevenLabs' messages: how requests are read, which formats there are and how errors look.

Source of the shapes: the vendor's public API reference, as its Python SDK, LiveKit's and pipecat's clients send and
read them. The one place that knows the vendor's field names for input; it knows no session and no socket. Fields that
mean nothing here (``model_id``, stability, chunk schedules, dictionaries, SSML) are accepted and ignored.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse, Response

from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.errors import HTTP_STATUS, ErrorInfo, InvalidRequest
from tts_worker.session.hub import SessionOptions
from tts_worker.transports import wire
from tts_worker.transports.rendering import Rendering

Message = dict[str, Any]

_FORMAT = re.compile(r"(pcm|mp3|ulaw|alaw|opus|wav)_(\d{4,5})(_\d+)?")
_FAMILIES = MappingProxyType({"ulaw": "mulaw"})  # where our name differs

ONLY = ""
"""The name of a context whose client gave none."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class VoiceSettings(_Model):
    speed: float | None = None


class Query(BaseModel):
    """Of both sockets and of the HTTP routes."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    output_format: str = Field("mp3_44100_128", max_length=32)
    language_code: str | None = Field(None, max_length=35)
    seed: int = 0
    inactivity_timeout: float | None = Field(None, gt=0, le=3_600)
    sync_alignment: bool = False

    def rendering(self) -> Rendering:
        """Raises InvalidRequest for a format that there is not."""
        parts = _FORMAT.fullmatch(self.output_format)
        if parts is None:
            raise InvalidRequest("output_format: ask for pcm_24000, mp3_44100_128, ulaw_8000 or the like")
        family, rate_hz = _FAMILIES.get(parts[1], parts[1]), int(parts[2])
        return Rendering(open_encoder(AudioFormat(family), rate_hz), rate_hz)

    def options(self, voice: str, settings: VoiceSettings | None) -> SessionOptions:
        speed = settings.speed if settings is not None else None
        return SessionOptions(
            voice=voice,
            speed=1.0 if speed is None else speed,
            seed=self.seed,
            language=self.language_code,
            text_idle_timeout_s=self.inactivity_timeout,
            realtime=False,
            raw_chunks=True,
        )


class Input(_Model):
    """A message of either socket. ``contextId`` is what the vendor's own schema calls ``context_id``."""

    text: str | None = None
    context_id: str | None = Field(None, max_length=128)
    camel_id: str | None = Field(None, max_length=128, alias="contextId")
    voice_settings: VoiceSettings | None = None
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None

    @property
    def name(self) -> str:
        return self.context_id or self.camel_id or ONLY


class Body(_Model):
    """Of the HTTP routes."""

    text: str
    voice_settings: VoiceSettings | None = None
    language_code: str | None = Field(None, max_length=35)
    seed: int | None = None


INPUT, BODY, QUERY = TypeAdapter(Input), TypeAdapter(Body), TypeAdapter(Query)


def checked(adapter: TypeAdapter[Any], data: object) -> Any:
    try:
        return adapter.validate_python(data)
    except ValidationError as error:
        raise InvalidRequest(wire.explain(error)) from None


def query_of(params: QueryParams) -> Query:
    query = checked(QUERY, dict(params))
    assert isinstance(query, Query)
    query.rendering()  # a format that there is not is refused before anything begins
    return query


def error_fields(error: ErrorInfo) -> Message:
    """LiveKit shows ``error`` to its user, the vendor's SDK ``message``."""
    return {"error": error.message, "message": error.message, "code": error.code.value}


def refusal(error: ErrorInfo) -> Response:
    """An error as the vendor's HTTP API answers it."""
    headers = {} if error.retry_after_s is None else {"Retry-After": str(max(1, round(error.retry_after_s)))}
    detail = {"status": error.code.value, "message": error.message}
    return JSONResponse({"detail": detail}, HTTP_STATUS[error.code], headers)
