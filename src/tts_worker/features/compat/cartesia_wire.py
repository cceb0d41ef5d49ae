"""Cartesia's request models, raw audio encodings, voices and errors.

Message formats follow Cartesia's public API reference as its Python SDK, LiveKit and pipecat use it. Fields that have
no meaning here (``model_id``) are accepted and ignored.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from tts_worker.audio.encoders import AudioFormat, Encoder, open_encoder
from tts_worker.audio.resampler import check_rate
from tts_worker.errors import HTTP_STATUS, ErrorInfo, InvalidRequest
from tts_worker.features.compat.samples import SampleEncoder
from tts_worker.logs import current_request_id
from tts_worker.server.responses import retry_after
from tts_worker.server.validation import Fields
from tts_worker.text.language import primary_tag
from tts_worker.types import NEUTRAL, Expression, SessionOptions
from tts_worker.voices.description import VoiceDescription

Message = dict[str, Any]

_NAMED_SPEEDS = MappingProxyType({"slow": 0.8, "normal": 1.0, "fast": 1.25})


class _Model(Fields):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Voice(_Model):
    mode: Literal["id"] = "id"
    id: str = Field(max_length=128)


class Format(_Model):
    """Container, encoding and sample rate of the audio."""

    container: Literal["raw", "wav", "mp3"]
    encoding: Literal["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"] = "pcm_s16le"
    sample_rate: int = Field(ge=8_000, le=48_000)

    def open_encoder(self) -> Encoder:
        """Open an encoder.

        Raises:
            InvalidRequest: The sample rate is not supported.
        """
        if self.container == "mp3":
            return open_encoder(AudioFormat.MP3, self.sample_rate)
        check_rate(self.sample_rate, "output_format.sample_rate")
        return SampleEncoder(self.encoding, self.sample_rate, is_file=self.container == "wav")


class _GenerationConfig(_Model):
    speed: float | None = None
    volume: float | None = Field(None, ge=0.1, le=4.0)
    emotion: str | None = Field(None, max_length=64)

    @property
    def expression(self) -> Expression:
        """Volume, a factor, and emotion as the worker has them."""
        volume_db = 20 * math.log10(self.volume or 1.0)
        return Expression(volume_db=min(volume_db, 12.0), style=self.emotion or "")


def _voice_object(value: Any) -> Any:
    """Convert a plain ID, as newer API versions send it, to a voice object."""
    return {"id": value} if isinstance(value, str) else value


def _reject_phonemes(value: bool | None) -> bool | None:
    if value:
        raise InvalidRequest("add_phoneme_timestamps is not supported: use add_timestamps for word timestamps")
    return value


class _TimestampOptions(_Model):
    add_timestamps: bool | None = None
    add_phoneme_timestamps: Annotated[bool | None, AfterValidator(_reject_phonemes)] = None


class GenerationRequest(_TimestampOptions):
    """The first message of a context, and the body of the HTTP routes."""

    transcript: str
    context_id: str | None = Field(None, max_length=128)
    voice: Annotated[_Voice, BeforeValidator(_voice_object)]
    output_format: Format
    language: str | None = Field(None, max_length=35)
    locale: str | None = Field(None, max_length=35)
    speed: Literal["slow", "normal", "fast"] | None = None
    generation_config: _GenerationConfig | None = None
    max_buffer_delay_ms: int | None = None
    pronunciation_dict_id: str | None = Field(None, max_length=128)

    @property
    def expression(self) -> Expression:
        """How the whole text is spoken."""
        return NEUTRAL if self.generation_config is None else self.generation_config.expression

    def options(self) -> SessionOptions:
        """Convert to session options."""
        speed = self.generation_config.speed if self.generation_config is not None else None
        return SessionOptions(
            voice=self.voice.id,
            speed=speed if speed is not None else _NAMED_SPEEDS[self.speed or "normal"],
            language=self.language or self.locale,
            realtime=False,
            raw_chunks=True,
            sample_rate=self.output_format.sample_rate,
            flush_after_ms=self.max_buffer_delay_ms,
            lexicon=self.pronunciation_dict_id,
        )


class Continuation(_TimestampOptions):
    """A message with text. ``continue`` False ends the context."""

    context_id: str = Field(min_length=1, max_length=128)
    transcript: str
    more: bool | None = Field(None, alias="continue")
    flush: bool | None = None
    max_buffer_delay_ms: int | None = None


class Cancel(_Model):
    """Cancels a context."""

    context_id: str = Field(min_length=1, max_length=128)
    cancel: Literal[True]


class VoiceQuery(Fields):
    """Query parameters of ``GET /voices``."""

    q: str | None = Field(None, max_length=256)
    limit: int = Field(100, ge=1, le=100)
    starting_after: str | None = Field(None, max_length=128)
    ending_before: str | None = Field(None, max_length=128)
    gender: Literal["masculine", "feminine", "gender_neutral"] | None = None
    is_owner: bool | None = None


_GENDERS = MappingProxyType({"female": "feminine", "male": "masculine", "neutral": "gender_neutral"})
_CREATED_AT = "1970-01-01T00:00:00Z"
"""Required by the vendor's clients; the worker's voices have no creation time."""


def gender_of(voice: VoiceDescription) -> str | None:
    """Return the gender in the vendor's terms, or None if the voicepack does not state it."""
    return _GENDERS.get(voice.gender or "")


def voice_json(voice: VoiceDescription) -> Message:
    """Encode a voice."""
    return {
        "id": voice.name,
        "name": voice.title,
        "tagline": "",
        "description": voice.description,
        "language": primary_tag(voice.languages[0]),
        "locales": [{"locale": tag, "is_native": index == 0} for index, tag in enumerate(voice.languages)],
        "gender": gender_of(voice),
        "access": "public",
        "visibility": "all",
        "is_owner": False,
        "created_at": _CREATED_AT,
    }


def error_message(error: ErrorInfo, context: str | None) -> Message:
    """Encode an error for the socket.

    ``done`` stays False: LiveKit's client checks it before ``type`` and would treat the failed speech as complete.
    """
    return {"type": "error", "done": False, "context_id": context, **error_fields(error)}


def error_fields(error: ErrorInfo) -> Message:
    """Encode an error: ``error`` for older clients, ``title`` and ``message`` for newer ones."""
    title = error.code.value.replace("_", " ").capitalize()
    return {
        "status_code": HTTP_STATUS[error.code],
        "error_code": error.code.value,
        "title": title,
        "message": error.message,
        "error": f"{title}: {error.message}",
        "request_id": current_request_id(),
    }


def error_response(error: ErrorInfo, status: int | None = None) -> Response:
    """Build an error response of the vendor's HTTP API. ``status``: None uses the status of the error's code."""
    status = HTTP_STATUS[error.code] if status is None else status
    return JSONResponse({**error_fields(error), "status_code": status}, status, retry_after(error))
