"""``/v1/stream``: text and control in, sound and events out, on one WebSocket. See ``docs/protocol.md``.

The reader never waits for the writer: a control message is handled in the moment it arrives, also while the client
does not read. One task writes, so the order on the wire is the order in which the session decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass
from typing import Any

import anyio
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from tts_worker.errors import (
    HTTP_STATUS,
    WEBSOCKET_CLOSE,
    IllegalCommand,
    InvalidRequest,
    SendTimeout,
    TextTooLong,
    TTSWorkerError,
    error_info,
)
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.session.machine import State
from tts_worker.session.session import LocalSession
from tts_worker.transports import wire
from tts_worker.transports.responses import error_response
from tts_worker.transports.security import SUBPROTOCOL
from tts_worker.types import Acknowledged, Ended, Notice, PcmFrame, UtteranceKey

log = logging.getLogger(__name__)

_MAX_UNSENT_ANSWERS = 256
"""Answers (pongs, rejections) that may wait for a client that does not read, before it is cut off."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    max_message_chars: int = 100_000
    send_timeout_s: float = 10.0


async def stream(websocket: WebSocket, hub: SessionHub, limits: StreamLimits) -> None:
    """Serve one connection from handshake to close. A refusal is an HTTP answer to the handshake (503, 404, ...)."""
    try:
        session = hub.open(_options_from_query(websocket))
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
    """``session`` is the current one: a ``start`` while nothing is spoken replaces it."""

    def __init__(self, websocket: WebSocket, hub: SessionHub, session: LocalSession, limits: StreamLimits) -> None:
        self.session = session
        self._websocket = websocket
        self._hub = hub
        self._limits = limits
        self._answers: deque[dict[str, Any]] = deque()
        self._context: str | None = None  # the client's name for the utterance being written
        self._context_key: UtteranceKey | None = None
        self._stopped_context: str | None = None
        self._contexts: dict[UtteranceKey, str] = {}
        self._sending_since_s: float | None = None
        self._closing = False
        self._writer: asyncio.Task[None] | None = None

    async def run(self) -> None:
        offered = self._websocket.scope.get("subprotocols", ())
        await self._websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
        self._answers.append(self._ready())
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
            await self._websocket.close(code, reason[:100])

    # -- out ----------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            session = self.session
            if self._answers:
                await self._send(self._answers.popleft())
            elif (item := session.poll()) is not None:
                if isinstance(item, PcmFrame):
                    await self._send(item.pcm)
                else:
                    await self._send(self._message(item))
            elif session.state is not State.CLOSED:
                await session.wait()
            elif session is self.session:
                return  # closed by the client, a drain, or the end of the connection

    def _message(self, notice: Notice) -> dict[str, Any]:
        """What happened to an utterance says under which name the client wrote it."""
        message = wire.notice_json(notice)
        if notice.key in self._contexts and not isinstance(notice, Acknowledged):
            message["context"] = self._contexts[notice.key]
        if isinstance(notice, Ended):
            self._note_end(notice)
        return message

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

    def _answer(self, message: dict[str, Any]) -> None:
        if len(self._answers) >= _MAX_UNSENT_ANSWERS:
            raise SendTimeout("too many answers were not read")
        self._answers.append(message)
        self.session.wake()

    def _ready(self) -> dict[str, Any]:
        params = self.session.params
        return {
            "type": "ready",
            "protocol": wire.PROTOCOL_VERSION,
            "session": self.session.id,
            "sample_rate": self.session.sample_rate_hz,
            "format": "pcm_s16le",
            "channels": 1,
            "voice": params.voice,
            "alignment": self._hub.voices.get(params.voice).info.alignment.value,
            "synthetic": True,
        }

    # -- in -----------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while not self._closing:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1005))
            name: str | None = None
            context: str | None = None
            try:
                raw = message.get("text")
                if raw is None:
                    raise InvalidRequest("binary messages are not understood: send JSON text")
                parsed = wire.parse_client_message(raw)
                name = parsed.type
                if isinstance(parsed, wire.TextMessage | wire.EndMessage):
                    context = parsed.context
                self._handle(parsed)
            except TTSWorkerError as error:
                if isinstance(error, SendTimeout):
                    raise
                named = {} if context is None else {"context": context}
                self._answer({"type": "rejected", "command": name, **named, **wire.error_json(error.info)})

    def _handle(self, message: wire.ClientMessage) -> None:
        session = self.session
        if isinstance(message, wire.TextMessage):
            self._take_text(message)
        elif isinstance(message, wire.EndMessage):
            if message.context is None:
                session.end_text()
            elif message.context == self._context:
                if session.writing == self._context_key:
                    session.end_text()
                    self._context = None
                else:
                    self._retire_context()
        elif isinstance(message, wire.FlushMessage):
            session.flush()
        elif isinstance(message, wire.PauseMessage):
            session.pause()
        elif isinstance(message, wire.ResumeMessage):
            session.resume()
        elif isinstance(message, wire.StopMessage):
            self._retire_context()
            session.stop(message.reason or message.type, message.played_samples)
        elif isinstance(message, wire.PlayedMessage):
            session.played(message.samples)
        elif isinstance(message, wire.PingMessage):
            self._answer({"type": "pong", "id": message.id})
        elif isinstance(message, wire.StartMessage):
            self._start(message)
        else:
            self._closing = True
            session.close("client_closed")

    def _take_text(self, message: wire.TextMessage) -> None:
        if len(message.text) > self._limits.max_message_chars:
            raise TextTooLong(f"a message may hold at most {self._limits.max_message_chars} characters of text")
        context, session = message.context, self.session
        if context is not None:
            if context == self._context and session.writing != self._context_key:
                self._retire_context()  # it ended by itself, and its writer has not heard of that yet
            if context == self._stopped_context:
                return  # or not of the STOP
            if context != self._context and self._context is not None and session.writing == self._context_key:
                session.end_text()
        key = session.speak(message.text)
        if context is not None:
            self._context, self._context_key = context, key
            self._contexts[key] = context
        if message.end:
            session.end_text()
            self._context = None

    def _retire_context(self) -> None:
        if self._context is not None:
            self._stopped_context, self._context = self._context, None

    def _note_end(self, ended: Ended) -> None:
        """An utterance that ended by itself takes its context with it, and only its own: another may be written."""
        if self._contexts.pop(ended.key, None) is not None and ended.key == self._context_key:
            self._retire_context()

    def _start(self, message: wire.StartMessage) -> None:
        options = message.options()
        if self.session.state is State.IDLE:
            replaced, self.session = self.session, self._hub.open(options, replaces=self.session)
            while (item := replaced.poll()) is not None:  # what it had left to say: receipts, acknowledgements
                if not isinstance(item, PcmFrame):
                    self._answer(self._message(item))
        else:
            params = self._hub.params(options)
            if self._hub.voices.get(params.voice).engine != self._hub.voices.get(self.session.params.voice).engine:
                raise IllegalCommand("that voice is on another engine: start when nothing is being spoken")
            self.session.configure(params)
        self._answer(self._ready())
