"""A simulated engine: the real shell, scheduler, chunk plan and output buffers over modelled stage times.

Nothing is computed, and no thread waits: every operation advances a virtual clock by the time that a ``StageTimes``
gives for its batch. What is modelled follows ``engine/cosyvoice``: prefill, decode bursts, flow and vocoder, one batch
of tokens and one of audio at a time, on one thread, with the flow on a thread of its own, or on two streams of a
device; prompts of voices, pages, faults in a batch and their isolation. Times that depend on the length of a sequence
are not modelled: a stage costs the same early and late in an utterance.

Pure: no clock, no tensors. The driver delivers commands and reads the clock (``benchmarks/simulate.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tts_worker.engine.cosyvoice.chunks import Chunk, GridPlan, trimmed_prompt
from tts_worker.engine.cosyvoice.phases import (
    SEGMENT_TRANSITIONS,
    SEQUENCE_TRANSITIONS,
    TOKEN_PASS_TRANSITIONS,
    SegmentPhase,
    SequencePhase,
    TokenPass,
)
from tts_worker.engine.phases import change_phase
from tts_worker.engine.scheduler import (
    Batch,
    Budgets,
    Candidate,
    ChunkTimes,
    Need,
    PageClaim,
    Plan,
    Policy,
    defers_first_chunk,
)
from tts_worker.engine.shell import EngineSequence, EngineShell
from tts_worker.errors import ConfigError, OutOfMemory, SynthesisFailed, UnknownVoice
from tts_worker.types import (
    BYTES_PER_SAMPLE,
    SAMPLE_RATE_HZ,
    Alignment,
    Boundary,
    EngineInfo,
    Open,
    Segment,
    UtteranceKey,
    unpaced_share,
)

TOKEN_RATE_HZ = 25
CHUNK_TOKENS = 25
LOOKAHEAD_TOKENS = 3
SAMPLES_PER_TOKEN = SAMPLE_RATE_HZ // TOKEN_RATE_HZ

_AHEAD_CHUNKS = 2  # unrendered chunks up to which an utterance joins a decode batch
_CLOSING_BOUNDARIES = frozenset({Boundary.SENTENCE, Boundary.PARAGRAPH, Boundary.FLUSH, Boundary.END})
_CHARS_PER_TEXT_TOKEN = 4


# -- time --------------------------------------------------------------------------------------------------------------


class VirtualClock:
    """The time of a simulation, in microseconds. It never goes back."""

    def __init__(self) -> None:
        self.now_us = 0

    def advance(self, duration_us: float) -> None:
        self.now_us += round(duration_us)

    def advance_to(self, time_us: int) -> None:
        self.now_us = max(self.now_us, time_us)


@dataclass(frozen=True)
class StageTime:
    """Time of a stage by the size of its batch, in microseconds.

    Linear between the points and beyond the last two. Below the first point, the time of the first point.

    Attributes:
        points: Sizes in ascending order, and the time of each.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or sizes != sorted(set(sizes)) or any(us < 0 for _, us in self.points):
            raise ConfigError("a stage time needs ascending sizes and times of at least 0")

    @classmethod
    def linear(cls, fixed_us: float, each_us: float = 0.0) -> StageTime:
        return cls(((0.0, fixed_us), (1.0, fixed_us + each_us)))

    def us(self, size: float) -> float:
        """Return the time of a batch of ``size``."""
        if size <= self.points[0][0] or len(self.points) == 1:
            return self.points[0][1]
        place = min(bisect_left(self.points, (size,)), len(self.points) - 1)
        (low, low_us), (high, high_us) = self.points[place - 1], self.points[place]
        return max(0.0, low_us + (size - low) * (high_us - low_us) / (high - low))


NO_TIME = StageTime.linear(0.0)


class Execution(str, Enum):
    """Where the stages run."""

    SERIAL = "serial"  # on the engine thread, one after the other
    FLOW_THREAD = "flow_thread"  # the flow on its own thread, the rest on the engine thread
    STREAMS = "streams"  # tokens and audio on two streams of a device; the engine thread launches


@dataclass(frozen=True)
class StageTimes:
    """Modelled or measured times.

    With ``STREAMS``, the first four are times on the device and the launches occupy the engine thread. Otherwise the
    first four occupy the thread on which they run.

    Attributes:
        execution: Where the stages run.
        prefill: Prefill by inputs of the batch.
        decode: One decode step by utterances of the batch.
        flow: Flow pass by chunks of the batch.
        vocoder: Vocoder pass by chunks of the batch, with the context that each computes again.
        launch_prefill: Launch of a prefill by utterances.
        launch_decode: Launch of a burst by decode steps.
        launch_flow: Launch of a flow pass by utterances.
        launch_vocoder: Launch of a vocoder pass by utterances.
        step: Planning and bookkeeping of one step by live utterances.
        pads_audio: Whether audio batches are padded to powers of two.
        source: Where the times come from.
    """

    execution: Execution
    prefill: StageTime
    decode: StageTime
    flow: StageTime
    vocoder: StageTime
    launch_prefill: StageTime = NO_TIME
    launch_decode: StageTime = NO_TIME
    launch_flow: StageTime = NO_TIME
    launch_vocoder: StageTime = NO_TIME
    step: StageTime = NO_TIME
    pads_audio: bool = False
    source: str = ""


# -- what is simulated -------------------------------------------------------------------------------------------------

TokensOf = Callable[[UtteranceKey, int, Segment], int]
"""Returns the speech tokens of run number n of an utterance, which speaks a segment."""

PassFails = Callable[[Need, tuple[UtteranceKey, ...]], bool]
"""Whether the next pass over these utterances fails. Called once per pass."""


def tokens_by_length(key: UtteranceKey, run: int, segment: Segment) -> int:
    """Return two speech tokens per letter or digit: about twelve letters a second."""
    return 2 * sum(map(str.isalnum, segment.text))


def never_fails(operation: Need, members: tuple[UtteranceKey, ...]) -> bool:
    return False


@dataclass(frozen=True)
class SimulationConfig:
    """Settings of the simulated engine; those of ``StreamingConfig`` have the same names.

    Attributes:
        vocoder_context_tokens: Speech tokens whose frames the vocoder computes again with each chunk.
        held_samples: Audio at the end of a chunk that the vocoder gives with the next one.
        prompt_tokens: Speech tokens of the prompt of every voice.
        voices: Names of the voices.
        prepared: Whether the prompts are in memory at the start.
        first_chunk_on_device: With ``STREAMS``, submit the first chunk of a call as one piece of work.
    """

    max_utterances: int = 16
    first_tokens: int = 8
    stride_chunks: int = 1
    context_tokens: int = 250
    pages: int = 160
    decode_batch: int = 16
    render_batch: int = 1
    burst_tokens: int = 8
    smooth_start: bool = True
    vocoder_context_tokens: int = 16
    held_samples: int = 4 * SAMPLES_PER_TOKEN
    prompt_tokens: int = 125
    voices: tuple[str, ...] = ("simulated",)
    prepared: bool = True
    first_chunk_on_device: bool = True


@dataclass
class _Voice:
    """A voice and the pages of its prompt.

    Attributes:
        prompt_tokens: Tokens of the trimmed prompt.
        shared_chunks: Chunks of the prompt that are computed once.
        prepared_chunks: How many of them are in memory.
        users: Utterances that use the voice.
    """

    prompt_tokens: int
    shared_chunks: int
    prepared_chunks: int = 0
    users: int = 0

    @property
    def unprepared_pages(self) -> int:
        return self.shared_chunks - self.prepared_chunks


@dataclass
class _Run:
    """One sequence of the language model.

    Attributes:
        inputs: Inputs that the network has not processed, besides the last drawn id.
        tokens: Speech tokens that it gives.
        drawn: Tokens drawn so far.
    """

    inputs: int
    tokens: int
    drawn: int = 0


@dataclass
class _Segment:
    """An audio segment.

    Attributes:
        plan: Its chunks.
        computed_tokens: Prompt and segment tokens that the flow has computed.
        pages: Pages that it holds, without those of the prompt.
        tokens: Tokens so far.
        expected_tokens: Tokens of the runs so far, once they are over.
        rendered_tokens: Tokens that are rendered.
        phase: How far it is.
        due: The chunk that can be rendered now.
    """

    plan: GridPlan
    computed_tokens: int
    pages: int = 0
    tokens: int = 0
    expected_tokens: int = 0
    rendered_tokens: int = 0
    phase: SegmentPhase = SegmentPhase.OPEN
    due: Chunk | None = None

    def enter(self, phase: SegmentPhase) -> None:
        self.phase = change_phase(self.phase, phase, SEGMENT_TRANSITIONS)

    @property
    def is_complete(self) -> bool:
        """Whether no further token follows."""
        return self.phase is SegmentPhase.COMPLETE or self.phase is SegmentPhase.RENDERED

    def due_chunk(self) -> Chunk | None:
        if self.due is None and self.phase is not SegmentPhase.RENDERED:
            self.due = self.plan.next(self.tokens, self.phase is SegmentPhase.COMPLETE)
        return self.due

    @property
    def unrendered_tokens(self) -> int:
        return self.tokens - self.rendered_tokens

    @property
    def has_next_chunk(self) -> bool:
        """Whether the chunk after the due one is due, too."""
        end = self.rendered_tokens if self.due is None else self.due.end
        return self.tokens - end >= self.plan.hop(end) + LOOKAHEAD_TOKENS

    def mark_rendered(self, chunk: Chunk) -> None:
        self.due = None
        self.rendered_tokens = chunk.end
        if chunk.final:
            self.enter(SegmentPhase.RENDERED)


class SimulatedSequence(EngineSequence):
    """An utterance of the simulated engine.

    Attributes:
        voice: Its voice.
        segments: Audio segments that are not fully rendered, in order.
        run: The current run.
        phase: Where it is in its life. While its voice is not prepared, it counts as speaking.
        token_pass: The pass of the language model that it is in.
        chunk_in_flow: The chunk that the flow computes.
        failed_batches: Batches with it that failed since its last chunk. With any, it runs alone.
        rendered_chunks: Chunks rendered so far.
    """

    def __init__(
        self,
        command: Open,
        voice: _Voice,
        config: SimulationConfig,
        tokens_of: TokensOf,
        *,
        first_chunk_on_device: bool = False,
    ) -> None:
        super().__init__(command)
        self.voice = voice
        self.segments: deque[_Segment] = deque()
        self.run: _Run | None = None
        self.phase = SequencePhase.SPEAKING
        self.token_pass = TokenPass.NONE
        self.chunk_in_flow: Chunk | None = None
        self.failed_batches = 0
        self.rendered_chunks = 0
        self._config = config
        self._tokens_of = tokens_of
        self._text: deque[tuple[int, int, bool]] = deque()  # text tokens, speech tokens, whether it closes a segment
        self._runs = 0
        self._context_inputs = 0
        self._first_chunk_on_device = first_chunk_on_device and command.paced

    # -- life ---------------------------------------------------------------------------------------------------------

    def enter(self, phase: SequencePhase) -> None:
        self.phase = change_phase(self.phase, phase, SEQUENCE_TRANSITIONS)

    def enter_pass(self, token_pass: TokenPass) -> None:
        self.token_pass = change_phase(self.token_pass, token_pass, TOKEN_PASS_TRANSITIONS)

    @property
    def has_ended(self) -> bool:
        return self.phase is SequencePhase.ENDED

    # -- text and tokens ----------------------------------------------------------------------------------------------

    def add_text(self, segment: Segment) -> None:
        tokens = self._tokens_of(self.key, self._runs, segment)
        self._runs += 1
        if tokens > 0:
            closes = segment.boundary in _CLOSING_BOUNDARIES
            self._text.append((len(segment.text) // _CHARS_PER_TEXT_TOKEN + 1, tokens, closes))

    def close_text(self) -> None:
        if self._text:
            text_tokens, tokens, _ = self._text[-1]
            self._text[-1] = (text_tokens, tokens, True)
        elif self.run is not None:
            self._close_after_run()
        elif self.segments and self.segments[-1].phase is SegmentPhase.OPEN:
            self.segments[-1].enter(SegmentPhase.COMPLETE)

    def end_text(self) -> None:
        super().end_text()
        self._close_if_finished()

    def begin_run(self) -> None:
        """Start the run of the next text."""
        text_tokens, tokens, closes = self._text.popleft()
        context = min(self._context_inputs, self._config.context_tokens)
        self.run = _Run(2 + text_tokens + self.voice.prompt_tokens + context, tokens)
        self._context_inputs += text_tokens + tokens
        if not self.segments or self.segments[-1].is_complete:
            self.segments.append(_Segment(self._new_plan(), self.voice.shared_chunks * CHUNK_TOKENS))
        self.segments[-1].expected_tokens += tokens
        if closes:
            self._close_after_run()

    def _close_after_run(self) -> None:
        """Let the current run be the last one of its audio segment."""
        if self.segments[-1].phase is SegmentPhase.OPEN:
            self.segments[-1].enter(SegmentPhase.CLOSING)

    def _new_plan(self) -> GridPlan:
        return GridPlan(self.voice.prompt_tokens, CHUNK_TOKENS, LOOKAHEAD_TOKENS, self._config.stride_chunks)

    def draw(self, draws: int) -> None:
        """Take the result of a pass that draws up to ``draws`` ids; the one after the last token ends the run."""
        run = self.run
        assert run is not None
        run.inputs = 0
        tokens = min(draws, run.tokens - run.drawn)
        run.drawn += tokens
        segment = self.segments[-1]
        segment.tokens += tokens
        if tokens < draws:
            self.run = None
            if segment.phase is SegmentPhase.CLOSING:
                segment.enter(SegmentPhase.COMPLETE)
            self._close_if_finished()

    def _close_if_finished(self) -> None:
        is_finished = self.text_ended and not self._text and self.run is None
        if is_finished and self.segments and self.segments[-1].phase is SegmentPhase.OPEN:
            self.segments[-1].enter(SegmentPhase.COMPLETE)

    @property
    def draws_left(self) -> int:
        """Draws until the run is over."""
        return 0 if self.run is None else self.run.tokens - self.run.drawn + 1

    @property
    def next_inputs(self) -> int:
        """Inputs of the next prefill."""
        if self.run is not None:
            return max(1, self.run.inputs)
        return self._text[0][0] + self.voice.prompt_tokens if self._text else 1

    @property
    def unrendered_tokens(self) -> int:
        return sum(segment.unrendered_tokens for segment in self.segments)

    @property
    def has_pending_speech(self) -> bool:
        return bool(self._text) or self.run is not None or bool(self.segments)

    @property
    def due_chunk(self) -> Chunk | None:
        return self.segments[0].due_chunk() if self.segments else None

    def drop_empty_segment(self) -> None:
        """Remove the first audio segment if it ended without a token."""
        chunk = self.due_chunk
        if chunk is not None and chunk.begin == chunk.end and chunk.begin == 0:
            self.segments.popleft()

    # -- needs --------------------------------------------------------------------------------------------------------

    @property
    def needs(self) -> Need:
        if not self.has_capacity:
            return Need.NONE
        if self.has_pending_speech and self.voice.unprepared_pages:
            return Need.NONE if self.phase is SequencePhase.WAITING_PAGES else Need.PREPARE_VOICE
        if self.due_chunk is None:
            return self._needs_tokens
        if self.chunk_in_flow is None:
            return Need.NONE if self.phase is SequencePhase.WAITING_PAGES else Need.RENDER
        return Need.NONE if self.segments[0].has_next_chunk else self._needs_tokens

    @property
    def _needs_tokens(self) -> Need:
        if self.token_pass is not TokenPass.NONE or self.voice.unprepared_pages:
            return Need.NONE
        if self.run is None:
            can_begin = bool(self._text) and (len(self.segments) < 2 or not self.segments[-1].is_complete)
            return Need.PREFILL if can_begin else Need.NONE
        return Need.PREFILL if self.run.inputs else Need.DECODE

    @property
    def joins(self) -> Need:
        """The operation of a language model batch that it may join."""
        max_tokens = _AHEAD_CHUNKS * CHUNK_TOKENS + LOOKAHEAD_TOKENS
        if not self.has_capacity or self.unrendered_tokens >= max_tokens:
            return Need.NONE
        return self._needs_tokens

    def candidate(self, now_us: int) -> Candidate | None:
        candidate = super().candidate(now_us)
        if candidate is None:
            return None
        needs = candidate.needs
        pages = 0
        starts = False
        if needs is Need.PREPARE_VOICE:
            pages = self.voice.unprepared_pages
            starts = True
        elif needs is Need.RENDER:
            pages = self.next_pages
            starts = not self.segments[0].pages
        pages_ahead = pages + self.pages_ahead if starts else 0
        draws = 0
        if needs is Need.PREFILL and self._may_render_unread:
            draws, pages, pages_ahead = self._first_chunk_needs()
            starts = True
        return candidate._replace(
            inputs=self.next_inputs if Need.PREFILL in (needs, candidate.joins) else 1,
            tokens_until_due=self._tokens_until_due,
            on_device_draws=draws,
            pages=pages,
            pages_ahead=pages_ahead,
            starts=starts,
            runs_alone=self.failed_batches > 0,
        )

    @property
    def _may_render_unread(self) -> bool:
        """Whether its first chunk may be rendered from ids that the host has not read."""
        is_first = not self.output.rendered_samples and not self.segments and self.run is None
        return self._first_chunk_on_device and is_first and not self.failed_batches

    def _first_chunk_needs(self) -> tuple[int, int, int]:
        """Return the tokens and pages of the first chunk, and the estimated pages of its audio segment."""
        chunk = self._new_plan().first_chunk
        computed = self.voice.shared_chunks * CHUNK_TOKENS
        pages = -(-(self.voice.prompt_tokens + chunk.end - computed) // CHUNK_TOKENS)
        _, expected_tokens, _ = self._text[0]
        return chunk.known, pages, max(pages, -(-expected_tokens // CHUNK_TOKENS))

    def begin_first_chunk(self) -> None:
        """Render the first chunk next, although its tokens are not drawn yet."""
        segment = self.segments[0]
        segment.due = segment.plan.next(segment.plan.first_chunk.known, False)

    @property
    def _tokens_until_due(self) -> int:
        if not self.segments:
            return 0
        return self.segments[0].plan.hop(0) + LOOKAHEAD_TOKENS - self.segments[0].tokens

    # -- pages --------------------------------------------------------------------------------------------------------

    @property
    def next_pages(self) -> int:
        """Pages that the due chunk takes."""
        chunk = self.due_chunk
        if chunk is None:
            return 0
        return -(-(self.voice.prompt_tokens + chunk.end - self.segments[0].computed_tokens) // CHUNK_TOKENS)

    @property
    def pages_ahead(self) -> int:
        """Estimated pages that the current audio segment will still take."""
        if not self.segments:
            return 0
        segment = self.segments[0]
        return -(-max(0, max(segment.expected_tokens, segment.tokens) - segment.rendered_tokens) // CHUNK_TOKENS)

    def claim(self) -> PageClaim | None:
        """Return its claim if it will return pages."""
        may_ask = self.phase is not SequencePhase.WAITING_PAGES
        is_preparing = may_ask and self.has_pending_speech and self.voice.prepared_chunks > 0
        holds = bool(self.segments and self.segments[0].pages) or (is_preparing and self.voice.unprepared_pages > 0)
        if not holds and not is_preparing:
            return None
        return PageClaim(self.key, self.output.paced, holds, self.pages_ahead + self.voice.unprepared_pages)


# -- engine ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pass:
    """A pass in flight.

    Attributes:
        operation: What it does.
        members: Its utterances.
        ready_us: When its result is there.
        duration_us: Time on the device.
        fails: Whether it fails.
        steps: Decode steps.
        chunks: The chunk of each member of a render pass.
    """

    operation: Need
    members: tuple[SimulatedSequence, ...]
    ready_us: int
    duration_us: float
    fails: bool
    steps: int = 1
    chunks: tuple[Chunk, ...] = ()


@dataclass
class Usage:
    """What the stages and the engine thread spent, in microseconds, and how many passes ran."""

    prefill_us: float = 0.0
    decode_us: float = 0.0
    flow_us: float = 0.0
    vocoder_us: float = 0.0
    thread_us: float = 0.0
    steps: int = 0
    passes: dict[str, int] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)

    def count(self, operation: Need, members: int) -> None:
        self.passes[operation.value] = self.passes.get(operation.value, 0) + 1
        self.members[operation.value] = self.members.get(operation.value, 0) + members


class SimulatedEngine(EngineShell[SimulatedSequence]):
    """The engine protocol over modelled stages.

    Args:
        times: Times of the stages.
        config: Settings.
        clock: Advanced by every operation.
        tokens_of: Speech tokens of every text.
        pass_fails: Injects faults.
        policy: Plans the steps; None uses a ``Scheduler``.

    Attributes:
        usage: What was spent so far.
        served: Called with the operation and the members of every pass that starts.
    """

    def __init__(
        self,
        times: StageTimes,
        config: SimulationConfig | None = None,
        *,
        clock: VirtualClock | None = None,
        tokens_of: TokensOf = tokens_by_length,
        pass_fails: PassFails = never_fails,
        policy: Policy | None = None,
    ) -> None:
        self.config = config = config or SimulationConfig()
        info = EngineInfo(
            name="simulated",
            voices=config.voices,
            languages=("mul",),
            alignment=Alignment.NONE,
            max_utterances=config.max_utterances,
        )
        super().__init__(info, policy=policy)
        self.clock = clock or VirtualClock()
        self.usage = Usage()
        self.free_pages = config.pages
        self._times = times
        self._tokens_of = tokens_of
        self._pass_fails = pass_fails
        self._shares_stream = times.execution is not Execution.FLOW_THREAD
        self._voices = {name: self._voice() for name in config.voices}
        self._call_pages = max(0, self.free_pages - unpaced_share(self.free_pages))
        self._tokens: _Pass | None = None
        self._flow: _Pass | None = None
        self._vocoder_queue: deque[_Pass] = deque()
        self._vocoder: _Pass | None = None
        self._tokens_free_us = 0  # when the stream of tokens has finished
        self._audio_free_us = 0
        self._token_us = 0.0  # running means
        self._chunk_us = 0.0

    def _voice(self) -> _Voice:
        config = self.config
        prompt = config.prompt_tokens - trimmed_prompt(config.prompt_tokens, CHUNK_TOKENS, config.first_tokens)
        voice = _Voice(prompt, max(0, (prompt - LOOKAHEAD_TOKENS) // CHUNK_TOKENS))
        if config.prepared:
            if self.free_pages < voice.shared_chunks:
                raise ConfigError("pages: too few for the prompts of the voices")
            voice.prepared_chunks = voice.shared_chunks
            self.free_pages -= voice.shared_chunks
        return voice

    def warm_up(self) -> None:
        """Do nothing."""

    # -- hooks of the shell -------------------------------------------------------------------------------------------

    def open_sequence(self, command: Open) -> SimulatedSequence:
        voice = self._voices.get(command.params.voice)
        if voice is None:
            raise UnknownVoice(f"the simulated engine has the voices {', '.join(self._voices)}")
        voice.users += 1
        is_asynchronous = self._times.execution is Execution.STREAMS
        on_device = self.config.first_chunk_on_device and is_asynchronous
        return SimulatedSequence(command, voice, self.config, self._tokens_of, first_chunk_on_device=on_device)

    def close_sequence(self, sequence: SimulatedSequence) -> None:
        sequence.enter(SequencePhase.ENDED)
        sequence.voice.users -= 1
        for segment in sequence.segments:
            self.free_pages += segment.pages
        self._wake_page_waiters()

    def _wake_page_waiters(self) -> None:
        for sequence in self.sequences.values():
            if sequence.phase is SequencePhase.WAITING_PAGES:
                sequence.enter(SequencePhase.SPEAKING)

    @property
    def is_busy(self) -> bool:
        return self._tokens is not None or self._is_audio_busy

    @property
    def _is_audio_busy(self) -> bool:
        return self._flow is not None or self._vocoder is not None or bool(self._vocoder_queue)

    @property
    def _has_vocoder_work(self) -> bool:
        return bool(self._vocoder_queue) and self._vocoder is None

    def budgets(self, candidates: Sequence[Candidate]) -> Budgets:
        config = self.config
        has_audio_capacity = not self._is_audio_busy if self._shares_stream else self._flow is None
        claims: list[PageClaim] = []
        if any(candidate.starts for candidate in candidates):
            found = [sequence.claim() for sequence in self.sequences.values()]
            claims = [claim for claim in found if claim is not None]
        return Budgets(
            max_token_batch=config.decode_batch if self._tokens is None and not self._has_vocoder_work else 0,
            max_audio_batch=config.render_batch if has_audio_capacity else 0,
            concurrent=self._times.execution is not Execution.SERIAL,
            burst_steps=config.burst_tokens,
            free_pages=self.free_pages,
            evictable_pages=sum(voice.prepared_chunks for voice in self._voices.values() if not voice.users),
            call_pages=self._call_pages,
            claims=claims,
        )

    def submit(self, plan: Plan) -> None:
        self.usage.steps += 1
        self._occupy_thread(self._times.step.us(len(self.sequences)))
        for key in plan.refused:
            self.sequences[key].enter(SequencePhase.WAITING_PAGES)
        for key in plan.out_of_memory:
            self.fail(self.sequences[key], OutOfMemory("no memory for more audio").info)
        self._evict(plan.free_pages)
        for key in plan.urgent:
            self.sequences[key].waiting_since_us = None
        if plan.audio is not None:
            members = self._live(plan.audio.members)
            if plan.audio.operation is Need.PREPARE_VOICE:
                self._prepare_voice(members)
            elif members:
                self._render(members)
        if self._has_vocoder_work:
            self._vocode()
        elif plan.tokens is not None:
            self._draw(self._live(plan.tokens.members), plan.tokens)
        elif plan.audio is None:
            self._wait()

    def _live(self, keys: Sequence[UtteranceKey]) -> tuple[SimulatedSequence, ...]:
        return tuple(self.sequences[key] for key in keys if key in self.sequences)

    def _evict(self, required: int) -> None:
        for voice in self._voices.values():
            if self.free_pages < required and not voice.users:
                self.free_pages += voice.prepared_chunks
                voice.prepared_chunks = 0

    def collect(self) -> bool:
        if self._tokens is not None and self._tokens.ready_us <= self.clock.now_us:
            self._collect_tokens()
        if self._vocoder is not None:
            if self._vocoder.ready_us <= self.clock.now_us:
                self._collect_vocoder()
        elif self._flow is not None and not self._vocoder_queue and self._flow.ready_us <= self.clock.now_us:
            self._collect_flow()
        for sequence in list(self.sequences.values()):
            sequence.drop_empty_segment()
        return True

    def defers(self, sequence: SimulatedSequence, now_us: int) -> bool:
        output = sequence.output
        if not self.config.smooth_start or output.emitted_samples or sequence.rendered_chunks != 1:
            return False
        if not sequence.segments or not sequence.has_capacity:
            return False
        is_in_pass = sequence.token_pass is not TokenPass.NONE or sequence.chunk_in_flow is not None
        if sequence.needs is Need.NONE and not is_in_pass and not sequence.in_flight_samples:
            return False
        times = ChunkTimes(int(CHUNK_TOKENS * self._token_us), int(self._chunk_us))
        first = Candidate(output.key, output.waiting_samples, now_us, started=False, paced=output.paced)
        return defers_first_chunk(first, self.candidates, len(self.sequences), times, self.config.render_batch, now_us)

    # -- passes -------------------------------------------------------------------------------------------------------

    def _occupy_thread(self, duration_us: float) -> None:
        self.usage.thread_us += duration_us
        self.clock.advance(duration_us)

    def _start(self, free_us: int, launch_us: float, duration_us: float) -> int:
        """Run a pass on a stream that is free at ``free_us``; return when it is done."""
        if self._times.execution is not Execution.STREAMS:
            self._occupy_thread(duration_us)
            return self.clock.now_us
        begins_us = max(self.clock.now_us, free_us)
        self._occupy_thread(launch_us)
        return max(self.clock.now_us, begins_us + round(duration_us))

    def _prepare_voice(self, members: Sequence[SimulatedSequence]) -> None:
        """Compute the next chunk of a prompt."""
        for sequence in members:
            voice = sequence.voice
            duration_us = self._times.flow.us(1)
            self.usage.count(Need.PREPARE_VOICE, 1)
            self.usage.flow_us += duration_us
            self._audio_free_us = self._start(self._audio_free_us, self._times.launch_flow.us(1), duration_us)
            self.free_pages -= 1
            voice.prepared_chunks += 1
            if not voice.unprepared_pages:
                self._wake_page_waiters()

    def _draw(self, members: Sequence[SimulatedSequence], batch: Batch) -> None:
        if not members:
            return
        times = self._times
        operation = batch.operation
        goes_on = False  # to the audio of the first chunks
        if operation is Need.PREFILL:
            for sequence in members:
                if sequence.run is None:
                    sequence.begin_run()
            draws = batch.on_device_draws
            goes_on = draws > 0 and all(sequence.draws_left > draws for sequence in members)
            steps = draws if goes_on else 1
            prefill_us = times.prefill.us(sum(sequence.next_inputs for sequence in members))
            decode_us = (steps - 1) * times.decode.us(len(members))
            launch_us = times.launch_prefill.us(len(members))
            if goes_on:
                launch_us += times.launch_decode.us(steps - 1)
        else:
            steps = min(batch.steps, max(sequence.draws_left for sequence in members))
            prefill_us = 0.0
            decode_us = steps * times.decode.us(len(members))
            launch_us = times.launch_decode.us(steps)
        self.usage.prefill_us += prefill_us
        self.usage.decode_us += decode_us
        duration_us = prefill_us + decode_us
        for sequence in members:
            sequence.enter_pass(TokenPass.FIRST_CHUNK if goes_on else TokenPass.IDS)
        fails = self._pass_fails(operation, tuple(sequence.key for sequence in members))
        self.usage.count(operation, len(members))
        self._tokens_free_us = self._start(self._tokens_free_us, launch_us, duration_us)
        self._tokens = _Pass(operation, tuple(members), self._tokens_free_us, duration_us, fails, steps)
        if goes_on and not fails:
            for sequence in members:
                sequence.begin_first_chunk()
            self._audio_free_us = max(self._audio_free_us, self._tokens_free_us)
            self._render(members)

    def _collect_tokens(self) -> None:
        assert self._tokens is not None
        done = self._tokens
        self._tokens = None
        for sequence in done.members:
            sequence.enter_pass(TokenPass.NONE)
        if done.fails:
            self._handle_fault(done)
            return
        if done.operation is Need.DECODE:
            self._token_us = _running_mean(self._token_us, done.duration_us / max(1, done.steps))
        for sequence in done.members:
            if not sequence.has_ended:
                sequence.draw(done.steps)

    def _render(self, members: Sequence[SimulatedSequence]) -> None:
        """Start a flow pass over the due chunk of each member, and the vocoder behind it on the same stream."""
        chunks = []
        computed = 0
        for sequence in members:
            chunk = sequence.due_chunk
            assert chunk is not None
            segment = sequence.segments[0]
            pages = sequence.next_pages
            computed += pages
            segment.pages += pages
            segment.computed_tokens += pages * CHUNK_TOKENS
            if chunk.final:
                segment.computed_tokens = sequence.voice.prompt_tokens + chunk.end
            self.free_pages -= pages
            sequence.chunk_in_flow = chunk
            chunks.append(chunk)
        fails = self._pass_fails(Need.RENDER, tuple(sequence.key for sequence in members))
        self.usage.count(Need.RENDER, len(members))
        duration_us = self._times.flow.us(computed * self._padding(len(members)))
        self.usage.flow_us += duration_us
        if self._times.execution is Execution.FLOW_THREAD:
            ready_us = max(self.clock.now_us, self._audio_free_us) + round(duration_us)
        else:
            ready_us = self._start(self._audio_free_us, self._times.launch_flow.us(len(members)), duration_us)
        self._audio_free_us = ready_us
        self._flow = _Pass(Need.RENDER, tuple(members), ready_us, duration_us, fails, chunks=tuple(chunks))
        if self._shares_stream:
            self._collect_flow()
            if self._has_vocoder_work:
                self._vocode()

    def _samples(self, chunk: Chunk) -> int:
        """Return the audio that the vocoder gives for a chunk."""
        begin = chunk.begin * SAMPLES_PER_TOKEN
        end = chunk.end * SAMPLES_PER_TOKEN
        held = self.config.held_samples
        return end - (0 if chunk.final else min(held, end)) - (begin - min(held, begin))

    def _padding(self, rows: int) -> float:
        """Return the computed rows of an audio batch by its real ones."""
        return (1 << (rows - 1).bit_length()) / rows if self._times.pads_audio else 1.0

    def _collect_flow(self) -> None:
        assert self._flow is not None
        done = self._flow
        self._flow = None
        for sequence in done.members:
            sequence.chunk_in_flow = None
        if done.fails:
            self._handle_fault(done)
            return
        for sequence, chunk in zip(done.members, done.chunks, strict=True):
            if not sequence.has_ended:
                sequence.segments[0].mark_rendered(chunk)
                sequence.in_flight_samples = self._samples(chunk)
        self._vocoder_queue.append(done)

    def _vocode(self) -> None:
        flow = self._vocoder_queue.popleft()
        live = [(s, chunk) for s, chunk in zip(flow.members, flow.chunks, strict=True) if not s.has_ended]
        if not live:
            return
        context = self.config.vocoder_context_tokens
        tokens = sum(chunk.end - chunk.begin + min(chunk.begin, context) for _, chunk in live)
        duration_us = self._times.vocoder.us(tokens / CHUNK_TOKENS * self._padding(len(live)))
        self.usage.vocoder_us += duration_us
        ready_us = self._start(self._audio_free_us, self._times.launch_vocoder.us(len(live)), duration_us)
        if self._shares_stream:
            self._audio_free_us = ready_us
        members, chunks = zip(*live, strict=True)
        self._vocoder = _Pass(Need.RENDER, members, ready_us, flow.duration_us + duration_us, False, chunks=chunks)

    def _collect_vocoder(self) -> None:
        assert self._vocoder is not None
        done = self._vocoder
        self._vocoder = None
        self._chunk_us = _running_mean(self._chunk_us, done.duration_us)
        wall_ms = done.duration_us / 1000 / len(done.members)
        for sequence, chunk in zip(done.members, done.chunks, strict=True):
            if sequence.has_ended:
                continue
            pcm = bytes(self._samples(chunk) * BYTES_PER_SAMPLE)
            sequence.output.render(pcm, wall_ms=wall_ms, stages_ms=(("audio", wall_ms),))
            sequence.rendered_chunks += 1
            sequence.failed_batches = 0
            sequence.in_flight_samples = 0
            if chunk.final:
                self.free_pages += sequence.segments.popleft().pages
                self._wake_page_waiters()

    def _wait(self) -> None:
        """Wait for the pass that finishes first."""
        passes = [done for done in (self._tokens, self._vocoder or self._flow) if done is not None]
        if passes:
            self.clock.advance_to(min(done.ready_us for done in passes))

    # -- faults -------------------------------------------------------------------------------------------------------

    def _handle_fault(self, failed: _Pass) -> None:
        """Fail a single utterance; let the members of a batch run alone to isolate the fault."""
        for sequence in failed.members:
            if sequence.has_ended:
                continue
            if len(failed.members) == 1:
                self.fail(sequence, SynthesisFailed("injected fault").info)
                continue
            sequence.failed_batches += 1
            if failed.operation is Need.RENDER:
                self._drop_flow(sequence)
            elif sequence.run is not None:
                sequence.run.inputs += sequence.run.drawn + sequence.voice.prompt_tokens

    def _drop_flow(self, sequence: SimulatedSequence) -> None:
        """Return the pages of its segment; the next pass computes it again."""
        segment = sequence.segments[0]
        self.free_pages += segment.pages
        segment.pages = 0
        segment.computed_tokens = sequence.voice.shared_chunks * CHUNK_TOKENS


def _running_mean(mean: float, value: float) -> float:
    return value if mean == 0.0 else 0.9 * mean + 0.1 * value
