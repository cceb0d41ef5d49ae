"""Whose text is read next: one portion per turn of the event loop, over all sessions.

A portion takes some milliseconds. If every session with a long text read one in the same turn, six downloads that begin
together would hold up every frame of a call for longer than its listener can bridge. Knows no text and no session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class ReadingTurns:
    """Calls what was added, one per turn of the event loop, in order; sessions of calls and of downloads alternate."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._paced: deque[Callable[[], None]] = deque()
        self._unpaced: deque[Callable[[], None]] = deque()
        self._paced_next = True
        self._scheduled = False

    def add(self, read: Callable[[], None], *, paced: bool) -> None:
        """Call ``read`` once, soon. It may add itself again."""
        (self._paced if paced else self._unpaced).append(read)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        paced = bool(self._paced) and (self._paced_next or not self._unpaced)
        self._paced_next = not paced
        read = (self._paced if paced else self._unpaced).popleft()
        if self._paced or self._unpaced:
            self._loop.call_soon(self._take_turn)
        else:
            self._scheduled = False
        read()
