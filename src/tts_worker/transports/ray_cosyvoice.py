"""The public Ray Serve API for CosyVoice, so that its clients work with another address.

Source of the routes and fields: the project cosyvoice-ray-serve-api, its old paths (``/v1/model/cosyvoice/...``) and
its new ones (``/tts``, ...). Bodies are JSON or forms; the answer is MP3, or WAV or PCM if ``response_format`` says so,
whole or streamed. Other than there: a voice that is not known is an error, and a recording is never a path. Knows no
engine, and nothing of Ray: any worker answers these routes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse, Response

from tts_worker.audio.encoders import AudioFormat, open_encoder, wav_file
from tts_worker.errors import InvalidRequest, TextTooLong
from tts_worker.session.hub import SessionHub
from tts_worker.transports import wire
from tts_worker.transports.cosyvoice_http import speech_options
from tts_worker.transports.rendering import Rendering, download
from tts_worker.transports.responses import LiveStream
from tts_worker.transports.uploads import Body, read_body
from tts_worker.types import SAMPLE_RATE_HZ

_BASE = "/v1/model/cosyvoice"
TTS = (f"{_BASE}/tts", "/tts")
ZERO_SHOT = (f"{_BASE}/zero_shot", "/zero_shot_tts")
CROSS_LINGUAL = (f"{_BASE}/cross_lingual", "/cross_lingual_tts")
INSTRUCT = (f"{_BASE}/instruct", "/instruct_tts")
HEALTH = f"{_BASE}/healthcheck"
PATHS = frozenset((*TTS, *ZERO_SHOT, *CROSS_LINGUAL, *INSTRUCT))
"""Paths whose requests may hold a recording."""

_RECORDING = "reference_audio"
_TYPES = {"mp3": "audio/mpeg", "wav": "audio/wav", "pcm": f"audio/pcm;rate={SAMPLE_RATE_HZ};channels=1"}


class _Tts(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str = Field(min_length=1)
    voice_type: str | None = Field(None, max_length=128)
    speed: float = Field(1.0, ge=0.5, le=2.0)
    stream: bool = False
    response_format: Literal["mp3", "wav", "pcm"] = "mp3"


class _ZeroShot(_Tts):
    reference_text: str = Field(min_length=1)


class _CrossLingual(_Tts):
    pass


class _Instruct(_Tts):
    instruction: str = Field(min_length=1, max_length=2_000)


def router(hub: SessionHub, *, max_input_chars: int, send_timeout_s: float) -> APIRouter:
    """The routes over ``hub``."""
    routes = APIRouter()

    def add(path: str, shape: type[_Tts]) -> None:
        async def speech(request: Request) -> Response:
            body = await read_body(request)
            asked = _checked(shape, body)
            if len(asked.text) > max_input_chars:
                raise TextTooLong(f"text may have at most {max_input_chars} characters")
            voice, instruct = await _voice(hub, asked, body)
            options = speech_options(voice, instruct, asked.speed)
            # A whole WAV file says how long it is, so it is made from plain samples at the end.
            plain = asked.response_format == "wav" and not asked.stream
            encoder = open_encoder(AudioFormat.PCM if plain else AudioFormat(asked.response_format))
            sound = download(hub, options, asked.text, Rendering(encoder, SAMPLE_RATE_HZ))
            return LiveStream(
                sound if asked.stream else _whole(sound, as_wav=plain),
                _TYPES[asked.response_format],
                {"x-sample-rate": str(SAMPLE_RATE_HZ), "x-synthetic": "true"},
                send_timeout_s=send_timeout_s,
            )

        routes.add_api_route(path, speech, methods=["POST"], name=path.strip("/").replace("/", "_"))

    shapes = ((TTS, _Tts), (ZERO_SHOT, _ZeroShot), (CROSS_LINGUAL, _CrossLingual), (INSTRUCT, _Instruct))
    for paths, shape in shapes:
        for path in paths:
            add(path, shape)

    @routes.post(HEALTH, include_in_schema=False)
    @routes.get(HEALTH, summary="Whether sessions are taken")
    async def healthcheck() -> Response:
        return JSONResponse({"status": "healthy" if hub.ready else "unhealthy"}, 200 if hub.ready else 503)

    return routes


def _checked(shape: type[_Tts], body: Body) -> _Tts:
    try:
        return shape.model_validate(body.fields)
    except ValidationError as error:
        raise InvalidRequest(wire.explain(error)) from None


async def _voice(hub: SessionHub, asked: _Tts, body: Body) -> tuple[str | None, str | None]:
    """The voice and the instruction. A recording may come with an instruction too."""
    instruct = asked.instruction if isinstance(asked, _Instruct) else None
    needs_recording = isinstance(asked, _ZeroShot | _CrossLingual)
    if not needs_recording and not (instruct and (_RECORDING in body.files or _RECORDING in body.fields)):
        return asked.voice_type, instruct
    transcript = asked.reference_text if isinstance(asked, _ZeroShot) else ""
    return await hub.enrol(body.recording(_RECORDING), transcript), instruct


async def _whole(sound: AsyncGenerator[bytes, None], *, as_wav: bool) -> AsyncGenerator[bytes, None]:
    """Everything in one piece, so that a failure in the middle is an error answer and not half a file."""
    try:
        data = b"".join([chunk async for chunk in sound])
    finally:
        await sound.aclose()
    yield wav_file(data) if as_wav else data
