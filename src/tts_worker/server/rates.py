"""Rate limits for messages and log lines."""

from __future__ import annotations

import logging
import time

from tts_worker.errors import RateLimited


class TokenBucket:
    """Allows ``rate_per_s`` tokens on average and ``burst`` at once. Times are seconds of one monotonic clock."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._tokens = burst
        self._updated_s: float | None = None

    def take(self, now_s: float, tokens: float = 1.0) -> bool:
        """Take tokens if enough are available; returns whether they were."""
        if self._updated_s is not None:
            self._tokens = min(self._burst, self._tokens + (now_s - self._updated_s) * self._rate_per_s)
        self._updated_s = now_s
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        return True


class MessageRate:
    """Limits the messages of one connection: a rate on average, five seconds' worth at once.

    A long message counts once for each KiB.
    """

    def __init__(self, max_messages_per_s: float) -> None:
        self._max_per_s = max_messages_per_s
        self._bucket = TokenBucket(max_messages_per_s, 5 * max_messages_per_s)

    def count(self, chars: int, now_s: float) -> None:
        """Count a received message.

        Raises:
            RateLimited: The connection has exceeded its rate.
        """
        # A single message never exceeds the rate: its size is bounded elsewhere.
        tokens = min(1 + chars // 1_024, 2 * self._max_per_s)
        if not self._bucket.take(now_s, tokens):
            raise RateLimited(f"more than {self._max_per_s:g} messages (or KiB) a second")


class ThrottledLog:
    """Logs at most one warning per ``interval_s`` and reports how many were suppressed since."""

    def __init__(self, logger: logging.Logger, *, interval_s: float) -> None:
        self._logger = logger
        self._interval_s = interval_s
        self._next_s = 0.0
        self._suppressed = 0

    def warning(self, message: str, *values: object, extra: dict[str, object] | None = None) -> None:
        """Log a warning unless one was logged within the interval."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            self._suppressed += 1
            return
        self._next_s = now_s + self._interval_s
        suffix = f" ({self._suppressed} more since the last such line)" if self._suppressed else ""
        self._suppressed = 0
        self._logger.warning(message + suffix, *values, extra=extra, stacklevel=2)
