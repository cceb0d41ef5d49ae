"""Who may call, from where, and how much at once: checked before any work is done.

Plain ASGI middleware around the whole application. ``keys`` compares API keys; a browser page of another
origin is refused; without a key only loopback names are served, so that a hostile page cannot reach a worker on
somebody's laptop through a name it controls. Keys are never logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tts_worker.callers import Caller, acting_as
from tts_worker.errors import (
    Forbidden,
    InvalidRequest,
    OverCapacity,
    TextTooLong,
    TTSWorkerError,
    Unauthenticated,
)
from tts_worker.logs import current_request_id, fields, set_request_id
from tts_worker.settings import is_loopback
from tts_worker.transports import cors
from tts_worker.transports.keys import KeyRing
from tts_worker.transports.rates import OccasionalLog
from tts_worker.transports.vendors import ELEVENLABS_PREFIX, refusal

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"

OPEN_PATHS = ("/", "/webrtc", "/health/live", "/health/ready")
OPEN_FOLDER = "/static/"
"""Served without a key: they hold nothing of anybody."""

KEY_HEADERS = ("x-api-key", "xi-api-key")
"""Where clients put a key, besides ``Authorization: Bearer``: ours and Cartesia's, ElevenLabs'."""

KEY_PARAMETERS = ("api_key", "access_token", "xi_api_key", "xi-api-key")
KEY_PARAMETER_PATHS = ("/tts/", "/v1/text-to-speech/", f"{ELEVENLABS_PREFIX}/v1/text-to-speech/")
"""The dialects' browser clients put it into the URL. Nowhere else: URLs end up in other people's logs."""

KEY_SUBPROTOCOL = "key."
"""A browser cannot set headers on a WebSocket: it offers the subprotocols ``tts-worker`` and ``key.<API key>``."""

SUBPROTOCOL = "tts-worker"


class Gate:
    """Wraps ``app``. ``max_body_bytes`` bounds every HTTP request body, declared or not; on ``upload_paths``
    ``max_upload_bytes`` does. ``transport_of``: names the API of a path, for metrics and logs."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing | None = None,
        allowed_origins: Iterable[str] = (),
        loopback_only: bool = True,
        max_body_bytes: int = 1_048_576,
        upload_paths: Collection[str] = (),
        max_upload_bytes: int = 0,
        max_buffered_bytes: int = 67_108_864,
        transport_of: Callable[[str], str] = lambda path: "http",
    ) -> None:
        self._app = app
        self._keys = keys if keys is not None else KeyRing()
        self._transport_of = transport_of
        self._origins = {origin.rstrip("/").lower() for origin in allowed_origins}
        self._loopback_only = loopback_only and not self._keys.required
        self._max_body_bytes = max_body_bytes
        self._upload_paths = upload_paths
        self._max_upload_bytes = max_upload_bytes
        self._bodies = _Bodies(max_buffered_bytes)
        self._refusals = OccasionalLog(log, every_s=1.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        send = _with_request_id(send, set_request_id(Headers(scope=scope).get(REQUEST_ID)))
        if scope["type"] == "http" and self._origins:
            send = cors.varying_by_origin(send, self._allowed_origin(scope))
        try:
            self._check_origin(scope)
            if scope["type"] == "http" and self._allowed_origin(scope) is not None and cors.is_preflight(scope):
                await cors.preflight_response(scope)(scope, receive, send)
                return
            caller = await self._identify(scope)
            self._check(scope)
        except TTSWorkerError as error:
            await self._refuse(error, scope, receive, send)
            return
        with acting_as(caller):
            if scope["type"] != "http":
                await self._app(scope, receive, send)
                return
            body = _Bounded(receive, self._limit_bytes(scope), self._bodies)
            try:
                await self._app(scope, body, send)
            finally:
                body.release()

    async def _identify(self, scope: Scope) -> Caller:
        """Raises Unauthenticated and QuotaExceeded."""
        path = scope["path"]
        transport = self._transport_of(path)
        if _is_open(path):
            return Caller(transport=transport)
        offered = _offered_key(Headers(scope=scope)) or _key_in_url(scope)
        caller = self._keys.caller(offered, transport)
        if caller is None:
            address = (scope.get("client") or ("unknown", 0))[0]
            raise await self._keys.refusal(offered, address, transport)
        return caller

    def _allowed_origin(self, scope: Scope) -> str | None:
        """The origin of the page that asks, if it is a listed one."""
        origin = Headers(scope=scope).get("origin")
        return origin if origin is not None and origin.rstrip("/").lower() in self._origins else None

    def _check_origin(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        origin = headers.get("origin")
        allowed = self._allowed_origin(scope) is not None
        if self._loopback_only and not allowed and not is_loopback(_host_name(host)):
            raise Forbidden("this worker serves loopback names only: set an API key to serve others")
        if origin is not None and not allowed and _authority(origin) != host.lower():
            raise Forbidden("requests from pages of another origin are refused: see server.allowed_origins")

    def _check(self, scope: Scope) -> None:
        if scope["type"] == "http":
            declared = Headers(scope=scope).get("content-length", "0")
            if not declared.isascii() or not declared.isdigit():
                raise InvalidRequest("Content-Length is not a number")
            if int(declared[:20]) > (limit_bytes := self._limit_bytes(scope)):
                raise TextTooLong(f"a request may have at most {limit_bytes} bytes")

    def _limit_bytes(self, scope: Scope) -> int:
        return self._max_upload_bytes if scope["path"] in self._upload_paths else self._max_body_bytes

    async def _refuse(self, error: TTSWorkerError, scope: Scope, receive: Receive, send: Send) -> None:
        if isinstance(error, Forbidden):  # wrong keys are the key ring's affair
            client = scope.get("client")
            self._refusals.warning(
                "refused",
                extra=fields(
                    code=error.code.value,
                    path=scope["path"][:100],
                    client=client[0] if client else None,
                    request_id=current_request_id(),
                ),
            )
        response = refusal(scope, error.info)
        if isinstance(error, Unauthenticated):
            response.headers["WWW-Authenticate"] = "Bearer"
        if scope["type"] == "http":
            await response(scope, receive, send)
            return
        if "websocket.http.response" in scope.get("extensions", {}):
            await _deny_upgrade(response.status_code, response.raw_headers, bytes(response.body), send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": error.message[:120]})


def _with_request_id(send: Send, request_id: str) -> Send:
    """``send`` with the id of the request in the response or in the answer to a handshake."""
    header = (REQUEST_ID.encode(), request_id.encode())

    async def send_with_id(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return send_with_id


async def _deny_upgrade(status: int, headers: list[tuple[bytes, bytes]], body: bytes, send: Send) -> None:
    """Answer a WebSocket handshake with an ordinary HTTP response (ASGI extension ``websocket.http.response``)."""
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


class _Bodies:
    """Bytes of request bodies that are held at the same time, all requests together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0


class _Bounded:
    """Counts the body as it arrives: a client that declares no length is bounded too."""

    def __init__(self, receive: Receive, limit: int, bodies: _Bodies) -> None:
        self._receive = receive
        self._left = limit
        self._bodies = bodies
        self._held = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._left -= size
            if self._left < 0:
                raise TextTooLong("the request is too large")
            if self._bodies.held + size > self._bodies.most:
                raise OverCapacity("too many request bodies are on their way", retry_after_s=1.0)
            self._held += size
            self._bodies.held += size
        return message

    def release(self) -> None:
        """The request has ended."""
        self._bodies.held -= self._held
        self._held = 0


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def _offered_key(headers: Headers) -> str | None:
    authorization = headers.get("authorization", "")
    if authorization[:7].lower() == "bearer ":
        return authorization[7:].strip()
    for name in KEY_HEADERS:
        if (key := headers.get(name)) is not None:
            return key
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(KEY_SUBPROTOCOL):
            return protocol.strip()[len(KEY_SUBPROTOCOL) :]
    return None


def _key_in_url(scope: Scope) -> str | None:
    if not scope["path"].startswith(KEY_PARAMETER_PATHS):
        return None
    given = QueryParams(scope["query_string"])
    return next((given[name] for name in KEY_PARAMETERS if name in given), None)


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
