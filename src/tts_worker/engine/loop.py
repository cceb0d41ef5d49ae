"""The engine's thread: drains the inbox, steps the engine, hands events back to the event loop.

The only place in ``engine/`` that knows asyncio. Commands go in through ``post`` and events come out through
``subscribe``; both sides are picklable data, so this seam could also be a process boundary. The thread blocks only when
the engine has nothing to do. It contains faults: an engine that raises, or a call that does not return, fails the
utterances it held, turns ``ready`` off, and is rebuilt from its factory while the server goes on.
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
from types import FrameType
from typing import Final

from tts_worker.engine.base import Engine
from tts_worker.errors import EngineFault, ErrorInfo, NotReady
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Audio,
    Cancel,
    Command,
    Done,
    EngineInfo,
    Event,
    Failed,
    Open,
    UtteranceKey,
)

log = logging.getLogger(__name__)

_CLOSE: Final = None
"""Inbox entry that ends the thread."""


REBUILDS_UNTIL_LOST = 5
"""So many failures in a row to rebuild a broken engine mean that this process cannot: it must be replaced."""


class EngineState(str, Enum):
    STARTING = "starting"  # being built and warmed up
    READY = "ready"
    FAULTED = "faulted"  # broke; a new one is being built
    STOPPED = "stopped"


@dataclass(slots=True)
class EngineStats:
    """Counters for metrics. Written by the engine thread (steps, busy_s) and the event loop (the rest)."""

    steps: int = 0
    busy_s: float = 0.0
    events: int = 0
    audio_s: float = 0.0
    faults: int = 0
    stale_events: int = 0
    slowest_step_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Runner:
    """One engine on one thread. A runner that hangs is abandoned with its thread: its late events are dropped, and it
    closes its engine if the call ever returns. ``busy_since_s``: when the engine call in progress began."""

    inbox: queue.SimpleQueue[Command | None] = field(default_factory=queue.SimpleQueue)
    busy_since_s: float | None = None
    stopped: threading.Event = field(default_factory=threading.Event)


class EngineLoop:
    """Runs an engine in its own thread.

    ``factory`` builds the engine, on the thread; ``warm_up`` runs before ``start`` returns. All other methods belong to
    the event loop that called ``start``.
    """

    def __init__(
        self,
        factory: Callable[[], Engine],
        *,
        name: str = "engine",
        clock: Callable[[], float] = time.monotonic,
        hang_timeout_s: float = 30.0,
        restart_backoff_s: tuple[float, float] = (0.1, 30.0),
    ) -> None:
        self.name = name
        self.state = EngineState.STARTING
        self.stats = EngineStats()
        self._factory = factory
        self._clock = clock
        self._hang_timeout_s = hang_timeout_s
        self._backoff_s, self._max_backoff_s = restart_backoff_s
        self._next_backoff_s = self._backoff_s
        self._failed_rebuilds = 0
        self._info: EngineInfo | None = None
        self._runner: _Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscribers: dict[str, Callable[[Event], None]] = {}
        self._live: set[UtteranceKey] = set()
        self._started: asyncio.Future[None] | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._changed: list[Callable[[EngineState], None]] = []

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """What the engine can do. Raises NotReady before the first ``start`` has finished."""
        if self._info is None:
            raise NotReady(f"the engine {self.name} has not started yet")
        return self._info

    @property
    def ready(self) -> bool:
        return self.state is EngineState.READY

    @property
    def lost(self) -> bool:
        """Whether the engine broke and could not be rebuilt again and again, as when a device's context is gone."""
        return self._failed_rebuilds >= REBUILDS_UNTIL_LOST

    @property
    def live_utterances(self) -> int:
        return len(self._live)

    def on_state(self, callback: Callable[[EngineState], None]) -> None:
        """Call ``callback`` on the event loop whenever ``state`` changes."""
        self._changed.append(callback)

    async def start(self) -> None:
        """Build the engine and warm it up. Raises what the factory or ``warm_up`` raised."""
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.create_future()
        self._launch()
        await self._started
        self._watchdog = self._loop.create_task(self._watch(), name=f"{self.name}-watchdog")

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread. Utterances still live fail. A hung step is left behind on its daemon thread."""
        if self.state is EngineState.STOPPED:
            return
        self._set_state(EngineState.STOPPED)
        if self._restart is not None:
            self._restart.cancel()
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._fail_live(NotReady(f"the engine {self.name} was stopped").info)
        runner = self._runner
        self._runner = None
        if runner is not None and self._loop is not None:
            runner.inbox.put(_CLOSE)
            stopped = await self._loop.run_in_executor(None, runner.stopped.wait, timeout_s)
            if not stopped:
                log.warning("engine %s did not stop within %.1f s", self.name, timeout_s)

    def _launch(self) -> None:
        runner = self._runner = _Runner()
        threading.Thread(target=self._run, args=(runner,), name=f"tts-{self.name}", daemon=True).start()

    def _set_state(self, state: EngineState) -> None:
        if state is not self.state:
            self.state = state
            for callback in self._changed:
                callback(state)

    # -- the seam -----------------------------------------------------------------------------------------------------

    def subscribe(self, session: str, callback: Callable[[Event], None]) -> None:
        """Hand the events of ``session`` to ``callback``, on the event loop."""
        self._subscribers[session] = callback

    def unsubscribe(self, session: str) -> None:
        self._subscribers.pop(session, None)

    def post(self, command: Command) -> None:
        """Give the engine a command; never blocks. An Open for an engine that is not ready fails at once."""
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
        return EngineFault(f"the engine {self.name} is being restarted after a fault; try again", retry_after_s=1.0)

    def _deliver_soon(self, event: Event) -> None:
        if self._loop is not None:
            self._loop.call_soon(self._dispatch, event)

    def _dispatch(self, event: Event) -> None:
        callback = self._subscribers.get(event.key.session)
        if callback is not None:
            callback(event)

    def _deliver(self, runner: _Runner, events: Sequence[Event]) -> None:
        """On the event loop: the one callback of a step."""
        for event in events:
            if runner is not self._runner or event.key not in self._live:
                self.stats.stale_events += 1  # cancelled while the step ran, or from a runner given up
                continue
            self.stats.events += 1
            if isinstance(event, Audio):
                self.stats.audio_s += event.samples / SAMPLE_RATE_HZ
            if isinstance(event, Done | Failed):
                self._live.discard(event.key)
            self._dispatch(event)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, runner: _Runner) -> None:
        assert self._loop is not None
        engine: Engine | None = None
        fault: BaseException | None = None
        try:
            engine = self._factory()
            engine.warm_up()
            self._call(self._on_ready, runner, engine.info)
            self._serve(runner, engine)
        except BaseException as exc:  # a panic of a Rust extension and SystemExit are not Exceptions
            fault = exc
        finally:
            if engine is not None:
                try:
                    engine.close()
                except BaseException:
                    log.exception("engine %s: close failed", self.name)
                engine = None
            # Its memory is free before another engine is built: what broke it must not hold it.
            for one in _linked(fault):
                _let_go(one)
            runner.stopped.set()
        if fault is not None:
            self._call(self._on_fault, runner, fault)

    def _serve(self, runner: _Runner, engine: Engine) -> None:
        inbox = runner.inbox
        while True:
            block = not engine.has_work
            while True:
                try:
                    command = inbox.get(block)
                except queue.Empty:
                    break
                if command is _CLOSE:
                    return
                runner.busy_since_s = self._clock()
                engine.handle(command)
                runner.busy_since_s = None  # not in a finally: after a fault it times the close of the engine
                block = False
            if not engine.has_work:
                continue
            began_s = self._clock()
            runner.busy_since_s = began_s
            events = engine.step(began_s)
            runner.busy_since_s = None
            spent_s = self._clock() - began_s
            self.stats.steps += 1
            self.stats.busy_s += spent_s
            self.stats.slowest_step_s = max(self.stats.slowest_step_s, spent_s)
            if events:
                self._call(self._deliver, runner, events)

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        """Run ``callback`` on the event loop; harmless when that loop is gone (the process is ending)."""
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
        self._failed_rebuilds = 0
        self._set_state(EngineState.READY)
        if self._started is not None and not self._started.done():
            self._started.set_result(None)

    def _on_fault(self, runner: _Runner, fault: BaseException) -> None:
        if runner is not self._runner:
            return
        assert self._loop is not None
        if self._started is not None and not self._started.done():
            # Never came up: the caller of start() decides, there is nothing to keep alive.
            self._runner = None
            self._set_state(EngineState.STOPPED)
            self._started.set_exception(_as_exception(self.name, fault))
            return
        self.stats.faults += 1
        log.error("engine %s broke (%s) and is being rebuilt", self.name, type(fault).__name__, exc_info=fault)
        self._runner = None
        runner.inbox.put(_CLOSE)  # if it hangs now and returns later, it frees its engine and ends
        if self.state is EngineState.FAULTED:
            self._failed_rebuilds += 1
        if self._failed_rebuilds == REBUILDS_UNTIL_LOST:
            log.critical("engine %s cannot be rebuilt in this process", self.name)
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
        """Give up on an engine call that does not return. A minute without a fault resets the restart delay."""
        interval_s = min(1.0, self._hang_timeout_s / 4)
        healthy_s = 0.0
        while True:
            await asyncio.sleep(interval_s)
            runner = self._runner
            if runner is None:
                healthy_s = 0.0
                continue
            began_s = runner.busy_since_s
            if began_s is not None and self._clock() - began_s > self._hang_timeout_s:
                self._on_fault(runner, EngineFault(f"a call of the engine took longer than {self._hang_timeout_s:g} s"))
                healthy_s = 0.0
                continue
            healthy_s += interval_s
            if healthy_s > 60.0:
                self._next_backoff_s = self._backoff_s


def _as_exception(name: str, fault: BaseException) -> Exception:
    """``fault`` for the caller of ``start``: SystemExit and its like, raised by an engine, must not end the process."""
    if isinstance(fault, Exception):
        return fault
    error = EngineFault(f"the engine {name} could not start ({type(fault).__name__})")
    error.__cause__ = fault
    return error


def _linked(fault: BaseException | None) -> list[BaseException]:
    """``fault``, what caused it, and what was being handled when it or a cause of it came."""
    found: list[BaseException] = []
    ahead = [fault]
    while ahead:
        one = ahead.pop()
        if one is not None and not any(one is other for other in found):
            found.append(one)
            ahead += [one.__cause__, one.__context__]
    return found


def _let_go(fault: BaseException) -> None:
    """Forget the locals of all functions that have ended, among those that ``fault`` was raised through and those that
    called them."""
    for frame, _ in traceback.walk_tb(fault.__traceback__):
        caller: FrameType | None = frame
        while caller is not None:
            with contextlib.suppress(RuntimeError):  # still running
                caller.clear()
            caller = caller.f_back
