"""What every call has in common: who calls, and how an error leaves.

Owns the API key check, the patience with clients that do not read, and the one way from a
typed error to a gRPC status. Knows no service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc

from tts_worker.callers import set_caller
from tts_worker.errors import GRPC_STATUS, ErrorInfo, QuotaExceeded, SendTimeout, error_info
from tts_worker.logs import set_request_id
from tts_worker.transports.keys import KeyRing

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Handler: TypeAlias = "grpc.RpcMethodHandler[_Request, _Response] | None"

CODE_KEY = "tts-error-code"
RETRY_AFTER_KEY = "tts-retry-after-s"
RETRYABLE_KEY = "tts-retryable"
"""Trailing metadata of a failed call: what a status alone does not say."""

OPEN_SERVICES = ("/grpc.health.v1.Health/",)
"""Answered without a key: they hold no data of any caller."""

COSYVOICE_SERVICE = "/cosyvoice."
UNCOUNTED_METHODS = ("/Control", "/EndSession")
"""Methods that do not count for a key's requests per minute."""


def caller_identity(context: Context) -> str:
    """Who calls: the machine, and the key if there is one. The port changes with every connection of the same client.
    Never leaves the process."""
    peer = context.peer()
    return f"{peer.rpartition(':')[0]} {_offered_key(context.invocation_metadata())}"


def _offered_key(metadata: object) -> str:
    values = {key: value for key, value in metadata or () if isinstance(value, str)}  # type: ignore[attr-defined]
    authorization = values.get("authorization", "")
    if authorization[:7].lower() == "bearer ":
        return authorization[7:].strip()
    return values.get("x-api-key", "")


class KeyGuard(grpc.aio.ServerInterceptor):
    """Refuses calls without a valid key, if keys are needed, and says to what follows who calls."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler[_Request, _Response]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler[_Request, _Response]:
        method = handler_call_details.method
        metadata = dict(handler_call_details.invocation_metadata or ())
        request_id = metadata.get("x-request-id")
        set_request_id(request_id if isinstance(request_id, str) else None)
        if method.startswith(OPEN_SERVICES):
            return await continuation(handler_call_details)
        offered = _offered_key(handler_call_details.invocation_metadata) or None
        transport = "cosyvoice-grpc" if method.startswith(COSYVOICE_SERVICE) else "grpc"
        try:
            # A control is never late or refused for what was asked before.
            caller = self._keys.caller(offered, transport, counted=not method.endswith(UNCOUNTED_METHODS))
        except QuotaExceeded as error:
            return _refusing(error.info)
        if caller is None:
            return self._refusing_key(offered, transport)
        set_caller(caller)
        return await continuation(handler_call_details)

    def _refusing_key(self, offered: str | None, transport: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(requests: object, context: Context) -> NoReturn:
            error = await self._keys.refusal(offered, context.peer().rpartition(":")[0], transport)
            await abort(context, error.info)

        return grpc.stream_stream_rpc_method_handler(refuse)


def _refusing(error: ErrorInfo) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(requests: object, context: Context) -> NoReturn:
        await abort(context, error)

    # On the wire every call is a stream; this kind answers before it has read anything.
    return grpc.stream_stream_rpc_method_handler(refuse)


class ResponseWriter:
    """Writes to a call whose client may stop reading. A write cannot be taken back, so nothing else can be sent then,
    not even a status: after ``timeout_s`` ``on_stuck`` is called, once, to free what the call holds; the error leaves
    when the client reads on, if it ever does."""

    def __init__(self, context: Context, timeout_s: float, on_stuck: Callable[[SendTimeout], None]) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._on_stuck = on_stuck
        self._loop = asyncio.get_running_loop()
        self._since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stuck: SendTimeout | None = None

    async def write(self, message: object) -> None:
        """Raises SendTimeout if it took too long."""
        self._since_s = self._loop.time()
        if self._timer is None:  # re-armed lazily: a write only moves a time stamp
            self._timer = self._loop.call_later(self._timeout_s, self._on_timer)
        await self._context.write(message)
        self._since_s = None
        if self._stuck is not None:
            raise self._stuck

    def _on_timer(self) -> None:
        self._timer = None
        if self._since_s is None:
            return
        left_s = self._since_s + self._timeout_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._on_timer)
        else:
            self._stuck = SendTimeout(f"nothing was read for {self._timeout_s:g} s")
            self._on_stuck(self._stuck)

    def close(self) -> None:
        """The call is over."""
        self._since_s = None
        if self._timer is not None:
            self._timer.cancel()


async def abort(context: Context, error: ErrorInfo) -> NoReturn:
    """End the call with this error."""
    metadata = [(CODE_KEY, error.code.value), (RETRYABLE_KEY, str(error.retryable).lower())]
    if error.retry_after_s is not None:
        metadata.append((RETRY_AFTER_KEY, f"{error.retry_after_s:g}"))
    await context.abort(grpc.StatusCode[GRPC_STATUS[error.code]], error.message, tuple(metadata))


async def abort_with(context: Context, error: Exception) -> NoReturn:
    """The same for an exception; one that is not ours is logged and says nothing."""
    info = error_info(error)
    if info.code.value == "internal":
        log.error("a call failed", exc_info=error)
    await abort(context, info)
