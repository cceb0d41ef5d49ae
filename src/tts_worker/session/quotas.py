"""Quotas of API keys: requests, characters and source audio per minute, open sessions.

``Quotas`` counts for one worker; ``features.fleet.quotas`` derives the quotas that the workers of a fleet share.
``CallerQuotas`` applies them to callers, of which many have no key or no limits.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from tts_worker.callers import Caller, MinuteQuota
from tts_worker.errors import QuotaExceeded


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


class CallerQuotas:
    """The quotas of callers, by their API keys. A caller without a key, or without that limit, may do everything.

    Args:
        quotas: The quotas of keys.
    """

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    async def refresh_source(self, caller: Caller) -> None:
        """Learn what other workers have charged to the caller, before a voice conversion opens."""
        if caller.key is not None and caller.source_seconds_per_minute is not None:
            await self._quotas.refresh_source(caller.key, caller.source_seconds_per_minute)

    def character_refusal(self, caller: Caller) -> QuotaExceeded | None:
        """Return the error if the caller may not begin an utterance now."""
        if caller.key is None or caller.characters_per_minute is None:
            return None
        wait_s = self._quotas.character_wait_s(caller.key, caller.characters_per_minute)
        return _exceeded(caller.key, "characters", wait_s) if wait_s else None

    def source_refusal(self, caller: Caller) -> QuotaExceeded | None:
        """Return the error if the caller may not begin a voice conversion now."""
        if caller.key is None or caller.source_seconds_per_minute is None:
            return None
        wait_s = self._quotas.source_wait_s(caller.key, caller.source_seconds_per_minute)
        return _exceeded(caller.key, "source audio", wait_s) if wait_s else None

    def charge_characters(self, caller: Caller, chars: int) -> None:
        """Charge accepted text to the caller."""
        if caller.key is not None and caller.characters_per_minute is not None:
            self._quotas.charge_characters(caller.key, caller.characters_per_minute, chars)

    def charge_source(self, caller: Caller, seconds: float) -> None:
        """Charge source audio of a conversion to the caller."""
        if caller.key is not None and caller.source_seconds_per_minute is not None:
            self._quotas.charge_source(caller.key, caller.source_seconds_per_minute, seconds)

    async def reserve_session(self, caller: Caller, *, replaces: bool) -> str | None:
        """Reserve a session, and learn what other workers have charged to the caller.

        Args:
            caller: The caller.
            replaces: Whether the session takes the place of one that is counted.

        Returns:
            The lease of the session; None for a caller without a limit of sessions.

        Raises:
            QuotaExceeded: All of its sessions are open.
        """
        if caller.key is None:
            return None
        if caller.characters_per_minute is not None:
            await self._quotas.refresh_characters(caller.key, caller.characters_per_minute)
        if caller.max_sessions is None:
            return None
        lease = secrets.token_hex(8)
        try:
            if not await self._quotas.reserve_session(caller.key, lease, caller.max_sessions + replaces):
                raise sessions_exceeded(caller)
        except BaseException:  # also when the client disconnects
            self.release_session(caller, lease)
            raise
        return lease

    def hold_session(self, caller: Caller, lease: str) -> str | None:
        """Count an open session that was not reserved. Returns its lease, as ``reserve_session``."""
        if caller.key is None or caller.max_sessions is None:
            return None
        self._quotas.hold_session(caller.key, lease)
        return lease

    def release_session(self, caller: Caller, lease: str | None) -> None:
        """End a reservation. An unknown one is ignored."""
        if caller.key is not None and lease is not None:
            self._quotas.release_session(caller.key, lease)


def _exceeded(key: str, units: str, wait_s: float) -> QuotaExceeded:
    return QuotaExceeded(f'the API key "{key}" has exceeded its {units} per minute', retry_after_s=round(wait_s + 0.5))


def sessions_exceeded(caller: Caller) -> QuotaExceeded:
    """Return the error of a caller that has all of its sessions open."""
    return QuotaExceeded(
        f'the API key "{caller.key}" has all of its {caller.max_sessions} sessions open', retry_after_s=1.0
    )
