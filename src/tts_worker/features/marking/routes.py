"""``POST /v1/audio/detect``: whether a recording has the watermark of synthetic speech."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tts_worker.audio.decode import read_recording
from tts_worker.features.marking.detector import MAX_S, Detection, detect
from tts_worker.server.application import Application
from tts_worker.server.uploads import read_body
from tts_worker.server.validation import MULTIPART, Fields, upload_body, validate

PATH = "/v1/audio/detect"
FIELD = "audio"
_PAGE = "detect/index.html"
_PAGE_PATH = "/detect"
MAX_BYTES = 8 << 20
_MAX_RATE_HZ = 48_000


class DetectionRequest(Fields):
    """Body of ``POST /v1/audio/detect``, besides the recording."""


def add_routes(app: Application) -> None:
    """Add the route."""
    app.paths.uploads.add(PATH)
    one_at_a_time = anyio.CapacityLimiter(1)  # ten minutes take two seconds of a core, and calls need the others

    @app.routes.post(
        PATH,
        summary="Whether a recording is marked as synthetic",
        openapi_extra=partial(upload_body, DetectionRequest, (MULTIPART, "application/json"), {FIELD: "The recording"}),
    )
    async def find(request: Request) -> Response:
        body = await read_body(request, max_file_bytes=MAX_BYTES)
        validate(DetectionRequest, body.without(FIELD))
        recording = body.only_recording(FIELD)
        async with one_at_a_time:
            found = await asyncio.to_thread(_find, recording)
        return JSONResponse(as_json(found))

    if app.web.has(_PAGE):
        app.paths.public.add(_PAGE_PATH)

        @app.routes.get(_PAGE_PATH, include_in_schema=False)
        async def page() -> Response:
            return app.web.page(_PAGE)


def as_json(found: Detection) -> dict[str, Any]:
    """Return what was found as JSON; the id in hexadecimal, as the settings have it."""
    deployment_id = None if found.deployment_id is None else f"0x{found.deployment_id:08x}"
    return {**asdict(found), "deployment_id": deployment_id}


def _find(recording: bytes) -> Detection:
    decoded = read_recording(recording, MAX_S, max_rate_hz=_MAX_RATE_HZ)
    return detect(decoded.samples, decoded.rate_hz)
