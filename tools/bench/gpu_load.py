"""Poisson arrivals of real-time listeners on one engine, which runs on its thread as in a server.

Calls arrive at random, so that on average ``calls`` of them are live. Each speaks one to three sentences of a random
length, plays its audio in real time and gives credit for what it has played. Its listener stops one call in ten.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Protocol

from tools.bench.playback import PlaybackClient, failure_of
from tts_worker.engine.base import Engine, ReportingEngine
from tts_worker.engine.loop import EngineLoop
from tts_worker.errors import EngineFault, ErrorCode
from tts_worker.features.bench.stats import LoopLag, percentile, rounded_ms
from tts_worker.features.bench.texts import SENTENCES
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
    EngineReport,
    Event,
    Failed,
    Open,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
)

CREDIT_SAMPLES = 3 * SAMPLE_RATE_HZ // 2
"""Audio that a call may be ahead of its listener: 1.5 s."""

SLOW_STEP_S = 0.02
CREDIT_INTERVAL_S = 0.02
_STOPPED_SHARE = 0.1
_LISTED_STEPS = 1_000  # a file stays readable where every step is slow
_MAX_GAP_S = 0.05  # a call with gaps of at most this in total counts as continuous (C50)


Step = Callable[[float], Sequence[Event]]
"""A step of an engine at a time in seconds."""


class StageClock(Protocol):
    """Reads what the stages of an engine have spent so far, by name."""

    def __call__(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class SlowStep:
    """A step that took longer than ``SLOW_STEP_S``, what it did and what it spent on each stage."""

    ms: float
    did: str
    stages: dict[str, float]


class MeasuredEngine(Engine, ReportingEngine, Protocol):
    """An engine that tells what its last step did."""


class ObservedEngine:
    """An engine that is warm already; lists its slow steps. Closing it leaves the engine to its owner.

    Attributes:
        slow_steps: Steps that took longer than ``SLOW_STEP_S``.
        busy_s: What all steps took.
        fault: The error that it raised, if any.

    Args:
        engine: The engine.
        stages: Reads its stage times before and after each step.
        step: Runs a step of the engine; None: its ``step``.
    """

    def __init__(self, engine: MeasuredEngine, stages: StageClock, step: Step | None = None) -> None:
        self._engine = engine
        self._stages = stages
        self._step = step or engine.step
        self.slow_steps: list[SlowStep] = []
        self.busy_s = 0.0
        self.fault: str | None = None

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def warm_up(self) -> None:
        """Do nothing: the owner has warmed it up."""

    def handle(self, command: Command) -> None:
        with self._noting_faults():
            self._engine.handle(command)

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @contextmanager
    def _noting_faults(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}".splitlines()[0]
            raise

    def step(self, now_s: float) -> Sequence[Event]:
        before = self._stages()
        began_s = perf_counter()
        with self._noting_faults():
            events = self._step(now_s)
        elapsed_s = perf_counter() - began_s
        self.busy_s += elapsed_s
        if elapsed_s > SLOW_STEP_S:
            spent = {name: round(value - before[name], 2) for name, value in self._stages().items()}
            did = self._engine.report().last_step
            self.slow_steps.append(SlowStep(round(1000 * elapsed_s, 2), did, {k: v for k, v in spent.items() if v}))
        return events

    def report(self) -> EngineReport:
        return self._engine.report()

    def close(self) -> None:
        """Do nothing: the owner closes it."""


@dataclass
class ListenedCall:
    """One call and its listener.

    Attributes:
        key: The utterance.
        opened_s: When it was opened.
        measured: Whether it arrived after the ramp.
        playback: Its listener.
        outcome: done, stopped, refused or failed; None while it is live.
    """

    key: UtteranceKey
    opened_s: float
    measured: bool
    playback: PlaybackClient = field(default_factory=PlaybackClient)
    outcome: str | None = None


@dataclass(frozen=True)
class CallScript:
    """What one call says.

    Attributes:
        segments: Its text, a segment per sentence.
        tokens: Number of speech tokens of each sentence.
    """

    segments: tuple[Segment, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Arrivals:
    """How calls arrive.

    Attributes:
        calls: Mean number of live calls.
        seconds: Measured time, after a ramp of one mean call; longer if no call arrives in it.
        call_s: Shortest and longest call.
        voice: Voice of all calls.
        token_rate_hz: Speech tokens per second of audio.
        seed: Seed of arrivals and texts.
    """

    calls: int
    seconds: float
    call_s: tuple[float, float]
    voice: str
    token_rate_hz: int = 25
    seed: int = 0

    @property
    def mean_call_s(self) -> float:
        return sum(self.call_s) / 2

    @property
    def rate_hz(self) -> float:
        """Calls per second."""
        return self.calls / self.mean_call_s


def random_call(rng: random.Random, arrivals: Arrivals) -> CallScript:
    """Return one to three sentences of a random total length."""
    sentences = rng.sample(SENTENCES, rng.randint(1, 3))
    each = max(1, int(rng.uniform(*arrivals.call_s) * arrivals.token_rate_hz / len(sentences)))
    segments = []
    start = 0
    for index, sentence in enumerate(sentences):
        boundary = Boundary.END if index == len(sentences) - 1 else Boundary.SENTENCE
        end = start + len(sentence)
        segments.append(Segment(index, (Span(sentence, start, end),), start, end, boundary))
        start = end
    return CallScript(tuple(segments), (each,) * len(sentences))


@dataclass(frozen=True)
class PlannedCall:
    """A call that will arrive.

    Attributes:
        after_s: Time of its arrival.
        script: What it says.
        stop_after_s: When its listener stops it, from its arrival; None: never.
    """

    after_s: float
    script: CallScript
    stop_after_s: float | None


def plan_calls(rng: random.Random, arrivals: Arrivals, seconds: float, *, at_least: int = 0) -> Iterator[PlannedCall]:
    """Yield calls that arrive at random within ``seconds``, or later until there are ``at_least``."""
    after_s = rng.expovariate(arrivals.rate_hz)
    for number in count():
        if after_s >= seconds and number >= at_least:
            return
        script = random_call(rng, arrivals)
        stops = rng.random() < _STOPPED_SHARE
        yield PlannedCall(after_s, script, rng.uniform(0.0, arrivals.call_s[0]) if stops else None)
        after_s += rng.expovariate(arrivals.rate_hz)


def slots_for(calls: int) -> int:
    """Return the number of slots with which random arrivals of ``calls`` live calls are rarely refused."""
    return calls + math.ceil(4 * math.sqrt(calls)) + 2


async def measure_arrivals(
    engine: MeasuredEngine,
    arrivals: Arrivals,
    *,
    stages: StageClock,
    announce: Callable[[UtteranceKey, CallScript], None],
    step: Step | None = None,
) -> dict[str, object]:
    """Run the load and return its figures.

    Args:
        engine: A warm engine without utterances.
        arrivals: How calls arrive.
        stages: Reads the stage times of the engine.
        announce: Called with the key and the script of a call before it is opened, to prepare its tokens.
        step: Runs a step of the engine; None: its ``step``.

    Raises:
        EngineFault: The engine raised an error. What is left of its state is of no use.
    """
    observed = ObservedEngine(engine, stages, step)
    loop = EngineLoop(lambda: observed, name="bench", hang_timeout_s=600.0)
    load = OpenLoad(loop, arrivals, announce)
    await loop.start()
    has_failed = asyncio.Event()
    loop.on_state(lambda state: has_failed.set())
    measuring = asyncio.create_task(_measure(load, arrivals, observed, stages))
    failing = asyncio.create_task(has_failed.wait())
    try:
        await asyncio.wait({measuring, failing}, return_when=asyncio.FIRST_COMPLETED)
        if has_failed.is_set():
            raise EngineFault(f"the engine failed under load ({observed.fault or loop.state.value})")
        return await measuring
    finally:
        measuring.cancel()
        failing.cancel()
        await asyncio.wait({measuring, failing})
        await loop.stop()


async def _measure(
    load: OpenLoad, arrivals: Arrivals, observed: ObservedEngine, stages: StageClock
) -> dict[str, object]:
    """Let the calls arrive and return the figures."""
    async with LoopLag() as lag:
        credit = asyncio.create_task(load.give_credit())
        try:
            await load.arrive(arrivals.mean_call_s)
            observed.slow_steps.clear()
            before = stages()
            began_s = perf_counter()
            load.is_measuring = True
            await load.arrive(arrivals.seconds, at_least=1)  # a short run at a low load measures a call, too
            wall_s = perf_counter() - began_s
            after = stages()
            await load.drain(2 * arrivals.call_s[1])
        finally:
            credit.cancel()
            await asyncio.wait({credit})
    return {
        "calls": arrivals.calls,
        **load.figures(),
        **_busy(before, after, wall_s),
        "event_loop_lag_p99_ms": rounded_ms(percentile(lag.lags_s, 99)),
        "slow_steps": len(observed.slow_steps),
        "slowest_steps": slow_step_figures(observed.slow_steps),
    }


def slow_step_figures(steps: Sequence[SlowStep]) -> list[dict[str, object]]:
    """Describe the steps, the slowest first."""
    slowest = sorted(steps, key=lambda step: -step.ms)[:_LISTED_STEPS]
    return [{"ms": step.ms, "did": step.did, **step.stages} for step in slowest]


def _busy(before: dict[str, float], after: dict[str, float], wall_s: float) -> dict[str, float]:
    """Return the share of the time that the device spent on each stage."""
    return {
        f"{name.removesuffix('_ms')}_busy": round((after[name] - before[name]) / 1000 / wall_s, 3)
        for name in after
        if name.endswith("_ms")
    }


class OpenLoad:
    """The calls of one measurement.

    Attributes:
        is_measuring: Whether the calls that arrive now count.
    """

    def __init__(
        self, loop: EngineLoop, arrivals: Arrivals, announce: Callable[[UtteranceKey, CallScript], None]
    ) -> None:
        self.is_measuring = False
        self._loop = loop
        self._arrivals = arrivals
        self._announce = announce
        self._rng = random.Random(arrivals.seed)
        self.live: dict[UtteranceKey, ListenedCall] = {}
        self._ended: list[ListenedCall] = []
        self._stops_s: list[float] = []
        self._live_counts: list[int] = []
        self._errors: Counter[str] = Counter()
        self._count = 0
        self._is_idle = asyncio.Event()

    async def arrive(self, seconds: float, *, at_least: int = 0) -> None:
        """Open calls at random times for ``seconds``, or until a mean call after ``at_least`` have arrived."""
        began_s = perf_counter()
        end_s = seconds
        for planned in plan_calls(self._rng, self._arrivals, seconds, at_least=at_least):
            if planned.after_s >= seconds:
                end_s = planned.after_s + self._arrivals.mean_call_s
            await asyncio.sleep(max(0.0, began_s + planned.after_s - perf_counter()))
            self.open(planned)
        await asyncio.sleep(max(0.0, began_s + end_s - perf_counter()))

    def open(self, planned: PlannedCall) -> None:
        """Open a call with all of its text."""
        script = planned.script
        self._count += 1
        key = UtteranceKey(f"call-{self._count}", 1)
        self._announce(key, script)
        call = ListenedCall(key, perf_counter(), self.is_measuring)
        if self.is_measuring:  # a random arrival finds the average
            self._live_counts.append(len(self.live) + self._still_heard(call.opened_s))
        self.live[key] = call
        self._is_idle.clear()
        self._loop.subscribe(key.session, self.on_event)
        self._loop.post(Open(key, SynthesisParams(self._arrivals.voice), CREDIT_SAMPLES))
        for segment in script.segments:
            self._loop.post(Text(key, segment))
        self._loop.post(EndText(key))
        if planned.stop_after_s is not None:
            due_s = perf_counter() + planned.stop_after_s
            asyncio.get_running_loop().call_later(planned.stop_after_s, self.stop, call, due_s)

    def _still_heard(self, now_s: float) -> int:
        """Return how many calls are done in the engine while their listeners still hear audio."""
        return sum(call.outcome == "done" and call.playback.ends_s > now_s for call in self._ended)

    def stop(self, call: ListenedCall, due_s: float) -> None:
        if call.outcome is None:
            self._loop.post(Cancel(call.key))
            if call.measured:
                self._stops_s.append(perf_counter() - due_s)
            self.end(call, "stopped")

    def on_event(self, event: Event) -> None:
        call = self.live.get(event.key)
        if call is None:
            return
        if isinstance(event, Audio):
            call.playback.receive(event.samples, perf_counter())
        elif reason := failure_of(event):
            if call.measured:
                self._errors[reason] += 1
            is_refused = isinstance(event, Failed) and event.error.code is ErrorCode.OVER_CAPACITY
            self.end(call, "refused" if is_refused else "failed")
        elif isinstance(event, Done):
            self.end(call, "done")

    def end(self, call: ListenedCall, outcome: str) -> None:
        call.outcome = outcome
        del self.live[call.key]
        self._loop.unsubscribe(call.key.session)
        self._ended.append(call)
        if not self.live:
            self._is_idle.set()

    async def give_credit(self) -> None:
        """Return credit for the audio that was played, every 20 ms."""
        while True:
            await asyncio.sleep(CREDIT_INTERVAL_S)
            now_s = perf_counter()
            for call in list(self.live.values()):
                if played := call.playback.play(now_s):
                    self._loop.post(Credit(call.key, played))

    async def drain(self, timeout_s: float) -> None:
        """Wait until all calls have ended, at most ``timeout_s``; the rest fails."""
        if self.live:
            idle = asyncio.ensure_future(self._is_idle.wait())
            await asyncio.wait({idle}, timeout=timeout_s)
            idle.cancel()
        for call in list(self.live.values()):
            self._loop.post(Cancel(call.key))
            if call.measured:
                self._errors["it had not ended long after its time"] += 1
            self.end(call, "failed")

    def figures(self) -> dict[str, object]:
        """Return the figures of the calls that arrived after the ramp."""
        figures = call_figures([call for call in self._ended if call.measured])
        return {
            "arrivals": figures.pop("arrivals"),
            "live_mean": round(sum(self._live_counts) / max(1, len(self._live_counts)), 1),
            "stopped": len(self._stops_s),
            **figures,
            "errors": dict(self._errors.most_common()),
            "stop_p50_ms": rounded_ms(percentile(self._stops_s, 50)),
            "stop_p99_ms": rounded_ms(percentile(self._stops_s, 99)),
        }


def call_figures(calls: Sequence[ListenedCall]) -> dict[str, object]:
    """Return what the listeners of ``calls`` heard."""
    heard = [call for call in calls if call.playback.has_started]
    firsts_s = [call.playback.first_s - call.opened_s for call in heard]
    gaps_s = [call.playback.underrun_s for call in heard]
    continuous = sum(gap_s <= _MAX_GAP_S for gap_s in gaps_s)
    return {
        "arrivals": len(calls),
        "refused": sum(call.outcome == "refused" for call in calls),
        "failed": sum(call.outcome == "failed" for call in calls),
        "first_audio_p50_ms": rounded_ms(percentile(firsts_s, 50)),
        "first_audio_p95_ms": rounded_ms(percentile(firsts_s, 95)),
        "first_audio_p99_ms": rounded_ms(percentile(firsts_s, 99)),
        "first_audio_max_ms": rounded_ms(max(firsts_s, default=None)),
        "continuity_c50": round(continuous / len(heard), 4) if heard else None,
        "calls_with_underruns": sum(gap_s > 0 for gap_s in gaps_s),
        "underrun_p99_ms": rounded_ms(percentile(gaps_s, 99)),
    }
