"""ElevenLabs' messages: how requests are read, which formats there are and how errors look.

Source of the shapes: the vendor's public API reference, as its Python SDK, LiveKit's and pipecat's clients send and
read them. The one place that knows the vendor's field names for input; it knows no session and no socket. Fields that
mean nothing here (``model_id``, stability, chunk schedules, dictionaries, SSML) are accepted and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse, Response

from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.errors import HTTP_STATUS, ErrorInfo, InvalidRequest
from tts_worker.session.hub import SessionOptions
from tts_worker.transports import wire
from tts_worker.transports.character_times import CharacterTimes
from tts_worker.transports.rendering import Rendering
from tts_worker.voices import Voice

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
    auto_mode: bool = False

    def rendering(self) -> Rendering:
        """Raises InvalidRequest for a format that there is not."""
        parts = _FORMAT.fullmatch(self.output_format)
        if parts is None:
            raise InvalidRequest("output_format: ask for pcm_24000, mp3_44100_128, ulaw_8000 or the like")
        family = _FAMILIES.get(parts[1], parts[1])
        rate_hz = int(parts[2])
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


class VoiceQuery(BaseModel):
    """Of ``GET /v2/voices``. Filters by what a worker does not know of a voice are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    search: str | None = Field(None, max_length=256)
    page_size: int = Field(10, ge=1, le=100)
    next_page_token: str | None = Field(None, max_length=128)
    sort: str | None = None
    sort_direction: Literal["asc", "desc"] = "asc"
    voice_ids: tuple[str, ...] | None = Field(None, max_length=100)


INPUT = TypeAdapter(Input)
BODY = TypeAdapter(Body)
QUERY = TypeAdapter(Query)
VOICE_QUERY = TypeAdapter(VoiceQuery)


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


def voice_query_of(params: QueryParams) -> VoiceQuery:
    query = checked(VOICE_QUERY, {**params, "voice_ids": params.getlist("voice_ids") or None})
    assert isinstance(query, VoiceQuery)
    return query


def voice_json(voice: Voice) -> Message:
    """A voice as the vendor lists it. What a worker does not have (samples, tiers, sharing) is left out."""
    labels = {"language": voice.languages[0], "gender": voice.gender}
    return {
        "voice_id": voice.name,
        "name": voice.name,
        "category": "premade",
        "description": voice.description,
        "labels": {name: label for name, label in labels.items() if label},
        "preview_url": None,
        "verified_languages": [{"language": tag, "model_id": voice.engine} for tag in voice.languages],
        "is_owner": False,
    }


def models_json(voices: Iterable[Voice], *, max_input_chars: int) -> list[Message]:
    """The engines as the vendor lists its models, with the languages of all their voices."""
    languages: dict[str, dict[str, None]] = {}
    for voice in voices:
        languages.setdefault(voice.engine, {}).update(dict.fromkeys(voice.languages))
    return [
        {
            "model_id": engine,
            "name": engine,
            "description": "",
            "can_be_finetuned": False,
            "can_do_text_to_speech": True,
            "can_do_voice_conversion": False,
            "can_use_style": False,
            "can_use_speaker_boost": False,
            "serves_pro_voices": False,
            "requires_alpha_access": False,
            "maximum_text_length_per_request": max_input_chars,
            "languages": [{"language_id": tag, "name": tag} for tag in languages[engine]],
        }
        for engine in sorted(languages)
    ]


def alignment_in_seconds(times: CharacterTimes | None) -> Message | None:
    """The times of characters as the HTTP routes give them; they count from the beginning of the audio."""
    if times is None:
        return None
    starts_ms = times["charStartTimesMs"]
    durations_ms = times["charDurationsMs"]
    return {
        "characters": times["chars"],
        "character_start_times_seconds": [start / 1000 for start in starts_ms],
        "character_end_times_seconds": [
            (start + duration) / 1000 for start, duration in zip(starts_ms, durations_ms, strict=True)
        ],
    }


def error_fields(error: ErrorInfo) -> Message:
    """LiveKit shows ``error`` to its user, the vendor's SDK ``message``."""
    return {"error": error.message, "message": error.message, "code": error.code.value}


def error_response(error: ErrorInfo, status: int | None = None) -> Response:
    """An error as the vendor's HTTP API answers it. ``status``: None takes the status of the error's code."""
    headers = {} if error.retry_after_s is None else {"Retry-After": str(max(1, round(error.retry_after_s)))}
    detail = {"status": error.code.value, "message": error.message}
    return JSONResponse({"detail": detail}, HTTP_STATUS[error.code] if status is None else status, headers)
