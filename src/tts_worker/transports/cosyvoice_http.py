"""CosyVoice's own HTTP API for its published clients.

Routes and form fields follow CosyVoice's ``runtime/python/fastapi``; GET works like POST, because its client uses GET.
Responses stream PCM16LE mono. Unlike the original server, they state the sample rate, clip instead of overflowing, and
stop when the client disconnects. ``spk_id`` names a voice; a recording needs an engine that enrols voices.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.errors import TextTooLong
from tts_worker.models.routing import INSTRUCT
from tts_worker.session.hub import SessionHub
from tts_worker.transports.rendering import Rendering, download
from tts_worker.transports.responses import LiveStream
from tts_worker.transports.uploads import Body, read_body
from tts_worker.transports.validation import validate
from tts_worker.types import SAMPLE_RATE_HZ, SessionOptions

ROUTES = (
    "/inference_sft",
    "/inference_zero_shot",
    "/inference_cross_lingual",
    "/inference_instruct",
    "/inference_instruct2",
)
PATHS = frozenset(ROUTES)
"""Paths whose requests may contain a recording."""

_RECORDING = "prompt_wav"


class _SftRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    tts_text: str
    spk_id: str = Field(max_length=128)


class _InstructRequest(_SftRequest):
    instruct_text: str = Field(max_length=2_000)


class _CrossLingualRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    tts_text: str


class _ZeroShotRequest(_CrossLingualRequest):
    prompt_text: str


class _Instruct2Request(_CrossLingualRequest):
    instruct_text: str = Field(max_length=2_000)


_InferenceRequest = _SftRequest | _CrossLingualRequest


def router(hub: SessionHub, *, max_input_chars: int, send_timeout_s: float) -> APIRouter:
    """Build the routes over ``hub``."""
    routes = APIRouter()

    def add(path: str, request_type: type[_InferenceRequest]) -> None:
        async def inference(request: Request) -> Response:
            body = await read_body(request)
            fields = validate(request_type, body.fields)
            if len(fields.tts_text) > max_input_chars:
                raise TextTooLong(f"tts_text may have at most {max_input_chars} characters")
            options = await _options(hub, fields, body)
            encoder = open_encoder(AudioFormat.PCM)
            return LiveStream(
                download(hub, options, fields.tts_text, Rendering(encoder, SAMPLE_RATE_HZ)),
                encoder.content_type,
                {"x-sample-rate": str(SAMPLE_RATE_HZ), "x-synthetic": "true"},
                send_timeout_s=send_timeout_s,
            )

        name = path.removeprefix("/")
        for method in ("GET", "POST"):
            routes.add_api_route(path, inference, methods=[method], name=name, operation_id=f"{name}_{method.lower()}")

    request_types: tuple[type[_InferenceRequest], ...] = (
        _SftRequest,
        _ZeroShotRequest,
        _CrossLingualRequest,
        _InstructRequest,
        _Instruct2Request,
    )
    for path, request_type in zip(ROUTES, request_types, strict=True):
        add(path, request_type)
    return routes


async def _options(hub: SessionHub, fields: _InferenceRequest, body: Body) -> SessionOptions:
    """Build the synthesis parameters; enrols the voice of a recording."""
    if isinstance(fields, _SftRequest):
        instruct = fields.instruct_text if isinstance(fields, _InstructRequest) else None
        return speech_options(fields.spk_id, instruct)
    recording = body.recording(_RECORDING)
    voice = await hub.enrol(recording, fields.prompt_text if isinstance(fields, _ZeroShotRequest) else "")
    return speech_options(voice, fields.instruct_text if isinstance(fields, _Instruct2Request) else None)


def speech_options(voice: str | None, instruct: str | None = None, speed: float = 1.0) -> SessionOptions:
    """Build the options for a whole text: unpaced, in engine chunks."""
    return SessionOptions(
        voice=voice or None,
        speed=speed,
        instruct=instruct or None,
        needs=(INSTRUCT,) if instruct else (),
        realtime=False,
        raw_chunks=True,
    )
