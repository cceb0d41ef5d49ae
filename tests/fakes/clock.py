"""What a busy machine adds to the time that things take, measured while they take it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def standing_still() -> AsyncIterator[Callable[[], float]]:
    """How long the event loop had no turn in that time, though it wanted one (s): the machine's part in being late."""
    clock = asyncio.get_running_loop().time
    lost_s, woken_s = 0.0, clock()

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
