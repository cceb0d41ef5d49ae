"""What a client says in the worker's own protocol, and what it is told: one conversation, whatever carries it.

Owns the session of a connection (a ``start`` while nothing is spoken replaces it), the client's names for utterances
and the answers to what is no notice of the session. It knows no socket: ``websocket`` and ``webrtc`` hand it text and
send what it gives. See ``docs/protocol.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from tts_worker.errors import IllegalCommand, InvalidRequest, SendTimeout, TextTooLong, TTSWorkerError
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.session.machine import State
from tts_worker.session.session import LocalSession
from tts_worker.transports import wire
from tts_worker.transports.answers import Answers
from tts_worker.transports.rates import MessageRate
from tts_worker.types import Acknowledged, Ended, Notice, PcmFrame, UtteranceKey

_LARGE_CHARS = 4_096
"""A message from here on may bring a lexicon that takes milliseconds to build."""


class Dialogue:
    """``session`` is the current one. ``answers`` go out before anything else of the session.

    ``shaped``: what the carrier makes of the options a client asks for. ``on_stop``: called when the client stops what
    is being heard, or leaves its session for another, for a carrier that holds sound back.
    """

    def __init__(
        self,
        hub: SessionHub,
        session: LocalSession,
        *,
        max_message_chars: int,
        max_messages_per_s: float,
        shaped: Callable[[SessionOptions], SessionOptions] = lambda options: options,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self.answers = Answers()
        self.closing = False  # the client said goodbye
        self._hub = hub
        self._shaped = shaped
        self._on_stop = on_stop
        self._max_message_chars = max_message_chars
        self._rate = MessageRate(max_messages_per_s)
        self._context: str | None = None  # the client's name for the utterance being written
        self._context_key: UtteranceKey | None = None
        self._stopped_context: str | None = None
        self._contexts: dict[UtteranceKey, str] = {}
        self.answers.put(self._ready())

    async def prepare(self, raw: str | bytes) -> None:
        """Build a large lexicon on a thread before its message is handled, where the carrier can wait for that."""
        if len(raw) > _LARGE_CHARS and isinstance(raw, str) and '"lexicon"' in raw:
            with contextlib.suppress(InvalidRequest):  # ``hear`` says what is wrong
                await self._hub.lexicons.prepare_from(lambda: wire.lexicon_of(raw))

    def hear(self, raw: str | bytes) -> None:
        """A message of the client. What is wrong with it becomes an answer. Raises SendTimeout if too many answers
        wait, and RateLimited if too many messages come."""
        self._rate.count(len(raw), asyncio.get_running_loop().time())
        if isinstance(raw, bytes):
            self.reject(InvalidRequest("binary messages are not understood: send JSON text"))
            return
        name: str | None = None
        context: str | None = None
        try:
            message = wire.parse_client_message(raw)
            name = message.type
            if isinstance(message, wire.TextMessage | wire.EndMessage):
                context = message.context
            self._handle(message)
        except TTSWorkerError as error:
            if isinstance(error, SendTimeout):
                raise
            self.reject(error, name, context)

    def reject(self, error: TTSWorkerError, command: str | None = None, context: str | None = None) -> None:
        """Say that a message was not taken. Raises SendTimeout if too many answers wait."""
        named = {} if context is None else {"context": context}
        self._answer({"type": "rejected", "command": command, **named, **wire.error_json(error.info)})

    def told(self, notice: Notice) -> dict[str, Any]:
        """What happened to an utterance says under which name the client wrote it."""
        message = wire.notice_json(notice)
        if notice.key in self._contexts and not isinstance(notice, Acknowledged):
            message["context"] = self._contexts[notice.key]
        if isinstance(notice, Ended):
            self._note_end(notice)
        return message

    def _answer(self, message: dict[str, Any]) -> None:
        self.answers.put(message)
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
            self._on_stop()
        elif isinstance(message, wire.PlayedMessage):
            session.played(message.samples)
        elif isinstance(message, wire.PingMessage):
            self._answer({"type": "pong", "id": message.id})
        elif isinstance(message, wire.StartMessage):
            self._start(message)
        else:
            self.closing = True
            session.close("client_closed")

    def _take_text(self, message: wire.TextMessage) -> None:
        if len(message.text) > self._max_message_chars:
            raise TextTooLong(f"a message may hold at most {self._max_message_chars} characters of text")
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
        options = self._shaped(message.options())
        if self.session.state is State.IDLE:
            replaced, self.session = self.session, self._hub.open(options, replaces=self.session)
            while (item := replaced.poll()) is not None:  # what it had left to say: receipts, acknowledgements
                if not isinstance(item, PcmFrame):
                    self._answer(self.told(item))
            self._on_stop()
        else:
            params = self._hub.params(options)
            if self._hub.voices.get(params.voice).engine != self._hub.voices.get(self.session.params.voice).engine:
                raise IllegalCommand("that voice is on another engine: start when nothing is being spoken")
            self.session.configure(params)
        self._answer(self._ready())
