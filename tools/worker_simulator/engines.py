"""Engines in virtual time: their steps take time, their audio tells where it comes from, and they fail when told to."""

from __future__ import annotations

import asyncio
import random
import sys
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tools.engine_simulator.config import SimulationConfig
from tools.engine_simulator.engine import SimulatedEngine
from tools.engine_simulator.stage_times import Execution, StageTime, StageTimes
from tts_worker.engine.base import Engine
from tts_worker.engine.cosyvoice.phases import SequencePhase
from tts_worker.engine.handle import EngineOwner
from tts_worker.engine.scheduler import Need
from tts_worker.engine.tone import Fault, ToneEngine, ToneSettings
from tts_worker.errors import DeviceLost
from tts_worker.settings import EngineSettings
from tts_worker.types import Audio, Cancel, Command, Credit, EngineReport, Event, Open, UtteranceKey

if TYPE_CHECKING:
    from tools.worker_simulator.view import WorldView

SIMULATED_MS_PER_CHAR = 61
"""Marks the settings of the engine with modeled stages, for which the settings have no kind."""

_FACTOR = 257
"""Odd, so that number and position of a sample can be told from each other (``source_of``)."""
_INVERSE = pow(_FACTOR, -1, 65_536)


_RAMP = array("H", [*range(65_536)] * 4).tobytes()


def labeled_pcm(number: int, start: int, samples: int) -> bytes:
    """Return samples that tell the number of their utterance and their positions in it."""
    first = (number * _FACTOR + start) & 0xFFFF
    assert first + samples <= len(_RAMP) // 2
    return _RAMP[2 * first : 2 * (first + samples)]


def source_of(pcm: bytes, start: int) -> int | None:
    """Return the number of the utterance whose samples from ``start`` on are ``pcm``; None if they are no such."""
    first = int.from_bytes(pcm[:2], sys.byteorder)
    last = int.from_bytes(pcm[-2:], sys.byteorder)
    if last != (first + len(pcm) // 2 - 1) & 0xFFFF:
        return None
    return (first - start) * _INVERSE & 0xFFFF


class Injected(RuntimeError):
    """A fault that the simulator made."""


@dataclass
class EngineFaults:
    """What is to go wrong with an engine.

    Attributes:
        dies: The next step raises.
        hangs: The next step does not return.
        loses_device: The next step raises DeviceLost.
        slowness: Steps take this many times as long.
        failing_share: Share of utterances, or passes, that fail.
    """

    dies: bool = False
    hangs: bool = False
    loses_device: bool = False
    slowness: float = 1.0
    failing_share: float = 0.0


class SimulatedFactory:
    """Builds the engines of a worker; stands for ``engine.factory.EngineFactory``.

    Args:
        world: The simulation.
        settings: Settings of the engine.
    """

    def __init__(self, world: WorldView, settings: EngineSettings) -> None:
        self._world = world
        self.settings = settings
        self.faults = EngineFaults()

    def __call__(self) -> Engine:
        chance = self._world.chance_of("engine")
        settings: Any = self.settings
        if settings.ms_per_char == SIMULATED_MS_PER_CHAR:
            return self._simulated(chance)
        whole_segments = chance.random() < 0.2
        return ToneEngine(
            ToneSettings(
                ms_per_char=settings.ms_per_char,
                cost_per_audio_s=chance.choice((0.001, 0.03) if whole_segments else (0.001, 0.03, 0.3)),
                max_utterances=settings.max_utterances,
                whole_segments=whole_segments,
                spend=self._spend,
                fault=lambda key, chunk: Fault.FAIL if self._fails() else None,
            )
        )

    def _spend(self, seconds: float) -> None:
        self.spent_s += seconds

    spent_s = 0.0

    def _fails(self) -> bool:
        share = self.faults.failing_share
        return share > 0 and self._world.engine_chance.random() < share

    def _batch_fails(self) -> bool:
        """Whether a pass over several utterances fails, which none of them notices: each runs again alone."""
        return bool(self._world.fails_batches) and self._world.engine_chance.random() < 0.1

    def _simulated(self, chance: random.Random) -> SimulatedEngine:
        settings: Any = self.settings
        scale = chance.choice((1, 10))
        times = StageTimes(
            chance.choice(list(Execution)),
            prefill=StageTime.linear(2_000 * scale, 40 * scale),
            decode=StageTime.linear(300 * scale, 20 * scale),
            flow=StageTime.linear(1_500 * scale, 1_000 * scale),
            vocoder=StageTime.linear(500 * scale, 500 * scale),
            step=StageTime.linear(100, 5),
        )
        config = SimulationConfig(
            max_utterances=settings.max_utterances,
            pages=chance.choice((10, 24, 200)),
            render_batch=chance.choice((1, 4)),
            prompt_tokens=60,
            prepared=chance.random() < 0.7,
        )

        def pass_fails(need: Need, members: tuple[UtteranceKey, ...]) -> bool:
            if len(members) == 1:
                return self._fails()
            fails = self._batch_fails()
            self._world.reach("the members of a failed batch run alone", fails)
            return fails

        return SimulatedEngine(times, config, pass_fails=pass_fails)


def is_waiting(sequence: object) -> bool:
    """Whether a sequence waits for pages."""
    return getattr(sequence, "phase", None) is SequencePhase.WAITING_PAGES


class SimulatedHandle:
    """Runs an engine on the event loop; stands for ``engine.handle.ThreadHandle``.

    A step takes the virtual time that the engine spends. Commands that come meanwhile wait for the next one, and its
    events arrive at its end.
    """

    is_isolated = False
    START_S = 0.05

    def __init__(self, factory: Callable[[], Engine], owner: EngineOwner, **_: Any) -> None:
        assert isinstance(factory, SimulatedFactory)
        self.has_started = False
        self.engine: Any = None
        self.inbox: deque[Command] = deque()
        self.steps = 0
        self._factory = factory
        self._owner = owner
        self._world = factory._world
        self._faults = factory.faults
        self._loop = asyncio.get_running_loop()
        self._busy_since_s: float | None = None
        self._next: asyncio.TimerHandle | None = None
        self._pages = 0
        self._ends: dict[UtteranceKey, int] = {}  # samples emitted by utterance

    @property
    def name(self) -> str:
        return str(getattr(self._owner, "name", "engine"))

    # -- engine.handle.EngineHandle -----------------------------------------------------------------------------------

    def launch(self) -> None:
        self._busy_since_s = self._loop.time()
        self._next = self._loop.call_later(self.START_S, self._build)

    def post(self, command: Command) -> None:
        self.inbox.append(command)
        self._go_on()

    def busy_s(self, interval_s: float) -> float:
        return 0.0 if self._busy_since_s is None else self._loop.time() - self._busy_since_s

    def abandon(self) -> None:
        self._free()

    async def wait_until_freed(self, timeout_s: float) -> bool:
        return True

    async def close(self, timeout_s: float) -> bool:
        self._free()
        return True

    # -- steps --------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._next = None
        self._busy_since_s = None
        self.engine = self._factory()
        self._pages = getattr(self.engine, "free_pages", 0)
        self.has_started = True
        self._world.handles.append(self)
        self._owner.on_ready(self, self.engine.info)
        self._go_on()

    def _go_on(self) -> None:
        if self.engine is not None and self._next is None and (self.inbox or self.engine.has_work):
            self._next = self._loop.call_later(0.000_05, self._step)

    def _step(self) -> None:
        self._next = None
        engine = self.engine
        try:
            self._inject()
            if self._busy_since_s is not None:
                return  # it hangs
            while self.inbox:
                self._handle(self.inbox.popleft())
            events: Sequence[Event] = ()
            spent_s = 0.0
            if engine.has_work:
                events, spent_s = self._take_step()
        except BaseException as fault:
            self._owner.on_fault(self, fault)
            return
        self.steps += 1
        self._world.steps += 1
        self._owner.stats.add_steps(1, spent_s)
        self._owner.stats.add_report(EngineReport(), spent_s)
        self._check_sequences()
        spent_s = max(0.000_2, spent_s * self._faults.slowness)
        self._busy_since_s = self._loop.time()
        self._next = self._loop.call_later(spent_s, self._end_step, events)

    def _inject(self) -> None:
        faults = self._faults
        if faults.hangs:
            faults.hangs = False
            self._busy_since_s = self._loop.time()
        elif faults.dies:
            faults.dies = False
            raise Injected("the engine fails")
        elif faults.loses_device:
            faults.loses_device = False
            raise DeviceLost("injected loss of the device")

    def _handle(self, command: Command) -> None:
        if isinstance(command, Open):
            self._ends[command.key] = 0
        self.engine.handle(command)
        if isinstance(command, Cancel):
            self._ends.pop(command.key, None)

    def _take_step(self) -> tuple[Sequence[Event], float]:
        engine = self.engine
        if isinstance(engine, SimulatedEngine):
            engine.clock.advance_to(int(self._loop.time() * 1e6))
            before_us = engine.clock.now_us
            events = engine.step(self._loop.time())
            return self._label(events), (engine.clock.now_us - before_us) / 1e6
        self._factory.spent_s = 0.0
        events = engine.step(self._loop.time())
        return self._label(events), self._factory.spent_s

    def _label(self, events: Sequence[Event]) -> list[Event]:
        labeled: list[Event] = []
        for event in events:
            if isinstance(event, Audio):
                start = event.meta.start_sample
                if start != self._ends.get(event.key, start):
                    self._world.violate("audio is generated without gaps", f"{event.key} at {start}")
                self._ends[event.key] = start + event.samples
                number = self._world.number_of(event.key)
                event = replace(event, pcm=labeled_pcm(number, start, event.samples))
            labeled.append(event)
        return labeled

    def _end_step(self, events: Sequence[Event]) -> None:
        self._next = None
        self._busy_since_s = None
        if events:
            self._owner.on_events(self, events)
        self._go_on()

    def _free(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._busy_since_s = None
        if self.engine is not None:
            self.engine.close()
            self.check_empty()
            self.engine = None
        if self in self._world.handles:
            self._world.handles.remove(self)

    # -- properties ---------------------------------------------------------------------------------------------------

    def credited_samples(self, key: UtteranceKey) -> int | None:
        """Return the credit that an utterance got, also what has not been read; None if it is not in the engine."""
        sequence = self.engine.sequences.get(key) if self.engine is not None else None
        if sequence is None or any(isinstance(each, Open) and each.key == key for each in self.inbox):
            return None
        waiting = sum(each.samples for each in self.inbox if isinstance(each, Credit) and each.key == key)
        return int(sequence.output.emitted_samples + sequence.output.credit_samples + waiting)

    def _check_sequences(self) -> None:
        for sequence in self.engine.sequences.values():
            if sequence.output.credit_samples < 0:
                self._world.violate("credit is never negative", f"{sequence.key}")
            self._world.reach("an utterance waits for pages", is_waiting(sequence))
        if getattr(self.engine, "free_pages", 0) < 0:
            self._world.violate("an engine takes no more pages than it has", self.name)

    def check_empty(self) -> None:
        """Report sequences and pages that an engine without utterances holds."""
        engine = self.engine
        if engine is None:
            return
        if engine.sequences:
            self._world.violate("sequences are freed", f"{self.name} holds {len(engine.sequences)}")
        if isinstance(engine, SimulatedEngine):
            prepared = sum(voice.prepared_chunks for voice in engine._voices.values())
            missing = engine.config.pages - engine.free_pages - prepared
            if missing:
                self._world.violate("pages are returned", f"{self.name} misses {missing}")
            if users := sum(voice.users for voice in engine._voices.values()):
                self._world.violate("sequences are freed", f"voices of {self.name} have {users} users")
