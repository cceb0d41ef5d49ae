"""``LocalSession``: a session (``protocol.session``) on an engine in this process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from tts_worker.audio.output import OutputFormat
from tts_worker.errors import ErrorInfo, TTSWorkerError, as_exception
from tts_worker.protocol.session import OutputReader
from tts_worker.session.engine_port import CommandPort
from tts_worker.session.frame_clock import TIMER_RESOLUTION_S, FrameClock
from tts_worker.session.machine import SessionMachine
from tts_worker.session.pacer import Pacer
from tts_worker.session.reading import ReadScheduler
from tts_worker.session.record import SessionObserver, SessionRecord, UtteranceExporter
from tts_worker.session.timers import SessionTimeouts, TextTimers
from tts_worker.tracing import valid_traceparent
from tts_worker.types import (
    BREAK_CHARS_PER_S,
    Acknowledged,
    Alignment,
    Audio,
    ControlName,
    Ended,
    Event,
    Expression,
    Open,
    Output,
    PcmFrame,
    Started,
    State,
    SynthesisParams,
    Text,
    UtteranceKey,
)

_ENGINE_FACTOR = 10
"""Without audio of all its text an utterance waits for a busy engine, so many times longer than for its client; then
the text has none, such as a word that the engine cannot speak."""


@dataclass(frozen=True, slots=True)
class SessionHooks:
    """What a session asks and tells the hub; each is called with the id of the session first.

    Attributes:
        on_utterance: Called before an utterance begins, and whether it waits for earlier ones; returns the error if it
            may not begin.
        on_text: Called with the number of accepted characters; silence counts as text that takes as long.
        on_audio: Called with the seconds of audio that were sent of an utterance that has ended.
        on_idle: Called when the last utterance has ended.
        on_close: Called once when the session closes.
    """

    on_utterance: Callable[[str, bool], ErrorInfo | None] = lambda session, queued: None
    on_text: Callable[[str, int], None] = lambda session, chars: None
    on_audio: Callable[[str, float], None] = lambda session, seconds: None
    on_idle: Callable[[str], None] = lambda session: None
    on_close: Callable[[str], None] = lambda session: None


class LocalSession(OutputReader):
    """A session on an engine in this process, opened by ``SessionHub.open``.

    Args:
        machine: State of the session.
        engine: Carries commands and events.
        lead_s: Playout lead of paced audio; None does not pace.
        observe: Returns what receives the measurements of an engine and voice.
        timeouts: Time limits.
        hooks: Calls of the hub; None for a session without one.
        engine_of: Returns the name of a voice's engine, for the client, the log and the metrics.
        unsupported_of: Returns the expressions that a voice does not perform, for the client.
        read_scheduler: Schedules long texts, shared by the sessions of a worker; None creates one for this session.
        frame_clock: Wakes the reader when a frame is due, shared by the sessions of a worker; None creates one.
        output_format: Format of the audio that is sent; None is that of the engine.
        traces: Exports ended utterances; None exports none.
    """

    def __init__(
        self,
        machine: SessionMachine,
        engine: CommandPort,
        *,
        lead_s: float | None,
        observe: Callable[[str, str], SessionObserver],
        timeouts: SessionTimeouts | None = None,
        hooks: SessionHooks | None = None,
        engine_of: Callable[[str], str] = lambda voice: "",
        unsupported_of: Callable[[str], tuple[str, ...]] = lambda voice: (),
        read_scheduler: ReadScheduler | None = None,
        frame_clock: FrameClock | None = None,
        output_format: OutputFormat | None = None,
        traces: UtteranceExporter | None = None,
    ) -> None:
        self.id = machine.session
        output_format = output_format or OutputFormat()
        self.sample_rate_hz = output_format.sample_rate_hz
        self.encoding = output_format.encoding
        self.pacer = Pacer(self.sample_rate_hz, lead_s)
        self._machine = machine
        self.model = engine_of(machine.params.voice)
        self._engine = engine
        self._engine_of = engine_of
        self._unsupported_of = unsupported_of
        self._observe = observe
        self._observer = observe(self.model, machine.params.voice)
        self._hooks = hooks or SessionHooks()
        self._is_active = False  # an utterance took a slot, and the hub does not know yet that it has ended
        self.close_error: TTSWorkerError | None = None
        """Why the worker closed the session, if the client should be informed."""
        self._timeouts = timeouts or SessionTimeouts()
        self._next_timeouts: SessionTimeouts | None = None
        self._loop = asyncio.get_running_loop()
        self._read_scheduler = read_scheduler or ReadScheduler(self._loop)
        self._frame_clock = frame_clock or FrameClock(self._loop)
        self._tick: int | None = None  # at which the frame clock wakes the reader
        self._awaits_frame = False  # the reader waits for the time of its next frame
        self._next_due_at_s: float | None = None  # as the last ``poll`` saw it, infinite without a frame
        self._wakeup = asyncio.Event()
        self._deliver: Callable[[], bool] | None = None  # of the reader that waits
        self._delivery_error: Exception | None = None
        self._pause_timer: asyncio.TimerHandle | None = None
        self._sent_at_s = 0.0
        self._text_timers = TextTimers(machine, self._timeouts, self.sample_rate_hz, self._on_change)
        self._is_read_scheduled = False
        self._control_at_s: dict[ControlName, float] = {}  # of the commands that are not acknowledged yet
        self._final_events: deque[Output] = deque()
        self._traces = traces
        self._record = SessionRecord(self.id, self.model, self._loop.time())
        engine.subscribe(self.id, self._on_engine)

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def params(self) -> SynthesisParams:
        return self._machine.params

    @property
    def generation(self) -> int:
        """That of the last utterance begun."""
        return self._machine.generation

    @property
    def voices_in_use(self) -> set[str]:
        """The voices of utterances that the engine has not finished."""
        return self._machine.voices_in_use

    @property
    def unsupported_expressions(self) -> tuple[str, ...]:
        """What the voice of the next utterances does not perform, of ``types.EXPRESSIONS``."""
        return self._unsupported_of(self.params.voice)

    @property
    def alignment(self) -> Alignment:
        """How the engine determines word timestamps."""
        return self._machine.alignment

    @property
    def paced(self) -> bool:
        """Whether audio is taken at playback pace."""
        return self._machine.paced

    @property
    def writing(self) -> UtteranceKey | None:
        """The utterance that accepts text."""
        return self._machine.writing

    @property
    def buffered_samples(self) -> int:
        """Audio generated and not yet sent."""
        return self._machine.buffered_samples

    @property
    def skipped_chars(self) -> int | None:
        """Text that the voice is known not to speak, in characters; None while text has not been read."""
        return None if self._machine.has_unread_text else self._machine.skipped_chars

    @property
    def unspoken_chars(self) -> int:
        """Accepted text without audio so far."""
        return self._machine.unspoken_chars

    # -- commands -----------------------------------------------------------------------------------------------------

    def speak(self, text: str | bytes) -> UtteranceKey:
        return self._speak(text, is_next=False)

    def speak_next(self, text: str | bytes) -> UtteranceKey:
        """End the open utterance and begin the next one. Raises as ``speak`` does, and then ends none."""
        return self._speak(text, is_next=True)

    def _speak(self, text: str | bytes, *, is_next: bool) -> UtteranceKey:
        is_first = is_next or self._machine.writing is None
        error = self._activate() if is_first else None
        speak = self._machine.speak_next if is_next else self._machine.speak
        try:
            key = speak(text, withhold=error is not None)
        finally:
            self._note_idle()
        if is_first:
            self._apply_timeouts()
        if error is not None:
            # In the next iteration of the event loop, so that the error covers text and end_text() that follow at once.
            self._loop.call_soon(self._refuse, error)
        else:
            self._hooks.on_text(self.id, len(text))
        self._text_timers.note_input()
        self._text_timers.expect_text()
        self._note_text(key, len(text))
        self._on_change()
        return key

    def add_speech(self, tokens: tuple[int, ...]) -> UtteranceKey:
        """Add speech tokens to the open utterance, or begin one (voice conversion); ``end_text`` ends it.

        Raises:
            SessionClosed: The session is closed.
            IllegalCommand: The open utterance has text, or too many utterances are queued.
            TTSWorkerError: The utterance may not begin.
        """
        is_first = self._machine.writing is None
        if is_first and (error := self._activate()) is not None:
            raise as_exception(error)
        try:
            key = self._machine.add_speech(tokens)
        finally:
            self._note_idle()
        if is_first:
            self._apply_timeouts()
        self._text_timers.note_input()
        self._note_text(key, 0)
        self._on_change()
        return key

    def note_source(self, seconds: float) -> None:
        """Record source audio of a conversion."""
        self._observer.source(seconds)

    def note_converted(self, key: UtteranceKey, seconds: float) -> None:
        """Record the time from the first window of source audio to the first converted audio."""
        self._observer_of(key).converted(seconds)
        self._record.first_frame(key, seconds, self._loop.time())

    def _apply_timeouts(self) -> None:
        if self._next_timeouts is not None:
            self._timeouts, self._next_timeouts = self._next_timeouts, None
            self._text_timers.restart(self._timeouts)

    def flush(self) -> None:
        self._machine.flush()
        self._on_change()

    def end_text(self) -> None:
        self._machine.end_text()
        self._on_change()

    def pause(self) -> Acknowledged:
        self._control(ControlName.PAUSE)
        acknowledged = self._machine.pause()
        self._record.paused()
        self.pacer.expect_gap()
        if self._pause_timer is None and self._machine.state is State.PAUSED:
            self._pause_timer = self._loop.call_later(self._timeouts.pause_s, self._on_pause_timeout)
        self._on_change()
        return acknowledged

    def resume(self) -> Acknowledged:
        self._control(ControlName.RESUME)
        acknowledged = self._machine.resume()
        self._on_change()
        return acknowledged

    def stop(
        self, reason: str = "stop", played_samples: int | None = None, key: UtteranceKey | None = None
    ) -> Acknowledged:
        self._control(ControlName.STOP)
        self._record.stopped(self._control_at_s[ControlName.STOP])
        acknowledged = self._machine.stop(reason, played_samples, key)
        self._on_stopped()
        return acknowledged

    def _on_stopped(self) -> None:
        self.pacer.drop()
        self._on_change()

    def played(self, samples: int, key: UtteranceKey | None = None) -> None:
        self._machine.played(samples, key)
        if self._machine.has_notices:  # the utterance has ended
            self._on_change()

    def express(self, expression: Expression) -> None:
        self._machine.express(expression)
        self._post()

    def configure(self, params: SynthesisParams, timeouts: SessionTimeouts | None = None) -> None:
        """Set the parameters and time limits of later utterances.

        Args:
            params: Synthesis parameters.
            timeouts: Time limits; ``None`` keeps the current ones.
        """
        self._machine.configure(params)
        self._next_timeouts = timeouts or self._next_timeouts

    def join_trace(self, traceparent: str | None) -> None:
        """Add later utterances to this W3C trace context; None or a malformed one: to that of their requests."""
        self._record.own_traceparent = valid_traceparent(traceparent)

    def close(self, reason: str = "closed", error: TTSWorkerError | None = None) -> None:
        if self._machine.state is State.CLOSED:
            return
        self.close_error = error
        self._machine.close(reason)
        # The reader may have stopped: record the final events now and keep them for a reader that continues.
        now_s = self._loop.time()
        while (item := self._machine.poll(audio=False)) is not None:
            self._note(item, now_s)
            self._final_events.append(item)
        self._text_timers.cancel()
        self._on_change()
        self._record.write(reason, self.params.voice, now_s)
        self._engine.unsubscribe(self.id)
        self._hooks.on_close(self.id)

    def _control(self, command: ControlName) -> None:
        self._control_at_s.setdefault(command, self._loop.time())

    # -- slot ---------------------------------------------------------------------------------------------------------

    def awaits_text_for(self, wait_s: float) -> bool:
        """Whether the utterance has had nothing to say for so long, and waits for its client."""
        if not self._machine.awaits_text:
            return False
        waited_s = self._loop.time() - max(self._text_timers.text_at_s, self._sent_at_s)
        return waited_s >= wait_s * (1 if self._machine.is_voiced else _ENGINE_FACTOR)

    def yield_slot(self) -> None:
        """Stop the utterance, which waits for text, because another caller needs the slot."""
        self._machine.stop_all("slot_idle")
        self._on_stopped()

    def _activate(self) -> ErrorInfo | None:
        """Take a slot for a new utterance; return the error if none is free. Raises the error of a queued one."""
        queued = self._machine.state is not State.IDLE
        error = self._hooks.on_utterance(self.id, queued)
        if not queued:
            self._is_active = error is None
        elif error is not None:
            raise as_exception(error)
        return error

    def _note_idle(self) -> None:
        """Tell the hub when the last utterance has ended."""
        if self._is_active and self._machine.state in (State.IDLE, State.CLOSED):
            self._is_active = False
            self._hooks.on_idle(self.id)

    def _refuse(self, error: ErrorInfo) -> None:
        self._machine.refuse(error)
        self._on_change()

    def _on_change(self) -> None:
        """Carry out what a command or a timer changed in the machine, and wake the reader."""
        self._apply()
        self._wakeup.set()

    def _apply(self) -> None:
        if not self._is_read_scheduled:
            self._read_text()
        if self._pause_timer is not None and self._machine.state is not State.PAUSED:
            self._pause_timer.cancel()
            self._pause_timer = None
        self._note_idle()
        self._post()

    def _read_text(self) -> None:
        """Read text while this iteration of the event loop has time for it; the rest follows in later ones."""
        while self._machine.has_unread_text:
            if not self._read_scheduler.may_read(paced=self.paced):
                self._is_read_scheduled = True
                self._read_scheduler.add(self._read_more, paced=self.paced)
                return
            self._machine.read_more()

    def _read_more(self) -> None:
        self._is_read_scheduled = False
        self._on_change()

    def _post(self) -> None:
        for command in self._machine.take_commands():
            if isinstance(command, Open):
                self._note_voice(command.key)  # the first text may not have told it
            if isinstance(command, Text) and (pause_ms := command.segment.pause_ms):
                self._hooks.on_text(self.id, int(pause_ms * BREAK_CHARS_PER_S) // 1000)
            if isinstance(command, Text) and command.segment.index == 0:
                self._record.posted(command.key, self._loop.time())
            self._engine.post(command)

    # -- engine events and timers -------------------------------------------------------------------------------------

    def _on_engine(self, event: Event) -> None:
        timeline = self._record.open.get(event.key)
        if timeline is not None and timeline.awaits_audio and isinstance(event, Audio):
            timeline.first_chunk(event.meta, self._loop.time())
        self._machine.on_engine(event)
        self._apply()
        if not self._awaits_frame or self._machine.has_notices:
            self._wakeup.set()

    def _on_pause_timeout(self) -> None:
        self._pause_timer = None
        if self._machine.state is State.PAUSED:
            self._machine.stop_all("pause_timeout")
            self._on_stopped()

    # -- output -------------------------------------------------------------------------------------------------------

    def poll(self) -> Output | None:
        self._wakeup.clear()
        self._awaits_frame = False
        if self._final_events:
            return self._final_events.popleft()
        now_s = self._loop.time()
        due_at_s = self._due_at_s(now_s)
        item = self._machine.poll(audio=due_at_s <= now_s + TIMER_RESOLUTION_S)
        if item is None:
            self._next_due_at_s = due_at_s
            return None
        self._next_due_at_s = None
        self._note(item, now_s)
        self._note_idle()
        self._post()
        return item

    async def wait(self, deliver: Callable[[], bool] | None = None) -> None:
        """Wait until ``poll`` may return something or ``wake`` is called, for readers with several sources.

        Args:
            deliver: Called when a frame is due, instead of waking the reader, which costs as much as the frame itself.
                It polls until nothing is due; False wakes the reader.

        Raises:
            Exception: The error of ``deliver``.
        """
        self._deliver = deliver
        self._await_frame()
        try:
            await self._wakeup.wait()
        finally:
            self._deliver = None
        if self._delivery_error is not None:
            error, self._delivery_error = self._delivery_error, None
            raise error

    def _due_at_s(self, now_s: float) -> float:
        """When the next frame may be sent; infinity if there is none, or none may be sent."""
        samples = self._machine.next_frame_samples
        return self.pacer.due_at_s(samples, now_s) if samples else inf

    def _await_frame(self) -> None:
        due_at_s = self._next_due_at_s
        if due_at_s is None:
            due_at_s = self._due_at_s(self._loop.time())
        self._awaits_frame = due_at_s < inf
        if self._awaits_frame and (tick := self._frame_clock.tick_at(due_at_s)) != self._tick:
            self._tick = tick
            self._frame_clock.call_at(tick, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        if self._deliver is not None and not self._wakeup.is_set():
            try:
                if self._deliver() and self._machine.state is not State.CLOSED:
                    self._await_frame()
                    return
            except Exception as error:
                self._delivery_error = error
        self._wakeup.set()

    def wake(self) -> None:
        """End a pending ``wait``."""
        self._wakeup.set()

    def _note(self, item: Output, now_s: float) -> None:
        """Record an output in the pacer, the observer and the log record."""
        match item:
            case PcmFrame():
                self._note_frame(item, now_s)
            case Acknowledged():
                self._note_control(item.command, now_s)
            case Ended():
                self._note_control(ControlName.STOP, now_s)
                self.pacer.expect_gap()
                self._observer_of(item.key).ended(item, self.sample_rate_hz)
                self._hooks.on_audio(self.id, item.receipt.samples_sent / self.sample_rate_hz)
                timeline = self._record.ended(item, now_s)
                if self._traces is not None and timeline is not None:
                    self._traces.ended(timeline, item, now_s)
            case Started():
                self.pacer.expect_gap()

    def _note_text(self, key: UtteranceKey, chars: int) -> None:
        """Record accepted text, and with the first one of an utterance what speaks it."""
        if key not in self._record.open:
            self._record.begin(key, self._text_timers.text_at_s)
            self._note_voice(key)
        self._record.text(key, chars)

    def _note_voice(self, key: UtteranceKey) -> None:
        voice = self._machine.params_of(key).voice
        engine = self._engine_of(voice)
        self._record.spoken_by(key, engine, voice, self._observe(engine, voice))

    def _observer_of(self, key: UtteranceKey) -> SessionObserver:
        timeline = self._record.open.get(key)
        return self._observer if timeline is None else timeline.observer or self._observer

    def _note_frame(self, frame: PcmFrame, now_s: float) -> None:
        self._sent_at_s = now_s
        timing = self.pacer.timing(frame.samples, now_s)
        if timing is not None:
            self._observer_of(frame.key).frame(*timing)
        underrun_s = self.pacer.record_sent(frame.samples, now_s)
        if underrun_s > 0:
            self._observer_of(frame.key).underrun(underrun_s)
        if frame.index == 0:
            latency_s = self._record.latency_s(frame.key, now_s)
            if latency_s is not None:
                self._observer_of(frame.key).first_audio(latency_s)
            self._record.first_frame(frame.key, latency_s, now_s)

    def _note_control(self, command: ControlName, now_s: float) -> None:
        requested_at_s = self._control_at_s.pop(command, None)
        if requested_at_s is not None:
            self._observer.control(command, now_s - requested_at_s)
