"""Clocks for tests: the stall time of the event loop, and an event loop with virtual time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any


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


class _VirtualSelector(selectors.DefaultSelector):
    """A selector that advances virtual time instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the test waits for an event that cannot occur")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers fire in order without waiting. For code that uses neither sockets nor threads."""

    def __init__(self) -> None:
        self._virtual_selector = _VirtualSelector()
        super().__init__(self._virtual_selector)

    def time(self) -> float:
        return self._virtual_selector.now_s


def run_in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` on a new ``VirtualTimeLoop``."""
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()
