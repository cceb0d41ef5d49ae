"""Failover link: replays utterances without audio on another worker when the first one is lost.

It sits between a ``RemoteSession`` and its ``ConverseStream`` and keeps the text of utterances that have not ended.
Once audio of an utterance was delivered, a replay would repeat it, so the loss is reported instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tts_worker.client.converse_stream import ConverseStream, Receiver
from tts_worker.errors import ConnectionLost, ErrorInfo, error_info
from tts_worker.types import BYTES_PER_SAMPLE, ControlName, Outcome, Receipt, SynthesisParams, Word

_MAX_FAILOVERS = 3
"""Workers that may be lost in a row without any audio before the session fails."""


@dataclass(slots=True)
class ReplayEntry:
    """Commands of an utterance that has not ended.

    Attributes:
        parts: Text deltas; None stands for a flush.
        text_ended: The text is complete.
        is_started: The start was reported to the session.
        delivered_samples: Samples passed on to the session.
        params: Parameters of the last ``configure`` before it; None if there was none.
    """

    parts: list[str | None] = field(default_factory=list)
    text_ended: bool = False
    is_started: bool = False
    delivered_samples: int = 0
    params: SynthesisParams | None = None

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if part is not None)


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
        self._next_worker = next_worker
        self._receiver: Receiver | None = None
        self._on_closed: Callable[[ConverseStream], None] = lambda _: None
        self._replay: dict[str, ReplayEntry] = {}  # by context, in order
        self._unconfirmed_stops: dict[str, tuple[str, ReplayEntry]] = {}  # context -> reason, entry
        self._unacknowledged: deque[ControlName] = deque()
        self._is_pause_acknowledged = False
        self._extra_acknowledgments = 0  # of commands sent by this link, not by the session
        self._params: SynthesisParams | None = None
        self._words: list[Word] = []
        self._consecutive_failovers = 0  # since the last audio
        self._failover_task: asyncio.Task[None] | None = None
        self.is_closed = False

    def attach(self, receiver: Receiver, on_closed: Callable[[ConverseStream], None]) -> None:
        assert self._stream is not None
        self._receiver = receiver
        self._on_closed = on_closed
        self._stream.attach(self, on_closed)

    # -- Link ---------------------------------------------------------------------------------------------------------

    def text(self, context: str, text: str) -> None:
        entry = self._replay.setdefault(context, ReplayEntry(params=self._params))
        entry.parts.append(text)
        if self._stream is not None:
            self._stream.text(context, text)

    def flush(self) -> None:
        for entry in list(self._replay.values())[-1:]:
            entry.parts.append(None)
        if self._stream is not None:
            self._stream.flush()

    def end_text(self, context: str) -> None:
        if context in self._replay:
            self._replay[context].text_ended = True
        if self._stream is not None:
            self._stream.end_text(context)

    def pause(self) -> None:
        self._unacknowledged.append(ControlName.PAUSE)
        if self._stream is not None:
            self._stream.pause()

    def resume(self) -> None:
        self._unacknowledged.append(ControlName.RESUME)
        if self._stream is not None:
            self._stream.resume()

    def stop(self, reason: str, played_samples: int) -> None:
        self._unconfirmed_stops |= {context: (reason, entry) for context, entry in self._replay.items()}
        self._replay.clear()
        self._words.clear()
        self._is_pause_acknowledged = False
        if self._stream is not None:
            self._stream.stop(reason, played_samples)
        else:
            asyncio.get_running_loop().call_soon(self._confirm_stops)

    def played(self, samples: int) -> None:
        if self._stream is not None:
            self._stream.played(samples)

    def configure(self, params: SynthesisParams) -> None:
        self._params = params
        if self._stream is not None:
            self._stream.configure(params)

    def release(self, *, healthy: bool) -> None:
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

    def on_started(self, context: str, params: SynthesisParams) -> None:
        entry = self._replay.get(context)
        if entry is None or not entry.is_started:
            self._session_receiver().on_started(context, params)
        if entry is not None:
            entry.is_started = True

    def on_words(self, words: tuple[Word, ...]) -> None:
        self._words.extend(words)  # held until their audio arrives: both are replayed, or neither

    def on_audio(self, pcm: bytes) -> None:
        entry = next(iter(self._replay.values()), None)
        if entry is not None and entry.is_started:  # otherwise the audio belongs to a stopped utterance
            entry.delivered_samples += len(pcm) // BYTES_PER_SAMPLE
            self._consecutive_failovers = 0
        self._flush_words()
        self._session_receiver().on_audio(pcm)

    def _flush_words(self) -> None:
        if self._words:
            words = tuple(self._words)
            self._words = []
            self._session_receiver().on_words(words)

    def on_acknowledged(self, command: ControlName) -> None:
        if self._extra_acknowledgments:
            self._extra_acknowledgments -= 1
            return
        if self._unacknowledged and self._unacknowledged[0] is command:
            self._unacknowledged.popleft()
        self._is_pause_acknowledged = command is ControlName.PAUSE
        self._session_receiver().on_acknowledged(command)

    def on_ended(self, context: str, outcome: Outcome, receipt: Receipt, error: ErrorInfo | None) -> None:
        self._flush_words()
        self._replay.pop(context, None)
        self._unconfirmed_stops.pop(context, None)
        if not self._replay:
            self._is_pause_acknowledged = False
        self._session_receiver().on_ended(context, outcome, receipt, error)

    def on_rejected(self, error: ErrorInfo) -> None:
        self._session_receiver().on_rejected(error)

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
            self._session_receiver().on_ended(context, Outcome.STOPPED, receipt, None)

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
        params: SynthesisParams | None = None
        for context, entry in self._replay.items():
            if entry.params != params and entry.params is not None:
                params = entry.params
                stream.configure(params)
            for part in entry.parts:
                if part is None:
                    stream.flush()
                else:
                    stream.text(context, part)
            if entry.text_ended:
                stream.end_text(context)
        if self._params is not None and self._params != params:
            stream.configure(self._params)
        self._extra_acknowledgments = 0
        if self._is_pause_acknowledged:
            self._extra_acknowledgments = 1
            stream.pause()
        for command in self._unacknowledged:
            if command is ControlName.PAUSE:
                stream.pause()
            else:
                stream.resume()
