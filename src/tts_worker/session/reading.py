"""Schedules the reading of long texts: one portion per iteration of the event loop, over all sessions.

A portion takes some milliseconds. If every session with a long text read one in the same iteration, six downloads that
begin together would delay the frames of a call by more than its playout lead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class ReadScheduler:
    """Runs one read per iteration of the event loop, in order, alternating between paced and unpaced sessions."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._paced: deque[Callable[[], None]] = deque()
        self._unpaced: deque[Callable[[], None]] = deque()
        self._paced_next = True
        self._scheduled = False

    def add(self, read: Callable[[], None], *, paced: bool) -> None:
        """Schedule one call of ``read``, which may add itself again."""
        (self._paced if paced else self._unpaced).append(read)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run_next)

    def _run_next(self) -> None:
        paced = bool(self._paced) and (self._paced_next or not self._unpaced)
        self._paced_next = not paced
        read = (self._paced if paced else self._unpaced).popleft()
        if self._paced or self._unpaced:
            self._loop.call_soon(self._run_next)
        else:
            self._scheduled = False
        read()
