"""The ASGI application: health, metrics, voices, models, ``/v1/stream``, and the routes that features add."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, ExceptionHandler, Receive, Scope, Send
from starlette.websockets import WebSocket

from tts_worker.errors import ErrorCode, ErrorInfo, TTSWorkerError
from tts_worker.metrics import Metrics
from tts_worker.server import api_docs, models, tokens, usage, voices
from tts_worker.server.application import Application, Extension
from tts_worker.server.responses import error_response
from tts_worker.server.routing import Routes, allowed_methods
from tts_worker.server.security import AuthMiddleware
from tts_worker.server.vendor_apis import VendorApis
from tts_worker.server.websocket import stream
from tts_worker.session.hub import SessionHub
from tts_worker.settings import is_loopback

log = logging.getLogger(__name__)


def create_app(parts: Application, metrics: Metrics, extensions: Sequence[Extension] = ()) -> ASGIApp:
    """Build the application over a running hub.

    Args:
        parts: What the routes serve; ``extensions`` add to it.
        metrics: Metrics of the worker.
        extensions: What adds further routes.
    """
    _add_status(parts.routes, parts.hub, metrics)
    voices.add_routes(parts)
    usage.add_routes(parts.routes, parts.hub)
    tokens.add_routes(parts.routes, parts.keys.tokens)
    models.add_routes(parts)

    @parts.routes.websocket("/v1/stream", "Text in, speech out")
    async def v1_stream(websocket: WebSocket) -> None:
        await stream(websocket, parts.hub, parts.limits)

    for extend in extensions:
        extend(parts)
    parts.web.add_static_files(parts.routes)
    api_docs.describe(parts.routes)
    server = parts.settings.server
    app = Starlette(routes=parts.routes.routes, exception_handlers=_error_handlers(parts.apis))
    app.router.default = _not_found
    return AuthMiddleware(
        app,
        keys=parts.keys,
        is_draining=lambda: parts.hub.draining,
        allowed_origins=server.allowed_origins,
        loopback_only=is_loopback(server.host),
        max_body_bytes=server.max_request_bytes,
        max_upload_bytes=server.max_upload_bytes,
        paths=parts.paths,
        apis=parts.apis,
    )


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer an unknown path; Starlette rejects a WebSocket with 403, which clients take for a wrong key."""
    error = HTTPException(404)
    if scope["type"] == "http":
        raise error
    info = ErrorInfo(ErrorCode.INVALID_REQUEST, str(error.detail))
    await WebSocket(scope, receive, send).send_denial_response(error_response(info, error.status_code))


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


def _error_handlers(apis: VendorApis) -> dict[Any, ExceptionHandler]:
    """Answer every error in the format of the client's API."""

    async def on_worker_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, TTSWorkerError)
        return apis.error_response(request.scope, error.info, apis.status(request.scope, error))

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
