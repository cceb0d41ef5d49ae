"""How long a worker may owe sound. Knows a clock and two questions; not sessions, not what is said when time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class SoundDeadline:
    """Calls ``expired`` once ``owed()`` was true for ``timeout_s`` seconds without ``touch``. Belongs to one event
    loop. Cheap to touch: a touch only moves a time stamp, the timer looks at it when it fires."""

    def __init__(self, timeout_s: float, owed: Callable[[], bool], expired: Callable[[], None]) -> None:
        self.timeout_s = timeout_s
        self._owed = owed
        self._expired = expired
        self._loop = asyncio.get_running_loop()
        self._touched_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def touch(self) -> None:
        """Something came, or begins to be owed."""
        self._touched_at_s = self._loop.time()
        if self._timer is None and self._owed():
            self._timer = self._loop.call_later(self.timeout_s, self._on_timer)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if not self._owed():
            return
        left_s = self._touched_at_s + self.timeout_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._on_timer)
        else:
            self._expired()
