"""Failover link: replays utterances without audio on another worker when the first one is lost.

It sits between a ``RemoteSession`` and its ``ConverseStream`` and keeps the text of utterances that have not ended.
Once audio of an utterance was delivered, a replay would repeat it, so the loss is reported instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from tts_worker.client.converse_stream import ConverseStream
from tts_worker.client.encoded_audio import count_samples
from tts_worker.client.link import Receiver
from tts_worker.errors import ConnectionLost, ErrorInfo, error_info
from tts_worker.protocol.messages import (
    ClientMessage,
    ConfigureMessage,
    ControlMessage,
    EndMessage,
    FlushMessage,
    NothingStoppedMessage,
    PausedMessage,
    PauseMessage,
    ReportMessage,
    ResumeMessage,
    StartedMessage,
    StopMessage,
    TextMessage,
    WordsMessage,
    WorkerMessage,
    report_message,
)
from tts_worker.types import Outcome, Receipt

_MAX_FAILOVERS = 3
"""Workers that may be lost in a row without any audio before the session fails."""


@dataclass(slots=True)
class ReplayEntry:
    """Messages of an utterance that has not ended.

    Attributes:
        messages: Its text, flushes and end.
        is_started: The start was reported to the session.
        delivered_samples: Samples passed on to the session.
        voice: The last ``configure`` before it; None if there was none.
    """

    messages: list[ClientMessage] = field(default_factory=list)
    is_started: bool = False
    delivered_samples: int = 0
    voice: ConfigureMessage | None = None

    @property
    def text(self) -> str:
        return "".join(message.text for message in self.messages if isinstance(message, TextMessage))


class FailoverLink:
    """``Link`` of a session and ``Receiver`` of its streams.

    Args:
        stream: An open stream without a receiver.
        next_worker: Opens a stream on another worker; raises if there is none.

    Attributes:
        is_closed: The link serves no session any more.
    """

    def __init__(self, stream: ConverseStream, next_worker: Callable[[], Awaitable[ConverseStream]]) -> None:
        self._stream: ConverseStream | None = stream
        self._count_samples = partial(count_samples, stream.encoding, sample_rate_hz=stream.sample_rate_hz)
        self._next_worker = next_worker
        self._receiver: Receiver | None = None
        self._on_closed: Callable[[ConverseStream], None] = lambda _: None
        self._replay: dict[str, ReplayEntry] = {}  # by context, in order
        self._unconfirmed_stops: dict[str, tuple[str, ReplayEntry]] = {}  # context -> reason, entry
        self._unacknowledged: deque[PauseMessage | ResumeMessage] = deque()
        self._pending_before_stop = 0  # how many of them precede the last STOP
        self._is_pause_acknowledged = False
        self._own_pending = 0  # acknowledgments of commands that this link sent, not the session
        self._voice: ConfigureMessage | None = None
        self._words: list[WordsMessage] = []
        self._consecutive_failovers = 0  # since the last audio
        self._failover_task: asyncio.Task[None] | None = None
        self.is_closed = False

    def attach(self, receiver: Receiver, on_closed: Callable[[ConverseStream], None]) -> None:
        assert self._stream is not None
        self._receiver = receiver
        self._on_closed = on_closed
        self._stream.attach(self, on_closed)

    # -- Link ---------------------------------------------------------------------------------------------------------

    def send(self, message: ClientMessage) -> None:
        """See ``link.Link``. Messages that a replay needs are kept until their utterance ends."""
        match message:
            case TextMessage():
                entry = self._replay.setdefault(message.context or "", ReplayEntry(voice=self._voice))
                entry.messages.append(message)
            case EndMessage() if message.context in self._replay:
                self._replay[message.context].messages.append(message)
            case FlushMessage():
                for entry in list(self._replay.values())[-1:]:
                    entry.messages.append(message)
            case PauseMessage() | ResumeMessage():
                self._unacknowledged.append(message)
            case ConfigureMessage():
                self._voice = message
            case StopMessage():
                self._stop(message.reason or "stop")
        if self._stream is not None:
            self._stream.send(message)

    def _stop(self, reason: str) -> None:
        self._unconfirmed_stops |= {context: (reason, entry) for context, entry in self._replay.items()}
        self._replay.clear()
        self._words.clear()
        self._pending_before_stop = len(self._unacknowledged)
        self._is_pause_acknowledged = False
        if self._stream is None:
            asyncio.get_running_loop().call_soon(self._confirm_stops)

    def release(self, *, healthy: bool) -> None:
        """See ``link.Link``."""
        self.close()

    def close(self) -> None:
        """Close the stream, or cancel a failover."""
        self.is_closed = True
        if self._failover_task is not None:
            self._failover_task.cancel()
        if self._stream is not None:
            self._stream.close()
        else:
            self._session_receiver().on_lost(ConnectionLost("the connection was closed").info)

    # -- Receiver -----------------------------------------------------------------------------------------------------

    async def wait_for_capacity(self) -> None:
        await self._session_receiver().wait_for_capacity()

    def receive(self, message: WorkerMessage | bytes) -> None:
        """See ``link.Receiver``. Passes on what the session has not received from a lost worker."""
        match message:
            case WordsMessage():
                self._words.append(message)  # held until their audio arrives: both are replayed, or neither
                return
            case bytes():
                self._on_audio(message)
            case StartedMessage() if (entry := self._replay.get(message.context or "")) is not None:
                if entry.is_started:
                    return
                entry.is_started = True
            case ControlMessage() if not isinstance(message, NothingStoppedMessage):
                if self._own_pending:
                    self._own_pending -= 1
                    return
                self._on_acknowledged(message)
            case ReportMessage():
                self._on_ended(message.context or "")
        self._session_receiver().receive(message)

    def _on_audio(self, pcm: bytes) -> None:
        entry = next(iter(self._replay.values()), None)
        if entry is not None and entry.is_started:  # otherwise the audio belongs to a stopped utterance
            entry.delivered_samples += self._count_samples(pcm, is_first=not entry.delivered_samples)
            self._consecutive_failovers = 0
        self._flush_words()

    def _flush_words(self) -> None:
        for message in self._words:
            self._session_receiver().receive(message)
        self._words = []

    def _on_acknowledged(self, message: ControlMessage) -> None:
        is_pause = isinstance(message, PausedMessage)
        if self._unacknowledged and isinstance(self._unacknowledged[0], PauseMessage) is is_pause:
            self._unacknowledged.popleft()
            if self._pending_before_stop:
                self._pending_before_stop -= 1
                return
        self._is_pause_acknowledged = is_pause and message.applied

    def _on_ended(self, context: str) -> None:
        self._flush_words()
        self._replay.pop(context, None)
        self._unconfirmed_stops.pop(context, None)
        if not self._replay:
            self._is_pause_acknowledged = False

    def on_lost(self, error: ErrorInfo) -> None:
        if self.is_closed:
            self._session_receiver().on_lost(error)
            return
        self._stream = None
        self._words.clear()
        self._confirm_stops()
        self._consecutive_failovers += 1
        if self._consecutive_failovers > _MAX_FAILOVERS or any(
            entry.delivered_samples for entry in self._replay.values()
        ):
            self._give_up(error)
        else:
            self._failover_task = asyncio.create_task(self._fail_over(), name="tts-client-failover")

    def _session_receiver(self) -> Receiver:
        assert self._receiver is not None, "attach comes first"
        return self._receiver

    # -- failover -----------------------------------------------------------------------------------------------------

    def _confirm_stops(self) -> None:
        """End stopped utterances on behalf of the lost worker.

        The report claims one sample more than was delivered: the session then splits the text at its own position.
        """
        stops = self._unconfirmed_stops
        self._unconfirmed_stops = {}
        for context, (reason, entry) in stops.items():
            receipt = Receipt(reason, entry.delivered_samples, entry.delivered_samples + 1, None, "", entry.text)
            self._session_receiver().receive(report_message(Outcome.STOPPED, receipt, context=context))

    def _give_up(self, error: ErrorInfo) -> None:
        self.is_closed = True
        self._session_receiver().on_lost(error)

    async def _fail_over(self) -> None:
        try:
            stream = await self._next_worker()
        except Exception as failure:
            reason = error_info(failure).message
            self._give_up(ConnectionLost(f"the worker was lost and no other worker takes the session: {reason}").info)
            return
        self._stream = stream
        self._replay_on(stream)
        stream.attach(self, self._on_closed)

    def _replay_on(self, stream: ConverseStream) -> None:
        commands = list(self._unacknowledged)
        for command in commands[: self._pending_before_stop]:  # before all text, so that they only are acknowledged
            stream.send(command)
        voice: ConfigureMessage | None = None
        for entry in self._replay.values():
            if entry.voice is not None and entry.voice != voice:
                voice = entry.voice
                stream.send(voice)
            for message in entry.messages:
                stream.send(message)
        if self._voice is not None and self._voice != voice:
            stream.send(self._voice)
        self._own_pending = 0
        if self._is_pause_acknowledged:
            self._own_pending = 1
            stream.send(PauseMessage())
        for command in commands[self._pending_before_stop :]:
            stream.send(command)
