"""One timer for the frames of all sessions of an event loop.

Every timer that fires wakes the event loop, which takes the interpreter lock from an engine thread and gives it back.
With a timer per session, 64 calls would do that 3,200 times per second. Here the frames of a tick are due together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil

TICK_S = 0.002
"""A frame is sent at the first tick after its time."""

TIMER_RESOLUTION_S = 0.001
"""Resolution of uvloop's timers, which may fire early by as much. What is due within it is due now."""


class FrameClock:
    """Calls readers at the ticks at which their frames are due.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._readers: dict[int, list[Callable[[], None]]] = {}  # by tick
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0

    @staticmethod
    def tick_at(due_s: float) -> int:
        """Return the tick at which a frame is sent that is due at ``due_s``, a time of the event loop."""
        return ceil(due_s / TICK_S - 1e-6)  # a time computed as a tick is that tick

    def call_at(self, tick: int, reader: Callable[[], None]) -> None:
        """Call ``reader``, which must not raise, at ``tick``; at once if it has passed."""
        readers = self._readers.get(tick)
        if readers is not None:
            readers.append(reader)
            return
        self._readers[tick] = [reader]
        if self._timer is None or tick < self._timer_tick:
            self._arm(tick)

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = tick
        self._timer = self._loop.call_at(tick * TICK_S, self._on_tick)

    def _on_tick(self) -> None:
        self._timer = None
        now_s = self._loop.time() + TIMER_RESOLUTION_S
        for tick in sorted(tick for tick in self._readers if tick * TICK_S <= now_s):
            for reader in self._readers.pop(tick):
                reader()
        if self._readers:
            self._arm(min(self._readers))
