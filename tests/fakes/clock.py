"""Clocks: what a busy machine adds to the time that things take, and a loop whose time passes at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def standing_still() -> AsyncIterator[Callable[[], float]]:
    """How long the event loop had no turn in that time, though it wanted one (s): the machine's part in being late."""
    clock = asyncio.get_running_loop().time
    lost_s = 0.0
    woken_s = clock()

    async def watch() -> None:
        nonlocal lost_s, woken_s
        while True:
            await asyncio.sleep(0.01)
            now_s = clock()
            lost_s += max(0.0, now_s - woken_s - 0.01)
            woken_s = now_s

    watching = asyncio.create_task(watch())
    try:
        yield lambda: lost_s + max(0.0, clock() - woken_s - 0.01)
    finally:
        watching.cancel()
        lost_s += max(0.0, clock() - woken_s - 0.01)
        woken_s = float("inf")


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing: the time that a wait would take passes at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the test waits for something that never comes")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers fire in order without waiting. For code that uses neither sockets nor threads."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` on a loop of its own whose seconds take no time."""
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()
