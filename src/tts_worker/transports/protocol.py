"""The worker's own protocol on one connection, independent of the transport that carries it.

``websocket`` and ``webrtc_peer`` pass received messages in and send what comes out. See ``docs/protocol.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from tts_worker.errors import IllegalCommand, InvalidRequest, SendTimeout, TextTooLong, TTSWorkerError
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.transports import wire
from tts_worker.transports.rates import MessageRate
from tts_worker.transports.reply_queue import ReplyQueue
from tts_worker.types import Acknowledged, Ended, Notice, PcmFrame, SessionOptions, State, UtteranceKey

_LARGE_MESSAGE_CHARS = 4_096
"""Messages from this size on may carry a lexicon that takes milliseconds to build."""


class ProtocolHandler:
    """Handles client messages and encodes session events.

    A ``start`` while nothing is being spoken replaces the session.

    Attributes:
        session: The current session.
        replies: Messages to send before the next output of the session.
        closing: The client sent ``close``.
    """

    def __init__(
        self,
        hub: SessionHub,
        session: LocalSession,
        *,
        max_message_chars: int,
        max_messages_per_s: float,
        adapt_options: Callable[[SessionOptions], SessionOptions] = lambda options: options,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            hub: Opens the sessions that replace ``session``.
            session: An admitted session.
            max_message_chars: Limit on the text of one message.
            max_messages_per_s: Average rate of messages.
            adapt_options: Adapts the options of a ``start`` to the transport.
            on_stop: Called when the client stops the audio or replaces its session, for transports with a buffer.
        """
        self.session = session
        self.replies = ReplyQueue()
        self.closing = False
        self._hub = hub
        self._adapt_options = adapt_options
        self._on_stop = on_stop
        self._max_message_chars = max_message_chars
        self._rate = MessageRate(max_messages_per_s)
        self._context: str | None = None  # the client's name for the utterance being written
        self._context_key: UtteranceKey | None = None
        self._stopped_context: str | None = None
        self._contexts: dict[UtteranceKey, str] = {}
        self.replies.put(self._ready())

    async def prepare(self, raw: str | bytes) -> None:
        """Build a large lexicon on a thread before ``handle_message`` needs it."""
        if len(raw) > _LARGE_MESSAGE_CHARS and isinstance(raw, str) and '"lexicon"' in raw:
            with contextlib.suppress(InvalidRequest):  # handle_message reports the error
                await self._hub.lexicons.prepare_from(lambda: wire.parse_lexicon(raw))

    def handle_message(self, raw: str | bytes) -> None:
        """Handle a client message. An invalid one is answered by ``rejected``.

        Raises:
            RateLimited: The client sends too many messages.
            SendTimeout: Too many replies are unread.
        """
        self._rate.count(len(raw), asyncio.get_running_loop().time())
        if isinstance(raw, bytes):
            self.reject(InvalidRequest("binary messages are not supported: send JSON text"))
            return
        command: str | None = None
        context: str | None = None
        try:
            message = wire.parse_client_message(raw)
            command = message.type
            if isinstance(message, wire.TextMessage | wire.EndMessage):
                context = message.context
            self._handle(message)
        except TTSWorkerError as error:
            if isinstance(error, SendTimeout):
                raise
            self.reject(error, command, context)

    def reject(self, error: TTSWorkerError, command: str | None = None, context: str | None = None) -> None:
        """Queue a ``rejected`` message.

        Raises:
            SendTimeout: Too many replies are unread.
        """
        context_field = {} if context is None else {"context": context}
        self._reply({"type": "rejected", "command": command, **context_field, **wire.error_json(error.info)})

    def encode_event(self, notice: Notice) -> dict[str, Any]:
        """Return the message for a session event, with the client's name for the utterance if it chose one."""
        message = wire.notice_json(notice)
        if notice.key in self._contexts and not isinstance(notice, Acknowledged):
            message["context"] = self._contexts[notice.key]
        if isinstance(notice, Ended):
            self._on_utterance_end(notice)
        return message

    def _reply(self, message: dict[str, Any]) -> None:
        self.replies.put(message)
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

    def _handle(self, message: wire.ClientMessage) -> None:
        session = self.session
        match message:
            case wire.TextMessage():
                self._add_text(message)
            case wire.EndMessage():
                self._end_text(message)
            case wire.FlushMessage():
                session.flush()
            case wire.PauseMessage():
                session.pause()
            case wire.ResumeMessage():
                session.resume()
            case wire.StopMessage():
                self._retire_context()
                session.stop(message.reason or message.type, message.played_samples)
                self._on_stop()
            case wire.PlayedMessage():
                session.played(message.samples)
            case wire.PingMessage():
                self._reply({"type": "pong", "id": message.id})
            case wire.StartMessage():
                self._start(message)
            case wire.CloseMessage():
                self.closing = True
                session.close("client_closed")

    def _add_text(self, message: wire.TextMessage) -> None:
        if len(message.text) > self._max_message_chars:
            raise TextTooLong(f"a message may hold at most {self._max_message_chars} characters of text")
        context = message.context
        session = self.session
        if context is not None:
            if context == self._context and session.writing != self._context_key:
                self._retire_context()  # the utterance has ended, and the client does not know it yet
            if context == self._stopped_context:
                return  # sent before the client knew that this context had ended
            if context != self._context and self._context is not None and session.writing == self._context_key:
                session.end_text()
        key = session.speak(message.text)
        if context is not None:
            self._context = context
            self._context_key = key
            self._contexts[key] = context
        if message.end:
            session.end_text()
            self._context = None

    def _end_text(self, message: wire.EndMessage) -> None:
        if message.context is None:
            self.session.end_text()
        elif message.context == self._context:
            if self.session.writing == self._context_key:
                self.session.end_text()
                self._context = None
            else:
                self._retire_context()

    def _retire_context(self) -> None:
        """Drop later text for the current context."""
        if self._context is not None:
            self._stopped_context = self._context
            self._context = None

    def _on_utterance_end(self, ended: Ended) -> None:
        """Retire the context of an utterance that ended before its text did; a newer context stays."""
        if self._contexts.pop(ended.key, None) is not None and ended.key == self._context_key:
            self._retire_context()

    def _start(self, message: wire.StartMessage) -> None:
        options = self._adapt_options(message.options())
        if self.session.state is State.IDLE:
            replaced = self.session
            self.session = self._hub.open(options, replaces=replaced)
            while (item := replaced.poll()) is not None:  # unsent playback reports and acknowledgements
                if not isinstance(item, PcmFrame):
                    self._reply(self.encode_event(item))
            self._on_stop()
        else:
            params = self._hub.params(options)
            if self._hub.voices.get(params.voice).engine != self._hub.voices.get(self.session.params.voice).engine:
                raise IllegalCommand("that voice is on another engine: start when nothing is being spoken")
            self.session.configure(params, self._hub.timeouts(options))
        self._reply(self._ready())
