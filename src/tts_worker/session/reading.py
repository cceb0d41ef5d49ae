"""Bounds the time that reading text takes in one iteration of the event loop, over all sessions.

Text takes some microseconds per character. If every session with a long text read a portion in the same iteration, six
downloads that begin together would delay the frames of a call by more than its playout lead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

MAX_READ_S = 0.002
"""Time for text in one iteration: as long for sessions that got text in it as for sessions that wait."""


class ReadScheduler:
    """Divides the reading of text over iterations of the event loop.

    A session reads at once while the iteration has time for it. The rest waits in order of arrival, calls and downloads
    alternating.

    Args:
        loop: The event loop.
        clock: Monotonic time in seconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = perf_counter) -> None:
        self._loop = loop
        self._clock = clock
        self._paced: deque[Callable[[], None]] = deque()
        self._unpaced: deque[Callable[[], None]] = deque()
        self._paced_next = True
        self._scheduled = False
        self._ends_at_s: float | None = None  # end of the time for new text; None: none was read in this iteration
        self._waiting_ends_at_s: float | None = None  # end of the time for waiting sessions, while one of them reads

    def may_read(self, *, paced: bool) -> bool:
        """Return whether a session may read a few characters now; otherwise it must ``add`` its reading."""
        if self._waiting_ends_at_s is not None:
            return self._clock() < self._waiting_ends_at_s
        if self._paced if paced else self._unpaced:
            return False  # others of its class have waited longer
        if self._ends_at_s is None:
            self._ends_at_s = self._clock() + MAX_READ_S
            self._loop.call_soon(self._begin_iteration)
            return True
        return self._clock() < self._ends_at_s

    def add(self, read: Callable[[], None], *, paced: bool) -> None:
        """Schedule one call of ``read`` in a later iteration. It reads while it may, and may add itself again."""
        (self._paced if paced else self._unpaced).append(read)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run_waiting)

    def _begin_iteration(self) -> None:
        self._ends_at_s = None

    def _run_waiting(self) -> None:
        """Let sessions read in turn until the time of this iteration is over."""
        waiting = len(self._paced) + len(self._unpaced)  # not those that add themselves again
        self._waiting_ends_at_s = self._clock() + MAX_READ_S
        try:
            while waiting and self._clock() < self._waiting_ends_at_s:
                waiting -= 1
                self._take()()
        finally:
            self._waiting_ends_at_s = None
            self._scheduled = bool(self._paced or self._unpaced)
            if self._scheduled:
                self._loop.call_soon(self._run_waiting)

    def _take(self) -> Callable[[], None]:
        paced = bool(self._paced) and (self._paced_next or not self._unpaced)
        self._paced_next = not paced
        return (self._paced if paced else self._unpaced).popleft()
