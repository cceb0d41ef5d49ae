"""The engine protocol over modeled stages."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.engine_simulator.config import (
    CHUNK_TOKENS,
    LOOKAHEAD_TOKENS,
    SAMPLES_PER_TOKEN,
    PassFails,
    SimulationConfig,
    TokensOf,
    never_fails,
    tokens_by_length,
)
from tools.engine_simulator.sequence import SimulatedSequence, SimulatedVoice
from tools.engine_simulator.stage_times import Execution, StageTimes, VirtualClock
from tts_worker.engine.cosyvoice.audio.chunks import Chunk, trimmed_prompt
from tts_worker.engine.cosyvoice.phases import SequencePhase, TokenPass
from tts_worker.engine.cosyvoice.timings import running_mean
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
from tts_worker.engine.shell import EngineShell
from tts_worker.errors import ConfigError, OutOfMemory, SynthesisFailed, UnknownVoice
from tts_worker.types import BYTES_PER_SAMPLE, Alignment, EngineInfo, Open, UtteranceKey, unpaced_share


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
    passes: dict[str, int] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)

    def count(self, operation: Need, members: int) -> None:
        self.passes[operation.value] = self.passes.get(operation.value, 0) + 1
        self.members[operation.value] = self.members.get(operation.value, 0) + members


class SimulatedEngine(EngineShell[SimulatedSequence]):
    """The engine protocol over modeled stages.

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

    def _voice(self) -> SimulatedVoice:
        config = self.config
        prompt = config.prompt_tokens - trimmed_prompt(config.prompt_tokens, CHUNK_TOKENS, config.first_tokens)
        voice = SimulatedVoice(prompt, max(0, (prompt - LOOKAHEAD_TOKENS) // CHUNK_TOKENS))
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
                self._render(members, [chunk for s in members if (chunk := s.due_chunk) is not None])
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
            self._audio_free_us = max(self._audio_free_us, self._tokens_free_us)
            self._render(members, [sequence.segments[0].first_chunk for sequence in members])

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
            self._token_us = running_mean(self._token_us, done.duration_us / max(1, done.steps))
        for sequence in done.members:
            if not sequence.has_ended:
                sequence.draw(done.steps)

    def _render(self, members: Sequence[SimulatedSequence], chunks: Sequence[Chunk]) -> None:
        """Start a flow pass over a chunk of each member, and the vocoder behind it on the same stream."""
        computed = 0
        for sequence, chunk in zip(members, chunks, strict=True):
            segment = sequence.segments[0]
            pages = sequence.pages_of(chunk)
            computed += pages
            segment.pages += pages
            segment.computed_tokens += pages * CHUNK_TOKENS
            if chunk.final:
                segment.computed_tokens = sequence.voice.prompt_tokens + chunk.end
            self.free_pages -= pages
            sequence.chunk_in_flow = chunk
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
        self._chunk_us = running_mean(self._chunk_us, done.duration_us)
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
