"""Many contexts multiplexed on one WebSocket: the part that the compatibility APIs share.

A context is a client-chosen name with its own session. A cancel takes effect on arrival, even while the client does not
read. The vendor's messages are encoded and decoded by ``cartesia`` and ``elevenlabs``, and by ``turns`` for protocols
with one context per connection. An error that names a context is the last message of that context.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from tts_worker.errors import (
    ErrorInfo,
    InvalidRequest,
    SendTimeout,
    TextTooLong,
    TTSWorkerError,
    as_exception,
    error_info,
)
from tts_worker.features.compat.dictionaries import only_stored
from tts_worker.protocol.json_codec import dumps, parse_object
from tts_worker.protocol.reply_queue import ReplyQueue
from tts_worker.server.limits import ApiLimits
from tts_worker.server.message_socket import MessageSocket
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.types import Output, SessionOptions, State

log = logging.getLogger(__name__)

_MAX_NAME_CHARS = 128

Message = dict[str, Any]
WireMessage = Message | bytes
"""Bytes are a binary message: audio, in some protocols."""


class ContextEncoder(Protocol):
    """Encodes the audio and events of one context as a vendor's messages."""

    @property
    def finished(self) -> bool:
        """Whether the last message of the context was returned."""
        ...

    def messages(self, item: Output) -> Iterable[WireMessage]:
        """Encode one output of the session. A TTSWorkerError it raises ends the context, and is sent to the client."""
        ...


class VendorProtocol(Protocol):
    """A vendor's protocol on one connection."""

    def handle_message(self, data: Message) -> Awaitable[None] | None:
        """Handle a message. A TTSWorkerError it raises is sent to the client as ``error``.

        Returns:
            What has to end before the next message is handled, if anything.
        """
        ...

    def context_of(self, data: Message) -> str | None:
        """Return the context that a message names, even if the message is invalid."""
        ...

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        """Encode an error."""
        ...

    def is_fatal(self, error: ErrorInfo) -> bool:
        """Whether an error ends the connection, with the close code of the error."""
        return False


class SpeechContext:
    """A context of a connection. Commands are queued until its session is admitted: its model may have to load.

    Attributes:
        name: Its name.
        encoder: Encodes what its session returns.
        session: Its session, once it is admitted.
        closed: Nothing more of it is sent.
        ended: Set when its last message was sent.
    """

    def __init__(self, name: str, encoder: ContextEncoder) -> None:
        self.name = name
        self.encoder = encoder
        self.session: LocalSession | None = None
        self.closed = False
        self.ended = asyncio.Event()
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
    """The contexts of one connection.

    Args:
        websocket: The connection, not accepted yet.
        hub: Admits sessions.
        limits: Limits of the connection.
        make_protocol: Builds the vendor's protocol for this object.

    Attributes:
        contexts: Open contexts by name.
        finishing: Whether the connection closes once all contexts have ended.
    """

    def __init__(
        self,
        websocket: WebSocket,
        hub: SessionHub,
        limits: ApiLimits,
        make_protocol: Callable[[ContextSocket], VendorProtocol],
    ) -> None:
        self.contexts: dict[str, SpeechContext] = {}
        self._socket = MessageSocket(websocket, limits, "context-socket")
        self._hub = hub
        self._write_lock = asyncio.Lock()  # fair: contexts take turns in the order in which they wait
        self._replies: ReplyQueue[Message] = ReplyQueue()
        self._reply_queued = asyncio.Event()
        self.finishing = False
        self._finished = asyncio.Event()
        self._last_message: Callable[[], Message] | None = None
        self._failure: TTSWorkerError | None = None
        self._protocol = make_protocol(self)

    # -- for the vendor's protocol ------------------------------------------------------------------------------------

    def open(self, name: str, options: SessionOptions, encoder: ContextEncoder) -> SpeechContext:
        """Open a context. If its session is rejected, the context ends with that error."""
        # The vendors' clients read audio as fast as it comes and play it from their own buffer: calls, not downloads.
        options = replace(only_stored(self._hub, options), buffered=True)
        context = SpeechContext(name, encoder)
        self.contexts[name] = context
        self._socket.spawn(self._serve(context, options), f"context-{name[:32]}")
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
        """Send an error and end the context that it names, if any; a fatal one ends the connection."""
        self.reply(self._protocol.error(error, name))
        if name is not None:
            self.drop(name, "failed")
        if self._protocol.is_fatal(error):
            self.finishing = True
            self._failure = as_exception(error)
            self._finished.set()

    def finish(self, last_message: Callable[[], Message] | None = None) -> None:
        """Close the connection once all contexts have ended.

        Args:
            last_message: Returns what is sent then; None sends nothing.
        """
        self.finishing = True
        self._last_message = last_message
        self._end_if_done()

    def check_text(self, text: str) -> None:
        """Check the length of one message's text.

        Raises:
            TextTooLong: The text exceeds ``max_message_chars``.
        """
        limit = self._socket.limits.max_message_chars
        if len(text) > limit:
            raise TextTooLong(f"a message may hold at most {limit} characters of text")

    # -- the connection -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Accept, serve and close the connection; release everything it holds."""
        await self._socket.run(
            self._read,
            self._send_replies,
            self._wait_until_finished,
            on_end=self._end,
            encode_error=lambda error: dumps(self._protocol.error(error, None)),
        )

    def _end(self, reason: str) -> None:
        for context in list(self.contexts.values()):
            context.close(reason)
        # An error, its traceback and this object form a cycle: free unsent messages without the garbage collector.
        self._replies.clear()

    async def _wait_until_finished(self) -> None:
        await self._finished.wait()
        if self._failure is None and self._last_message is not None:
            self.reply(self._last_message())
        async with self._write_lock:
            await self._send_all_replies()
        if self._failure is not None:
            raise self._failure

    def _end_if_done(self) -> None:
        if self.finishing and not self.contexts:
            self._finished.set()

    async def _read(self) -> None:
        while True:
            raw = await self._socket.receive()
            name: str | None = None
            try:
                if isinstance(raw, bytes):
                    raise InvalidRequest("binary messages are not supported: send JSON text")
                data = parse_object(raw, "message")
                name = _valid_name(self._protocol.context_of(data))
                if (rest := self._protocol.handle_message(data)) is not None:
                    await rest
            except SendTimeout:
                raise
            except TTSWorkerError as error:
                self.fail(error.info, name)

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
            context.ended.set()

    def _report_failure(self, context: SpeechContext, error: ErrorInfo) -> None:
        if not context.closed:
            with contextlib.suppress(SendTimeout):
                self.fail(error, context.name)

    async def _stream(self, context: SpeechContext, session: LocalSession) -> None:
        while not context.encoder.finished:
            async with self._write_lock:
                # Poll only once it is this context's turn: output stopped while another context wrote is not sent.
                item = None if context.closed else session.poll()
                if item is not None:
                    for message in context.encoder.messages(item):
                        await self._socket.send(message if isinstance(message, bytes) else dumps(message))
            if context.closed or (item is None and session.state is State.CLOSED):
                return
            if item is None:
                await session.wait()

    async def _send_replies(self) -> None:
        while True:
            await self._reply_queued.wait()
            self._reply_queued.clear()
            async with self._write_lock:
                await self._send_all_replies()

    async def _send_all_replies(self) -> None:
        while self._replies:
            await self._socket.send(dumps(self._replies.take()))


def _valid_name(name: str | None) -> str | None:
    """Return the name unless it is too long to be repeated in an error."""
    return name if name is None or len(name) <= _MAX_NAME_CHARS else None
