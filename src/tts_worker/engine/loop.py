"""Runs an engine beside the event loop: carries commands to it and events back, and contains its faults.

Commands enter through ``post`` and events leave through ``subscribe``. The engine is on a thread of this process
(``engine.handle``) or in a separate one (``engine.process``). When the engine raises or a call does not return, its
utterances fail, ``ready`` becomes False and a new engine is built from the factory. An engine that cannot be rebuilt,
or whose device is lost for this process, needs a new process: the loop ends in the state LOST.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from enum import Enum

from tts_worker.engine.base import Engine, SharedState
from tts_worker.engine.chunk_log import chunk_log, log_chunk
from tts_worker.engine.handle import EngineHandle, EngineStats, ThreadHandle
from tts_worker.engine.phases import change_phase
from tts_worker.engine.process import ProcessHandle
from tts_worker.errors import DeviceLost, EngineFault, ErrorInfo, NotReady, SynthesisFailed
from tts_worker.types import SAMPLE_RATE_HZ, Audio, Cancel, Command, Done, EngineInfo, Event, Failed, Open, UtteranceKey

log = logging.getLogger(__name__)

MAX_REBUILD_FAILURES = 5
"""Consecutive failures to rebuild a broken engine after which only a new process can help."""

_END_TIMEOUT_S = 10.0
"""Time for a broken engine process to end before the next one is started."""


class EngineState(str, Enum):
    """State of the engine that a loop runs: STARTING -> READY <-> FAULTED -> LOST. Each may become STOPPED."""

    STARTING = "starting"  # being built and warmed up
    READY = "ready"
    FAULTED = "faulted"  # a replacement is being built
    LOST = "lost"  # cannot be rebuilt in this process, which must be restarted
    STOPPED = "stopped"


TRANSITIONS: dict[EngineState, frozenset[EngineState]] = {
    EngineState.STARTING: frozenset({EngineState.READY, EngineState.STOPPED}),
    EngineState.READY: frozenset({EngineState.FAULTED, EngineState.LOST, EngineState.STOPPED}),
    EngineState.FAULTED: frozenset({EngineState.READY, EngineState.LOST, EngineState.STOPPED}),
    EngineState.LOST: frozenset({EngineState.STOPPED}),
    EngineState.STOPPED: frozenset(),
}


class EngineLoop:
    """Runs an engine, and replaces it after a fault.

    All methods must be called on the event loop that called ``start``.

    Args:
        factory: Builds the engine; called on the engine thread, again after every fault. Picklable with ``in_process``.
        name: Name of the engine in logs, errors and thread names.
        clock: Monotonic time in seconds.
        hang_timeout_s: An engine call that takes longer is a fault.
        start_timeout_s: Building and warming up an engine longer than this is a fault.
        restart_backoff_s: First and longest delay before a broken engine is rebuilt.
        in_process: Run the engine in a separate process instead of on a thread of this one.
        shared: State that ``factory`` refers to and that changes at run time; an engine process gets the changes.
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
        in_process: bool = False,
        shared: SharedState | None = None,
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
        self._in_process = in_process
        self._shared = shared
        self._handle: EngineHandle | None = None
        self._broken: EngineHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscribers: dict[str, Callable[[Event], None]] = {}
        self._live: set[UtteranceKey] = set()
        self._started: asyncio.Future[None] | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._restart: asyncio.Task[None] | None = None
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
        try:
            await self._started
        except Exception:
            await self._wait_until_freed()
            raise

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End the engine and fail the live utterances.

        A hanging engine call stays behind on its daemon thread; an engine process is killed.
        """
        if self.state is EngineState.STOPPED:
            return
        self._set_state(EngineState.STOPPED)
        self._cancel_timers()
        self._fail_live(NotReady(f"the engine {self.name} was stopped").info)
        handle = self._handle
        self._handle = None
        await self._wait_until_freed()
        if handle is not None and not await handle.close(timeout_s):
            log.warning("engine %s did not stop within %.1f s", self.name, timeout_s)

    def _cancel_timers(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _launch(self) -> None:
        handle: EngineHandle
        if self._in_process:
            handle = ProcessHandle(self._factory, self, name=self.name, shared=self._shared)
        else:
            handle = ThreadHandle(self._factory, self, name=self.name, clock=self._clock)
        self._handle = handle
        try:
            handle.launch()
        except RuntimeError as error:  # the system starts no more threads
            self.on_fault(handle, error)

    async def _relaunch(self, delay_s: float) -> None:
        """Launch an engine after a delay, when the broken one has ended: two may not fit on a device."""
        await asyncio.sleep(delay_s)
        await self._wait_until_freed()
        self._launch()

    async def _wait_until_freed(self) -> None:
        """Wait until the engine that failed last holds no memory."""
        if self._broken is not None and not await self._broken.wait_until_freed(_END_TIMEOUT_S):
            log.warning("engine %s: its broken process did not end within %g s", self.name, _END_TIMEOUT_S)
        self._broken = None

    def _set_state(self, state: EngineState) -> None:
        if state is not self.state:
            self.state = change_phase(self.state, state, TRANSITIONS)
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
            if self._handle is None or not self.ready:
                self._deliver_soon(Failed(command.key, self._fault_error().info))
                return
            self._live.add(command.key)
        elif command.key not in self._live:
            return
        elif isinstance(command, Cancel):
            self._live.discard(command.key)
        if self._handle is not None:
            self._handle.post(command)

    def _fault_error(self) -> EngineFault:
        if self.lost:
            return DeviceLost(f"the engine {self.name} is lost and its worker restarts; try again", retry_after_s=1.0)
        return EngineFault(f"the engine {self.name} is being restarted after a fault; try again", retry_after_s=1.0)

    def _deliver_soon(self, event: Event) -> None:
        if self._loop is not None:
            self._loop.call_soon(self._dispatch, event)

    def _dispatch(self, event: Event) -> None:
        """Deliver an event. A session that raises keeps neither others from theirs nor the engine from a restart."""
        callback = self._subscribers.get(event.key.session)
        if callback is None:
            return
        try:
            callback(event)
        except Exception:
            log.exception("engine %s: session %s could not handle an event", self.name, event.key.session)
            if event.key in self._live:
                self.post(Cancel(event.key))
                self._deliver_soon(Failed(event.key, SynthesisFailed("the audio could not be processed").info))

    def on_events(self, handle: EngineHandle, events: Sequence[Event]) -> None:
        """Dispatch the events of one step. Runs on the event loop, once per step."""
        for event in events:
            if handle is not self._handle or event.key not in self._live:
                self.stats.stale_events += 1  # cancelled while the step ran, or of an abandoned engine
                continue
            self.stats.events += 1
            if isinstance(event, Audio):
                self.stats.audio_s += event.samples / SAMPLE_RATE_HZ
                if chunk_log.isEnabledFor(logging.DEBUG):
                    log_chunk(self.name, event)
            if isinstance(event, Done | Failed):
                self._live.discard(event.key)
            self._dispatch(event)

    # -- faults -------------------------------------------------------------------------------------------------------

    def on_ready(self, handle: EngineHandle, info: EngineInfo) -> None:
        if handle is not self._handle:
            return
        self._info = info
        self.stats.degraded = info.degraded
        for reason in info.degraded:
            log.warning("engine %s is degraded: %s", self.name, reason)
        self._rebuild_failures = 0
        if self.state is EngineState.FAULTED:
            log.warning("engine %s is ready again", self.name)  # of the level of its failure
        self._set_state(EngineState.READY)
        if self._started is not None and not self._started.done():
            self._started.set_result(None)

    def on_fault(self, handle: EngineHandle, fault: BaseException) -> None:
        if handle is not self._handle:
            return
        assert self._loop is not None
        self._handle = None
        self._broken = handle
        handle.abandon()
        if self._started is not None and not self._started.done():
            # The first start failed: its caller gets the error, and the engine is not rebuilt.
            self._cancel_timers()
            self._set_state(EngineState.STOPPED)
            self._started.set_exception(_as_exception(self.name, fault))
            return
        self.stats.faults += 1
        log.error("engine %s failed (%s)", self.name, type(fault).__name__, exc_info=fault)
        if self.state is EngineState.FAULTED:
            self._rebuild_failures += 1
        # A start that hangs keeps its thread and its memory, so that another one would hang too.
        hangs_at_start = isinstance(fault, _Hang) and not handle.has_started
        needs_process = isinstance(fault, DeviceLost) or hangs_at_start
        if (needs_process and not handle.is_isolated) or self._rebuild_failures >= MAX_REBUILD_FAILURES:
            log.critical("engine %s cannot be rebuilt in this process, which must be restarted", self.name)
            self._cancel_timers()
            self._set_state(EngineState.LOST)
            self._fail_live(self._fault_error().info)
            return
        log.warning("engine %s is being rebuilt", self.name)
        self._set_state(EngineState.FAULTED)
        self._fail_live(self._fault_error().info)
        self._restart = self._loop.create_task(self._relaunch(self._next_backoff_s))
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
            handle = self._handle
            if handle is None:
                healthy_s = 0.0
                continue
            limit_s = self._hang_timeout_s if handle.has_started else self._start_timeout_s
            if handle.busy_s(interval_s) > limit_s:
                call = "call" if handle.has_started else "start"
                self.on_fault(handle, _Hang(f"an engine {call} took longer than {limit_s:g} s"))
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
