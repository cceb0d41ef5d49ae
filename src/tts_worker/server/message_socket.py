"""One WebSocket connection from accept to close, as every WebSocket endpoint of the worker needs it.

The reader never waits for the writer, so a control message takes effect on arrival, even while the client does not
read. Sends have a time limit, received messages a rate limit, and an error becomes a close code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from tts_worker.errors import WEBSOCKET_CLOSE, ErrorInfo, RateLimited, SendTimeout, TTSWorkerError, error_info
from tts_worker.server.limits import ApiLimits
from tts_worker.server.rates import MessageRate
from tts_worker.server.websocket_protocol import ABORT_AFTER, SEND_NOW

log = logging.getLogger(__name__)

_CLOSE_S = 1.0
"""How long a client may take for the close frame, and one that broke a rule for the whole closing handshake."""

_POLICY_VIOLATION = 1008

_ABNORMAL_CLOSURE = 1006
"""Stands for a connection that ended without a close frame (RFC 6455, section 7.4.1)."""

CLIENT_CLOSED = "client_closed"
DISCONNECTED = "disconnected"
"""Reasons for the end of a connection; others are error codes."""


def _no_fast_send(message: str | bytes) -> bool:
    """``send_now`` of a server without this extension, which takes messages only as ASGI events."""
    return False


def _end_reason(error: BaseException | None) -> str:
    """Return why a session ends with its connection: a closing handshake, a connection that broke, or an error code."""
    if isinstance(error, WebSocketDisconnect):
        return DISCONNECTED if error.code == _ABNORMAL_CLOSURE else CLIENT_CLOSED
    return DISCONNECTED if error is None else error_info(error).code.value


def _no_abort(delay_s: float) -> None:
    """``abort_after`` of a server without this extension, which ends the connection itself."""


class MessageSocket:
    """A WebSocket with limits.

    Args:
        websocket: The connection, not accepted yet.
        limits: Its limits.
        name: Name of its tasks.

    Attributes:
        send_now: Sends a message if that needs no waiting; returns whether it did. ``send`` waits.
    """

    def __init__(self, websocket: WebSocket, limits: ApiLimits, name: str) -> None:
        self.limits = limits
        extensions = websocket.scope.get("extensions", {})
        self.send_now: Callable[[str | bytes], bool] = extensions.get(SEND_NOW, {}).get("send", _no_fast_send)
        self._abort_after: Callable[[float], None] = extensions.get(ABORT_AFTER, {}).get("abort", _no_abort)
        self._websocket = websocket
        self._name = name
        self._rate = MessageRate(limits.max_messages_per_s)
        self._loop = asyncio.get_running_loop()
        self._sending_since_s: float | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def run(
        self,
        *jobs: Callable[[], Coroutine[object, object, None]],
        on_end: Callable[[str], None],
        encode_error: Callable[[ErrorInfo], str],
        subprotocol: str | None = None,
    ) -> None:
        """Accept the connection and run ``jobs`` until the first one ends; its error determines the close code.

        Args:
            jobs: Coroutine functions that read and write.
            on_end: Called with the reason before the connection is closed, to release everything.
            encode_error: Encodes an error that the client is told before the connection is closed.
            subprotocol: The accepted subprotocol.
        """
        tasks: set[asyncio.Task[None]] = set()
        error: BaseException | None = None
        try:
            await self._websocket.accept(subprotocol=subprotocol)
            tasks |= {asyncio.create_task(job(), name=self._name) for job in (*jobs, self._watch_sends)}
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = next((task.exception() for task in done if task.exception() is not None), None)
        finally:
            on_end(_end_reason(error))
            tasks |= self._background
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
        await self._close(error, encode_error)

    def spawn(self, job: Coroutine[object, object, None], name: str) -> None:
        """Run a coroutine until the connection ends. Its end does not end the connection."""
        task = asyncio.create_task(job, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def receive(self) -> str | bytes:
        """Wait for the next message.

        Raises:
            WebSocketDisconnect: The client is gone.
            RateLimited: It sends too many messages.
        """
        await asyncio.sleep(0)  # buffered messages arrive without suspending: yield to the other tasks
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text = message.get("text")
        received: str | bytes = text if text is not None else message.get("bytes", b"")
        self._rate.count(len(received), self._loop.time())
        return received

    async def send(self, data: str | bytes) -> None:
        """Send a message, waiting while the client is behind. Raises WebSocketDisconnect."""
        if self.send_now(data):
            return
        self._sending_since_s = self._loop.time()
        try:
            if isinstance(data, bytes):
                await self._websocket.send_bytes(data)
            else:
                await self._websocket.send_text(data)
        except RuntimeError:  # Starlette's error for a socket that is already closed
            raise WebSocketDisconnect(1006) from None
        self._sending_since_s = None

    async def _watch_sends(self) -> None:
        """Fail the connection when the client stops reading."""
        limit_s = self.limits.send_timeout_s
        while True:
            await asyncio.sleep(limit_s / 4)
            since_s = self._sending_since_s
            if since_s is not None and self._loop.time() - since_s > limit_s:
                raise SendTimeout(f"the client read nothing for {limit_s:g} s")

    async def _close(self, error: BaseException | None, encode_error: Callable[[ErrorInfo], str]) -> None:
        if self._websocket.application_state is not WebSocketState.CONNECTED or isinstance(error, WebSocketDisconnect):
            return
        code = 1000
        reason = ""
        if error is not None:
            info = error_info(error)
            code = WEBSOCKET_CLOSE.get(info.code, 1011)
            reason = info.message
            if not isinstance(error, TTSWorkerError):
                log.error("%s: the connection failed", self._name, exc_info=error)
        if code == _POLICY_VIOLATION:
            self._abort_after(_CLOSE_S)
        # A client that does not read does not receive the close frame either.
        with contextlib.suppress(RuntimeError, WebSocketDisconnect), anyio.move_on_after(_CLOSE_S):
            if isinstance(error, RateLimited):
                await self.send(encode_error(error.info))
            await self._websocket.close(code, reason[:100])
