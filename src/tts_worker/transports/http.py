"""The ASGI application: health, metrics, voices, the web page, and the routes of the other HTTP transports."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from tts_worker import __version__
from tts_worker.errors import ErrorCode, ErrorInfo, TTSWorkerError
from tts_worker.metrics import Metrics
from tts_worker.session.hub import SessionHub
from tts_worker.settings import WebRtcSettings
from tts_worker.transports import api_docs, cartesia, cosyvoice_http, elevenlabs, openai, vendors, webrtc
from tts_worker.transports.keys import KeyRing
from tts_worker.transports.message_socket import SocketLimits
from tts_worker.transports.responses import voice_json
from tts_worker.transports.security import AuthMiddleware
from tts_worker.transports.vendors import ELEVENLABS_PREFIX
from tts_worker.transports.websocket import stream

log = logging.getLogger(__name__)

_TRANSPORTS = (
    ("/v1/stream", "websocket"),
    ("/webrtc", "webrtc"),
    (f"{ELEVENLABS_PREFIX}/", "elevenlabs"),
    ("/v1/text-to-speech/", "elevenlabs"),
    ("/tts/", "cartesia"),
    ("/v1/audio/", "openai"),
)

_PAGE = Path(__file__).parent / "page"
_PAGE_POLICY = "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data:; base-uri 'none'"


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Limits and options of the application; see ``settings.ServerSettings``."""

    allowed_origins: tuple[str, ...] = ()
    loopback_only: bool = True
    max_request_bytes: int = 1_048_576
    max_upload_bytes: int = 12_582_912
    max_input_chars: int = 20_000
    max_message_chars: int = 100_000
    max_messages_per_s: float = 1_000.0
    max_buffered_bytes: int = 67_108_864
    send_timeout_s: float = 10.0
    web_page: bool = True
    openai_voice_names: bool = True
    webrtc: WebRtcSettings = field(default_factory=WebRtcSettings)


def create_app(hub: SessionHub, metrics: Metrics, config: HttpConfig, keys: KeyRing | None = None) -> ASGIApp:
    """Build the application over a running hub. Without ``keys`` no API key is required."""
    app = FastAPI(title="tts-worker", version=__version__, docs_url=None, redoc_url=None)
    limits = SocketLimits(config.max_message_chars, config.send_timeout_s, config.max_messages_per_s)
    _add_errors(app)

    @app.get("/health/live", summary="Liveness: 503 once an engine cannot be rebuilt and the process must restart")
    async def live() -> Response:
        return JSONResponse({"status": "lost"}, 503) if hub.lost else JSONResponse({"status": "live"})

    @app.get("/health/ready", summary="Readiness: 200 after warm-up, 503 after an engine fault or while draining")
    async def ready() -> Response:
        status = "ready" if hub.ready else "draining" if hub.draining else "not_ready"
        body = {"status": status, "degraded": hub.degraded} if hub.degraded else {"status": status}
        return JSONResponse(body, 200 if hub.ready else 503)

    @app.get("/metrics", summary="Prometheus")
    async def scrape() -> Response:
        return Response(metrics.render(), media_type=metrics.content_type)

    _add_shared_paths(app, hub, config)

    @app.websocket("/v1/stream")
    async def v1_stream(websocket: WebSocket) -> None:
        await stream(websocket, hub, limits)

    app.include_router(
        openai.router(
            hub,
            max_input_chars=config.max_input_chars,
            send_timeout_s=config.send_timeout_s,
            voice_names=openai.OPENAI_VOICES if config.openai_voice_names else frozenset(),
        )
    )
    app.include_router(
        cosyvoice_http.router(hub, max_input_chars=config.max_input_chars, send_timeout_s=config.send_timeout_s)
    )
    app.include_router(cartesia.router(hub, limits, max_input_chars=config.max_input_chars))
    app.include_router(elevenlabs.router(hub, limits, max_input_chars=config.max_input_chars))
    app.include_router(
        elevenlabs.prefixed_router(
            hub, limits, prefix=vendors.ELEVENLABS_PREFIX, max_input_chars=config.max_input_chars
        )
    )
    if config.webrtc.enabled:
        app.include_router(
            webrtc.router(
                hub,
                config.webrtc,
                max_message_chars=config.max_message_chars,
                max_messages_per_s=config.max_messages_per_s,
                web_page=config.web_page,
            )
        )
    api_docs.describe(app)
    if config.web_page:
        _add_page(app)
    return AuthMiddleware(
        app,
        keys=keys,
        transport_of=transport_of,
        allowed_origins=config.allowed_origins,
        loopback_only=config.loopback_only,
        max_body_bytes=config.max_request_bytes,
        upload_paths=cosyvoice_http.PATHS,
        max_upload_bytes=config.max_upload_bytes,
        max_buffered_bytes=config.max_buffered_bytes,
    )


def _add_shared_paths(app: FastAPI, hub: SessionHub, config: HttpConfig) -> None:
    """Add the paths that several APIs share. ElevenLabs clients, known by their key header, get that API's response."""

    def is_elevenlabs(request: Request) -> bool:
        return vendors.vendor_of(request.scope) is vendors.Vendor.ELEVENLABS

    @app.get("/v1/voices", summary="List the voices")
    @app.get("/v1/audio/voices", include_in_schema=False)
    async def voices(request: Request) -> Response:
        if is_elevenlabs(request):
            return elevenlabs.voices_response(hub)
        return JSONResponse({"voices": [voice_json(voice, hub.voices.default) for voice in hub.voices]})

    @app.get("/v1/voices/{name}", summary="Describe a voice")
    async def voice(request: Request, name: str) -> Response:
        if is_elevenlabs(request):
            return elevenlabs.voice_response(hub, name)
        return JSONResponse(voice_json(hub.voices.get(name), hub.voices.default))

    @app.get("/v1/models", summary="List the engines of this worker")
    async def models(request: Request) -> Response:
        if is_elevenlabs(request):
            return elevenlabs.models_response(hub, max_input_chars=config.max_input_chars)
        return openai.models_response(hub)


def transport_of(path: str) -> str:
    """Return the API of a path as metrics and logs name it: one of a small fixed set."""
    if path in cosyvoice_http.PATHS:
        return "cosyvoice"
    return next((name for prefix, name in _TRANSPORTS if path.startswith(prefix)), "http")


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(_PAGE / "index.html", headers={"Content-Security-Policy": _PAGE_POLICY})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return FileResponse(_PAGE / "docs.html", headers={"Content-Security-Policy": _PAGE_POLICY})

    app.mount("/static", _RevalidatedFiles(directory=_PAGE), name="static")


class _RevalidatedFiles(StaticFiles):
    """Static files that browsers revalidate on each use, so an upgrade never mixes old and new modules."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _add_errors(app: FastAPI) -> None:
    """Answer every error in the format of the client's API (``vendors.error_response``)."""

    @app.exception_handler(TTSWorkerError)
    async def on_worker_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, TTSWorkerError)
        return vendors.error_response(request.scope, error.info)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        info = ErrorInfo(ErrorCode.INVALID_REQUEST, str(error.detail))
        return vendors.error_response(request.scope, info, error.status_code)

    @app.exception_handler(ClientDisconnect)
    async def on_disconnect(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # not sent: the client disconnected before its request was complete

    @app.exception_handler(Exception)
    async def on_unexpected_error(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return vendors.error_response(request.scope, ErrorInfo(ErrorCode.INTERNAL, "internal error"))
