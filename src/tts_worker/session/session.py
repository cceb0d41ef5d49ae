"""A session as transports, plug-ins and tests see it, and its local form: the machine with a clock and an engine.

``Session`` is the one protocol of the house: a local session and a remote one (``client.py``) have the same shape.
Control methods return at once and never wait for anything; what became of them comes out of ``next()`` as notices, in
order with the sound. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from tts_worker.errors import ErrorInfo, TTSWorkerError
from tts_worker.session.machine import SessionMachine, State
from tts_worker.session.pacer import Pacer
from tts_worker.session.reading import ReadingTurns
from tts_worker.session.record import SessionRecord
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Acknowledged,
    Audio,
    Command,
    ControlName,
    Ended,
    Event,
    Output,
    PcmFrame,
    Started,
    SynthesisParams,
    Text,
    UtteranceKey,
)


class Session(Protocol):
    """One conversation with the worker: many utterances, one after the other."""

    @property
    def id(self) -> str: ...
    @property
    def sample_rate_hz(self) -> int: ...
    @property
    def state(self) -> State: ...

    def speak(self, text: str | bytes) -> UtteranceKey:
        """Add text to the utterance being written, or begin one. Raises SessionClosed, TextTooLong, IllegalCommand."""
        ...

    def flush(self) -> None:
        """Speak what has been written so far without ending the utterance."""
        ...

    def end_text(self) -> None:
        """The utterance is complete. Raises IllegalCommand if none is being written."""
        ...

    def pause(self) -> None: ...
    def resume(self) -> None: ...

    def stop(self, reason: str = "stop", played_samples: int | None = None) -> None:
        """End all utterances now; the receipt comes as ``Ended``."""
        ...

    def played(self, samples: int) -> None:
        """Tell how much of the current utterance the listener heard."""
        ...

    def configure(self, params: SynthesisParams) -> None:
        """Params of the utterances that begin from now on."""
        ...

    def close(self, reason: str = "closed") -> None:
        """End the session and free everything it holds. Closing twice changes nothing."""
        ...

    async def next(self) -> Output | None:
        """The next frame or notice, as soon as it is due; None once the session is closed and everything was taken."""
        ...

    def poll(self) -> Output | None:
        """The same without waiting: None if nothing is due now."""
        ...

    def __aiter__(self) -> AsyncIterator[Output]: ...


_TIMER_RESOLUTION_S = 0.001
"""Timers of the event loop (uvloop's) are no finer and may fire early by as much: what is due within a tick is due now,
or its reader would be woken ten times for every frame."""


_MAX_READ_S = 0.002
"""How long a session reads text before the others have their turn."""

LAST_WORD_FACTOR = 5
"""A last word that nothing follows may be half written ("hel", then "lo"). It is spoken after so many times
``flush_after_s``; so is what looks like unfinished markup."""


class EnginePort(Protocol):
    """The seam to the engine: ``engine.loop.EngineLoop`` or anything that carries the same messages."""

    def post(self, command: Command) -> None: ...
    def subscribe(self, session: str, callback: Callable[[Event], None]) -> None: ...
    def unsubscribe(self, session: str) -> None: ...


class SessionObserver(Protocol):
    """Who wants to know, for metrics. Called on the event loop; must be cheap and must not raise."""

    def first_audio(self, seconds: float) -> None: ...
    def queue_wait(self, seconds: float) -> None: ...
    def underrun(self, seconds: float) -> None: ...
    def control(self, command: ControlName, seconds: float) -> None: ...
    def ended(self, event: Ended) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionTimeouts:
    """``pause_s``: a pause that nobody resumes ends as a stop with reason "pause_timeout". ``text_idle_s``: an
    utterance whose writer falls silent is ended where it is ("text_idle_timeout" in the log, its sound still plays).
    ``flush_after_s``: after so much silence of the writer the complete words are spoken, after LAST_WORD_FACTOR times
    as much also a last word that nothing follows; 0 waits for punctuation."""

    pause_s: float = 30.0
    text_idle_s: float = 300.0
    flush_after_s: float = 0.4


@dataclass(slots=True)
class _Timestamps:
    """When things happened, for the observer. Seconds of the event loop's clock."""

    speakable_at_s: dict[UtteranceKey, float] = field(default_factory=dict)
    posted_at_s: dict[UtteranceKey, float] = field(default_factory=dict)
    control_at_s: dict[ControlName, float] = field(default_factory=dict)
    ended_at_s: float = 0.0


class LocalSession:
    """A session on an engine in this process. Build it through ``SessionHub.open``."""

    def __init__(
        self,
        machine: SessionMachine,
        engine: EnginePort,
        *,
        lead_s: float | None,
        observer: SessionObserver,
        timeouts: SessionTimeouts | None = None,
        on_close: Callable[[str], None] = lambda session: None,
        on_active: Callable[[str], ErrorInfo | None] = lambda session: None,
        on_idle: Callable[[str], None] = lambda session: None,
        engine_name: str = "",
        reading: ReadingTurns | None = None,
    ) -> None:
        """``on_active`` is called when a silent session begins an utterance, and returns why it may not; ``on_idle``
        when its last utterance has ended. ``reading`` is shared by the sessions of a worker; None: one of its own."""
        self.id = machine.session
        self.sample_rate_hz = SAMPLE_RATE_HZ
        self.pacer = Pacer(SAMPLE_RATE_HZ, lead_s)
        self._machine = machine
        self._engine = engine
        self._observer = observer
        self._on_close = on_close
        self._on_active = on_active
        self._on_idle = on_idle
        self._active = False
        self.close_error: TTSWorkerError | None = None
        """Why the worker closed the session, where the client is to be told."""
        self._timeouts = timeouts or SessionTimeouts()
        self._loop = asyncio.get_running_loop()
        self._reading_turns = reading or ReadingTurns(self._loop)
        self._wakeup = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None  # ends a pause
        self._text_timer: asyncio.TimerHandle | None = None  # ends a writer's silence
        self._flush_timer: asyncio.TimerHandle | None = None  # speaks what a silent writer left behind
        self._flushes = 0  # since the last text: 1 its complete words, 2 everything
        self._text_at_s = 0.0
        self._reading = False
        self._timestamps = _Timestamps()
        self._final_events: deque[Output] = deque()
        self._record = SessionRecord(self.id, engine_name, self._loop.time())
        engine.subscribe(self.id, self._on_engine)

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def params(self) -> SynthesisParams:
        return self._machine.params

    @property
    def paced(self) -> bool:
        """Whether audio is taken at the pace of playback."""
        return self._machine.paced

    @property
    def writing(self) -> UtteranceKey | None:
        """The utterance that takes text."""
        return self._machine.writing

    @property
    def buffered_samples(self) -> int:
        """Sound made and not yet taken."""
        return self._machine.buffered_samples

    @property
    def unspoken_chars(self) -> int:
        """Text that was taken and that no sound was made for yet: how far a writer is ahead of the engine."""
        return self._machine.unspoken_chars

    # -- commands -----------------------------------------------------------------------------------------------------

    def speak(self, text: str | bytes) -> UtteranceKey:
        error = self._activate()
        try:
            key = self._machine.speak(text, withhold=error is not None)
        finally:
            self._note_activity()
        if error is not None:
            # After this turn of the event loop, so that text and end_text() that follow at once belong to it.
            self._loop.call_soon(self._refuse, error)
        self._record.text_chars += len(text)
        self._text_at_s = self._loop.time()
        if self._text_timer is None:
            self._text_timer = self._loop.call_later(self._timeouts.text_idle_s, self._on_text_idle)
        self._flushes = 0
        if self._flush_timer is None and self._timeouts.flush_after_s > 0:
            self._flush_timer = self._loop.call_later(self._timeouts.flush_after_s, self._on_flush_due)
        self._changed()
        return key

    def flush(self) -> None:
        self._machine.flush()
        self._changed()

    def end_text(self) -> None:
        self._machine.end_text()
        self._changed()

    def pause(self) -> None:
        self._control(ControlName.PAUSE)
        self._machine.pause()
        self._timestamps.speakable_at_s.clear()  # a pause is no latency
        self.pacer.expect_gap()
        if self._timer is None and self._machine.state is State.PAUSED:
            self._timer = self._loop.call_later(self._timeouts.pause_s, self._on_pause_timeout)
        self._changed()

    def resume(self) -> None:
        self._control(ControlName.RESUME)
        self._machine.resume()
        self._cancel_pause_timer()
        self._changed()

    def stop(self, reason: str = "stop", played_samples: int | None = None) -> None:
        self._control(ControlName.STOP)
        self._machine.stop(reason, played_samples)
        self.pacer.drop()
        self._cancel_pause_timer()
        self._changed()

    def played(self, samples: int) -> None:
        self._machine.played(samples)

    def configure(self, params: SynthesisParams) -> None:
        self._machine.configure(params)

    def close(self, reason: str = "closed", error: TTSWorkerError | None = None) -> None:
        if self._machine.state is State.CLOSED:
            return
        self.close_error = error
        self._machine.close(reason)
        # The reader may be gone already: what happened is noted now, and kept for a reader that still comes.
        now_s = self._loop.time()
        while (item := self._machine.poll(audio=False)) is not None:
            self._note(item, now_s)
            self._final_events.append(item)
        self._cancel_pause_timer()
        for timer in (self._text_timer, self._flush_timer):
            if timer is not None:
                timer.cancel()
        self._changed()
        self._record.write(reason, self.params.voice, now_s)
        self._engine.unsubscribe(self.id)
        self._on_close(self.id)

    def _control(self, command: ControlName) -> None:
        self._timestamps.control_at_s.setdefault(command, self._loop.time())

    # -- its slot -----------------------------------------------------------------------------------------------------

    def _activate(self) -> ErrorInfo | None:
        """Take a slot for an utterance that begins. Returns why there is none."""
        if self._machine.state is not State.IDLE:
            return None
        error = self._on_active(self.id)
        self._active = error is None
        return error

    def _note_activity(self) -> None:
        if self._active and self._machine.state in (State.IDLE, State.CLOSED):
            self._active = False
            self._on_idle(self.id)

    def _refuse(self, error: ErrorInfo) -> None:
        self._machine.refuse(error)
        self._changed()

    def _changed(self) -> None:
        if not self._reading:
            self._read_text()
        self._note_activity()
        self._post()
        self._wakeup.set()

    def _read_text(self) -> None:
        """Read a portion of a long text, of bounded time; the rest follows when other sessions have had their turn."""
        started_at_s = perf_counter()
        while self._machine.has_unread_text:
            if perf_counter() - started_at_s >= _MAX_READ_S:
                self._reading = True
                self._reading_turns.add(self._read_more, paced=self.paced)
                return
            self._machine.read_more()

    def _read_more(self) -> None:
        self._reading = False
        self._changed()

    def _post(self) -> None:
        for command in self._machine.take_commands():
            if isinstance(command, Text) and command.segment.index == 0:
                now_s = self._loop.time()
                self._timestamps.posted_at_s[command.key] = now_s
                self._timestamps.speakable_at_s[command.key] = now_s
            self._engine.post(command)

    # -- what arrives by itself ---------------------------------------------------------------------------------------

    def _on_engine(self, event: Event) -> None:
        posted_at_s = self._timestamps.posted_at_s.pop(event.key, None)
        if posted_at_s is not None and isinstance(event, Audio):
            self._observer.queue_wait(max(0.0, self._loop.time() - posted_at_s - event.meta.wall_ms / 1000))
        self._machine.on_engine(event)
        self._changed()

    def _on_pause_timeout(self) -> None:
        self._timer = None
        if self._machine.state is State.PAUSED:
            self.stop("pause_timeout")

    def _on_text_idle(self) -> None:
        """Re-armed lazily: text only moves a time stamp, the timer looks at it when it fires."""
        self._text_timer = None
        if self._machine.writing is None:
            return
        remaining_s = self._text_at_s + self._timeouts.text_idle_s - self._loop.time()
        if remaining_s > 0:
            self._text_timer = self._loop.call_later(remaining_s, self._on_text_idle)
        else:
            self.end_text()

    def _on_flush_due(self) -> None:
        """Re-armed lazily, as above. While there is audio to play, unspoken text loses nothing by waiting."""
        self._flush_timer = None
        if self._machine.writing is None or self._flushes == 2:
            return
        after_s = self._timeouts.flush_after_s
        due_at_s = self._text_at_s + after_s * (LAST_WORD_FACTOR if self._flushes else 1)
        remaining_s = max(due_at_s - self._loop.time(), self._machine.buffered_samples / SAMPLE_RATE_HZ - after_s)
        if self._machine.state is State.PAUSED or self._machine.has_unread_text:
            remaining_s = max(remaining_s, after_s)
        if remaining_s > _TIMER_RESOLUTION_S:
            self._flush_timer = self._loop.call_later(remaining_s, self._on_flush_due)
            return
        self._flushes += 1
        if self._flushes == 1:
            self._machine.flush_words()
            self._flush_timer = self._loop.call_later(after_s * (LAST_WORD_FACTOR - 1), self._on_flush_due)
        else:
            self._machine.flush()
        self._changed()

    def _cancel_pause_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- the way out --------------------------------------------------------------------------------------------------

    def poll(self) -> Output | None:
        self._wakeup.clear()
        if self._final_events:
            return self._final_events.popleft()
        now_s = self._loop.time()
        due_at_s = self.pacer.due_at_s(self._machine.next_frame_samples, now_s)
        item = self._machine.poll(audio=due_at_s <= now_s + _TIMER_RESOLUTION_S)
        if item is None:
            return None
        self._note(item, now_s)
        self._note_activity()
        self._post()
        return item

    async def next(self) -> Output | None:
        while True:
            item = self.poll()
            if item is not None or self._machine.state is State.CLOSED:
                return item
            await self.wait()

    async def wait(self) -> None:
        """Until ``poll`` may have something, or ``wake`` is called. For a reader that also has other things to send."""
        samples = self._machine.next_frame_samples
        if not samples:
            await self._wakeup.wait()
        else:
            timer = self._loop.call_at(self.pacer.due_at_s(samples, self._loop.time()), self._wakeup.set)
            try:
                await self._wakeup.wait()
            finally:
                timer.cancel()

    def wake(self) -> None:
        """End a ``wait`` that is going on."""
        self._wakeup.set()

    async def __aiter__(self) -> AsyncIterator[Output]:
        while (item := await self.next()) is not None:
            yield item

    def _note(self, item: Output, now_s: float) -> None:
        """Keep the pacer and the observer informed of what just left."""
        if isinstance(item, PcmFrame):
            underrun_s = self.pacer.record_sent(item.samples, now_s)
            if underrun_s > 0:
                self._observer.underrun(underrun_s)
            if item.index == 0:
                speakable_at_s = self._timestamps.speakable_at_s.pop(item.key, None)
                if speakable_at_s is not None:
                    # An utterance behind another one waits for its playback, which is no latency either.
                    first_audio_s = now_s - max(speakable_at_s, self._timestamps.ended_at_s)
                    self._observer.first_audio(first_audio_s)
                    self._record.first_audio(first_audio_s)
        elif isinstance(item, Acknowledged):
            self._note_control(item.command, now_s)
        elif isinstance(item, Ended):
            self._note_control(ControlName.STOP, now_s)
            self._timestamps.speakable_at_s.pop(item.key, None)
            self._timestamps.ended_at_s = now_s
            self._timestamps.posted_at_s.pop(item.key, None)
            self.pacer.expect_gap()
            self._observer.ended(item)
            self._record.ended(item)
        elif isinstance(item, Started):
            self.pacer.expect_gap()

    def _note_control(self, command: ControlName, now_s: float) -> None:
        requested_at_s = self._timestamps.control_at_s.pop(command, None)
        if requested_at_s is not None:
            self._observer.control(command, now_s - requested_at_s)
