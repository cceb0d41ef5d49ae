"""What all engines share: commands, admission, credit, and the order of a step.

An engine derives from ``EngineShell`` and supplies three hooks: ``open_sequence`` creates the state of an utterance,
``submit`` starts the work of a plan, and ``close_sequence`` frees what an utterance holds. An engine whose work goes on
after ``submit`` also overrides ``collect`` and ``is_busy``, and one with several kinds of work ``budgets``. With
``SKIPS_IDLE_SEQUENCES``, a step costs nothing for utterances that wait for their client or for a result.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from operator import attrgetter
from typing import ClassVar, Generic, TypeVar

from tts_worker.audio.pcm import silence
from tts_worker.engine.output_buffer import OutputBuffer
from tts_worker.engine.phases import change_phase
from tts_worker.engine.scheduler import Budgets, Candidate, Need, Plan, Policy, Scheduler
from tts_worker.errors import EngineFault, ErrorInfo, InvalidRequest, OverCapacity, TTSWorkerError, UnspeakableText
from tts_worker.text.language import primary_tag
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Audio,
    Boundary,
    Cancel,
    Command,
    Credit,
    Done,
    EndText,
    EngineInfo,
    Event,
    Express,
    Expression,
    Failed,
    Hold,
    Open,
    Release,
    Segment,
    Speech,
    SynthesisParams,
    Text,
    UtteranceKey,
    unpaced_share,
)

MAX_CHUNK_SAMPLES = SAMPLE_RATE_HZ // 2
MIN_CHUNK_SAMPLES = SAMPLE_RATE_HZ // 10
"""While audio is on its way to the client, small credits are coalesced to chunks of 100 ms."""


class Input(Enum):
    """What an utterance has received: NOTHING -> TEXT or SPEECH -> ENDED, or NOTHING -> ENDED_EMPTY."""

    NOTHING = "nothing yet"
    TEXT = "text"
    SPEECH = "speech tokens"
    ENDED = "text or speech, and its end"
    ENDED_EMPTY = "the end, and nothing before"


TRANSITIONS: dict[Input, frozenset[Input]] = {
    Input.NOTHING: frozenset({Input.TEXT, Input.SPEECH, Input.ENDED_EMPTY}),
    Input.TEXT: frozenset({Input.ENDED}),
    Input.SPEECH: frozenset({Input.ENDED}),
    Input.ENDED: frozenset(),
    Input.ENDED_EMPTY: frozenset(),
}


class _StepKind(Enum):
    """What a step is for. Finished audio leaves before new work starts, but two EMIT never follow each other."""

    EMIT = "only emit what was finished"
    WORK = "plan and submit"


class EngineSequence(ABC):
    """An utterance inside an engine: its text, its output buffer, and the operation that it needs next.

    Attributes:
        key: The utterance.
        params: Its synthesis parameters.
        output: Rendered audio that waits for credit.
        input: What it has received.
        waiting_since_us: Since when an operation has been due, to start counting at the next plan if it is None.
        in_flight_samples: Samples that are being rendered.
        arrival: Its number in the order of arrival.
    """

    unspeakable = "the text has no letters or digits to speak"
    """Message of the error for an utterance whose text gives no audio."""

    def __init__(self, command: Open) -> None:
        self.key = command.key
        self.params = command.params
        self.output = OutputBuffer(command.key, command.credit_samples, paced=command.paced, buffered=command.buffered)
        self.input = Input.NOTHING
        self._received: deque[Text | EndText] = deque()  # text after a break
        self._pause_ms: int | None = None  # silence that is due when the text before it is rendered
        self.waiting_since_us: int | None = None
        self.in_flight_samples = 0
        self.arrival = 0

    @abstractmethod
    def add_text(self, segment: Segment) -> None:
        """Take the next segment of the text."""

    def add_speech(self, tokens: tuple[int, ...]) -> None:
        """Take the next speech tokens; for engines with that capability.

        Raises:
            InvalidRequest: The engine does not know them.
        """
        raise InvalidRequest("this engine renders text only, no speech tokens")

    def close_text(self) -> None:
        """Speak all received text without waiting for more, since a silence follows."""
        return

    def express(self, expression: Expression) -> None:
        """Speak so from the next word on that is not rendered, if the engine can."""
        return

    def drop_pause(self) -> None:
        """Drop the pause of the last boundary, which a break replaces. All received text is rendered."""
        return

    def end_text(self) -> None:
        """Take the end of the text."""
        self._enter_input(Input.ENDED_EMPTY if self.input is Input.NOTHING else Input.ENDED)

    def _enter_input(self, following: Input) -> None:
        self.input = change_phase(self.input, following, TRANSITIONS)

    @property
    def text_ended(self) -> bool:
        """Whether no more text follows."""
        return self.input is Input.ENDED or self.input is Input.ENDED_EMPTY

    def receive_speech(self, tokens: tuple[int, ...]) -> None:
        """Take speech tokens in order. What follows the end is ignored.

        Raises:
            InvalidRequest: The utterance has text, or the engine does not know them.
        """
        if self.text_ended:
            return
        if self.input is Input.TEXT:
            raise InvalidRequest("an utterance takes either text or speech tokens")
        self.add_speech(tokens)
        if tokens and self.input is Input.NOTHING:
            self._enter_input(Input.SPEECH)

    def receive(self, command: Text | EndText) -> None:
        """Take text in order. After a break it waits for the audio before it; what follows the end is ignored."""
        self._received.append(command)
        self.pass_text_on()

    def pass_text_on(self) -> None:
        """Pass received text on, up to the next break; render the silence of a break whose time has come.

        Silence needs credit, as other audio does, so that many breaks take no memory.
        """
        while self._received or self._pause_ms is not None:
            if self._pause_ms is not None:
                output = self.output
                if self.has_pending_speech or output.credit_samples <= output.waiting_samples:
                    return
                output.render(silence(self._pause_ms * SAMPLE_RATE_HZ // 1000))
                self._pause_ms = None
                self.drop_pause()
                continue
            command = self._received.popleft()
            if self.text_ended:
                continue  # nothing of an utterance may break an engine that others share
            if isinstance(command, EndText):
                self.end_text()
                continue
            segment = command.segment
            if self.input is Input.NOTHING:
                self._enter_input(Input.TEXT)
            if segment.spans or segment.boundary is not Boundary.BREAK:
                self.add_text(segment)
            if segment.boundary is Boundary.BREAK:
                self.close_text()
                self._pause_ms = segment.pause_ms

    @property
    @abstractmethod
    def needs(self) -> Need:
        """The next operation; NONE while it waits for text, credit or a result."""

    @property
    def joins(self) -> Need:
        """An operation of other utterances that it may join."""
        return Need.NONE

    @property
    def has_capacity(self) -> bool:
        """Whether the credit exceeds the audio that is rendered or in flight."""
        return self.output.credit_samples > self.output.waiting_samples + self.in_flight_samples

    @property
    @abstractmethod
    def has_pending_speech(self) -> bool:
        """Whether audio of the text so far is not in the output buffer yet."""

    @property
    def is_complete(self) -> bool:
        """Whether all its audio is in the output buffer and no text follows."""
        return not self.has_pending_speech and self.text_ended

    @property
    def is_finished(self) -> bool:
        """Whether all its audio is emitted and none will follow."""
        return not self.output.waiting_samples and self.is_complete

    def candidate(self, now_us: int) -> Candidate | None:
        """Describe it to the scheduler; None if no step is of use to it."""
        needs = self.needs
        joins = self.joins
        if needs is Need.NONE and joins is Need.NONE:
            return None
        if needs is not Need.NONE:
            self.begin_to_wait(now_us)
        output = self.output
        return Candidate(
            self.key,
            output.lead_at_samples(now_us) + self.in_flight_samples,
            now_us if self.waiting_since_us is None else self.waiting_since_us,
            output.emitted_samples > 0,
            output.paced,
            needs,
            joins,
        )

    def begin_to_wait(self, now_us: int) -> None:
        """Count the time from now on, unless an operation has been due before."""
        if self.waiting_since_us is None:
            self.waiting_since_us = now_us

    def end(self) -> Done:
        """Return the end of a finished utterance.

        Raises:
            TTSWorkerError: Its text gave no audio.
        """
        if self.input is not Input.ENDED_EMPTY and not self.output.rendered_samples:
            raise UnspeakableText(self.unspeakable)
        return Done(self.key, skipped=self.output.take_skipped())


S = TypeVar("S", bound=EngineSequence)


class EngineShell(ABC, Generic[S]):
    """The engine protocol over sequences of type ``S``.

    Args:
        info: What the engine offers; defines the limits that are checked here.
        policy: Plans the steps; None uses a ``Scheduler``.
        max_chunk_samples: Longest chunk to emit.
        min_chunk_samples: Shortest chunk to emit while audio is on its way to the client.

    Attributes:
        info: What the engine offers.
        policy: Plans the steps. A benchmark may replace it with one that also takes notes.
        sequences: All utterances, by key.
    """

    def __init__(
        self,
        info: EngineInfo,
        *,
        policy: Policy | None = None,
        max_chunk_samples: int = MAX_CHUNK_SAMPLES,
        min_chunk_samples: int = MIN_CHUNK_SAMPLES,
    ) -> None:
        self.info = info
        self.sequences: dict[UtteranceKey, S] = {}
        self._active: dict[UtteranceKey, S] = {}  # all but the held ones
        self._ready: dict[UtteranceKey, S] = {}  # the active ones that may have something to do
        self._changed: dict[UtteranceKey, S] = {}  # those of them that may have audio to emit, or have ended
        self._events: list[Event] = []
        self.policy = policy or Scheduler().schedule
        self._max_chunk_samples = max_chunk_samples
        self._min_chunk_samples = min_chunk_samples
        self._arrivals = 0
        self._step_kind = _StepKind.WORK  # of the last step

    # -- hooks --------------------------------------------------------------------------------------------------------

    SKIPS_IDLE_SEQUENCES: ClassVar[bool] = False
    """Whether steps pass over a sequence with nothing to do until it gets a command, or ``mark_ready`` is called.

    An engine may set it if all work is done when ``submit`` returns, or if it calls ``mark_ready`` for every result.
    """

    @abstractmethod
    def open_sequence(self, command: Open) -> S:
        """Create a sequence. Speed, language and capacity are checked already.

        Raises:
            TTSWorkerError: The engine does not support the parameters.
        """

    @abstractmethod
    def submit(self, plan: Plan) -> None:
        """Do the work of ``plan``, or start it. A fault of one utterance is reported with ``fail``."""

    def close_sequence(self, sequence: S) -> None:
        """Free what ``sequence`` holds. Its results in flight are dropped."""

    def hold_sequence(self, sequence: S) -> None:
        """Free what a paused utterance does not need. Until ``Release`` no step is spent on it."""

    def collect(self) -> bool:
        """Take over the results of work that has finished. Returns whether there may be any."""
        return True

    @property
    def is_busy(self) -> bool:
        """Whether results of started work are outstanding."""
        return False

    def wait_for_work(self) -> bool:
        """Block until other threads have finished what they do for the engine. Returns False if they do nothing."""
        return False

    def can_start(self, sequence: S, needs: Need) -> bool:
        """Whether what runs the need of ``sequence`` is free. While False, it gives the engine nothing to do."""
        return True

    def candidates(self, now_us: int) -> list[Candidate]:
        """Return the active utterances that could use a step, in order of arrival, which breaks ties."""
        found = [sequence.candidate(now_us) for sequence in self.ready_sequences()]
        return [candidate for candidate in found if candidate is not None]

    def budgets(self, candidates: Sequence[Candidate]) -> Budgets:
        """Return what is free for ``candidates``."""
        return Budgets()

    def defers(self, sequence: S, now_us: int) -> bool:
        """Whether finished audio of ``sequence`` should wait."""
        return False

    # -- what hooks may call ------------------------------------------------------------------------------------------

    def is_active(self, sequence: S) -> bool:
        """Whether ``sequence`` is neither ended nor held."""
        return self._active.get(sequence.key) is sequence

    def mark_ready(self, sequence: S) -> None:
        """Consider ``sequence`` in the next step, since a result for it has arrived. No effect if it is held."""
        if self.is_active(sequence):
            self._ready[sequence.key] = self._changed[sequence.key] = sequence

    def ready_sequences(self) -> list[S]:
        """Return the active utterances that may have something to do, in order of arrival."""
        # ``_ready`` has another order: a sequence without work leaves it, and comes back behind later ones.
        return sorted(self._ready.values(), key=attrgetter("arrival"))

    def fail(self, sequence: S, error: ErrorInfo) -> None:
        """End an utterance with an error."""
        self._free(sequence)
        self._events.append(Failed(sequence.key, error))

    # -- commands -----------------------------------------------------------------------------------------------------

    def handle(self, command: Command) -> None:
        """Apply a command. Commands for unknown utterances are ignored."""
        if isinstance(command, Open):
            self._open(command)
            return
        sequence = self.sequences.get(command.key)
        if sequence is None:
            if isinstance(command, Cancel):  # it was rejected since the last step
                self._events = [event for event in self._events if event.key != command.key]
            return
        match command:
            case Text() | EndText():
                sequence.receive(command)
            case Speech():
                self._take_speech(sequence, command)
            case Credit():
                sequence.output.grant(command.samples)
                sequence.pass_text_on()
            case Hold():
                self._active.pop(command.key, None)
                self._ready.pop(command.key, None)
                self._changed.pop(command.key, None)
                self.hold_sequence(sequence)
            case Release():
                self._active[command.key] = sequence
            case Express():
                sequence.express(command.expression)
            case Cancel():
                self._free(sequence)
        self.mark_ready(sequence)

    def _open(self, command: Open) -> None:
        try:
            self._check_params(command.params)
            self._check_capacity(command)
            sequence = self.open_sequence(command)
            sequence.arrival = self._arrivals = self._arrivals + 1
        except TTSWorkerError as error:
            self._events.append(Failed(command.key, error.info))
        else:
            self.sequences[command.key] = self._active[command.key] = sequence
            self.mark_ready(sequence)

    def _take_speech(self, sequence: S, command: Speech) -> None:
        try:
            sequence.receive_speech(command.tokens)
        except InvalidRequest as error:
            self.fail(sequence, error.info)

    def _check_params(self, params: SynthesisParams) -> None:
        """Raise InvalidRequest for unsupported parameters. No parameter is replaced silently."""
        slowest, fastest = self.info.speed_range
        if not (math.isfinite(params.speed) and slowest <= params.speed <= fastest):
            raise InvalidRequest(f"speed must be {slowest:g} to {fastest:g}")
        if params.language is not None and "mul" not in self.info.languages:
            primary = primary_tag(params.language)
            if primary not in self.info.languages:
                known = ", ".join(self.info.languages)
                raise InvalidRequest(f"this model does not speak {primary[:16]!r}; it speaks {known}")

    def _check_capacity(self, command: Open) -> None:
        """Raise OverCapacity if all slots are taken, or all that downloads may take."""
        slots = self.info.max_utterances
        if len(self.sequences) >= slots:
            raise OverCapacity("all utterance slots of the engine are taken; retry in a moment")
        unpaced = sum(not sequence.output.paced for sequence in self.sequences.values())
        if not command.paced and unpaced >= unpaced_share(slots):
            raise OverCapacity("all utterance slots for downloads are taken; retry in a moment")

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        if self._events or self.is_busy:
            return True
        if any(map(self._has_output, self._to_postprocess.values())):
            return True
        return any(map(self._can_step, self._ready.values()))

    def _has_output(self, sequence: S) -> bool:
        return sequence.output.has_chunk(self._min_chunk_samples) or sequence.is_finished

    def _can_step(self, sequence: S) -> bool:
        needs = sequence.needs
        return needs is not Need.NONE and self.can_start(sequence, needs)

    @property
    def _to_postprocess(self) -> dict[UtteranceKey, S]:
        """The utterances that may have audio to emit.

        With ``SKIPS_IDLE_SEQUENCES`` only a command, a result or ``submit`` gives them some.
        """
        return self._changed if self.SKIPS_IDLE_SEQUENCES else self._ready

    def step(self, now_s: float) -> Sequence[Event]:
        """Do one bounded unit of work and return its events."""
        now_us = int(now_s * 1e6)
        self.collect()
        self._postprocess(now_us)
        self._step_kind = self._next_step_kind
        if self._step_kind is _StepKind.WORK:
            plan = self._schedule(now_us)
            self.submit(plan)
            self._mark_changed(plan)
            if self.collect():  # a device that works synchronously has finished, or the step has waited for a result
                self._postprocess(now_us)
        return self._take_events()

    @property
    def _next_step_kind(self) -> _StepKind:
        return _StepKind.EMIT if self._events and self._step_kind is _StepKind.WORK else _StepKind.WORK

    def _postprocess(self, now_us: int) -> None:
        """Emit audio within the credit, and end utterances whose audio is emitted."""
        sequences = list(self._to_postprocess.values())
        self._changed.clear()
        for sequence in sequences:
            sequence.pass_text_on()
            if sequence.output.has_chunk(self._min_chunk_samples):
                if self.defers(sequence, now_us):
                    self._changed[sequence.key] = sequence
                else:
                    self._emit(sequence)
            if sequence.is_finished:
                self._finish(sequence)
            elif self.SKIPS_IDLE_SEQUENCES and sequence.needs is Need.NONE and not self._has_output(sequence):
                del self._ready[sequence.key]

    def _mark_changed(self, plan: Plan) -> None:
        for batch in (plan.tokens, plan.audio):
            for key in () if batch is None else batch.members:
                if key in self._ready:  # it has not failed
                    self._changed[key] = self._ready[key]

    def _schedule(self, now_us: int) -> Plan:
        """Plan the step from what the utterances need and what is free."""
        candidates = self.candidates(now_us)
        return self.policy(candidates, self.budgets(candidates), now_us)

    def _take_events(self) -> list[Event]:
        events = self._events
        self._events = []
        return events

    def _emit(self, sequence: S) -> None:
        last = sequence.is_complete
        while (audio := sequence.output.emit(self._max_chunk_samples, last=last)) is not None:
            self._events.append(audio)
        sequence.waiting_since_us = None

    def _finish(self, sequence: S) -> None:
        try:
            end = sequence.end()
        except TTSWorkerError as error:
            self.fail(sequence, error.info)
        else:
            self._free(sequence)
            self._events.append(end)

    def _free(self, sequence: S) -> None:
        del self.sequences[sequence.key]
        self._active.pop(sequence.key, None)
        self._ready.pop(sequence.key, None)
        self._changed.pop(sequence.key, None)
        self.close_sequence(sequence)

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def speak(self, key: UtteranceKey, params: SynthesisParams, segments: Iterable[Segment]) -> bytes:
        """Return the audio of an utterance, as s16le. For the warm-up: the engine has nothing else to do.

        Raises:
            EngineFault: The utterance failed.
        """
        self.handle(Open(key, params, credit_samples=60 * SAMPLE_RATE_HZ))
        for segment in segments:
            self.handle(Text(key, segment))
        self.handle(EndText(key))
        pcm = bytearray()
        while key in self.sequences:
            if not self.has_work and not self.wait_for_work():
                raise EngineFault("the engine stopped in the middle of the warm-up")
            for event in self.step(0.0):
                if isinstance(event, Failed):
                    raise EngineFault(f"the engine cannot speak: {event.error.message}")
                if isinstance(event, Audio):
                    pcm += event.pcm
        return bytes(pcm)

    def close(self) -> None:
        """Free all resources without emitting events."""
        for sequence in list(self.sequences.values()):
            self._free(sequence)
        self._events.clear()
