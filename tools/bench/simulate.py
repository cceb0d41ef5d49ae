"""Simulated calls: listeners in virtual time on the simulated engine, and the number of calls that it serves well.

The calls are those that ``tools.bench gpu`` opens on a real engine: the same arrivals, texts, credit and stops for the
same seed, so that a prediction and a measurement differ by the engine alone.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from tools.bench.gpu_load import (
    CREDIT_INTERVAL_S,
    CREDIT_SAMPLES,
    Arrivals,
    CallScript,
    ListenedCall,
    call_figures,
    plan_calls,
    slots_for,
)
from tools.engine_simulator.config import SimulationConfig
from tools.engine_simulator.engine import SimulatedEngine, Usage
from tools.engine_simulator.stage_times import StageTimes, VirtualClock
from tts_worker.engine.base import Engine
from tts_worker.errors import EngineFault
from tts_worker.types import (
    Audio,
    Cancel,
    Command,
    Credit,
    Done,
    EndText,
    Event,
    Failed,
    Hold,
    Open,
    Release,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
)

_MAX_IDLE_STEPS = 1_000


@dataclass(frozen=True)
class SimulatedCall:
    """An utterance and its listener.

    Attributes:
        key: The utterance.
        at_us: When it is opened.
        segments: Its text, and when each segment arrives, from the opening.
        paced: Whether it is a call; a download takes audio as soon as it is there.
        stop_us: When it is stopped, from the opening; None: never.
        hold_us: When it is paused and resumed, from the opening; None: never.
        voice: Its voice.
        measured: Whether it counts.
    """

    key: UtteranceKey
    at_us: int
    segments: tuple[tuple[int, Segment], ...]
    paced: bool = True
    stop_us: int | None = None
    hold_us: tuple[int, int] | None = None
    voice: str = "simulated"
    measured: bool = True


@dataclass
class SimulatedListener(ListenedCall):
    """A call and what its listener received.

    Attributes:
        paced: Whether it is a call.
        samples: Samples received.
        received: When audio arrived, in seconds, and how many samples.
        ended_s: When it ended.
        error: Code of its error.
    """

    paced: bool = True
    samples: int = 0
    received: list[tuple[float, int]] = field(default_factory=list)
    ended_s: float | None = None
    error: str | None = None


class Simulation:
    """Delivers the commands of calls to an engine under a virtual clock, and its events to their listeners.

    Args:
        engine: The engine; its operations advance ``clock``.
        clock: The time.
        calls: The calls.

    Attributes:
        listeners: The listener of every call that was opened.
    """

    def __init__(self, engine: Engine, clock: VirtualClock, calls: Iterable[SimulatedCall]) -> None:
        self.listeners: dict[UtteranceKey, SimulatedListener] = {}
        self._engine = engine
        self._clock = clock
        self._order = count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        for call in calls:
            self._at(call.at_us, self._opener(call))

    def _at(self, time_us: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time_us, next(self._order), action))

    def _opener(self, call: SimulatedCall) -> Callable[[], None]:
        def post(*commands: Command) -> Callable[[], None]:
            def action() -> None:
                for command in commands:
                    self._engine.handle(command)

            return action

        def begin() -> None:
            key = call.key
            self.listeners[key] = SimulatedListener(key, call.at_us / 1e6, call.measured, paced=call.paced)
            self._engine.handle(Open(key, SynthesisParams(call.voice), CREDIT_SAMPLES, paced=call.paced))
            end_us = 0
            for after_us, segment in call.segments:
                end_us = max(end_us, after_us)
                self._at(call.at_us + after_us, post(Text(key, segment)))
            self._at(call.at_us + end_us, post(EndText(key)))
            if call.stop_us is not None:
                self._at(call.at_us + call.stop_us, lambda: self._stop(key))
            if call.hold_us is not None:
                self._at(call.at_us + call.hold_us[0], post(Hold(key)))
                self._at(call.at_us + call.hold_us[1], post(Release(key)))
            if call.paced:
                self._at(call.at_us, lambda: self._give_credit(key))

        return begin

    def _stop(self, key: UtteranceKey) -> None:
        listener = self.listeners[key]
        if listener.outcome is None:
            self._engine.handle(Cancel(key))
            self._end(listener, "stopped")

    def _end(self, listener: SimulatedListener, outcome: str) -> None:
        listener.outcome = outcome
        listener.ended_s = self._clock.now_us / 1e6

    def _give_credit(self, key: UtteranceKey) -> None:
        listener = self.listeners[key]
        if listener.outcome is None:
            now_us = self._clock.now_us
            if played := listener.playback.play(now_us / 1e6):
                self._engine.handle(Credit(key, played))
            self._at(now_us + round(1e6 * CREDIT_INTERVAL_S), lambda: self._give_credit(key))

    def run(self, until_us: int) -> Simulation:
        """Simulate until ``until_us``, or until all calls have ended."""
        idle_steps = 0
        while self._clock.now_us < until_us:
            while self._agenda and self._agenda[0][0] <= self._clock.now_us:
                heapq.heappop(self._agenda)[2]()
            if not self._engine.has_work:
                if not self._agenda:
                    return self
                self._clock.advance_to(self._agenda[0][0])
                continue
            before_us = self._clock.now_us
            events = self._engine.step(before_us / 1e6)
            for event in events:
                self._on_event(event)
            idle_steps = 0 if events or self._clock.now_us > before_us else idle_steps + 1
            if idle_steps > _MAX_IDLE_STEPS:
                raise EngineFault("the simulated engine has work but makes no progress")
        return self

    def _on_event(self, event: Event) -> None:
        listener = self.listeners[event.key]
        now_s = self._clock.now_us / 1e6
        match event:
            case Audio():
                listener.playback.receive(event.samples, now_s)
                listener.received.append((now_s, event.samples))
                listener.samples += event.samples
                if not listener.paced:
                    self._engine.handle(Credit(event.key, event.samples))
            case Done():
                self._end(listener, "done")
            case Failed():
                listener.error = event.error.code.value
                self._end(listener, "failed" if listener.samples else "refused")


# -- random calls ------------------------------------------------------------------------------------------------------


def random_calls(arrivals: Arrivals) -> tuple[list[SimulatedCall], dict[UtteranceKey, CallScript]]:
    """Return the calls that ``tools.bench gpu`` opens for ``arrivals``, and what they say."""
    rng = random.Random(arrivals.seed)
    calls: list[SimulatedCall] = []
    scripts = {}
    for begins_s, seconds, measured in (
        (0.0, arrivals.mean_call_s, False),
        (arrivals.mean_call_s, arrivals.seconds, True),
    ):
        for planned in plan_calls(rng, arrivals, seconds):
            key = UtteranceKey(f"call-{len(calls) + 1}", 1)
            scripts[key] = planned.script
            calls.append(
                SimulatedCall(
                    key,
                    round(1e6 * (begins_s + planned.after_s)),
                    tuple((0, segment) for segment in planned.script.segments),
                    stop_us=None if planned.stop_after_s is None else round(1e6 * planned.stop_after_s),
                    measured=measured,
                )
            )
    return calls, scripts


def predict(times: StageTimes, config: SimulationConfig, arrivals: Arrivals) -> dict[str, object]:
    """Simulate ``arrivals`` and return the figures of ``tools.bench gpu``, as far as they can be predicted."""
    slots = slots_for(arrivals.calls)
    config = replace(config, max_utterances=slots, decode_batch=max(slots, config.decode_batch))
    calls, scripts = random_calls(arrivals)
    clock = VirtualClock()

    def tokens_of(key: UtteranceKey, run: int, segment: Segment) -> int:
        return scripts[key].tokens[run]

    engine = SimulatedEngine(times, config, clock=clock, tokens_of=tokens_of)
    simulation = Simulation(engine, clock, calls)
    ramp_us = round(1e6 * arrivals.mean_call_s)
    end_us = ramp_us + round(1e6 * arrivals.seconds)
    simulation.run(ramp_us)
    before = replace(engine.usage)
    begins_us = clock.now_us
    simulation.run(end_us)
    shares = busy_shares(before, engine.usage, clock.now_us - begins_us)
    simulation.run(end_us + round(2e6 * arrivals.call_s[1]))
    listeners = [listener for listener in simulation.listeners.values() if listener.measured]
    for listener in listeners:
        if listener.outcome is None:  # as a drained load
            listener.outcome = "failed"
    return {"calls": arrivals.calls, **call_figures(listeners), **shares, **_batches(engine.usage)}


def busy_shares(before: Usage, after: Usage, elapsed_us: int) -> dict[str, float]:
    """Return the share of the time that was spent on each stage and on the engine thread."""
    return {
        f"{name}_busy": round((getattr(after, f"{name}_us") - getattr(before, f"{name}_us")) / max(1, elapsed_us), 3)
        for name in ("prefill", "decode", "flow", "vocoder", "thread")
    }


def _batches(usage: Usage) -> dict[str, float]:
    return {
        f"{name.replace(' ', '_')}_batch": round(usage.members[name] / passes, 2)
        for name, passes in usage.passes.items()
    }


@dataclass(frozen=True)
class Goal:
    """What calls are promised.

    Attributes:
        continuity_c50: Least share of calls whose gaps are at most 50 ms in total.
        first_audio_p95_ms: Largest 95th percentile of the first audio; None: any.
    """

    continuity_c50: float = 0.99
    first_audio_p95_ms: float | None = 100.0

    def is_met(self, figures: dict[str, object]) -> bool:
        if figures["refused"] or figures["failed"]:
            return False
        c50 = figures["continuity_c50"]
        p95_ms = figures["first_audio_p95_ms"]
        if not isinstance(c50, float) or not isinstance(p95_ms, float):
            return True  # no call lasted long enough to be heard
        return c50 >= self.continuity_c50 and (self.first_audio_p95_ms is None or p95_ms <= self.first_audio_p95_ms)


def largest_load(goal: Goal, measure: Callable[[int], dict[str, object]], limit: int = 1024) -> int:
    """Return the largest number of calls with which ``goal`` is met, within 5 %; 0 if one call misses it.

    Assumes that more calls never help.
    """
    met = 0
    missed = 1
    while missed <= limit and goal.is_met(measure(missed)):
        met = missed
        missed *= 2
    while missed - met > max(1, met // 20):
        middle = (met + missed) // 2
        if goal.is_met(measure(middle)):
            met = middle
        else:
            missed = middle
    return met
