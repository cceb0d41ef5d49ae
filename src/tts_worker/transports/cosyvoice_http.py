"""CosyVoice's own HTTP server, so that its published clients work with another address.

Source of the routes and form fields: CosyVoice's ``runtime/python/fastapi``; GET works like POST, as its client sends
it. The answer is s16le mono as it is made; other than there, it says its rate, never wraps around, and ends with the
client. ``spk_id`` is a voice of this worker; a recording needs an engine that enrols voices. Knows no engine.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.errors import InvalidRequest, TextTooLong
from tts_worker.models.routing import INSTRUCT
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.transports import wire
from tts_worker.transports.rendering import Rendering, download
from tts_worker.transports.responses import LiveStream
from tts_worker.transports.uploads import Body, read_body
from tts_worker.types import SAMPLE_RATE_HZ

ROUTES = (
    "/inference_sft",
    "/inference_zero_shot",
    "/inference_cross_lingual",
    "/inference_instruct",
    "/inference_instruct2",
)
PATHS = frozenset(ROUTES)
"""Paths whose requests may hold a recording."""

_RECORDING = "prompt_wav"


class _Sft(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    tts_text: str
    spk_id: str = Field(max_length=128)


class _Instruct(_Sft):
    instruct_text: str = Field(max_length=2_000)


class _CrossLingual(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    tts_text: str


class _ZeroShot(_CrossLingual):
    prompt_text: str


class _Instruct2(_CrossLingual):
    instruct_text: str = Field(max_length=2_000)


_Asked = _Sft | _CrossLingual


def router(hub: SessionHub, *, max_input_chars: int, send_timeout_s: float) -> APIRouter:
    """The routes over ``hub``."""
    routes = APIRouter()

    def add(path: str, shape: type[_Asked]) -> None:
        async def inference(request: Request) -> Response:
            body = await read_body(request)
            asked = _checked(shape, body)
            if len(asked.tts_text) > max_input_chars:
                raise TextTooLong(f"tts_text may have at most {max_input_chars} characters")
            options = await _options(hub, asked, body)
            encoder = open_encoder(AudioFormat.PCM)
            return LiveStream(
                download(hub, options, asked.tts_text, Rendering(encoder, SAMPLE_RATE_HZ)),
                encoder.content_type,
                {"x-sample-rate": str(SAMPLE_RATE_HZ), "x-synthetic": "true"},
                send_timeout_s=send_timeout_s,
            )

        name = path.removeprefix("/")
        for method in ("GET", "POST"):
            routes.add_api_route(path, inference, methods=[method], name=name, operation_id=f"{name}_{method.lower()}")

    shapes: tuple[type[_Asked], ...] = (_Sft, _ZeroShot, _CrossLingual, _Instruct, _Instruct2)
    for path, shape in zip(ROUTES, shapes, strict=True):
        add(path, shape)
    return routes


def _checked(shape: type[_Asked], body: Body) -> _Asked:
    try:
        return shape.model_validate(body.fields)
    except ValidationError as error:
        raise InvalidRequest(wire.explain(error)) from None


async def _options(hub: SessionHub, asked: _Asked, body: Body) -> SessionOptions:
    """Synthesis parameters of the request; enrols the voice of a recording."""
    if isinstance(asked, _Sft):
        instruct = asked.instruct_text if isinstance(asked, _Instruct) else None
        return speech_options(asked.spk_id, instruct)
    recording = body.recording(_RECORDING)
    voice = await hub.enrol(recording, asked.prompt_text if isinstance(asked, _ZeroShot) else "")
    return speech_options(voice, asked.instruct_text if isinstance(asked, _Instruct2) else None)


def speech_options(voice: str | None, instruct: str | None = None, speed: float = 1.0) -> SessionOptions:
    """A whole text at once: as fast as it is made, in the engine's own chunks."""
    return SessionOptions(
        voice=voice or None,
        speed=speed,
        instruct=instruct or None,
        needs=(INSTRUCT,) if instruct else (),
        realtime=False,
        raw_chunks=True,
    )
