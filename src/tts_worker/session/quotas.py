"""Quotas of API keys: requests, characters and source audio per minute, open sessions.

``Quotas`` counts for one worker; ``registry.quotas`` derives the quotas that the workers of a fleet share.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tts_worker.callers import MinuteQuota


class Quotas:
    """The quotas of one worker, in memory. All methods run on one event loop.

    Args:
        clock: Monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: dict[str, MinuteQuota] = {}  # by API key
        self._characters: dict[str, MinuteQuota] = {}
        self._source_s: dict[str, MinuteQuota] = {}

    async def take_request(self, key: str, per_minute: float) -> float:
        """Count a request of a key if it may be made now; return 0, else the seconds until it may."""
        quota = self._bucket(self._requests, key, per_minute)
        now_s = self._clock()
        if (wait_s := quota.wait_s(now_s)) == 0:
            quota.charge(1, now_s)
        return wait_s

    async def refresh_characters(self, key: str, per_minute: float) -> None:
        """Learn what other workers have charged to a key, before a session opens. Never raises."""

    def character_wait_s(self, key: str, per_minute: float) -> float:
        """Return 0 if a key may begin an utterance, else the seconds until it may."""
        return self._bucket(self._characters, key, per_minute).wait_s(self._clock())

    def charge_characters(self, key: str, per_minute: float, chars: int) -> None:
        """Charge accepted text to a key."""
        self._bucket(self._characters, key, per_minute).charge(chars, self._clock())

    async def refresh_source(self, key: str, per_minute: float) -> None:
        """Learn what other workers have charged to a key, before a voice conversion opens. Never raises."""

    def source_wait_s(self, key: str, per_minute: float) -> float:
        """Return 0 if a key may begin a voice conversion, else the seconds until it may."""
        return self._bucket(self._source_s, key, per_minute).wait_s(self._clock())

    def charge_source(self, key: str, per_minute: float, seconds: float) -> None:
        """Charge source audio of a conversion to a key."""
        self._bucket(self._source_s, key, per_minute).charge(seconds, self._clock())

    async def reserve_session(self, key: str, lease: str, max_sessions: int) -> bool:
        """Return whether the other workers leave room for a session of a key. The hub counts those of this worker."""
        return True

    def hold_session(self, key: str, lease: str) -> None:
        """Count an open session that was not reserved."""

    def release_session(self, key: str, lease: str) -> None:
        """End a reservation. An unknown one is ignored."""

    async def run(self) -> None:
        """Exchange with other workers until cancelled."""

    async def aclose(self) -> None:
        """Release what is shared with other workers."""

    def _bucket(self, buckets: dict[str, MinuteQuota], key: str, per_minute: float) -> MinuteQuota:
        bucket = buckets.get(key)
        if bucket is None or bucket.per_minute != per_minute:
            bucket = buckets[key] = MinuteQuota(per_minute, self._clock())
        return bucket
