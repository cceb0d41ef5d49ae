"""ASGI middleware that checks API key, origin and body size before the application runs.

Pages of other origins are rejected unless listed. Without an API key only loopback host names are served, so a hostile
page cannot reach a local worker through DNS rebinding. Keys are never logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tts_worker.callers import Caller, acting_as
from tts_worker.errors import (
    Draining,
    Forbidden,
    InvalidRequest,
    OverCapacity,
    TextTooLong,
    TTSWorkerError,
    Unauthenticated,
)
from tts_worker.logs import current_request_id, fields, set_request_id
from tts_worker.server import cors
from tts_worker.server.access import PathRules
from tts_worker.server.http_protocol import CERTIFICATE
from tts_worker.server.keys import KeyRing
from tts_worker.server.rates import ThrottledLog
from tts_worker.server.vendor_apis import VendorApis
from tts_worker.settings import is_loopback
from tts_worker.tracing import set_traceparent
from tts_worker.types import TRACEPARENT

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"

PUBLIC_PREFIX = "/static/"
"""Files of web pages, which are served without a key."""

MAX_BUFFERED_BYTES = 67_108_864
"""Bound on the request bodies of all requests in progress."""

KEY_PARAMETERS = ("api_key", "access_token", "xi_api_key", "xi-api-key", "single_use_token")
"""Parameters of a URL that holds a key, see ``PathRules.key_parameters``."""

KEY_SUBPROTOCOL = "key."
"""Browsers cannot set headers on a WebSocket: they offer the subprotocols ``tts-worker`` and ``key.<API key>``."""

SUBPROTOCOL = "tts-worker"


class BodyTooLarge(TextTooLong):
    """A request body exceeds its limit."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"a request may have at most {limit_bytes} bytes")


class AuthMiddleware:
    """Checks requests before ``app`` sees them.

    Args:
        app: The application.
        keys: Valid API keys; none are required by default.
        allowed_origins: Origins of pages that may call the worker.
        loopback_only: Serve loopback host names only, unless a key is required.
        max_body_bytes: Bound on an HTTP request body, whether its length is declared or not.
        max_upload_bytes: The bound on paths for uploads.
        paths: Rules for paths.
        apis: The APIs of other vendors, in whose formats their clients get errors.
        is_draining: Whether a cancelled request is one that the end of a drain has overtaken.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing | None = None,
        allowed_origins: Iterable[str] = (),
        loopback_only: bool = True,
        max_body_bytes: int = 1_048_576,
        max_upload_bytes: int = 0,
        paths: PathRules | None = None,
        apis: VendorApis | None = None,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._keys = keys if keys is not None else KeyRing()
        self._paths = PathRules() if paths is None else paths
        self._apis = VendorApis() if apis is None else apis
        self._is_draining = is_draining
        self._origins = {origin.rstrip("/").lower() for origin in allowed_origins}
        self._loopback_only = loopback_only and not self._keys.required
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes
        self._body_budget = _BodyBudget(MAX_BUFFERED_BYTES)
        self._rejection_log = ThrottledLog(log, interval_s=1.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        send = _with_request_id(send, set_request_id(headers.get(REQUEST_ID)))
        set_traceparent(headers.get(TRACEPARENT))
        if scope["type"] == "http" and self._origins:
            send = cors.add_cors_headers(send, self._allowed_origin(scope))
        try:
            self._check_origin(scope)
            if scope["type"] == "http" and self._allowed_origin(scope) is not None and cors.is_preflight(scope):
                await cors.preflight_response(scope)(scope, receive, send)
                return
            caller = await self._authenticate(scope)
            self._check_length(scope)
        except TTSWorkerError as error:
            await self._reject(error, scope, receive, send)
            return
        with acting_as(caller):
            if scope["type"] != "http":
                await self._app(scope, receive, send)
                return
            limited_receive = _LimitedReceive(receive, self._limit_bytes(scope), self._body_budget)
            response = _ResponseStart(send)
            try:
                await self._app(scope, limited_receive, response.send)
            except asyncio.CancelledError:
                if not self._is_draining():
                    raise
                if not response.has_started:  # otherwise the server closes the connection
                    await self._reject(Draining("the worker is shutting down; use another one"), scope, receive, send)
            finally:
                limited_receive.release()

    async def _authenticate(self, scope: Scope) -> Caller:
        """Return who sends a request.

        Raises:
            Unauthenticated: The key is missing or wrong.
            QuotaExceeded: The key or the client's address has exceeded its rate.
        """
        path = scope["path"]
        transport = transport_of(path, self._paths, self._apis)
        if path.startswith(PUBLIC_PREFIX) or path in self._paths.public or path in self._paths.own_auth:
            return Caller(transport=transport)
        headers = Headers(scope=scope)
        key = self._key_in_headers(headers) or self._key_in_url(scope)
        certificate = scope.get("state", {}).get(CERTIFICATE)
        caller = await self._keys.authenticate(key, transport, certificate=certificate, origin=headers.get("origin"))
        if caller is None:
            address = (scope.get("client") or ("unknown", 0))[0]
            raise await self._keys.rejection(key, address, transport)
        return caller

    def _allowed_origin(self, scope: Scope) -> str | None:
        """Return the request's Origin if it is a listed one."""
        origin = Headers(scope=scope).get("origin")
        return origin if origin is not None and origin.rstrip("/").lower() in self._origins else None

    def _check_origin(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        origin = headers.get("origin")
        allowed = self._allowed_origin(scope) is not None
        loopback_only = self._loopback_only and not self._paths.own_auth.get(scope["path"], False)
        if loopback_only and not allowed and not is_loopback(_host_name(host)):
            raise Forbidden("this worker serves loopback names only: set an API key to serve others")
        if origin is not None and not allowed and _authority(origin) != host.lower():
            raise Forbidden("requests from pages of another origin are rejected: see server.allowed_origins")

    def _check_length(self, scope: Scope) -> None:
        if scope["type"] == "http":
            length = Headers(scope=scope).get("content-length", "0")
            if not length.isascii() or not length.isdigit():
                raise InvalidRequest("Content-Length is not a number")
            if int(length[:20]) > (limit_bytes := self._limit_bytes(scope)):
                raise BodyTooLarge(limit_bytes)

    def _limit_bytes(self, scope: Scope) -> int:
        return self._max_upload_bytes if self._paths.is_upload(scope["path"]) else self._max_body_bytes

    def _key_in_headers(self, headers: Headers) -> str | None:
        scheme, separator, key = headers.get("authorization", "").partition(" ")
        if separator and scheme.lower() in self._paths.key_schemes:
            return key.strip()
        for name in self._paths.key_headers:
            if (named := headers.get(name)) is not None:
                return named
        protocols = map(str.strip, headers.get("sec-websocket-protocol", "").split(","))
        return next((name[len(KEY_SUBPROTOCOL) :] for name in protocols if name.startswith(KEY_SUBPROTOCOL)), None)

    def _key_in_url(self, scope: Scope) -> str | None:
        if not self._paths.has_key_in_url(scope["path"]):
            return None
        params = QueryParams(scope["query_string"])
        return next((params[name] for name in KEY_PARAMETERS if name in params), None)

    async def _reject(self, error: TTSWorkerError, scope: Scope, receive: Receive, send: Send) -> None:
        if isinstance(error, Forbidden):  # the key ring logs wrong keys
            client = scope.get("client")
            self._rejection_log.warning(
                "request rejected",
                extra=fields(
                    code=error.code.value,
                    path=scope["path"][:100],
                    client=client[0] if client else None,
                    request_id=current_request_id(),
                ),
            )
        response = self._apis.error_response(scope, error.info)
        if isinstance(error, Unauthenticated):
            response.headers["WWW-Authenticate"] = "Bearer"
        if scope["type"] == "http":
            await response(scope, receive, send)
            return
        if "websocket.http.response" in scope.get("extensions", {}):
            await _deny_handshake(response.status_code, response.raw_headers, bytes(response.body), send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": error.message[:120]})


def transport_of(path: str, paths: PathRules, apis: VendorApis) -> str:
    """Return the API of a path as metrics and logs name it: one of a small fixed set."""
    api = apis.of_path(path)
    return paths.transport_of(path) if api is None else api.name


def _with_request_id(send: Send, request_id: str) -> Send:
    """Wrap ``send`` to add the request ID to the response, also to that of a WebSocket handshake.

    Browsers take no response for another type than it says.
    """
    added = ((REQUEST_ID.encode(), request_id.encode()), (b"x-content-type-options", b"nosniff"))

    async def send_with_id(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return send_with_id


async def _deny_handshake(status: int, headers: list[tuple[bytes, bytes]], body: bytes, send: Send) -> None:
    """Answer a WebSocket handshake with an HTTP response (ASGI extension ``websocket.http.response``)."""
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


class _ResponseStart:
    """Notes whether a response has started."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False

    async def send(self, message: Message) -> None:
        self.has_started = True
        await self._send(message)


class _BodyBudget:
    """Bytes of request bodies buffered by all requests in progress."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.buffered_bytes = 0


class _LimitedReceive:
    """A ``receive`` that counts the body as it arrives, so bodies of undeclared length are bounded, too."""

    def __init__(self, receive: Receive, limit_bytes: int, budget: _BodyBudget) -> None:
        self._receive = receive
        self._limit_bytes = self._remaining_bytes = limit_bytes
        self._budget = budget
        self._buffered_bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._remaining_bytes -= size
            if self._remaining_bytes < 0:
                raise BodyTooLarge(self._limit_bytes)
            if self._budget.buffered_bytes + size > self._budget.max_bytes:
                raise OverCapacity("too many request bodies are being received", retry_after_s=1.0)
            self._buffered_bytes += size
            self._budget.buffered_bytes += size
        return message

    def release(self) -> None:
        """Return the request's bytes to the budget."""
        self._budget.buffered_bytes -= self._buffered_bytes
        self._buffered_bytes = 0


def _host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
