"""A stream of messages to and from a worker, the same for WebSockets and gRPC.

``send`` only appends to an outbox; one task sends it while another passes on what arrives.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque

from tts_worker.client.link import Receiver
from tts_worker.errors import ConnectionLost, ErrorInfo, TTSWorkerError
from tts_worker.protocol.messages import ClientMessage, RejectedMessage, TextMessage, WorkerMessage

_MESSAGE_CHARS = 4_000
"""Maximum characters of a text message; queued deltas are joined up to this size."""


class MessageStream(ABC):
    """Base of the transports, which are the ``Link`` of a session.

    Attributes:
        is_lost: The stream is closed.
        unread_s: The longest time in which the current session's caller took no audio, so that nothing was read.
    """

    def __init__(self) -> None:
        self.is_lost = False
        self.unread_s = 0.0
        self._receiver: Receiver | None = None
        self._outbox: deque[ClientMessage] = deque()
        self._outgoing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, message: ClientMessage) -> None:
        """See ``link.Link``."""
        if isinstance(message, TextMessage):
            self._queue_text(message)
        else:
            self._outbox.append(message)
        self._outgoing.set()

    def close(self) -> None:
        """Close the stream. A current session ends with ConnectionLost."""
        self._disconnect(ConnectionLost("the connection was closed").info)

    async def wait_closed(self) -> None:
        """Wait until reading and writing have ended and, if the stream is closed, its connection is closed."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- for the transport --------------------------------------------------------------------------------------------

    @abstractmethod
    async def _transmit(self, message: ClientMessage) -> bool:
        """Send a message. Returns False if the connection is lost; raises InvalidRequest if it cannot be encoded."""

    @abstractmethod
    async def _next(self) -> WorkerMessage | bytes | None:
        """Wait for a message; None is one to ignore. Raises ConnectionLost."""

    def _dispatch(self, message: WorkerMessage | bytes) -> None:
        """Handle a message that has arrived."""
        if self._receiver is not None:
            self._receiver.receive(message)

    @abstractmethod
    async def _close_transport(self) -> None:
        """Close the connection. Called once, in a separate task."""

    @abstractmethod
    def _abort_transport(self) -> None:
        """Drop the connection at once, instead of closing it."""

    @abstractmethod
    def _on_disconnect(self, error: ErrorInfo) -> None:
        """Called once when the stream is lost or closed."""

    def _start(self) -> None:
        """Begin to write and read."""
        self._tasks = {
            asyncio.create_task(self._write(), name="tts-client-writer"),
            asyncio.create_task(self._read(), name="tts-client-reader"),
        }

    def _disconnect(self, error: ErrorInfo, *, abort: bool = False) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        receiver = self._receiver
        self._receiver = None
        if receiver is not None:
            receiver.on_lost(error)
        self._on_disconnect(error)
        if abort:
            self._abort_transport()
            return
        # Not at the end of reading: a task that is cancelled before it has begun never runs.
        self._tasks.add(asyncio.create_task(self._close_transport(), name="tts-client-closing"))

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _queue_text(self, message: TextMessage) -> None:
        text = message.text
        last = self._outbox[-1] if self._outbox else None
        if (
            isinstance(last, TextMessage)
            and last.context == message.context
            and len(last.text) + len(text) <= _MESSAGE_CHARS
        ):
            self._outbox[-1] = TextMessage(text=last.text + text, context=message.context)
            return
        for start in range(0, len(text) or 1, _MESSAGE_CHARS):
            self._outbox.append(TextMessage(text=text[start : start + _MESSAGE_CHARS], context=message.context))

    async def _write(self) -> None:
        while True:
            while self._outbox:
                try:
                    if not await self._transmit(self._outbox.popleft()):
                        return  # the reader reports the loss
                except TTSWorkerError as error:
                    self._dispatch(RejectedMessage.of(error.info))
            self._outgoing.clear()
            await self._outgoing.wait()

    async def _read(self) -> None:
        lost = ConnectionLost("the connection to the worker was lost")
        is_cancelled = False
        last: Receiver | None = None
        loop = asyncio.get_running_loop()
        try:
            while not self.is_lost:
                if (receiver := self._receiver) is not None:
                    if receiver is not last:
                        last, self.unread_s = receiver, 0.0
                    waits_since_s = loop.time()
                    await receiver.wait_for_capacity()
                    self.unread_s = max(self.unread_s, loop.time() - waits_since_s)
                message = await self._next()
                if message is not None:
                    self._dispatch(message)
        except ConnectionLost as error:
            lost = error
        except asyncio.CancelledError:  # the event loop ends, and would destroy a task that closes the connection
            is_cancelled = True
            raise
        finally:
            self._disconnect(lost.info, abort=is_cancelled)
