"""Shared parts of all gRPC calls: API keys, send timeouts and the mapping of typed errors to status codes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias, TypeVar

import anyio
import grpc
from google.protobuf.message import DecodeError

from tts_worker.callers import set_caller
from tts_worker.errors import GRPC_STATUS, ErrorInfo, InvalidRequest, QuotaExceeded, SendTimeout, error_info
from tts_worker.logs import current_request_id, set_request_id
from tts_worker.protocol.proto_codec import encode_trailers
from tts_worker.server.keys import KeyRing
from tts_worker.tracing import set_traceparent
from tts_worker.types import TRACEPARENT

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Handler: TypeAlias = "grpc.RpcMethodHandler[_Request, _Response] | None"

OPEN_SERVICES = ("/grpc.health.v1.Health/",)
"""Services without API key check; they expose no user data."""

_MAX_START_BYTES = 131_072
"""Size of a ``StartSessionRequest``: decoding very many options would delay all calls."""

_MAX_OPEN_CALLS = 64
"""Calls of open services at the same time; a new one ends the oldest."""
_OPEN_REQUEST_S = 3.0

UNCOUNTED_METHODS = ("/Control", "/EndSession")
"""Methods that do not count toward a key's requests per minute."""


def caller_identity(context: Context) -> str:
    """Return host, API key and certificate of the caller, without the port, which changes with each connection.

    Contains a secret: never log or send it.
    """
    peer = context.peer()
    return f"{peer.rpartition(':')[0]} {_api_key(context.invocation_metadata())} {_common_name(context) or ''}"


def _common_name(context: Context) -> str | None:
    """Return the common name of the client's verified certificate."""
    names = list(context.auth_context().get("x509_common_name", ()))
    return names[0].decode("utf-8", "replace") if names else None


def _api_key(metadata: object) -> str:
    values = {key: value for key, value in metadata or () if isinstance(value, str)}  # type: ignore[attr-defined]
    authorization = values.get("authorization", "")
    if authorization[:7].lower() == "bearer ":
        return authorization[7:].strip()
    return values.get("x-api-key", "")


class KeyGuard(grpc.aio.ServerInterceptor):
    """Rejects calls without a valid API key where keys are required, and sets the caller for logs and quotas.

    Args:
        keys: The valid keys.
        transport: Its name in metrics and logs.
        on_valid: Called with the peer of each call that has a valid key or needs none, but for health checks.
    """

    def __init__(self, keys: KeyRing, transport: str, on_valid: Callable[[str], None] = lambda peer: None) -> None:
        self._keys = keys
        self._transport = transport
        self._on_valid = on_valid
        self._open_calls: dict[anyio.CancelScope, None] = {}  # oldest first

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler[_Request, _Response]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler[_Request, _Response]:
        method = handler_call_details.method
        metadata = dict(handler_call_details.invocation_metadata or ())
        request_id = metadata.get(REQUEST_ID)
        set_request_id(request_id if isinstance(request_id, str) else None)
        set_traceparent(metadata.get(TRACEPARENT))
        if method.startswith(OPEN_SERVICES):
            return self._bounded(_adapt(await continuation(handler_call_details)))
        api_key = _api_key(handler_call_details.invocation_metadata) or None
        try:
            # Earlier requests must never delay a control command or exhaust its quota.
            counted = not method.endswith(UNCOUNTED_METHODS)
            caller = await self._keys.authenticate(api_key, self._transport, counted=counted)
        except QuotaExceeded as error:
            return _rejecting_handler(error.info)
        if caller is None and api_key is None and self._keys.knows_certificates:
            identify = self._identify(counted=counted)
            return _adapt(await continuation(handler_call_details), identify, _max_bytes(method))
        if caller is None:
            return self._rejecting_key_handler(api_key)
        set_caller(caller)
        return _adapt(await continuation(handler_call_details), self._note, _max_bytes(method))

    async def _note(self, context: Context) -> None:
        self._on_valid(context.peer())

    def _bounded(self, handler: Any) -> _Handler[Any, Any]:
        """Serve a call without a key: few at a time, so that they cannot take the places of others.

        Its handler is that of a stream, which runs before the request has arrived.
        """
        if handler is None:
            return None

        async def serve(requests: AsyncIterator[Any], context: Context) -> None:
            if len(self._open_calls) >= _MAX_OPEN_CALLS:
                oldest = next(iter(self._open_calls))
                del self._open_calls[oldest]  # now: the next of a burst must end another one
                oldest.cancel()
            with anyio.CancelScope() as scope:
                self._open_calls[scope] = None
                try:
                    await self._serve_open(handler, requests, context)
                finally:
                    self._open_calls.pop(scope, None)
            if scope.cancelled_caught:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many health checks at the same time")

        return grpc.stream_stream_rpc_method_handler(serve, handler.request_deserializer, handler.response_serializer)

    @staticmethod
    async def _serve_open(handler: Any, requests: AsyncIterator[Any], context: Context) -> None:
        request = None
        with anyio.move_on_after(_OPEN_REQUEST_S):
            request = await anext(aiter(requests), None)
        if request is None:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not arrive")
        if handler.response_streaming:
            await handler.unary_stream(request, context)
        else:
            await context.write(await handler.unary_unary(request, context))

    def _identify(self, *, counted: bool) -> Callable[[Context], Awaitable[None]]:
        """Return what identifies a caller by the certificate, which only the call's context tells."""

        async def identify(context: Context) -> None:
            name = _common_name(context)
            try:
                caller = await self._keys.authenticate(None, self._transport, certificate=name, counted=counted)
            except QuotaExceeded as error:
                await abort(context, error.info)
            if caller is None:
                await abort(context, (await self._keys.rejection(None, _address(context), self._transport)).info)
            self._on_valid(context.peer())
            set_caller(caller)

        return identify

    def _rejecting_key_handler(self, api_key: str | None) -> grpc.RpcMethodHandler[Any, Any]:
        async def reject(requests: object, context: Context) -> NoReturn:
            error = await self._keys.rejection(api_key, _address(context), self._transport)
            await abort(context, error.info)

        return grpc.stream_stream_rpc_method_handler(reject)


def _decoder(handler: Any, max_bytes: int | None) -> Callable[[bytes], object]:
    """Return what decodes a request: to the InvalidRequest that it deserves, if that is so."""

    def decode(data: bytes) -> object:
        if max_bytes is not None and len(data) > max_bytes:
            return InvalidRequest(f"a request may have at most {max_bytes} bytes")
        try:
            return handler.request_deserializer(data)
        except DecodeError:  # raised here, gRPC would answer UNKNOWN and log a traceback
            return InvalidRequest("a message is not valid protobuf of its type")

    return decode


def _max_bytes(method: str) -> int | None:
    return _MAX_START_BYTES if method.endswith("/StartSession") else None


def _adapt(
    handler: Any, identify: Callable[[Context], Awaitable[None]] | None = None, max_bytes: int | None = None
) -> _Handler[Any, Any]:
    """Wrap a handler: what cannot be decoded is InvalidRequest, and a single response has the request ID.

    Args:
        handler: The handler; None if there is no such method.
        identify: Called before the handler.
        max_bytes: Size of a request, checked before it is decoded; None for that of the port.
    """
    if handler is None:
        return None
    ends = (handler.request_streaming, handler.response_streaming)
    kind = "_".join("stream" if is_stream else "unary" for is_stream in ends)
    behavior = getattr(handler, kind)

    async def prepare(request: Any, context: Context) -> Any:
        if identify is not None:
            await identify(context)
        if not any(ends):
            context.set_trailing_metadata(_request_id_metadata())
        if handler.request_streaming:
            return _DecodedRequests(request)
        if isinstance(request, InvalidRequest):
            await abort(context, request.info)
        return request

    async def answer(request: Any, context: Context) -> Any:
        return await behavior(await prepare(request, context), context)

    async def generate(request: Any, context: Context) -> AsyncIterator[Any]:
        async for response in behavior(await prepare(request, context), context):
            yield response

    make: Any = getattr(grpc, f"{kind}_rpc_method_handler")
    wrapped = generate if inspect.isasyncgenfunction(behavior) else answer
    return make(wrapped, _decoder(handler, max_bytes), handler.response_serializer)  # type: ignore[no-any-return]


class _DecodedRequests:
    """The requests of a call. Iteration raises InvalidRequest for one that could not be decoded."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = aiter(requests)

    def __aiter__(self) -> _DecodedRequests:
        return self

    async def __anext__(self) -> Any:
        request = await anext(self._requests)
        if isinstance(request, InvalidRequest):
            raise request
        return request


def _request_id_metadata() -> tuple[tuple[str, str], ...]:
    return ((REQUEST_ID, current_request_id()),)


def _address(context: Context) -> str:
    return context.peer().rpartition(":")[0]


def _rejecting_handler(error: ErrorInfo) -> grpc.RpcMethodHandler[Any, Any]:
    async def reject(requests: object, context: Context) -> NoReturn:
        await abort(context, error)

    # Every call is a stream on the wire; a stream handler can respond before it reads a request.
    return grpc.stream_stream_rpc_method_handler(reject)


class ResponseWriter:
    """Writes the responses of one call with a send timeout.

    A pending write cannot be withdrawn, so a blocked call cannot even send a status. The timeout therefore calls
    ``on_timeout`` once, to release the resources of the call; the error is sent if the client reads again.
    """

    def __init__(self, context: Context, timeout_s: float, on_timeout: Callable[[SendTimeout], None]) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._on_timeout = on_timeout
        self._loop = asyncio.get_running_loop()
        self._write_began_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: SendTimeout | None = None
        self._has_written = False

    async def write(self, message: object) -> None:
        """Write one response, the first with the request ID. Raises SendTimeout if it took longer than the timeout."""
        self._write_began_s = self._loop.time()
        if self._timer is None:  # re-armed lazily: a write only updates a timestamp
            self._timer = self._loop.call_later(self._timeout_s, self._on_timer)
        if not self._has_written:
            self._has_written = True
            await self._context.send_initial_metadata(_request_id_metadata())
        await self._context.write(message)
        self._write_began_s = None
        if self._error is not None:
            raise self._error

    def _on_timer(self) -> None:
        self._timer = None
        if self._write_began_s is None:
            return
        remaining_s = self._write_began_s + self._timeout_s - self._loop.time()
        if remaining_s > 0:
            self._timer = self._loop.call_later(remaining_s, self._on_timer)
        else:
            self._error = SendTimeout(f"the client read nothing for {self._timeout_s:g} s")
            self._on_timeout(self._error)

    def close(self) -> None:
        """Cancel the timer at the end of the call."""
        self._write_began_s = None
        if self._timer is not None:
            self._timer.cancel()


async def abort(context: Context, error: ErrorInfo) -> NoReturn:
    """End the call with the status and trailing metadata of ``error``."""
    trailers = (*encode_trailers(error), *_request_id_metadata())
    await context.abort(grpc.StatusCode[GRPC_STATUS[error.code]], error.message, trailers)


async def abort_with(context: Context, error: Exception) -> NoReturn:
    """End the call with the status of an exception; unexpected ones are logged, and their details stay private."""
    info = error_info(error)
    if info.code.value == "internal":
        log.error("gRPC call failed", exc_info=error)
    await abort(context, info)
