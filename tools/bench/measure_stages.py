"""Measures the stage times of a CosyVoice engine: what each pass took, by the size of its batch.

The engine speaks as in service; a recorder beside its scheduler notes the batches that it planned. Utterances that
begin together and speak as fast as they can give the times of large batches. Calls that arrive at random give the times
in service, where a pass takes longer: the caches hold other data after a pause, and the event loop runs beside it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from tools.bench.engine import VOICE, Bench, forced_tokens
from tools.bench.gpu_load import Arrivals, CallScript, Step, measure_arrivals
from tools.bench.stage_times import adjusted, fit
from tools.engine_simulator.config import SAMPLES_PER_TOKEN, SimulationConfig
from tools.engine_simulator.stage_times import NO_TIME, Execution, StageTime, StageTimes
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.scheduler import Batch, Budgets, Candidate, Need, Plan, Policy
from tts_worker.errors import SynthesisFailed
from tts_worker.types import EndText, Event, Failed, Open, Segment, SynthesisParams, Text, UtteranceKey

_SESSION = "stages"
_CREDIT_SAMPLES = 1 << 40

LIVE = Arrivals(3, 10.0, (1.0, 3.0), VOICE, seed=1000)
"""Calls for the times in service: short ones, which have more first chunks."""


@dataclass
class PassRecorder:
    """Notes the plans of a scheduler and what their passes took.

    Attributes:
        policy: The scheduler of the engine.
        prefills: Inputs and microseconds of each prefill.
        decodes: Utterances and microseconds of each decode step.
        flows: Chunks and microseconds of each flow pass.
        vocoders: Chunks, with their context, and microseconds of each vocoder pass.
        steps: Live utterances of each step, and the microseconds that it spent beside the passes, where the engine
            thread computes them.
        launches: By operation, the size of its batch (a burst: its steps) and the microseconds of the host to plan and
            launch it, where a device computes.
    """

    policy: Policy
    prefills: list[tuple[float, float]] = field(default_factory=list)
    decodes: list[tuple[float, float]] = field(default_factory=list)
    flows: list[tuple[float, float]] = field(default_factory=list)
    vocoders: list[tuple[float, float]] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)
    launches: dict[Need, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    _tokens: tuple[Batch, int] | None = None  # in flight, and the inputs of a prefill
    _plan: Plan = field(default_factory=Plan)  # of the last step that planned
    _take_finished: Callable[[], None] = lambda: None  # of the step in progress

    def __call__(self, candidates: Sequence[Candidate], budgets: Budgets, now_us: int) -> Plan:
        self._take_finished()  # a device has finished the passes before; what is planned now is in flight after them
        plan = self._plan = self.policy(candidates, budgets, now_us)
        if plan.tokens is not None:
            members = set(plan.tokens.members)
            self._tokens = (plan.tokens, sum(c.inputs for c in candidates if c.key in members))
        return plan

    def step(self, engine: CosyVoiceEngine, now_s: float) -> Sequence[Event]:
        """Run one step of ``engine`` and note what it took."""
        before = seen = _Totals.of(engine)

        def take_finished() -> None:
            nonlocal seen
            now = _Totals.of(engine)
            self._add_passes(now.since(seen))
            seen = now

        self._take_finished = take_finished
        live = len(engine.sequences)
        self._plan = Plan()
        began_s = perf_counter()
        events = engine.step(now_s)
        elapsed_us = 1e6 * (perf_counter() - began_s)
        take_finished()
        self._add_host_time(engine, live, elapsed_us, seen.since(before).total_us)
        return events

    def _add_passes(self, spent: _Totals) -> None:
        """Note the passes that have finished. At most one of each kind is in flight."""
        if self._tokens is not None and spent.tokens_us:
            batch, inputs = self._tokens
            self._tokens = None
            steps = batch.steps
            if batch.operation is Need.PREFILL:
                self.prefills.append((float(inputs), spent.prefill_us))
                steps = batch.on_device_draws - 1
            if spent.decode_us:
                self.decodes.append((float(len(batch.members)), spent.decode_us / max(1, steps)))
        if spent.flow_us and spent.chunks:
            self.flows.append((spent.chunks, spent.flow_us))
            self.vocoders.append((spent.vocoder_chunks, spent.vocoder_us))

    def _add_host_time(self, engine: CosyVoiceEngine, live: int, elapsed_us: float, passes_us: float) -> None:
        execution = execution_of(engine)
        if execution is Execution.SERIAL:
            self.steps.append((float(live), max(0.0, elapsed_us - passes_us)))
        started = [batch for batch in (self._plan.tokens, self._plan.audio) if batch is not None]
        if execution is Execution.STREAMS and len(started) == 1:  # such a step launches one batch and never waits
            batch = started[0]
            if batch.on_device_draws:  # it launches decode steps, flow and vocoder, too
                return
            size = batch.steps if batch.operation is Need.DECODE else len(batch.members)
            self.launches[batch.operation].append((float(size), elapsed_us))


@dataclass(frozen=True)
class _Totals:
    """What an engine has spent so far, in microseconds, and the chunks that its flow and its vocoder computed."""

    prefill_us: float
    decode_us: float
    flow_us: float
    vocoder_us: float
    chunks: float
    vocoder_chunks: float

    @classmethod
    def of(cls, engine: CosyVoiceEngine) -> _Totals:
        timings = engine.timings
        chunk_frames = engine.components.networks.chunked_flow.chunk_frames
        return cls(
            1000 * timings.prefill_ms,
            1000 * timings.decode_ms,
            1000 * timings.flow_ms,
            1000 * timings.vocoder_ms,
            timings.flow_frames / chunk_frames,
            timings.vocoder_frames / chunk_frames,
        )

    def since(self, before: _Totals) -> _Totals:
        return _Totals(
            self.prefill_us - before.prefill_us,
            self.decode_us - before.decode_us,
            self.flow_us - before.flow_us,
            self.vocoder_us - before.vocoder_us,
            self.chunks - before.chunks,
            self.vocoder_chunks - before.vocoder_chunks,
        )

    @property
    def tokens_us(self) -> float:
        return self.prefill_us + self.decode_us

    @property
    def total_us(self) -> float:
        return self.tokens_us + self.flow_us + self.vocoder_us


@contextmanager
def _recording(engine: CosyVoiceEngine) -> Iterator[PassRecorder]:
    """Record the passes of ``engine`` inside the block."""
    recorder = PassRecorder(engine.policy)
    engine.policy = recorder
    try:
        yield recorder
    finally:
        engine.policy = recorder.policy


def measure_stage_times(
    bench: Bench, batches: Sequence[int] = (1, 2, 4, 8), repeats: int = 3, live: Arrivals | None = LIVE
) -> StageTimes:
    """Speak in batches of several sizes, then in calls that arrive at random, and return the stage times.

    Args:
        bench: A warm engine without utterances.
        batches: Numbers of concurrent utterances.
        repeats: How often each batch speaks.
        live: The calls; None for none.

    Raises:
        SynthesisFailed: An utterance failed.
    """
    together = record_batches(bench, batches, repeats)
    return stage_times(bench.engine, together, None if live is None else record_load(bench, live)[1])


def record_batches(bench: Bench, batches: Sequence[int], repeats: int) -> PassRecorder:
    """Let as many utterances as each of ``batches`` speak 110 speech tokens, as fast as they can."""
    bench.tokens_of = lambda key, run: forced_tokens(110, key.generation).tolist()
    with _recording(bench.engine) as recorder:
        for _ in range(repeats):
            for count in batches:
                speak_together(bench.engine, partial(recorder.step, bench.engine), count)
    return recorder


def record_load(bench: Bench, arrivals: Arrivals) -> tuple[dict[str, object], PassRecorder]:
    """Run ``arrivals`` on the engine in real time; return the figures of ``tools.bench gpu``, and the passes."""
    engine = bench.engine
    scripts: dict[UtteranceKey, CallScript] = {}
    bench.tokens_of = lambda key, run: forced_tokens(scripts[key].tokens[run], run).tolist()

    def stages() -> dict[str, float]:
        timings = engine.timings
        return {name: getattr(timings, name) for name in ("prefill_ms", "decode_ms", "flow_ms", "vocoder_ms")}

    with _recording(engine) as recorder:
        load = measure_arrivals(
            engine,
            arrivals,
            stages=stages,
            announce=scripts.__setitem__,
            step=lambda now_s: recorder.step(engine, now_s),
        )
        return asyncio.run(load), recorder


def stage_times(engine: CosyVoiceEngine, together: PassRecorder, live: PassRecorder | None) -> StageTimes:
    """Return the stage times of ``engine``.

    Args:
        engine: The engine.
        together: Passes of utterances that began together.
        live: Passes of calls that arrived at random, if measured. Each stage takes as long as in them in total.
    """
    if live is None:
        live = PassRecorder(engine.policy)

    def stage(
        before: Sequence[tuple[float, float]],
        after: Sequence[tuple[float, float]],
        through: Callable[[Sequence[tuple[float, float]]], StageTime] = fit,
    ) -> StageTime:
        samples = [*before, *after]
        return adjusted(through(samples), after) if samples else NO_TIME

    return StageTimes(
        execution_of(engine),
        prefill=stage(together.prefills, live.prefills, _line),
        decode=stage(together.decodes, live.decodes),
        flow=stage(together.flows, live.flows),
        vocoder=stage(together.vocoders, live.vocoders),
        launch_prefill=stage(together.launches[Need.PREFILL], live.launches[Need.PREFILL]),
        launch_decode=stage(together.launches[Need.DECODE], live.launches[Need.DECODE]),
        # The vocoder is launched in the same step.
        launch_flow=stage(together.launches[Need.RENDER], live.launches[Need.RENDER]),
        step=stage(together.steps, live.steps),
        pads_audio=engine.components.graph_runners[1].fixed_shapes,
        source=f"measured on {engine.info.device}",
    )


def execution_of(engine: CosyVoiceEngine) -> Execution:
    """Return where the stages of ``engine`` run."""
    if engine.info.device != "cpu":
        return Execution.STREAMS
    return Execution.FLOW_THREAD if engine.settings.overlap else Execution.SERIAL


def _line(samples: Sequence[tuple[float, float]]) -> StageTime:
    """Fit prefills, whose sizes hardly repeat: through the median of the smaller and of the larger half."""
    ordered = sorted(samples)
    half = max(1, len(ordered) // 2)
    low = fit((0.0, us) for _, us in ordered[:half]).points[0][1]
    high = fit((0.0, us) for _, us in ordered[half:] or ordered).points[0][1]
    sizes = [sorted(size for size, _ in part) for part in (ordered[:half], ordered[half:] or ordered)]
    first, second = (part[len(part) // 2] for part in sizes)
    if second <= first:
        return StageTime(((first, low),))
    return StageTime(((first, low), (second, max(low, high))))


def speak_together(engine: CosyVoiceEngine, step: Step, count: int) -> None:
    """Let ``count`` utterances begin together and speak as fast as they can, by calls of ``step``.

    Raises:
        SynthesisFailed: One of them failed.
    """
    keys = [UtteranceKey(f"{_SESSION}-{n}", n) for n in range(count)]
    text = "All of them say the same words at the same time."
    segment = Segment.whole(text)
    for key in keys:
        engine.handle(Open(key, SynthesisParams(VOICE), _CREDIT_SAMPLES))
        engine.handle(Text(key, segment))
        engine.handle(EndText(key))
    while engine.has_work:
        for event in step(perf_counter()):
            if isinstance(event, Failed):
                raise SynthesisFailed(f"the measurement failed: {event.error.message}")


def simulated_settings(engine: CosyVoiceEngine, prompt_tokens: int) -> SimulationConfig:
    """Return the settings of ``engine`` for a simulation."""
    settings = engine.settings
    networks = engine.components.networks
    hift = networks.hift
    frames_per_token = networks.config.flow.frames_per_token
    return SimulationConfig(
        first_tokens=settings.first_tokens,
        stride_chunks=settings.stride_chunks,
        context_tokens=settings.context_tokens,
        pages=settings.pages,
        decode_batch=settings.decode_batch,
        render_batch=settings.render_batch,
        burst_tokens=settings.burst_tokens,
        smooth_start=settings.smooth_start,
        first_chunk_on_device=settings.first_chunk_on_device,
        vocoder_context_tokens=(hift.held + hift.history) // frames_per_token,
        held_samples=hift.held * SAMPLES_PER_TOKEN // frames_per_token,
        prompt_tokens=prompt_tokens,
    )
