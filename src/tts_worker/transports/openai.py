"""OpenAI's speech API: ``POST /v1/audio/speech`` and ``GET /v1/models``, so that its SDKs work with another base URL.

Source of the shapes: OpenAI's public API reference, as its Python SDK sends and reads them. Fields we do not know are
ignored. Beyond the standard: ``seed``, ``language``, ``lexicon``, ``sample_rate``. ``aac`` is not offered.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Collection
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse, Response

from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.errors import (
    ErrorCode,
    ErrorInfo,
    InvalidRequest,
    TextTooLong,
    TTSWorkerError,
    UnknownModel,
    UnknownVoice,
)
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.transports import wire
from tts_worker.transports.rendering import Rendering, download
from tts_worker.transports.responses import LiveStream, error_response
from tts_worker.types import SAMPLE_RATE_HZ

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Model names that OpenAI's clients send by default. The voice decides what speaks; these names choose nothing."""

OPENAI_VOICES = frozenset(
    (
        *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
        *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
    )
)
"""Voice names that OpenAI's clients send; some accept no others. The default voice speaks them, unless a voice or an
alias has the name."""

_BAD_REQUEST = frozenset({ErrorCode.TEXT_TOO_LONG, ErrorCode.UNSPEAKABLE_TEXT})
"""OpenAI answers 400 to input that is empty or too long, and its SDKs raise BadRequestError for 400 alone."""


class VoiceId(BaseModel):
    id: str


class SpeechRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field("tts-1", max_length=128)
    input: str
    voice: str | VoiceId | None = None
    response_format: Literal["mp3", "opus", "flac", "wav", "pcm", "mulaw", "alaw"] = "mp3"
    speed: float = 1.0
    instructions: str | None = Field(None, max_length=4_096)
    stream_format: Literal["audio", "sse"] = "audio"
    seed: int = 0
    language: str | None = Field(None, max_length=35)
    lexicon: dict[str, Any] | None = None
    sample_rate: int | None = Field(None, ge=8_000, le=48_000)

    @property
    def voice_name(self) -> str | None:
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice


def router(
    hub: SessionHub, *, max_input_chars: int, send_timeout_s: float, voice_names: Collection[str] = OPENAI_VOICES
) -> APIRouter:
    """The routes over ``hub``. ``voice_names``: spoken by the default voice where no voice or alias has the name."""
    routes = APIRouter()

    @routes.post("/v1/audio/speech", summary="Text to speech, streamed", openapi_extra=_body_schema())
    async def speech(request: Request) -> Response:
        body = await request.body()
        try:
            wanted = _with_known_voice(_parse(body), hub, voice_names)
            if len(wanted.input) > max_input_chars:
                raise TextTooLong(f"input may have at most {max_input_chars} characters")
            _check_model(wanted, hub)
            rate_hz = _rate_hz(wanted)
            rendering = Rendering(open_encoder(AudioFormat(wanted.response_format), rate_hz), rate_hz)
        except TTSWorkerError as error:
            return _refusal(error.info)
        sound = download(hub, _options(wanted), wanted.input, rendering)
        sse = wanted.stream_format == "sse"
        return LiveStream(
            _as_events(sound, wanted) if sse else sound,
            "text/event-stream" if sse else rendering.content_type,
            {"x-sample-rate": str(rate_hz), "x-synthetic": "true"},
            send_timeout_s=send_timeout_s,
            make_error_response=_refusal,
        )

    @routes.get("/v1/models/{name}", summary="One of the models")
    async def model(name: str) -> Response:
        if name not in _model_names(hub):
            raise _unknown_model(name)
        return JSONResponse(_model(name))

    return routes


def models_response(hub: SessionHub) -> Response:
    """``GET /v1/models``."""
    return JSONResponse({"object": "list", "data": [_model(name) for name in _model_names(hub)]})


def _model_names(hub: SessionHub) -> tuple[str, ...]:
    return (*sorted({voice.engine for voice in hub.voices}), *OPENAI_MODELS)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "tts-worker"}


def _unknown_model(name: str) -> UnknownModel:
    return UnknownModel(f'there is no model "{name[:64]}"; GET /v1/models lists them')


def _refusal(error: ErrorInfo) -> Response:
    return error_response(error, 400 if error.code in _BAD_REQUEST else None)


def _body_schema() -> dict[str, Any]:
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": SpeechRequest.model_json_schema()}},
        }
    }


def _parse(body: bytes) -> SpeechRequest:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRequest("the body is not valid JSON") from None
    try:
        return SpeechRequest.model_validate(data)
    except ValidationError as error:
        raise InvalidRequest(wire.explain(error)) from None


def _with_known_voice(wanted: SpeechRequest, hub: SessionHub, voice_names: Collection[str]) -> SpeechRequest:
    """The request with the default voice in place of one of ``voice_names`` that no voice or alias has."""
    if wanted.voice_name not in voice_names:
        return wanted
    try:
        hub.voices.get(wanted.voice_name)
    except UnknownVoice:
        return wanted.model_copy(update={"voice": None})
    return wanted


def _check_model(wanted: SpeechRequest, hub: SessionHub) -> None:
    """A model that names an engine must be the voice's engine; the voice is checked when the session opens."""
    if wanted.model in OPENAI_MODELS:
        return
    if wanted.model not in {voice.engine for voice in hub.voices}:
        raise _unknown_model(wanted.model)
    voice = hub.voices.get(wanted.voice_name)
    if voice.engine != wanted.model:
        raise InvalidRequest(f"voice {voice.name} belongs to model {voice.engine}, not {wanted.model}")


def _rate_hz(wanted: SpeechRequest) -> int:
    if wanted.sample_rate is not None:
        return wanted.sample_rate
    return 8_000 if wanted.response_format in ("mulaw", "alaw") else SAMPLE_RATE_HZ


def _options(wanted: SpeechRequest) -> SessionOptions:
    return SessionOptions(
        voice=wanted.voice_name,
        speed=wanted.speed,
        seed=wanted.seed,
        language=wanted.language,
        instruct=wanted.instructions,
        lexicon=wanted.lexicon,
        realtime=False,
        raw_chunks=True,
    )


async def _as_events(sound: AsyncGenerator[bytes, None], wanted: SpeechRequest) -> AsyncGenerator[bytes, None]:
    """``stream_format: "sse"``. Usage is counted in what there is to count: characters in, encoded bytes out."""
    sent = 0
    try:
        async for data in sound:
            sent += len(data)
            yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
        usage = {"input_tokens": len(wanted.input), "output_tokens": sent, "total_tokens": len(wanted.input) + sent}
        yield _event({"type": "speech.audio.done", "usage": usage})
    except TTSWorkerError as error:
        if sent == 0:
            raise  # nothing was sent: an ordinary error response
        yield _event({"type": "error", "error": wire.error_json(error.info)})
    finally:
        await sound.aclose()


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
