"""The worker's side of a conversation, sans-IO: no socket, no codec, no clock.

``/v1/stream``, WebRTC data channels and gRPC pass the client's messages in and send what ``poll`` returns.

A context is the client's name for an utterance. Text for another context completes the utterance before it. Text for a
context that was stopped or has ended is dropped, because the client may not know of the end yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tts_worker.errors import InvalidRequest, SendTimeout, TextTooLong, TTSWorkerError
from tts_worker.protocol.messages import (
    PROTOCOL_VERSION,
    ClientMessage,
    CloseMessage,
    ConfigureMessage,
    EndMessage,
    ExpressMessage,
    FlushMessage,
    InvalidMessage,
    PauseMessage,
    PingMessage,
    PlayedMessage,
    PongMessage,
    ReadyMessage,
    RejectedMessage,
    ResumeMessage,
    StartMessage,
    StopMessage,
    TextMessage,
    WorkerMessage,
    event_message,
)
from tts_worker.protocol.reply_queue import ReplyQueue
from tts_worker.protocol.session import Session
from tts_worker.types import (
    Acknowledged,
    Alignment,
    ControlName,
    Ended,
    Notice,
    PcmFrame,
    SessionOptions,
    State,
    SynthesisParams,
    UtteranceKey,
)


class DialogueSession(Session, Protocol):
    """What a dialogue needs of a session beyond its interface (``session.LocalSession``)."""

    @property
    def params(self) -> SynthesisParams: ...
    @property
    def alignment(self) -> Alignment: ...
    @property
    def writing(self) -> UtteranceKey | None: ...
    @property
    def unsupported_expressions(self) -> tuple[str, ...]: ...

    def speak_next(self, text: str) -> UtteranceKey:
        """End the open utterance and begin the next one. Raises as ``speak`` does, and then ends none."""
        ...

    def wake(self) -> None:
        """Make the reader of the session poll the dialogue."""
        ...


_S = TypeVar("_S", bound=DialogueSession)
_R = TypeVar("_R")


class SessionSource(Protocol[_S]):
    """Opens and configures sessions (``session.SessionHub``)."""

    def open(self, options: SessionOptions | None = None, *, replaces: _S | None = None) -> _S:
        """Open a session, atomically closing ``replaces`` and counting its utterances on. Raises TTSWorkerError."""
        ...

    def configure(self, session: _S, options: SessionOptions) -> None:
        """Apply options to the later utterances of a session. Raises TTSWorkerError."""
        ...


class Dialogue(Generic[_S]):
    """A conversation with one client.

    A ``start`` while nothing is being spoken replaces the session.

    Args:
        source: Opens the sessions that replace ``session``.
        session: An admitted session.
        options: The options it was opened with.
        max_message_chars: Limit on the text of one message.
        adapt_options: Adapts the options of a ``start`` to the transport.
        on_stop: Called when the client stops the audio or replaces its session, for transports with a buffer.

    Attributes:
        session: The current session.
        replies: Messages to send before the next output of the session.
        closing: The client sent ``close``.
    """

    def __init__(
        self,
        source: SessionSource[_S],
        session: _S,
        options: SessionOptions,
        *,
        max_message_chars: int,
        adapt_options: Callable[[SessionOptions], SessionOptions] = lambda options: options,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self.replies: ReplyQueue[WorkerMessage] = ReplyQueue()
        self.closing = False
        self._source = source
        self._options = options
        self._adapt_options = adapt_options
        self._on_stop = on_stop
        self._max_message_chars = max_message_chars
        self._context: str | None = None  # the client's name for the utterance being written
        self._context_key: UtteranceKey | None = None
        self._retired_context: str | None = None
        self._stopped_context: str | None = None  # that a STOP has named
        self._contexts: dict[UtteranceKey, str] = {}
        self.replies.put(self.ready_message())

    # -- messages of the client ---------------------------------------------------------------------------------------

    def receive(self, raw: _R, parse: Callable[[_R], ClientMessage]) -> None:
        """Parse and handle a message; an error is answered by ``rejected``.

        Raises:
            SendTimeout: Too many replies are unread.
        """
        command: str | None = None
        context: str | None = None
        try:
            message = parse(raw)
            command = message.type_name()
            if isinstance(message, TextMessage | EndMessage):
                context = message.context
            self.handle(message)
        except SendTimeout:
            raise
        except InvalidMessage as error:
            self.reject(error, error.command, error.context)
        except TTSWorkerError as error:
            self.reject(error, command, context)

    def reject(self, error: TTSWorkerError, command: str | None, context: str | None = None) -> None:
        """Answer a message by ``rejected``.

        Args:
            error: Why.
            command: Type of the message, if it is known.
            context: The client's name for its utterance.

        Raises:
            SendTimeout: Too many replies are unread.
        """
        self._reply(RejectedMessage.of(error.info, command, context))

    def handle(self, message: ClientMessage) -> None:
        """Handle a message. Raises TTSWorkerError if it is not allowed; then nothing has changed."""
        session = self.session
        match message:
            case TextMessage():
                self._add_text(message)
            case EndMessage():
                self._end_text(message.context)
            case FlushMessage():
                session.flush()
            case PauseMessage():
                session.pause()
            case ResumeMessage():
                session.resume()
            case StopMessage():
                self._retire_context()
                self._stopped_context = message.context
                reason = message.reason or message.type_name()
                session.stop(reason, message.played_samples, self._key(message.utterance))
                self._on_stop()
            case PlayedMessage():
                session.played(message.samples, self._key(message.utterance))
            case ExpressMessage():
                session.express(message.expression)
            case _:
                self._handle_session_message(message)

    def _handle_session_message(self, message: ClientMessage) -> None:
        match message:
            case StartMessage():
                self._start(self._adapt_options(message.options()))
            case ConfigureMessage():
                options = message.apply(self._options)
                self._source.configure(self.session, options)
                self._options = options
            case PingMessage():
                self._reply(PongMessage(id=message.id))
            case CloseMessage():
                self.closing = True
                self.session.close("client_closed")
            case _:
                raise InvalidRequest("unknown message type")

    def _key(self, utterance: int | None) -> UtteranceKey | None:
        """Return the key of the utterance that the client names by its number."""
        return None if utterance is None else UtteranceKey(self.session.id, utterance)

    def _start(self, options: SessionOptions) -> None:
        if self.session.state is State.IDLE:
            replaced = self.session
            self.session = self._source.open(options, replaces=replaced)
            while (item := replaced.poll()) is not None:  # unsent playback reports and acknowledgements
                if not isinstance(item, PcmFrame) and (message := self._encode(item)) is not None:
                    self._reply(message)
            self._on_stop()
        else:
            self._source.configure(self.session, options)
        self._options = options
        self._reply(self.ready_message())

    def ready_message(self) -> ReadyMessage:
        session = self.session
        return ReadyMessage(
            protocol=PROTOCOL_VERSION,
            session=session.id,
            sample_rate=session.sample_rate_hz,
            format=session.encoding.value,
            voice=session.params.voice,
            alignment=session.alignment.value,
            model=session.model,
            unsupported_expressions=session.unsupported_expressions,
        )

    # -- contexts -----------------------------------------------------------------------------------------------------

    def _add_text(self, message: TextMessage) -> None:
        if len(message.text) > self._max_message_chars:
            raise TextTooLong(f"a message may hold at most {self._max_message_chars} characters of text")
        context = message.context
        session = self.session
        if context is not None:
            self._retire_ended_context()
            if context in (self._retired_context, self._stopped_context):
                return
        is_next = context is not None and self._context not in (None, context)
        key = session.speak_next(message.text) if is_next else session.speak(message.text)
        if context is not None:
            self._context = context
            self._context_key = key
            self._contexts[key] = context
        if message.end:
            session.end_text()
            self._context = None

    def _end_text(self, context: str | None) -> None:
        if context is None:
            self.session.end_text()
            return
        self._retire_ended_context()
        if context == self._context:
            self.session.end_text()
            self._context = None

    def _retire_ended_context(self) -> None:
        """Retire the context whose utterance no longer takes text; its end may not have been sent yet."""
        if self._context is not None and self.session.writing != self._context_key:
            self._retire_context()

    def _retire_context(self) -> None:
        """Drop later text for the current context."""
        if self._context is not None:
            self._retired_context = self._context
            self._context = None

    # -- messages to the client ---------------------------------------------------------------------------------------

    def poll(self) -> WorkerMessage | PcmFrame | None:
        """Return the next message or frame that is due, or None."""
        if self.replies:
            return self.replies.take()
        while (item := self.session.poll()) is not None:
            if isinstance(item, PcmFrame):
                return item
            if (message := self._encode(item)) is not None:
                return message
        return None

    def _encode(self, event: Notice) -> WorkerMessage | None:
        if isinstance(event, Acknowledged):
            # The reports of stopped utterances answer a STOP.
            return None if event.command is ControlName.STOP and event.applied else event_message(event)
        context = self._contexts.get(event.key)
        if isinstance(event, Ended):
            self._contexts.pop(event.key, None)
            if event.key == self._context_key:  # the utterance ended before its text did; a newer context stays
                self._retire_context()
        return event_message(event, context)

    def _reply(self, message: WorkerMessage) -> None:
        self.replies.put(message)
        self.session.wake()
