"""Quotas of API keys: requests, characters and source audio per minute, open sessions.

``Quotas`` counts for one worker; ``features.fleet.quotas`` derives the quotas that the workers of a fleet share.
``CallerQuotas`` applies them to callers, of which many have no key or no limits.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from enum import Enum

from tts_worker.callers import Caller, MinuteQuota
from tts_worker.errors import QuotaExceeded


class Metered(str, Enum):
    """What the API keys may use so much of per minute."""

    REQUESTS = "requests"
    CHARACTERS = "characters"
    SOURCE = "source"  # seconds of source audio of voice conversions


class Quotas:
    """The quotas of one worker, in memory. All methods run on one event loop.

    Args:
        clock: Monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[Metered, str], MinuteQuota] = {}  # by API key

    async def take_request(self, key: str, per_minute: float) -> float:
        """Count a request of a key if it may be made now; return 0, else the seconds until it may."""
        if (wait_s := self.wait_s(Metered.REQUESTS, key, per_minute)) == 0:
            self.charge(Metered.REQUESTS, key, per_minute, 1)
        return wait_s

    async def refresh(self, kind: Metered, key: str, per_minute: float) -> None:
        """Learn what other workers have charged to a key, before a session opens. Never raises."""

    def wait_s(self, kind: Metered, key: str, per_minute: float) -> float:
        """Return 0 if a key may begin to use more, else the seconds until it may."""
        return self._bucket(kind, key, per_minute).wait_s(self._clock())

    def charge(self, kind: Metered, key: str, per_minute: float, units: float) -> None:
        """Charge accepted text, or source audio, to a key."""
        self._bucket(kind, key, per_minute).charge(units, self._clock())

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

    def _bucket(self, kind: Metered, key: str, per_minute: float) -> MinuteQuota:
        bucket = self._buckets.get((kind, key))
        if bucket is None or bucket.per_minute != per_minute:
            bucket = self._buckets[kind, key] = MinuteQuota(per_minute, self._clock())
        return bucket


class CallerQuotas:
    """The quotas of callers, by their API keys. A caller without a key, or without that limit, may do everything.

    Args:
        quotas: The quotas of keys.
    """

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    async def refresh(self, kind: Metered, caller: Caller) -> None:
        """Learn what other workers have charged to the caller."""
        if (limit := _limit(kind, caller)) is not None:
            await self._quotas.refresh(kind, *limit)

    def refusal(self, kind: Metered, caller: Caller) -> QuotaExceeded | None:
        """Return the error if the caller may not begin an utterance, or a conversion, now."""
        if (limit := _limit(kind, caller)) is None or not (wait_s := self._quotas.wait_s(kind, *limit)):
            return None
        units = "source audio" if kind is Metered.SOURCE else kind.value
        message = f'the API key "{caller.key}" has exceeded its {units} per minute'
        return QuotaExceeded(message, retry_after_s=round(wait_s + 0.5))

    def charge(self, kind: Metered, caller: Caller, units: float) -> None:
        """Charge accepted text, or source audio, to the caller."""
        if (limit := _limit(kind, caller)) is not None:
            self._quotas.charge(kind, *limit, units)

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
        await self.refresh(Metered.CHARACTERS, caller)
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


def _limit(kind: Metered, caller: Caller) -> tuple[str, float] | None:
    """Return the caller's key and what it may use per minute; None without such a limit."""
    per_minute = caller.source_seconds_per_minute if kind is Metered.SOURCE else caller.characters_per_minute
    return None if caller.key is None or per_minute is None else (caller.key, per_minute)


def sessions_exceeded(caller: Caller) -> QuotaExceeded:
    """Return the error of a caller that has all of its sessions open."""
    return QuotaExceeded(
        f'the API key "{caller.key}" has all of its {caller.max_sessions} sessions open', retry_after_s=1.0
    )
