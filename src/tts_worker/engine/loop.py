"""Runs an engine on a thread: drains its inbox, steps it, and delivers its events to the event loop.

Commands enter through ``post`` and events leave through ``subscribe``; both are picklable, so a process boundary could
replace the thread. The thread blocks only while the engine has no work. Faults are contained: when the engine raises or
a call does not return, its utterances fail, ``ready`` becomes False and a new engine is built from the factory. An
engine whose device is lost, or that cannot be rebuilt, needs a new process: the loop ends in the state LOST.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import FrameType
from typing import Final

from tts_worker.engine.base import Engine, ReportingEngine, WakingEngine
from tts_worker.errors import DeviceLost, EngineFault, ErrorInfo, NotReady
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Audio,
    Cancel,
    Command,
    ComputationCounts,
    Done,
    EngineInfo,
    EngineReport,
    Event,
    Failed,
    Open,
    UtteranceKey,
)

log = logging.getLogger(__name__)

_CLOSE: Final = None
"""Inbox entry that ends the thread."""


class _WakeUp:
    """Inbox entry that makes the thread look for work."""


_NO_REPORT: Final = EngineReport()

MAX_REBUILD_FAILURES = 5
"""Consecutive failures to rebuild a broken engine after which only a new process can help."""


class EngineState(str, Enum):
    """State of the engine that a loop runs."""

    STARTING = "starting"  # being built and warmed up
    READY = "ready"
    FAULTED = "faulted"  # a replacement is being built
    LOST = "lost"  # cannot be rebuilt in this process, which must be restarted
    STOPPED = "stopped"


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


@dataclass(slots=True, eq=False)
class _Runner:
    """One engine on one thread.

    A hanging runner is abandoned with its thread: its late events are dropped, and it closes its engine if the call
    returns.

    Attributes:
        inbox: Commands and wake-ups for the engine thread.
        busy_since_s: Start of the engine call in progress, or of the start; None between calls.
        has_started: Whether the engine is built and warm.
        stopped: Set when the thread has closed its engine.
    """

    inbox: queue.SimpleQueue[Command | _WakeUp | None] = field(default_factory=queue.SimpleQueue)
    busy_since_s: float | None = None
    has_started: bool = False
    stopped: threading.Event = field(default_factory=threading.Event)


class EngineLoop:
    """Runs an engine on a dedicated thread.

    All methods must be called on the event loop that called ``start``.

    Args:
        factory: Builds the engine; called on the engine thread, again after every fault.
        name: Name of the engine in logs, errors and thread names.
        clock: Monotonic time in seconds.
        hang_timeout_s: An engine call that takes longer is a fault.
        start_timeout_s: Building and warming up an engine longer than this is a fault.
        restart_backoff_s: First and longest delay before a broken engine is rebuilt.
    """

    def __init__(
        self,
        factory: Callable[[], Engine],
        *,
        name: str = "engine",
        clock: Callable[[], float] = time.monotonic,
        hang_timeout_s: float = 30.0,
        start_timeout_s: float = 600.0,
        restart_backoff_s: tuple[float, float] = (0.1, 30.0),
    ) -> None:
        self.name = name
        self.state = EngineState.STARTING
        self.stats = EngineStats()
        self._factory = factory
        self._clock = clock
        self._hang_timeout_s = hang_timeout_s
        self._start_timeout_s = start_timeout_s
        self._backoff_s, self._max_backoff_s = restart_backoff_s
        self._next_backoff_s = self._backoff_s
        self._rebuild_failures = 0
        self._info: EngineInfo | None = None
        self._runner: _Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscribers: dict[str, Callable[[Event], None]] = {}
        self._live: set[UtteranceKey] = set()
        self._started: asyncio.Future[None] | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._state_callbacks: list[Callable[[EngineState], None]] = []

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """Capabilities of the engine.

        Raises:
            NotReady: The first ``start`` has not finished.
        """
        if self._info is None:
            raise NotReady(f"the engine {self.name} has not started yet")
        return self._info

    @property
    def ready(self) -> bool:
        return self.state is EngineState.READY

    @property
    def lost(self) -> bool:
        """Whether the engine cannot be rebuilt in this process: its device is lost, or every attempt failed."""
        return self.state is EngineState.LOST

    @property
    def live_utterances(self) -> int:
        return len(self._live)

    def on_state(self, callback: Callable[[EngineState], None]) -> None:
        """Call ``callback`` on the event loop whenever ``state`` changes."""
        self._state_callbacks.append(callback)

    async def start(self) -> None:
        """Build the engine and warm it up. Errors of the factory and of ``warm_up`` propagate."""
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.create_future()
        self._watchdog = self._loop.create_task(self._watch(), name=f"{self.name}-watchdog")
        self._launch()
        await self._started

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread and fail the live utterances. A hanging engine call stays behind on its daemon thread."""
        if self.state is EngineState.STOPPED:
            return
        self._set_state(EngineState.STOPPED)
        self._cancel_timers()
        self._fail_live(NotReady(f"the engine {self.name} was stopped").info)
        runner = self._runner
        self._runner = None
        if runner is not None and self._loop is not None:
            runner.inbox.put(_CLOSE)
            stopped = await self._loop.run_in_executor(None, runner.stopped.wait, timeout_s)
            if not stopped:
                log.warning("engine %s did not stop within %.1f s", self.name, timeout_s)

    def _cancel_timers(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _launch(self) -> None:
        runner = self._runner = _Runner(busy_since_s=self._clock())
        threading.Thread(target=self._run, args=(runner,), name=f"tts-{self.name}", daemon=True).start()

    def _set_state(self, state: EngineState) -> None:
        if state is not self.state:
            self.state = state
            for callback in self._state_callbacks:
                callback(state)

    # -- commands and events ------------------------------------------------------------------------------------------

    def subscribe(self, session: str, callback: Callable[[Event], None]) -> None:
        """Deliver the events of ``session`` to ``callback``, on the event loop."""
        self._subscribers[session] = callback

    def unsubscribe(self, session: str) -> None:
        self._subscribers.pop(session, None)

    def post(self, command: Command) -> None:
        """Queue a command for the engine; never blocks. An Open fails immediately while the engine is not ready."""
        if isinstance(command, Open):
            if self._runner is None or not self.ready:
                self._deliver_soon(Failed(command.key, self._fault_error().info))
                return
            self._live.add(command.key)
        elif command.key not in self._live:
            return
        elif isinstance(command, Cancel):
            self._live.discard(command.key)
        if self._runner is not None:
            self._runner.inbox.put(command)

    def _fault_error(self) -> EngineFault:
        if self.lost:
            return DeviceLost(f"the engine {self.name} is lost and its worker restarts; try again", retry_after_s=1.0)
        return EngineFault(f"the engine {self.name} is being restarted after a fault; try again", retry_after_s=1.0)

    def _deliver_soon(self, event: Event) -> None:
        if self._loop is not None:
            self._loop.call_soon(self._dispatch, event)

    def _dispatch(self, event: Event) -> None:
        callback = self._subscribers.get(event.key.session)
        if callback is not None:
            callback(event)

    def _deliver(self, runner: _Runner, events: Sequence[Event]) -> None:
        """Dispatch the events of one step. Runs on the event loop, once per step."""
        for event in events:
            if runner is not self._runner or event.key not in self._live:
                self.stats.stale_events += 1  # cancelled while the step ran, or from an abandoned runner
                continue
            self.stats.events += 1
            if isinstance(event, Audio):
                self.stats.audio_s += event.samples / SAMPLE_RATE_HZ
            if isinstance(event, Done | Failed):
                self._live.discard(event.key)
            self._dispatch(event)

    # -- engine thread ------------------------------------------------------------------------------------------------

    def _run(self, runner: _Runner) -> None:
        assert self._loop is not None
        engine: Engine | None = None
        fault: BaseException | None = None
        try:
            engine = self._factory()
            engine.warm_up()
            runner.busy_since_s = None
            runner.has_started = True
            self._call(self._on_ready, runner, engine.info)
            self._serve(runner, engine)
        except BaseException as exc:  # a panic of a Rust extension and SystemExit do not derive from Exception
            fault = exc
        finally:
            if engine is not None:
                try:
                    engine.close()
                except BaseException:
                    log.exception("engine %s: close failed", self.name)
                engine = None
            # The traceback holds references to the engine; its memory must be free before the next engine is built.
            for error in _exception_chain(fault):
                _clear_frames(error)
            runner.stopped.set()
        if fault is not None:
            self._call(self._on_fault, runner, fault)

    def _serve(self, runner: _Runner, engine: Engine) -> None:
        inbox = runner.inbox
        reporting = engine if isinstance(engine, ReportingEngine) else None
        if isinstance(engine, WakingEngine):
            engine.on_work(partial(inbox.put, _WakeUp()))
        while True:
            block = not engine.has_work
            while True:
                try:
                    command = inbox.get(block)
                except queue.Empty:
                    break
                if command is _CLOSE:
                    return
                block = False
                if isinstance(command, _WakeUp):
                    continue
                runner.busy_since_s = self._clock()
                engine.handle(command)
                runner.busy_since_s = None  # not in a finally: after a fault the timer covers the close of the engine
            if not engine.has_work:
                continue
            start_s = self._clock()
            runner.busy_since_s = start_s
            events = engine.step(start_s)
            runner.busy_since_s = None
            elapsed_s = self._clock() - start_s
            self.stats.steps += 1
            self.stats.busy_s += elapsed_s
            report = _NO_REPORT if reporting is None else reporting.report()
            self.stats.computations = report.computations
            if elapsed_s > self.stats.slowest_step_s:
                self.stats.slowest_step_s = elapsed_s
                self.stats.slowest_step_cause = report.last_step
            if events:
                self._call(self._deliver, runner, events)

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        """Run ``callback`` on the event loop, or do nothing if that loop is closed (the process is ending)."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.debug("engine %s: the event loop is closed", self.name)

    # -- faults -------------------------------------------------------------------------------------------------------

    def _on_ready(self, runner: _Runner, info: EngineInfo) -> None:
        if runner is not self._runner:
            return
        self._info = info
        self.stats.degraded = info.degraded
        for reason in info.degraded:
            log.warning("engine %s is degraded: %s", self.name, reason)
        self._rebuild_failures = 0
        self._set_state(EngineState.READY)
        if self._started is not None and not self._started.done():
            self._started.set_result(None)

    def _on_fault(self, runner: _Runner, fault: BaseException) -> None:
        if runner is not self._runner:
            return
        assert self._loop is not None
        if self._started is not None and not self._started.done():
            # The first start failed: its caller gets the error, and the engine is not rebuilt.
            self._runner = None
            self._cancel_timers()
            self._set_state(EngineState.STOPPED)
            self._started.set_exception(_as_exception(self.name, fault))
            return
        self.stats.faults += 1
        log.error("engine %s failed (%s)", self.name, type(fault).__name__, exc_info=fault)
        self._runner = None
        runner.inbox.put(_CLOSE)  # a hanging call that returns later then closes its engine and ends its thread
        if self.state is EngineState.FAULTED:
            self._rebuild_failures += 1
        # A start that hangs keeps its thread and its memory, so that another one would hang too.
        hangs_at_start = isinstance(fault, _Hang) and not runner.has_started
        if isinstance(fault, DeviceLost) or hangs_at_start or self._rebuild_failures >= MAX_REBUILD_FAILURES:
            log.critical("engine %s cannot be rebuilt in this process, which must be restarted", self.name)
            self._cancel_timers()
            self._set_state(EngineState.LOST)
            self._fail_live(self._fault_error().info)
            return
        log.warning("engine %s is being rebuilt", self.name)
        self._set_state(EngineState.FAULTED)
        self._fail_live(self._fault_error().info)
        self._restart = self._loop.call_later(self._next_backoff_s, self._launch)
        self._next_backoff_s = min(2 * self._next_backoff_s, self._max_backoff_s)

    def _fail_live(self, error: ErrorInfo) -> None:
        live = sorted(self._live)
        self._live = set()
        for key in live:
            self._dispatch(Failed(key, error))

    async def _watch(self) -> None:
        """Abandon an engine call or a start that does not return. A minute without a fault resets the restart delay."""
        interval_s = min(1.0, self._hang_timeout_s / 4)
        healthy_s = 0.0
        while True:
            await asyncio.sleep(interval_s)
            runner = self._runner
            if runner is None:
                healthy_s = 0.0
                continue
            start_s = runner.busy_since_s
            limit_s = self._hang_timeout_s if runner.has_started else self._start_timeout_s
            if start_s is not None and self._clock() - start_s > limit_s:
                call = "call" if runner.has_started else "start"
                self._on_fault(runner, _Hang(f"an engine {call} took longer than {limit_s:g} s"))
                healthy_s = 0.0
                continue
            healthy_s += interval_s
            if healthy_s > 60.0:
                self._next_backoff_s = self._backoff_s


class _Hang(EngineFault):
    """An engine call did not return."""


def _as_exception(name: str, fault: BaseException) -> Exception:
    """Wrap ``fault`` for the caller of ``start``: SystemExit and the like from an engine must not end the process."""
    if isinstance(fault, Exception):
        return fault
    error = EngineFault(f"the engine {name} could not start ({type(fault).__name__})")
    error.__cause__ = fault
    return error


def _exception_chain(fault: BaseException | None) -> list[BaseException]:
    """Collect ``fault`` and all exceptions reachable through ``__cause__`` and ``__context__``."""
    chain: list[BaseException] = []
    unvisited = [fault]
    while unvisited:
        error = unvisited.pop()
        if error is not None and not any(error is other for other in chain):
            chain.append(error)
            unvisited += [error.__cause__, error.__context__]
    return chain


def _clear_frames(fault: BaseException) -> None:
    """Clear the local variables of the finished frames in the traceback of ``fault`` and of their callers."""
    for frame, _ in traceback.walk_tb(fault.__traceback__):
        caller: FrameType | None = frame
        while caller is not None:
            with contextlib.suppress(RuntimeError):  # still running
                caller.clear()
            caller = caller.f_back
