"""``/v1/stream``: text and control in, audio and events out, on one WebSocket. See ``docs/protocol.md``.

The reader never waits for the writer: a control message takes effect on arrival, even while the client does not read.
A single task writes, so the order on the wire is the session's order of events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from tts_worker.errors import (
    HTTP_STATUS,
    WEBSOCKET_CLOSE,
    Draining,
    InvalidRequest,
    RateLimited,
    SendTimeout,
    TTSWorkerError,
    error_info,
)
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.transports import wire
from tts_worker.transports.connections import SEND_AUDIO
from tts_worker.transports.protocol import ProtocolHandler
from tts_worker.transports.responses import error_response
from tts_worker.transports.security import SUBPROTOCOL
from tts_worker.types import PcmFrame, SessionOptions, State

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of one connection.

    Attributes:
        max_message_chars: Text of one message.
        send_timeout_s: How long a client may read nothing.
        max_messages_per_s: Average rate of messages.
    """

    max_message_chars: int = 100_000
    send_timeout_s: float = 10.0
    max_messages_per_s: float = 1_000.0


async def stream(websocket: WebSocket, hub: SessionHub, limits: StreamLimits) -> None:
    """Serve one connection from handshake to close. A rejection is the HTTP response to the handshake (503, 404)."""
    try:
        session = await hub.admit(_options_from_query(websocket))
    except TTSWorkerError as error:
        await websocket.send_denial_response(error_response(error.info, HTTP_STATUS[error.code]))
        return
    connection = _StreamConnection(websocket, hub, session, limits)
    try:
        await connection.run()
    finally:
        connection.session.close("disconnected")


def _options_from_query(websocket: WebSocket) -> SessionOptions:
    """Read session options from the URL, for clients that send only text: ``?voice=heart&speed=1.1``."""
    values: dict[str, Any] = {"type": "start", **websocket.query_params}
    try:
        return wire.StartMessage.model_validate(values, strict=False).options()
    except ValidationError as error:
        raise InvalidRequest(wire.explain(error)) from None


def _never(pcm: bytes) -> bool:
    """Send nothing: a server without the extension takes messages only as ASGI events."""
    return False


class _StreamConnection:
    """The worker's protocol on a WebSocket."""

    def __init__(self, websocket: WebSocket, hub: SessionHub, session: LocalSession, limits: StreamLimits) -> None:
        self._websocket = websocket
        self._hub = hub
        self._limits = limits
        self._protocol = ProtocolHandler(
            hub, session, max_message_chars=limits.max_message_chars, max_messages_per_s=limits.max_messages_per_s
        )
        extension = websocket.scope.get("extensions", {}).get(SEND_AUDIO, {})
        self._send_now: Callable[[bytes], bool] = extension.get("send", _never)
        self._sending_since_s: float | None = None
        self._writer: asyncio.Task[None] | None = None

    @property
    def session(self) -> LocalSession:
        return self._protocol.session

    async def run(self) -> None:
        subprotocols = self._websocket.scope.get("subprotocols", ())
        await self._websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in subprotocols else None)
        self._writer = asyncio.create_task(self._write(), name=f"{self.session.id}-writer")
        reader = asyncio.create_task(self._read(), name=f"{self.session.id}-reader")
        watcher = asyncio.create_task(self._watch_sends(), name=f"{self.session.id}-watcher")
        tasks: set[asyncio.Task[None]] = {self._writer, reader, watcher}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.session.close("disconnected")
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # The error, its traceback and this object form a cycle: free unsent messages without the garbage collector.
            self._protocol.replies.clear()
        await self._close(next((task.exception() for task in done if task.exception() is not None), None))

    async def _close(self, error: BaseException | None) -> None:
        if self._websocket.application_state is not WebSocketState.CONNECTED or isinstance(error, WebSocketDisconnect):
            return
        code = 1000
        reason = ""
        if error is not None:
            info = error_info(error)
            code = WEBSOCKET_CLOSE.get(info.code, 1011)
            reason = info.message
            if not isinstance(error, TTSWorkerError):
                log.error("session %s: the connection failed", self.session.id, exc_info=error)
        # A client that does not read does not receive the close frame either: drop the socket after a second.
        with contextlib.suppress(RuntimeError, WebSocketDisconnect), anyio.move_on_after(1.0):
            if isinstance(error, RateLimited):
                await self._send({"type": "rejected", "command": None, **wire.error_json(error.info)})
            await self._websocket.close(code, reason[:100])

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            session = self.session
            if self._protocol.replies:
                await self._send(self._protocol.replies.take())
            elif (item := session.poll()) is not None:
                if isinstance(item, PcmFrame):
                    if not self._send_now(item.pcm):
                        await self._send(item.pcm)
                else:
                    await self._send(self._protocol.encode_event(item))
            elif session.state is not State.CLOSED:
                await session.wait()
            elif session is self.session:
                if session.close_error is not None:
                    raise session.close_error
                if self._hub.draining and not self._protocol.closing:
                    raise Draining("the worker is shutting down; use another one")
                return  # closed by the client, or the connection has ended

    async def _send(self, message: bytes | dict[str, Any]) -> None:
        self._sending_since_s = asyncio.get_running_loop().time()
        if isinstance(message, bytes):
            await self._websocket.send_bytes(message)
        else:
            await self._websocket.send_text(wire.dumps(message))
        self._sending_since_s = None

    async def _watch_sends(self) -> None:
        """Fail the connection when the client stops reading."""
        limit_s = self._limits.send_timeout_s
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(limit_s / 4)
            since_s = self._sending_since_s
            if since_s is not None and loop.time() - since_s > limit_s:
                self.session.close("send_timeout")
                raise SendTimeout(f"the client read nothing for {limit_s:g} s")

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while not self._protocol.closing:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1005))
            text = message.get("text")
            raw = text if text is not None else message.get("bytes", b"")
            await self._protocol.prepare(raw)
            self._protocol.handle_message(raw)
            await asyncio.sleep(0)  # buffered messages arrive without suspending: yield to the other tasks
