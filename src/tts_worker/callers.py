"""The caller of the current request: name and scopes of its API key, and its transport.

Transports set it for the task that serves a request (``acting_as``); the hub, the metrics and the audit log read it
(``current_caller``). It never contains the key itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum

from tts_worker.errors import Forbidden


class ApiScope(str, Enum):
    """Permissions of an API key. A key without scopes may only read voices, models and metrics."""

    SPEAK = "speak"
    ENROLL = "enroll"
    ADMIN = "admin"


ALL_SCOPES = frozenset(ApiScope)


class MinuteQuota:
    """A token bucket: ``per_minute`` units at most, refilled evenly. Sans-IO: times are of one monotonic clock."""

    def __init__(self, per_minute: float, now_s: float) -> None:
        self.per_minute = per_minute
        self._capacity = max(1.0, per_minute)
        self._units = self._capacity
        self._updated_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return 0 if a unit is available, else the seconds until one is."""
        self._refill(now_s)
        return max(0.0, (1 - self._units) * 60 / self.per_minute)

    def set_level(self, units: float, now_s: float) -> None:
        """Set the units that are left; negative units are a debt."""
        self._units = units
        self._updated_s = now_s

    def charge(self, units: float, now_s: float) -> None:
        """Take units. More than are available are a debt, which the next request waits for."""
        self._refill(now_s)
        self._units -= units

    def _refill(self, now_s: float) -> None:
        self._units = min(self._capacity, self._units + (now_s - self._updated_s) * self.per_minute / 60)
        self._updated_s = now_s


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated caller.

    Attributes:
        key: Name of the API key; None if the worker requires none.
        scopes: Permissions of the key.
        max_sessions: Sessions that may be open with this key at the same time; None for no limit.
        max_voices: Voices that may be stored with this key; None for no limit.
        max_recording_bytes: Size of a recording of a voice; None for the worker's limit.
        transport: Name of the transport.
        characters_per_minute: Text that the key may have spoken; None for no limit.
        source_seconds_per_minute: Source audio that the key may have converted; None for no limit.
        token: Id of the token that the caller holds instead of the key; None for the key itself.
        token_sessions: Sessions that may be open with this token at the same time; None for no further limit.
    """

    key: str | None = None
    scopes: frozenset[ApiScope] = ALL_SCOPES
    max_sessions: int | None = None
    transport: str = "local"
    max_voices: int | None = None
    max_recording_bytes: int | None = None
    characters_per_minute: float | None = None
    source_seconds_per_minute: float | None = None
    token: str | None = None
    token_sessions: int | None = None

    def holding(self, token: str, scopes: frozenset[ApiScope], sessions: int | None) -> Caller:
        """Return the caller that holds a token of this key: what both allow."""
        return replace(self, token=token, scopes=self.scopes & scopes, token_sessions=sessions)

    def require(self, scope: ApiScope) -> None:
        """Check a permission; raises Forbidden."""
        if scope not in self.scopes:
            raise Forbidden(f'the API key "{self.key}" lacks the scope "{scope.value}"')


_CURRENT: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039  (frozen)


def current_caller() -> Caller:
    """The caller served by the running task; outside of requests, one with all scopes."""
    return _CURRENT.get()


def set_caller(caller: Caller) -> None:
    """Set the caller for the rest of the running task."""
    _CURRENT.set(caller)


@contextmanager
def acting_as(caller: Caller) -> Iterator[None]:
    """Set the caller inside the block."""
    token = _CURRENT.set(caller)
    try:
        yield
    finally:
        _CURRENT.reset(token)
