"""Rates: how often something may happen, and how often it is logged."""

from __future__ import annotations

import logging
import time

from tts_worker.errors import RateLimited


class TokenBucket:
    """``rate_per_s`` on average, ``burst`` at once. Times are seconds of one monotonic clock."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._tokens = burst
        self._at_s: float | None = None

    def take(self, now_s: float, tokens: float = 1.0) -> bool:
        """Whether it may happen now; if so, it is counted."""
        if self._at_s is not None:
            self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        return True


class MessageRate:
    """How much one connection may say: so many messages a second on average, five seconds' worth at once.

    A long message counts once for each KiB.
    """

    def __init__(self, max_messages_per_s: float) -> None:
        self._max_per_s = max_messages_per_s
        self._bucket = TokenBucket(max_messages_per_s, 5 * max_messages_per_s)

    def count(self, chars: int, now_s: float) -> None:
        """A message arrived. Raises RateLimited if it is one too many."""
        # A single message is never too much: its size has a bound of its own.
        tokens = min(1 + chars // 1_024, 2 * self._max_per_s)
        if not self._bucket.take(now_s, tokens):
            raise RateLimited(f"more than {self._max_per_s:g} messages (or KiB) a second")


class OccasionalLog:
    """Logs at most once in ``every_s``, and says how many times it kept silent since."""

    def __init__(self, logger: logging.Logger, *, every_s: float) -> None:
        self._logger = logger
        self._every_s = every_s
        self._next_s = 0.0
        self._silent = 0

    def warning(self, message: str, *values: object, extra: dict[str, object] | None = None) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            self._silent += 1
            return
        self._next_s = now_s + self._every_s
        more = f" ({self._silent} more since the last such line)" if self._silent else ""
        self._silent = 0
        self._logger.warning(message + more, *values, extra=extra, stacklevel=2)
