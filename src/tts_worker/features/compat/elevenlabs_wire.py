"""ElevenLabs' request models, output formats, voices, models and errors.

Message formats follow the vendor's public API reference as its Python SDK, LiveKit and pipecat use it. Fields that have
no meaning here (``model_id``, stability, chunk schedules, SSML) are accepted and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Literal

from pydantic import ConfigDict, Field
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse, Response

from tts_worker.audio.encoders import AudioFormat, Encoder, open_encoder
from tts_worker.errors import HTTP_STATUS, ErrorInfo, InvalidRequest
from tts_worker.features.compat.character_times import CharacterTimes
from tts_worker.features.compat.dictionaries import Locator, references_of
from tts_worker.protocol.json_codec import parse_object
from tts_worker.server.responses import retry_after
from tts_worker.server.validation import Fields, validate
from tts_worker.session.conversion import SPEECH_TOKENS
from tts_worker.types import SessionOptions
from tts_worker.voices.description import VoiceDescription

Message = dict[str, Any]

_FORMAT = re.compile(r"(pcm|mp3|ulaw|alaw|opus|wav)_(\d{4,5})(_\d+)?")
_AUDIO_FORMATS = MappingProxyType({"ulaw": "mulaw"})  # the vendor's name: ours

UNNAMED = ""
"""The context of messages that name none."""


class _Model(Fields):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class VoiceSettings(_Model):
    speed: float | None = None


class Query(Fields):
    """Query parameters of the sockets and the HTTP routes."""

    output_format: str = Field("mp3_44100_128", max_length=32)
    language_code: str | None = Field(None, max_length=35)
    seed: int = 0
    inactivity_timeout: float | None = Field(None, gt=0, le=3_600)
    sync_alignment: bool = False
    auto_mode: bool = False

    def open_encoder(self) -> Encoder:
        """Open an encoder of the format. Raises InvalidRequest if it is not supported."""
        return open_encoder(*self._format)

    @property
    def sample_rate_hz(self) -> int:
        """Sample rate of the format. Raises InvalidRequest if it is not supported."""
        return self._format[1]

    @property
    def _format(self) -> tuple[AudioFormat, int]:
        parts = _FORMAT.fullmatch(self.output_format)
        if parts is None:
            raise InvalidRequest(
                "output_format: use pcm, wav, mp3, opus, ulaw or alaw with a sample rate, as in pcm_24000 or ulaw_8000"
            )
        return AudioFormat(_AUDIO_FORMATS.get(parts[1], parts[1])), int(parts[2])

    def options(
        self, voice: str, settings: VoiceSettings | None, locators: Iterable[Locator] | None = None
    ) -> SessionOptions:
        """Convert to session options."""
        speed = settings.speed if settings is not None else None
        return SessionOptions(
            voice=voice,
            speed=1.0 if speed is None else speed,
            seed=self.seed,
            language=self.language_code,
            text_idle_timeout_s=self.inactivity_timeout,
            realtime=False,
            raw_chunks=True,
            sample_rate=self.sample_rate_hz,
            lexicon=references_of(locators),
        )


RAW_PCM = "pcm_s16le_16"
RAW_PCM_RATE_HZ = 16_000
"""``file_format`` of source audio without a header, and its sample rate."""


class ConversionForm(Fields):
    """Fields of a conversion, besides the file ``audio``. The others of the vendor have no effect."""

    voice_settings: str | None = Field(None, max_length=4_096)
    """A JSON object."""
    seed: int | None = None
    file_format: str = Field("other", max_length=32)

    def settings(self) -> VoiceSettings | None:
        """Parse ``voice_settings``. Raises InvalidRequest."""
        if not self.voice_settings:
            return None
        return validate(VoiceSettings, parse_object(self.voice_settings, "voice_settings"))


class Input(_Model):
    """A message of either socket. The vendor's schema also calls ``context_id`` ``contextId``."""

    text: str | None = None
    context_id: str | None = Field(None, max_length=128)
    camel_id: str | None = Field(None, max_length=128, alias="contextId")
    voice_settings: VoiceSettings | None = None
    pronunciation_dictionary_locators: list[Locator] | None = None
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None

    @property
    def name(self) -> str:
        return self.context_id or self.camel_id or UNNAMED


class Body(_Model):
    """Body of the HTTP routes."""

    text: str
    voice_settings: VoiceSettings | None = None
    pronunciation_dictionary_locators: list[Locator] | None = None
    language_code: str | None = Field(None, max_length=35)
    seed: int | None = None


class VoiceQuery(Fields):
    """Query parameters of ``GET /v2/voices``. Filters on properties that voices here do not have are ignored."""

    search: str | None = Field(None, max_length=256)
    page_size: int = Field(10, ge=1, le=100)
    next_page_token: str | None = Field(None, max_length=128)
    sort: str | None = None
    sort_direction: Literal["asc", "desc"] = "asc"
    voice_ids: tuple[str, ...] | None = Field(None, max_length=100)


def parse_query(params: QueryParams) -> Query:
    """Parse the query parameters of a socket or HTTP route.

    Raises:
        InvalidRequest: A parameter is invalid or the output format is not supported.
    """
    query = validate(Query, dict(params))
    query.open_encoder()  # reject an unsupported format before a socket is accepted
    return query


def parse_voice_query(params: QueryParams) -> VoiceQuery:
    """Parse the query parameters of ``GET /v2/voices``.

    Raises:
        InvalidRequest: A parameter is invalid.
    """
    return validate(VoiceQuery, {**params, "voice_ids": params.getlist("voice_ids") or None})


def voice_json(voice: VoiceDescription) -> Message:
    """Encode a voice, without the fields that have no meaning here (samples, tiers, sharing)."""
    labels = {"language": voice.languages[0], "gender": voice.gender}
    return {
        "voice_id": voice.name,
        "name": voice.title,
        "category": "premade" if voice.stored is None else "cloned",
        "description": voice.description,
        "labels": {name: label for name, label in labels.items() if label},
        "preview_url": None,
        "verified_languages": [{"language": tag, "model_id": voice.engine} for tag in voice.languages],
        "is_owner": False,
    }


def models_json(voices: Iterable[VoiceDescription], *, max_input_chars: int) -> list[Message]:
    """Encode the engines as models, with the languages of all their voices."""
    languages: dict[str, dict[str, None]] = {}
    converting: set[str] = set()
    for voice in voices:
        if SPEECH_TOKENS in voice.capabilities:
            converting.add(voice.engine)
        languages.setdefault(voice.engine, {}).update(dict.fromkeys(voice.languages))
    return [
        {
            "model_id": engine,
            "name": engine,
            "description": "",
            "can_be_finetuned": False,
            "can_do_text_to_speech": True,
            "can_do_voice_conversion": engine in converting,
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
    """Encode character timestamps for the HTTP routes, in seconds from the start of the audio."""
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
    """Encode an error: LiveKit reads ``error``, the vendor's SDK ``message``."""
    return {"error": error.message, "message": error.message, "code": error.code.value}


def error_response(error: ErrorInfo, status: int | None = None) -> Response:
    """Build an error response of the vendor's HTTP API. ``status``: None uses the status of the error's code."""
    detail = {"status": error.code.value, "message": error.message}
    return JSONResponse({"detail": detail}, HTTP_STATUS[error.code] if status is None else status, retry_after(error))
