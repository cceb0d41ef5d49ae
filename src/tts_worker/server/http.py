"""The ASGI application: health, metrics, voices, the web page, and the routes of the other HTTP transports."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, ExceptionHandler
from starlette.websockets import WebSocket

from tts_worker.errors import ErrorCode, ErrorInfo, TTSWorkerError
from tts_worker.metrics import Metrics
from tts_worker.server import api_docs, conversions, models, usage, voices
from tts_worker.server.batch import routes as batch
from tts_worker.server.batch.runner import BatchRunner
from tts_worker.server.compat import apis, cosyvoice, elevenlabs, openai
from tts_worker.server.keys import KeyRing
from tts_worker.server.limits import ApiLimits
from tts_worker.server.page import FOLDER, page_response
from tts_worker.server.routing import Route, Routes, allowed_methods
from tts_worker.server.security import AuthMiddleware, BodyTooLarge
from tts_worker.server.telephony import routes as telephony
from tts_worker.server.webrtc import offers
from tts_worker.server.websocket import stream
from tts_worker.session.hub import SessionHub
from tts_worker.settings import Settings, is_loopback

log = logging.getLogger(__name__)

Extension = Callable[[Routes, SessionHub, ApiLimits], None]
"""Adds routes."""


def create_app(
    hub: SessionHub,
    metrics: Metrics,
    settings: Settings,
    keys: KeyRing | None = None,
    batches: BatchRunner | None = None,
    extension: Extension | None = None,
) -> ASGIApp:
    """Build the application over a running hub. Without ``keys`` no API key is required."""
    server = settings.server
    routes = _collect_routes(hub, metrics, settings, keys or KeyRing(), batches, extension)
    return AuthMiddleware(
        Starlette(routes=routes.routes, exception_handlers=_error_handlers()),
        keys=keys,
        own_auth_paths=telephony.own_auth_paths(settings.telephony),
        transport_of=transport_of,
        is_draining=lambda: hub.draining,
        allowed_origins=server.allowed_origins,
        loopback_only=is_loopback(server.host),
        max_body_bytes=server.max_request_bytes,
        upload_paths=cosyvoice.PATHS | voices.UPLOAD_PATHS | elevenlabs.UPLOAD_PATHS | {conversions.PATH, batch.PATH},
        max_upload_bytes=server.max_upload_bytes,
    )


def _collect_routes(
    hub: SessionHub,
    metrics: Metrics,
    settings: Settings,
    keys: KeyRing,
    batches: BatchRunner | None,
    extension: Extension | None,
) -> Routes:
    """Return the routes that the settings enable."""
    limits = ApiLimits.of(settings)
    web_page = settings.server.web_page
    routes = Routes()
    _add_status(routes, hub, metrics)
    _add_shared_paths(routes, hub, limits)

    @routes.websocket("/v1/stream", "Text in, speech out")
    async def v1_stream(websocket: WebSocket) -> None:
        await stream(websocket, hub, limits)

    for api in (openai, apis.ELEVENLABS, apis.CARTESIA, apis.COSYVOICE):
        routes.include(api.router(hub, limits))
    routes.include(conversions.router(hub, limits))
    if settings.webrtc.enabled:
        routes.include(offers.router(hub, settings.webrtc, limits, web_page=web_page))
    if settings.telephony.enabled:
        telephony.add_routes(routes, hub, limits, settings.telephony, keys)
    if batches is not None:
        routes.include(batch.router(batches, limits))
    if web_page:
        _add_page(routes)
    if extension is not None:
        extension(routes, hub, limits)
    api_docs.describe(routes)
    return routes


def _add_status(routes: Routes, hub: SessionHub, metrics: Metrics) -> None:
    @routes.get("/health/live", summary="Liveness: 503 once an engine cannot be rebuilt and the process must restart")
    async def live() -> Response:
        return JSONResponse({"status": "lost"}, 503) if hub.lost else JSONResponse({"status": "live"})

    @routes.get("/health", summary="The same as /health/ready, for load balancers that ask here")
    @routes.get("/health/ready", summary="Readiness: 200 after warm-up, 503 after an engine fault or while draining")
    async def ready() -> Response:
        status = "ready" if hub.ready else "draining" if hub.draining else "not_ready"
        body = {"status": status, "degraded": hub.degraded} if hub.degraded else {"status": status}
        return JSONResponse(body, 200 if hub.ready else 503)

    @routes.get("/metrics", summary="Prometheus")
    async def scrape() -> Response:
        return Response(metrics.render(), media_type=metrics.content_type)


def _add_shared_paths(routes: Routes, hub: SessionHub, limits: ApiLimits) -> None:
    """Add the paths that several APIs share. ElevenLabs clients, known by their key header, get that API's response."""

    def is_elevenlabs(request: Request) -> bool:
        return apis.api_of_client(request.scope) is apis.ELEVENLABS

    voices.add_routes(routes, hub, is_elevenlabs)
    usage.add_routes(routes, hub)
    models.add_routes(routes, hub, limits, is_elevenlabs)


def transport_of(path: str) -> str:
    """Return the API of a path as metrics and logs name it: one of a small fixed set."""
    own = {
        "/v1/stream": "websocket",
        "/v1/agent": "websocket",
        batch.PATH: "batch",
        "/webrtc": "webrtc",
        **dict.fromkeys(telephony.PATHS, "telephony"),
    }
    name = next((name for prefix, name in own.items() if path.startswith(prefix)), "http")
    return name if (api := apis.api_of_path(path)) is None else api.name


_LINKED_PAGES = ("/webrtc", "/agent")


def _add_page(routes: Routes) -> None:
    @routes.get("/", include_in_schema=False)
    async def page() -> Response:
        return page_response("index.html")

    @routes.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return page_response("docs.html")

    @routes.get("/static/pages.json", include_in_schema=False)
    async def pages() -> Response:
        """List the pages that a page may link to; asking for each would log errors in the browser's console."""
        paths = {route.path for route in routes.routes if isinstance(route, Route)}
        return JSONResponse([path for path in _LINKED_PAGES if path in paths])

    add_static_files(routes)


def add_static_files(routes: Routes) -> None:
    """Serve the files of the web pages."""
    routes.mount("/static", RevalidatedFiles(directory=FOLDER))


class RevalidatedFiles(StaticFiles):
    """Static files that browsers revalidate on each use, so an upgrade never mixes old and new modules."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _error_handlers() -> dict[Any, ExceptionHandler]:
    """Answer every error in the format of the client's API (``apis.error_response``)."""

    async def on_worker_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, TTSWorkerError)
        as_bad_request = error.code in openai.BAD_REQUEST and not isinstance(error, BodyTooLarge)
        status = 400 if as_bad_request and request.url.path == openai.SPEECH_PATH else None
        return apis.error_response(request.scope, error.info, status)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        info = ErrorInfo(ErrorCode.INVALID_REQUEST, str(error.detail))
        response = apis.error_response(request.scope, info, error.status_code)
        if error.status_code == 405:
            methods = allowed_methods(request.app.routes, request.scope) or ["GET", "HEAD"]  # none: a static file
            response.headers["Allow"] = ", ".join(methods)
        return response

    async def on_disconnect(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # not sent: the client disconnected before its request was complete

    async def on_unexpected_error(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return apis.error_response(request.scope, ErrorInfo(ErrorCode.INTERNAL, "internal error"))

    return {
        TTSWorkerError: on_worker_error,
        HTTPException: on_http_exception,
        ClientDisconnect: on_disconnect,
        Exception: on_unexpected_error,
    }
