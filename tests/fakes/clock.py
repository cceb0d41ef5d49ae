"""Clocks for tests: the stall time of the event loop, and an event loop with virtual time."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

import pytest

from tts_worker.engine.base import Engine
from tts_worker.engine.handle import EngineOwner
from tts_worker.types import Command, EngineReport


@asynccontextmanager
async def measure_stalls() -> AsyncIterator[Callable[[], float]]:
    """Measure stalls; the yielded function returns the seconds for which a busy machine delayed the event loop."""
    clock = asyncio.get_running_loop().time
    stalled_s = 0.0
    woke_at_s = clock()

    async def watch() -> None:
        nonlocal stalled_s, woke_at_s
        while True:
            await asyncio.sleep(0.01)
            now_s = clock()
            stalled_s += max(0.0, now_s - woke_at_s - 0.01)
            woke_at_s = now_s

    watching = asyncio.create_task(watch())
    try:
        yield lambda: stalled_s + max(0.0, clock() - woke_at_s - 0.01)
    finally:
        watching.cancel()
        stalled_s += max(0.0, clock() - woke_at_s - 0.01)
        woke_at_s = float("inf")


P = ParamSpec("P")


class _VirtualSelector(selectors.DefaultSelector):
    """A selector that advances virtual time instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the test waits for an event that cannot occur")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers fire in order without waiting. For code that uses neither sockets nor threads.

    What is meant for a thread of an executor is called at once, and takes no time.
    """

    def __init__(self) -> None:
        self._virtual_selector = _VirtualSelector()
        super().__init__(self._virtual_selector)

    def time(self) -> float:
        return self._virtual_selector.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        if not (executor is None or isinstance(executor, ThreadPoolExecutor)):
            return super().run_in_executor(executor, func, *args)
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class LoopHandle:
    """Runs an engine on the event loop, a step per iteration. See ``engine.handle.EngineHandle``.

    While the engine has work, no virtual time passes. An engine must not hang.
    """

    is_isolated = False

    def __init__(self, factory: Callable[[], Engine], owner: EngineOwner, **_: Any) -> None:
        self.has_started = False
        self._factory = factory
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._engine: Engine | None = None
        self._inbox: deque[Command] = deque()
        self._next: asyncio.Handle | None = None

    def launch(self) -> None:
        self._next = self._loop.call_soon(self._run, self._build)

    def post(self, command: Command) -> None:
        self._inbox.append(command)
        self._go_on()

    def busy_s(self, interval_s: float) -> float:
        return 0.0

    def abandon(self) -> None:
        self._free()

    async def wait_until_freed(self, timeout_s: float) -> bool:
        return True

    async def close(self, timeout_s: float) -> bool:
        self._free()
        return True

    def _run(self, act: Callable[[], None]) -> None:
        self._next = None
        try:
            act()
        except BaseException as fault:
            self._owner.on_fault(self, fault)
        else:
            self._go_on()

    def _go_on(self) -> None:
        has_work = self._engine is not None and (self._inbox or self._engine.has_work)
        if has_work and self._next is None:
            self._next = self._loop.call_soon(self._run, self._step)

    def _build(self) -> None:
        self._engine = self._factory()
        self._engine.warm_up()
        self.has_started = True
        self._owner.on_ready(self, self._engine.info)

    def _step(self) -> None:
        assert self._engine is not None
        while self._inbox:
            self._engine.handle(self._inbox.popleft())
        if self._engine.has_work:
            events = self._engine.step(self._loop.time())
            self._owner.stats.add_steps(1, 0.0)
            self._owner.stats.add_report(EngineReport(), 0.0)
            self._owner.on_events(self, events)

    def _free(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def run_in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` on a new ``VirtualTimeLoop``; the engines of workers that it starts run on that loop too."""

    async def call(function: Callable[..., Any], *args: Any, **_: Any) -> Any:
        return function(*args)

    loop = VirtualTimeLoop()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tts_worker.engine.loop.ThreadHandle", LoopHandle)
            patch.setattr("anyio.to_thread.run_sync", call)
            loop.run_until_complete(main)
    finally:
        loop.close()


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorates an asynchronous test, which ``run_in_virtual_time`` runs. It takes no asynchronous fixtures."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run
