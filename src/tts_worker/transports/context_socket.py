"""Many contexts multiplexed on one WebSocket: the part that the compatibility APIs share.

A context is a client-chosen name with its own session. The reader never waits for the writer, so a cancel takes effect
on arrival, even while the client does not read. The vendor's messages are encoded and decoded by ``cartesia`` and
``elevenlabs``. An error that names a context is the last message of that context.
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
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.transports import wire
from tts_worker.transports.rates import MessageRate
from tts_worker.transports.reply_queue import ReplyQueue
from tts_worker.types import Output, SessionOptions, State

log = logging.getLogger(__name__)

_MAX_NAME_CHARS = 128

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """Limits of one connection.

    Attributes:
        max_message_chars: Text of one message.
        send_timeout_s: How long a client may read nothing.
        max_messages_per_s: Average rate of messages.
    """

    max_message_chars: int = 100_000
    send_timeout_s: float = 10.0
    max_messages_per_s: float = 1_000.0


class ContextEncoder(Protocol):
    """Encodes the audio and events of one context as a vendor's messages."""

    @property
    def finished(self) -> bool:
        """Whether the last message of the context was returned."""
        ...

    def messages(self, item: Output) -> Iterable[Message]:
        """Encode one output of the session."""
        ...


class VendorProtocol(Protocol):
    """A vendor's protocol on one connection."""

    def handle_message(self, data: Message) -> None:
        """Handle a message. A TTSWorkerError it raises is sent to the client as ``error``."""
        ...

    def context_of(self, data: Message) -> str | None:
        """Return the context that a message names, even if the message is invalid."""
        ...

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        """Encode an error."""
        ...


class SpeechContext:
    """A context of a connection. Commands are queued until its session is admitted: its model may have to load."""

    def __init__(self, name: str, encoder: ContextEncoder) -> None:
        self.name = name
        self.encoder = encoder
        self.session: LocalSession | None = None
        self.closed = False
        self._queued_commands: list[Callable[[LocalSession], None]] = []

    def run_command(self, command: Callable[[LocalSession], None]) -> None:
        """Run a command on the session, or queue it. Raises the command's error unless it is queued."""
        if self.session is not None:
            command(self.session)
        else:
            self._queued_commands.append(command)

    def attach(self, session: LocalSession) -> None:
        """Set the admitted session and run the queued commands. Raises the first error of a command."""
        self.session = session
        for command in self._queued_commands:
            command(session)
        self._queued_commands.clear()

    def close(self, reason: str) -> None:
        """Close the session, now or as soon as it is admitted."""
        self.closed = True
        if self.session is not None:
            self.session.close(reason)


class ContextSocket:
    """One connection, from accept to close.

    Attributes:
        protocol: The vendor's protocol, set by the code that builds both.
        contexts: Open contexts by name.
    """

    protocol: VendorProtocol

    def __init__(self, websocket: WebSocket, hub: SessionHub, limits: SocketLimits) -> None:
        self.contexts: dict[str, SpeechContext] = {}
        self._websocket = websocket
        self._hub = hub
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()
        self._write_lock = asyncio.Lock()  # fair: contexts take turns in the order in which they wait
        self._replies = ReplyQueue()
        self._rate = MessageRate(limits.max_messages_per_s)
        self._reply_queued = asyncio.Event()
        self._finishing = False
        self._finished = asyncio.Event()
        self._sending_since_s: float | None = None

    # -- for the vendor's protocol ------------------------------------------------------------------------------------

    def open(self, name: str, options: SessionOptions, encoder: ContextEncoder) -> SpeechContext:
        """Open a context. If its session is rejected, the context ends with that error."""
        # The vendors' clients read audio as fast as it comes and play it from their own buffer: calls, not downloads.
        options = replace(options, buffered=True)
        context = SpeechContext(name, encoder)
        self.contexts[name] = context
        task = asyncio.create_task(self._serve(context, options), name=f"context-{name[:32]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return context

    def drop(self, name: str, reason: str) -> None:
        """End a context at once and send nothing more of it. Unknown names are ignored."""
        context = self.contexts.pop(name, None)
        if context is not None:
            context.close(reason)
            self._end_if_done()

    def reply(self, message: Message) -> None:
        """Send a message as soon as the client reads, before further audio.

        Raises:
            SendTimeout: Too many replies are unread.
        """
        self._replies.put(message)
        self._reply_queued.set()

    def fail(self, error: ErrorInfo, name: str | None) -> None:
        """Send an error and end the context that it names, if any."""
        self.reply(self.protocol.error(error, name))
        if name is not None:
            self.drop(name, "failed")

    def finish(self) -> None:
        """Close the connection once all contexts have ended."""
        self._finishing = True
        self._end_if_done()

    def check_text(self, text: str) -> None:
        """
        Raises:
            TextTooLong: The text exceeds ``max_message_chars``.
        """
        if len(text) > self._limits.max_message_chars:
            raise TextTooLong(f"a message may hold at most {self._limits.max_message_chars} characters of text")

    # -- the connection -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Accept, serve and close the connection; release everything it holds."""
        await self._websocket.accept()
        jobs = (self._read(), self._send_replies(), self._watch_sends(), self._wait_until_finished())
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
            # The error, its traceback and this object form a cycle: free unsent messages without the garbage collector.
            self._replies.clear()
        await self._close(error)

    async def _wait_until_finished(self) -> None:
        await self._finished.wait()
        async with self._write_lock:
            await self._send_all_replies()

    def _end_if_done(self) -> None:
        if self._finishing and not self.contexts:
            self._finished.set()

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
                log.error("a connection failed", exc_info=error)
        # A client that does not read does not receive the close frame either: drop the socket after a second.
        with contextlib.suppress(RuntimeError, WebSocketDisconnect), anyio.move_on_after(1.0):
            if isinstance(error, RateLimited):
                await self._send(self.protocol.error(error.info, None))
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
                    raise InvalidRequest("binary messages are not supported: send JSON text")
                data = wire.parse_object(raw, "message")
                name = _valid_name(self.protocol.context_of(data))
                self.protocol.handle_message(data)
            except SendTimeout:
                raise
            except TTSWorkerError as error:
                self.fail(error.info, name)
            await asyncio.sleep(0)  # buffered messages arrive without suspending: yield to the other tasks

    async def _serve(self, context: SpeechContext, options: SessionOptions) -> None:
        """Serve a context from admission to its last message."""
        session: LocalSession | None = None
        try:
            session = await self._hub.admit(options)
            if not context.closed:
                context.attach(session)
                await self._stream(context, session)
        except TTSWorkerError as error:
            self._report_failure(context, error.info)
        except WebSocketDisconnect:
            pass  # the reader sees the disconnect, too
        except Exception as error:
            log.error("a context failed", exc_info=error)
            self._report_failure(context, error_info(error))
        finally:
            if session is not None:
                session.close("finished")
            if self.contexts.get(context.name) is context:
                del self.contexts[context.name]
                self._end_if_done()

    def _report_failure(self, context: SpeechContext, error: ErrorInfo) -> None:
        if not context.closed:
            with contextlib.suppress(SendTimeout):
                self.reply(self.protocol.error(error, context.name))

    async def _stream(self, context: SpeechContext, session: LocalSession) -> None:
        while not context.encoder.finished:
            async with self._write_lock:
                # Poll only once it is this context's turn: output stopped while another context wrote is not sent.
                item = None if context.closed else session.poll()
                if item is not None:
                    for message in context.encoder.messages(item):
                        await self._send(message)
            if context.closed or (item is None and session.state is State.CLOSED):
                return
            if item is None:
                await session.wait()

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _send_replies(self) -> None:
        while True:
            await self._reply_queued.wait()
            self._reply_queued.clear()
            async with self._write_lock:
                await self._send_all_replies()

    async def _send_all_replies(self) -> None:
        while self._replies:
            await self._send(self._replies.take())

    async def _send(self, message: Message) -> None:
        self._sending_since_s = asyncio.get_running_loop().time()
        try:
            await self._websocket.send_text(wire.dumps(message))
        except RuntimeError:  # Starlette's error for a socket that is already closed
            raise WebSocketDisconnect(1006) from None
        self._sending_since_s = None

    async def _watch_sends(self) -> None:
        """Fail the connection when the client stops reading."""
        limit_s = self._limits.send_timeout_s
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(limit_s / 4)
            since_s = self._sending_since_s
            if since_s is not None and loop.time() - since_s > limit_s:
                raise SendTimeout(f"the client read nothing for {limit_s:g} s")


def _valid_name(name: str | None) -> str | None:
    """Return the name unless it is too long to be repeated in an error."""
    return name if name is None or len(name) <= _MAX_NAME_CHARS else None
