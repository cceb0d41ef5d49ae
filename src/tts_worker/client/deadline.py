"""Timeout for audio that a worker should have sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class AudioDeadline:
    """Calls ``on_expired`` when ``is_due()`` holds and ``touch`` was not called for ``timeout_s`` seconds.

    Bound to the running event loop. ``touch`` is cheap: it only stores the time, which the timer checks when it fires.
    """

    def __init__(self, timeout_s: float, is_due: Callable[[], bool], on_expired: Callable[[], None]) -> None:
        self.timeout_s = timeout_s
        self._is_due = is_due
        self._on_expired = on_expired
        self._loop = asyncio.get_running_loop()
        self._touched_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def touch(self) -> None:
        """Restart the timeout: audio has arrived, or has just become due."""
        self._touched_at_s = self._loop.time()
        if self._timer is None and self._is_due():
            self._timer = self._loop.call_later(self.timeout_s, self._on_timer)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if not self._is_due():
            return
        remaining_s = self._touched_at_s + self.timeout_s - self._loop.time()
        if remaining_s > 0:
            self._timer = self._loop.call_later(remaining_s, self._on_timer)
        else:
            self._on_expired()
