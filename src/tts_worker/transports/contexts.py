"""Many utterances at once on one WebSocket: what the dialects of other vendors have in common.

A context is a name that the client gave, with a session of the hub behind it; the contexts of a socket share nothing
but the wire. The reader never waits for the writer, so a cancel is handled in the moment it arrives, also while the
client does not read. It knows no vendor: how messages read and look is the dialect's (``cartesia``, ``elevenlabs``).
An error that names a context is the last message of that context.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from tts_worker.errors import (
    WEBSOCKET_CLOSE,
    ErrorInfo,
    InvalidRequest,
    RateLimited,
    SendTimeout,
    TextTooLong,
    TTSWorkerError,
    error_info,
)
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.session.machine import State
from tts_worker.session.session import LocalSession
from tts_worker.transports import wire
from tts_worker.transports.answers import Answers
from tts_worker.transports.rates import MessageRate
from tts_worker.types import Output

log = logging.getLogger(__name__)

_MAX_NAME_CHARS = 128

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SocketLimits:
    max_message_chars: int = 100_000
    send_timeout_s: float = 10.0
    max_messages_per_s: float = 1_000.0


class Presenter(Protocol):
    """How one context's sound and events look in a dialect."""

    @property
    def finished(self) -> bool:
        """Whether the last message of the context was given."""
        ...

    def messages(self, item: Output) -> Iterable[Message]: ...


class Dialect(Protocol):
    """A vendor's protocol on one connection."""

    def read(self, data: Message) -> None:
        """Handle a message. Raises TTSWorkerError, which is then sent as ``error``."""
        ...

    def context_of(self, data: Message) -> str | None:
        """The context that a message names, however wrong the message is."""
        ...

    def error(self, error: ErrorInfo, context: str | None) -> Message: ...


class Context:
    """A name on the socket. Commands wait until its session is admitted, for its model may have to be loaded."""

    def __init__(self, name: str, presenter: Presenter) -> None:
        self.name = name
        self.presenter = presenter
        self.session: LocalSession | None = None
        self.closed = False
        self._waiting: list[Callable[[LocalSession], None]] = []

    def do(self, command: Callable[[LocalSession], None]) -> None:
        """Run a command on the session. Raises what it raises, unless it has to wait."""
        if self.session is not None:
            command(self.session)
        else:
            self._waiting.append(command)

    def attach(self, session: LocalSession) -> None:
        """Its session was admitted. Raises what the commands raise that waited."""
        self.session = session
        for command in self._waiting:
            command(session)
        self._waiting.clear()

    def close(self, reason: str) -> None:
        self.closed = True
        if self.session is not None:
            self.session.close(reason)


class ContextSocket:
    """One connection, from accept to close. ``dialect`` is set by whoever builds both."""

    dialect: Dialect

    def __init__(self, websocket: WebSocket, hub: SessionHub, limits: SocketLimits) -> None:
        self.contexts: dict[str, Context] = {}
        self._websocket = websocket
        self._hub = hub
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # whose turn it is to write; first come, first served
        self._answers = Answers()
        self._rate = MessageRate(limits.max_messages_per_s)
        self._answer_waits = asyncio.Event()
        self._finishing = False
        self._finished = asyncio.Event()
        self._sending_since_s: float | None = None

    # -- for the dialect ----------------------------------------------------------------------------------------------

    def open(self, name: str, options: SessionOptions, presenter: Presenter) -> Context:
        """A new context. If its session is refused, the context ends with that error."""
        # The vendors' clients take audio at once and play it from a buffer of their own: calls, not downloads.
        options = replace(options, live=True)
        context = self.contexts[name] = Context(name, presenter)
        task = asyncio.create_task(self._serve(context, options), name=f"context-{name[:32]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return context

    def drop(self, name: str, reason: str) -> None:
        """End a context now: nothing more is sent of it. An unknown name is fine."""
        context = self.contexts.pop(name, None)
        if context is not None:
            context.close(reason)
            self._end_if_done()

    def answer(self, message: Message) -> None:
        """Send a message as soon as the client reads, before more sound. Raises SendTimeout if too many wait."""
        self._answers.put(message)
        self._answer_waits.set()

    def fail(self, error: ErrorInfo, name: str | None) -> None:
        """Say what is wrong; a context that is named ends."""
        self.answer(self.dialect.error(error, name))
        if name is not None:
            self.drop(name, "failed")

    def finish(self) -> None:
        """Close the connection once all contexts have ended."""
        self._finishing = True
        self._end_if_done()

    def check_text(self, text: str) -> None:
        if len(text) > self._limits.max_message_chars:
            raise TextTooLong(f"a message may hold at most {self._limits.max_message_chars} characters of text")

    # -- the connection -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Accept, serve, close; afterwards nothing is held."""
        await self._websocket.accept()
        jobs = (self._read(), self._send_answers(), self._watch(), self._until_finished())
        tasks = {asyncio.create_task(job, name="context-socket") for job in jobs}
        error: BaseException | None = None
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = next((task.exception() for task in done if task.exception() is not None), None)
        finally:
            for context in list(self.contexts.values()):
                context.close("disconnected")
            tasks |= self._tasks
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # An error and its traceback refer to each other and to this: what is not sent must not wait for the
            # garbage collector.
            self._answers.clear()
        await self._say_goodbye(error)

    async def _until_finished(self) -> None:
        await self._finished.wait()
        async with self._turn:
            await self._send_all_answers()

    def _end_if_done(self) -> None:
        if self._finishing and not self.contexts:
            self._finished.set()

    async def _say_goodbye(self, error: BaseException | None) -> None:
        if self._websocket.application_state is not WebSocketState.CONNECTED or isinstance(error, WebSocketDisconnect):
            return
        code, reason = 1000, ""
        if error is not None:
            info = error_info(error)
            code, reason = WEBSOCKET_CLOSE.get(info.code, 1011), info.message
            if not isinstance(error, TTSWorkerError):
                log.error("a connection failed", exc_info=error)
        # A client that does not read does not read this either; the socket is then dropped.
        with contextlib.suppress(RuntimeError, WebSocketDisconnect), anyio.move_on_after(1.0):
            if isinstance(error, RateLimited):
                await self._send(self.dialect.error(error.info, None))
            await self._websocket.close(code, reason[:100])

    async def _read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1005))
            received = message.get("text") or message.get("bytes") or ""
            self._rate.count(len(received), asyncio.get_running_loop().time())
            name: str | None = None
            try:
                if (raw := message.get("text")) is None:
                    raise InvalidRequest("binary messages are not understood: send JSON text")
                data = wire.parse_object(raw, "message")
                name = _short(self.dialect.context_of(data))
                self.dialect.read(data)
            except SendTimeout:
                raise
            except TTSWorkerError as error:
                self.fail(error.info, name)
            await asyncio.sleep(0)  # messages that are there already come without a wait: let the others have a turn

    async def _serve(self, context: Context, options: SessionOptions) -> None:
        """From admission to the last message of a context."""
        session: LocalSession | None = None
        try:
            session = await self._hub.admit(options)
            if not context.closed:
                context.attach(session)
                await self._play(context, session)
        except TTSWorkerError as error:
            self._fail_quietly(context, error.info)
        except WebSocketDisconnect:
            pass  # the client is gone; the reader hears of it too
        except Exception as error:
            log.error("a context failed", exc_info=error)
            self._fail_quietly(context, error_info(error))
        finally:
            if session is not None:
                session.close("finished")
            if self.contexts.get(context.name) is context:
                del self.contexts[context.name]
                self._end_if_done()

    def _fail_quietly(self, context: Context, error: ErrorInfo) -> None:
        if not context.closed:
            with contextlib.suppress(SendTimeout):
                self.answer(self.dialect.error(error, context.name))

    async def _play(self, context: Context, session: LocalSession) -> None:
        while not context.presenter.finished:
            async with self._turn:
                # Only now is it decided what is sent: whatever was stopped while another context wrote is not.
                item = None if context.closed else session.poll()
                if item is not None:
                    for message in context.presenter.messages(item):
                        await self._send(message)
            if context.closed or (item is None and session.state is State.CLOSED):
                return
            if item is None:
                await session.wait()

    # -- out ----------------------------------------------------------------------------------------------------------

    async def _send_answers(self) -> None:
        while True:
            await self._answer_waits.wait()
            self._answer_waits.clear()
            async with self._turn:
                await self._send_all_answers()

    async def _send_all_answers(self) -> None:
        while self._answers:
            await self._send(self._answers.take())

    async def _send(self, message: Message) -> None:
        self._sending_since_s = asyncio.get_running_loop().time()
        try:
            await self._websocket.send_text(wire.dumps(message))
        except RuntimeError:  # the framework's word for a socket that was closed in the meantime
            raise WebSocketDisconnect(1006) from None
        self._sending_since_s = None

    async def _watch(self) -> None:
        """Cut off a client that takes nothing."""
        limit_s = self._limits.send_timeout_s
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(limit_s / 4)
            since_s = self._sending_since_s
            if since_s is not None and loop.time() - since_s > limit_s:
                raise SendTimeout(f"nothing was read for {limit_s:g} s")


def _short(name: str | None) -> str | None:
    """The name of a context, unless it is longer than one may be: it is not repeated then."""
    return name if name is None or len(name) <= _MAX_NAME_CHARS else None
