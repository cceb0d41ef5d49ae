"""``/v1/stream``: text and control in, sound and events out, on one WebSocket. See ``docs/protocol.md``.

The reader never waits for the writer: a control message is handled in the moment it arrives, also while the client
does not read. One task writes, so the order on the wire is the order in which the session decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
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
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.session.machine import State
from tts_worker.session.session import LocalSession
from tts_worker.transports import wire
from tts_worker.transports.dialogue import Dialogue
from tts_worker.transports.responses import error_response
from tts_worker.transports.security import SUBPROTOCOL
from tts_worker.types import PcmFrame

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamLimits:
    max_message_chars: int = 100_000
    send_timeout_s: float = 10.0
    max_messages_per_s: float = 1_000.0


async def stream(websocket: WebSocket, hub: SessionHub, limits: StreamLimits) -> None:
    """Serve one connection from handshake to close. A refusal is an HTTP answer to the handshake (503, 404, ...)."""
    try:
        session = await hub.admit(_options_from_query(websocket))
    except TTSWorkerError as error:
        await websocket.send_denial_response(error_response(error.info, HTTP_STATUS[error.code]))
        return
    connection = _Connection(websocket, hub, session, limits)
    try:
        await connection.run()
    finally:
        connection.session.close("disconnected")


def _options_from_query(websocket: WebSocket) -> SessionOptions:
    """Session options may stand in the URL, for clients that send nothing but text: ``?voice=heart&speed=1.1``."""
    values: dict[str, Any] = {"type": "start", **websocket.query_params}
    try:
        return wire.StartMessage.model_validate(values, strict=False).options()
    except ValidationError as error:
        raise InvalidRequest(wire.explain(error)) from None


class _Connection:
    """A dialogue on a socket."""

    def __init__(self, websocket: WebSocket, hub: SessionHub, session: LocalSession, limits: StreamLimits) -> None:
        self._websocket = websocket
        self._hub = hub
        self._limits = limits
        self._dialogue = Dialogue(
            hub, session, max_message_chars=limits.max_message_chars, max_messages_per_s=limits.max_messages_per_s
        )
        self._sending_since_s: float | None = None
        self._writer: asyncio.Task[None] | None = None

    @property
    def session(self) -> LocalSession:
        return self._dialogue.session

    async def run(self) -> None:
        offered = self._websocket.scope.get("subprotocols", ())
        await self._websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
        self._writer = asyncio.create_task(self._write(), name=f"{self.session.id}-writer")
        reader = asyncio.create_task(self._read(), name=f"{self.session.id}-reader")
        watcher = asyncio.create_task(self._watch(), name=f"{self.session.id}-watcher")
        tasks: set[asyncio.Task[None]] = {self._writer, reader, watcher}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.session.close("disconnected")
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # An error and its traceback refer to each other and to this: what is not sent must not wait for the
            # garbage collector.
            self._dialogue.answers.clear()
        await self._say_goodbye(next((task.exception() for task in done if task.exception() is not None), None))

    async def _say_goodbye(self, error: BaseException | None) -> None:
        if self._websocket.application_state is not WebSocketState.CONNECTED or isinstance(error, WebSocketDisconnect):
            return
        code, reason = 1000, ""
        if error is not None:
            info = error_info(error)
            code, reason = WEBSOCKET_CLOSE.get(info.code, 1011), info.message
            if not isinstance(error, TTSWorkerError):
                log.error("session %s: the connection failed", self.session.id, exc_info=error)
        # A client that does not read does not read this either; the socket is then dropped.
        with contextlib.suppress(RuntimeError, WebSocketDisconnect), anyio.move_on_after(1.0):
            if isinstance(error, RateLimited):
                await self._send({"type": "rejected", "command": None, **wire.error_json(error.info)})
            await self._websocket.close(code, reason[:100])

    # -- out ----------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            session = self.session
            if self._dialogue.answers:
                await self._send(self._dialogue.answers.take())
            elif (item := session.poll()) is not None:
                if isinstance(item, PcmFrame):
                    await self._send(item.pcm)
                else:
                    await self._send(self._dialogue.told(item))
            elif session.state is not State.CLOSED:
                await session.wait()
            elif session is self.session:
                if session.close_error is not None:
                    raise session.close_error
                if self._hub.draining and not self._dialogue.closing:
                    raise Draining("the worker is shutting down; use another one")
                return  # closed by the client, or the end of the connection

    async def _send(self, message: bytes | dict[str, Any]) -> None:
        self._sending_since_s = asyncio.get_running_loop().time()
        if isinstance(message, bytes):
            await self._websocket.send_bytes(message)
        else:
            await self._websocket.send_text(wire.dumps(message))
        self._sending_since_s = None

    async def _watch(self) -> None:
        """Cut off a client that takes nothing."""
        limit_s = self._limits.send_timeout_s
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(limit_s / 4)
            since_s = self._sending_since_s
            if since_s is not None and loop.time() - since_s > limit_s:
                self.session.close("send_timeout")
                raise SendTimeout(f"nothing was read for {limit_s:g} s")

    # -- in -----------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while not self._dialogue.closing:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1005))
            raw = message.get("text")
            said = raw if raw is not None else message.get("bytes", b"")
            await self._dialogue.prepare(said)
            self._dialogue.hear(said)
            await asyncio.sleep(0)  # messages that are there already come without a wait: let the others have a turn
