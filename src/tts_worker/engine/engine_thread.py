"""Runs an engine on a thread: builds it, applies the commands of its inbox, steps it and reports to an observer.

The thread blocks only while the engine has no work. It ends after a command to close, or with the first exception that
leaves the engine, which is closed and freed before the observer hears of it.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from tts_worker.engine.base import Engine, ReportingEngine, WakingEngine
from tts_worker.engine.worker_thread import ENGINE_NICENESS, lower_priority
from tts_worker.types import Command, EngineInfo, EngineReport, Event

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""Interval after which an engine's thread releases the interpreter lock to another thread (Python's default: 5 ms)."""


class _WakeUp:
    """Inbox entry that makes the thread look for work."""


_CLOSE: Final = None
"""Inbox entry that ends the thread."""

_NO_REPORT: Final = EngineReport()

_EXIT_LIMIT_S = 2.0
"""A program that ends without stopping its engines waits for the calls in progress at most this long."""

_running: set[EngineThread] = set()


class EngineObserver(Protocol):
    """Receives what happens on the engine thread; all methods are called on it."""

    def on_ready(self, info: EngineInfo) -> None:
        """The engine is built and warm."""
        ...

    def on_step(self, events: Sequence[Event], elapsed_s: float, report: EngineReport) -> None:
        """The engine took a step."""
        ...

    def on_end(self, fault: BaseException | None) -> None:
        """The engine is freed; ``fault`` is what ended it. Nothing follows."""
        ...


class FaultTrace(Exception):
    """Where a fault was raised, as text. It is the cause of the fault, so that the log shows it."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def _keep_text_only(fault: BaseException) -> None:
    """Replace the tracebacks of ``fault`` and of its causes by their text.

    They hold the engine, whose memory must be free before the next engine is built.
    """
    text = "".join(traceback.format_exception(type(fault), fault, fault.__traceback__))
    errors: list[BaseException | None] = [fault]
    while errors:
        error = errors.pop()
        if error is not None:
            errors += [error.__cause__, error.__context__]
            error.__traceback__ = error.__cause__ = error.__context__ = None
    fault.__cause__ = FaultTrace(text)


class EngineThread:
    """One engine on one thread.

    Args:
        factory: Builds the engine; called on the thread.
        observer: Receives events and faults.
        name: Name of the thread, and of the engine in the log.
        clock: Monotonic time in seconds.

    Attributes:
        info: What the engine offers, once it is built and warm.
        busy_since_s: Start of the engine call in progress, or of the start; None between calls.
    """

    def __init__(
        self,
        factory: Callable[[], Engine],
        observer: EngineObserver,
        *,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info: EngineInfo | None = None
        self.busy_since_s: float | None = clock()
        self._factory = factory
        self._observer = observer
        self._name = name
        self._clock = clock
        self._inbox: queue.SimpleQueue[Command | _WakeUp | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"tts-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, command: Command) -> None:
        """Queue a command; never blocks."""
        self._inbox.put(command)

    def close(self) -> None:
        """Let the thread close its engine and end, after the call in progress."""
        self._inbox.put(_CLOSE)

    def wait(self, timeout_s: float) -> None:
        """Wait until the thread has ended, at most ``timeout_s``."""
        self._thread.join(timeout_s)

    def busy_s(self) -> float:
        """Return for how long the call in progress, or the start, has run."""
        since_s = self.busy_since_s
        return 0.0 if since_s is None else self._clock() - since_s

    def _run(self) -> None:
        _running.add(self)
        engine: Engine | None = None
        fault: BaseException | None = None
        try:
            engine = self._factory()
            engine.warm_up()
            lower_priority(ENGINE_NICENESS)  # the event loop goes first; threads that the warm-up started keep theirs
            self.busy_since_s = None
            self.info = engine.info
            self._observer.on_ready(engine.info)
            self._serve(engine)
        except BaseException as exc:  # a panic of a Rust extension and SystemExit do not derive from Exception
            fault = exc
        finally:
            if engine is not None:
                try:
                    engine.close()
                except BaseException:
                    log.exception("engine %s: close failed", self._name)
                engine = None
            if fault is not None:
                _keep_text_only(fault)
        _running.discard(self)
        self._observer.on_end(fault)

    def _serve(self, engine: Engine) -> None:
        inbox = self._inbox
        reporting = engine if isinstance(engine, ReportingEngine) else None
        waking = engine if isinstance(engine, WakingEngine) else None
        if waking is not None:
            waking.on_work(partial(inbox.put, _WakeUp()))
        while True:
            block = not engine.has_work
            while True:
                try:
                    command = inbox.get(block, None if waking is None else waking.wait_limit_s)
                except queue.Empty:
                    break
                if command is _CLOSE:
                    return
                block = False
                if isinstance(command, _WakeUp):
                    continue
                self.busy_since_s = self._clock()
                engine.handle(command)
                self.busy_since_s = None  # not in a finally: after a fault the timer covers the close of the engine
            if not engine.has_work:
                continue
            start_s = self._clock()
            self.busy_since_s = start_s
            events = engine.step(start_s)
            self.busy_since_s = None
            elapsed_s = self._clock() - start_s
            self._observer.on_step(events, elapsed_s, _NO_REPORT if reporting is None else reporting.report())


@atexit.register
def _close_running() -> None:
    """Close the engines that still run: the interpreter aborts if a daemon thread returns from native code later."""
    threads = tuple(_running)
    for thread in threads:
        thread.close()
    until_s = time.monotonic() + _EXIT_LIMIT_S
    for thread in threads:
        thread.wait(max(0.0, until_s - time.monotonic()))
