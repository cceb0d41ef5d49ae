"""The protocol of an engine handle, by which an ``EngineLoop`` uses one engine, and its implementation on a thread.

``engine.process`` has the implementation in a process. The loop replaces the handle of a broken engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tts_worker.engine.base import Engine
from tts_worker.engine.engine_thread import EngineThread
from tts_worker.timeouts import fail_after
from tts_worker.types import Command, ComputationCounts, EngineInfo, EngineReport, Event

log = logging.getLogger(__name__)


@dataclass(slots=True)
class EngineStats:
    """Counters for metrics. The event loop writes events, audio and faults, the engine thread the rest.

    Attributes:
        steps: Engine steps.
        busy_s: Time spent in them.
        events: Events delivered.
        audio_s: Audio generated.
        faults: Engine faults.
        stale_events: Events of ended utterances, dropped.
        slowest_step_s: Longest step.
        slowest_step_cause: What the longest step did; empty if the engine does not report it.
        computations: How the computations of the engine ran; empty if the engine does not report it.
        degraded: Why the engine is slower than it should be.
        stages_s: Time in the stages of the engine since it was loaded; empty if the engine does not report it.
        process_cpu_s: Processor time of the engine processes; 0 on a thread.
        process_memory_bytes: Resident memory of the engine process; 0 on a thread.
    """

    steps: int = 0
    busy_s: float = 0.0
    events: int = 0
    audio_s: float = 0.0
    faults: int = 0
    stale_events: int = 0
    slowest_step_s: float = 0.0
    slowest_step_cause: str = ""
    computations: tuple[ComputationCounts, ...] = ()
    degraded: tuple[str, ...] = ()
    stages_s: tuple[tuple[str, float], ...] = ()
    process_cpu_s: float = 0.0
    process_memory_bytes: int = 0

    def add_steps(self, steps: int, busy_s: float) -> None:
        """Count steps."""
        self.steps += steps
        self.busy_s += busy_s

    def add_report(self, report: EngineReport, slowest_s: float) -> None:
        """Take over a report. ``report.last_step`` is what a step of ``slowest_s`` did."""
        self.computations = report.computations
        self.stages_s = report.stages_s
        if slowest_s > self.slowest_step_s:
            self.slowest_step_s = slowest_s
            self.slowest_step_cause = report.last_step


class EngineOwner(Protocol):
    """Receives what a handle reports; all methods are called on the event loop."""

    stats: EngineStats

    def on_ready(self, handle: EngineHandle, info: EngineInfo) -> None: ...
    def on_events(self, handle: EngineHandle, events: Sequence[Event]) -> None: ...
    def on_fault(self, handle: EngineHandle, fault: BaseException) -> None: ...


class EngineHandle(Protocol):
    """Runs one engine, once. All methods are called on the event loop.

    Attributes:
        has_started: Whether the engine is built and warm.
        is_isolated: It runs in a separate process: the next engine has a new device context, and a hanging one can be
            killed.
    """

    @property
    def has_started(self) -> bool: ...
    @property
    def is_isolated(self) -> bool: ...

    def launch(self) -> None:
        """Begin to build the engine."""
        ...

    def post(self, command: Command) -> None:
        """Queue a command; never blocks."""
        ...

    def busy_s(self, interval_s: float) -> float:
        """Return for how long the engine call in progress, or the start, has run; called every ``interval_s``."""
        ...

    def abandon(self) -> None:
        """Give up a broken or hanging engine. Its late reports are ignored."""
        ...

    async def wait_until_freed(self, timeout_s: float) -> bool:
        """Wait until an abandoned engine holds no memory, as far as that can be known."""
        ...

    async def close(self, timeout_s: float) -> bool:
        """Close the engine; return False if it did not end in time."""
        ...


class ThreadHandle:
    """Runs an engine on a thread of this process.

    A hanging engine is abandoned with its thread, and closed if the call returns.
    """

    is_isolated = False

    def __init__(
        self, factory: Callable[[], Engine], owner: EngineOwner, *, name: str, clock: Callable[[], float]
    ) -> None:
        self._owner = owner
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread = EngineThread(factory, self, name=name, clock=clock)

    @property
    def has_started(self) -> bool:
        return self._thread.info is not None

    def launch(self) -> None:
        self._thread.start()

    def post(self, command: Command) -> None:
        self._thread.post(command)

    def busy_s(self, interval_s: float) -> float:
        return self._thread.busy_s()

    def abandon(self) -> None:
        self._thread.close()  # a hanging call that returns later then closes its engine and ends its thread

    async def wait_until_freed(self, timeout_s: float) -> bool:
        return True  # a broken engine is freed before its fault is reported; a hanging one never

    async def close(self, timeout_s: float) -> bool:
        self._thread.close()
        # Not in an executor, which takes no more work while the interpreter shuts down.
        with contextlib.suppress(TimeoutError):
            async with fail_after(timeout_s):
                await self._ended.wait()
        return self._ended.is_set()

    # -- engine.engine_thread.EngineObserver --------------------------------------------------------------------------

    def on_ready(self, info: EngineInfo) -> None:
        self._call(self._owner.on_ready, self, info)

    def on_step(self, events: Sequence[Event], elapsed_s: float, report: EngineReport) -> None:
        self._owner.stats.add_steps(1, elapsed_s)
        self._owner.stats.add_report(report, elapsed_s)
        if events:
            self._call(self._owner.on_events, self, events)

    def on_end(self, fault: BaseException | None) -> None:
        if fault is not None:
            self._call(self._owner.on_fault, self, fault)
        self._call(self._ended.set)

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        """Run ``callback`` on the event loop, or do nothing if that loop is closed (the process is ending)."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.debug("engine %s: the event loop is closed", self._name)
