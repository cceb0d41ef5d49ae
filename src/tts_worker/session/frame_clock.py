"""One timer for the frames of all sessions of an event loop.

Every timer that fires wakes the event loop, which takes the interpreter lock from an engine thread and gives it back.
With a timer per session, 64 calls would do that 3,200 times per second. Here the frames of a tick are due together, but
only a few sessions are woken per iteration of the loop: commands need not wait for the frames of all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import ceil

TICK_S = 0.002
"""A frame is sent at the first tick after its time."""

MAX_WOKEN_AT_ONCE = 16
"""Readers woken per iteration of the event loop: their frames take a millisecond or two."""

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
        self._due: deque[Callable[[], None]] = deque()  # woken in the next iterations
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0
        self._in_tick = False  # the timer is set when all readers have been called

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
        if not self._in_tick and (self._timer is None or tick < self._timer_tick):
            self._arm(tick)

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = tick
        self._timer = self._loop.call_at(tick * TICK_S, self._on_tick)

    def _on_tick(self) -> None:
        self._timer = None
        self._in_tick = True
        now_s = self._loop.time() + TIMER_RESOLUTION_S
        is_waking = bool(self._due)
        for tick in sorted(tick for tick in self._readers if tick * TICK_S <= now_s):
            self._due.extend(self._readers.pop(tick))
        if not is_waking:
            self._wake_due()
        self._in_tick = False
        if self._readers:
            self._arm(min(self._readers))

    def _wake_due(self) -> None:
        for _ in range(min(len(self._due), MAX_WOKEN_AT_ONCE)):
            self._due.popleft()()
        if self._due:
            self._loop.call_soon(self._wake_due)
