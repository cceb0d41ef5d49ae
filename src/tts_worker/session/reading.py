"""Bounds the time that reading text takes in one iteration of the event loop, over all sessions.

Text takes some microseconds per character. If every session with a long text read a portion in the same iteration, six
downloads that begin together would delay the frames of a call by more than its playout lead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

MAX_READ_S = 0.0005
"""Time for text in one iteration: as long for sessions that got text in it as for sessions that wait."""

TURN_PORTIONS = 16
"""Portions that a session reads before the next one, so that none waits for the whole text of another.

More than a first segment of ``first_max_chars``: calls that begin together reach the engine in order of arrival.
"""


@dataclass(slots=True)
class _Turn:
    """The turn of a waiting session."""

    read: Callable[[], None]
    portions_left: int = TURN_PORTIONS


class ReadScheduler:
    """Divides the reading of text over iterations of the event loop.

    A session reads at once while the iteration has time for it. The rest waits in order of arrival, calls and downloads
    alternating. A turn that the end of the time interrupts continues in a later iteration; after ``TURN_PORTIONS`` the
    session waits behind the others.

    Args:
        loop: The event loop.
        clock: Monotonic time in seconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = perf_counter) -> None:
        self._loop = loop
        self._clock = clock
        self._paced: deque[_Turn] = deque()
        self._unpaced: deque[_Turn] = deque()
        self._paced_next = True
        self._scheduled = False
        self._ends_at_s: float | None = None  # end of the time for new text; None: none was read in this iteration
        self._turn: _Turn | None = None  # of the waiting session that reads now
        self._waiting_ends_at_s = 0.0  # end of its time

    def may_read(self, *, paced: bool) -> bool:
        """Return whether a session may read a portion of text now; otherwise it must ``add`` its reading."""
        if (turn := self._turn) is not None:
            if turn.portions_left == 0 or self._clock() >= self._waiting_ends_at_s:
                return False
            turn.portions_left -= 1
            return True
        if self._paced if paced else self._unpaced:
            return False  # others of its class have waited longer
        if self._ends_at_s is None:
            self._ends_at_s = self._clock() + MAX_READ_S
            self._loop.call_soon(self._begin_iteration)
            return True
        return self._clock() < self._ends_at_s

    def add(self, read: Callable[[], None], *, paced: bool) -> None:
        """Schedule one call of ``read`` in a later iteration. It reads while it may, and may add itself again."""
        waiting = self._paced if paced else self._unpaced
        turn = self._turn
        if turn is not None and turn.read == read and turn.portions_left:
            waiting.appendleft(turn)
        else:
            waiting.append(_Turn(read))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run_waiting)

    def _begin_iteration(self) -> None:
        self._ends_at_s = None

    def _run_waiting(self) -> None:
        """Let sessions read in turn until the time of this iteration is over."""
        self._waiting_ends_at_s = self._clock() + MAX_READ_S
        try:
            while (self._paced or self._unpaced) and self._clock() < self._waiting_ends_at_s:
                self._turn = self._take()
                self._turn.read()
        finally:
            self._turn = None
            self._scheduled = bool(self._paced or self._unpaced)
            if self._scheduled:
                self._loop.call_soon(self._run_waiting)

    def _take(self) -> _Turn:
        paced = bool(self._paced) and (self._paced_next or not self._unpaced)
        self._paced_next = not paced
        return (self._paced if paced else self._unpaced).popleft()
