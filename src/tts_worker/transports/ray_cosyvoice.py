"""The API of the project cosyvoice-ray-serve-api for its clients; it works on any worker, with or without Ray.

Serves its old paths (``/v1/model/cosyvoice/...``) and new ones (``/tts``, ...). Bodies are JSON or forms; the response
is MP3, WAV or PCM according to ``response_format``, whole or streamed. Unlike the original, an unknown voice is an
error, and a recording is never a file path.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from tts_worker.audio.encoders import AudioFormat, open_encoder, wav_file
from tts_worker.errors import TextTooLong
from tts_worker.session.hub import SessionHub
from tts_worker.transports.cosyvoice_http import speech_options
from tts_worker.transports.rendering import Rendering, download
from tts_worker.transports.responses import LiveStream
from tts_worker.transports.uploads import Body, read_body
from tts_worker.transports.validation import validate
from tts_worker.types import SAMPLE_RATE_HZ

_BASE = "/v1/model/cosyvoice"
TTS = (f"{_BASE}/tts", "/tts")
ZERO_SHOT = (f"{_BASE}/zero_shot", "/zero_shot_tts")
CROSS_LINGUAL = (f"{_BASE}/cross_lingual", "/cross_lingual_tts")
INSTRUCT = (f"{_BASE}/instruct", "/instruct_tts")
HEALTH = f"{_BASE}/healthcheck"
PATHS = frozenset((*TTS, *ZERO_SHOT, *CROSS_LINGUAL, *INSTRUCT))
"""Paths whose requests may contain a recording."""

_RECORDING = "reference_audio"
_TYPES = {"mp3": "audio/mpeg", "wav": "audio/wav", "pcm": f"audio/pcm;rate={SAMPLE_RATE_HZ};channels=1"}


class _TtsRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str = Field(min_length=1)
    voice_type: str | None = Field(None, max_length=128)
    speed: float = Field(1.0, ge=0.5, le=2.0)
    stream: bool = False
    response_format: Literal["mp3", "wav", "pcm"] = "mp3"


class _ZeroShotRequest(_TtsRequest):
    reference_text: str = Field(min_length=1)


class _CrossLingualRequest(_TtsRequest):
    pass


class _InstructRequest(_TtsRequest):
    instruction: str = Field(min_length=1, max_length=2_000)


def router(hub: SessionHub, *, max_input_chars: int, send_timeout_s: float) -> APIRouter:
    """Build the routes over ``hub``."""
    routes = APIRouter()

    def add(path: str, request_type: type[_TtsRequest]) -> None:
        async def speech(request: Request) -> Response:
            body = await read_body(request)
            fields = validate(request_type, body.fields)
            if len(fields.text) > max_input_chars:
                raise TextTooLong(f"text may have at most {max_input_chars} characters")
            voice, instruct = await _voice(hub, fields, body)
            options = speech_options(voice, instruct, fields.speed)
            # The header of a whole WAV file contains its length, so the file is built from PCM at the end.
            as_wav = fields.response_format == "wav" and not fields.stream
            encoder = open_encoder(AudioFormat.PCM if as_wav else AudioFormat(fields.response_format))
            audio = download(hub, options, fields.text, Rendering(encoder, SAMPLE_RATE_HZ))
            return LiveStream(
                audio if fields.stream else _collect(audio, as_wav=as_wav),
                _TYPES[fields.response_format],
                {"x-sample-rate": str(SAMPLE_RATE_HZ), "x-synthetic": "true"},
                send_timeout_s=send_timeout_s,
            )

        routes.add_api_route(path, speech, methods=["POST"], name=path.strip("/").replace("/", "_"))

    request_types = (
        (TTS, _TtsRequest),
        (ZERO_SHOT, _ZeroShotRequest),
        (CROSS_LINGUAL, _CrossLingualRequest),
        (INSTRUCT, _InstructRequest),
    )
    for paths, request_type in request_types:
        for path in paths:
            add(path, request_type)

    @routes.post(HEALTH, include_in_schema=False)
    @routes.get(HEALTH, summary="Whether the worker accepts sessions")
    async def healthcheck() -> Response:
        return JSONResponse({"status": "healthy" if hub.ready else "unhealthy"}, 200 if hub.ready else 503)

    return routes


async def _voice(hub: SessionHub, fields: _TtsRequest, body: Body) -> tuple[str | None, str | None]:
    """Return voice and instruction; enrols the voice of a recording, which may come with an instruction."""
    instruct = fields.instruction if isinstance(fields, _InstructRequest) else None
    needs_recording = isinstance(fields, _ZeroShotRequest | _CrossLingualRequest)
    if not needs_recording and not (instruct and (_RECORDING in body.files or _RECORDING in body.fields)):
        return fields.voice_type, instruct
    transcript = fields.reference_text if isinstance(fields, _ZeroShotRequest) else ""
    return await hub.enrol(body.recording(_RECORDING), transcript), instruct


async def _collect(audio: AsyncGenerator[bytes, None], *, as_wav: bool) -> AsyncGenerator[bytes, None]:
    """Yield all audio at once, so that a failure becomes an error response instead of a truncated file."""
    try:
        data = b"".join([chunk async for chunk in audio])
    finally:
        await audio.aclose()
    yield wav_file(data) if as_wav else data
