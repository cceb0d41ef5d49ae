"""The caller of the current request: its API key's name, what that key may do, and the transport it came by.

Transports set it for the task that serves a request (``acting_as``); the hub, the metrics and the audit log read it
(``current_caller``). It never holds the key itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum

from tts_worker.errors import Forbidden


class ApiScope(str, Enum):
    """What a key may do. A key without any may only read: voices, models, metrics."""

    SPEAK = "speak"
    ENROL = "enrol"
    ADMIN = "admin"


ALL_SCOPES = frozenset(ApiScope)


@dataclass(frozen=True, slots=True)
class Caller:
    """``key``: name of the API key, None where the worker has none. ``max_sessions``: sessions that may be open with
    this key at the same time."""

    key: str | None = None
    scopes: frozenset[ApiScope] = ALL_SCOPES
    max_sessions: int | None = None
    transport: str = "local"

    def require(self, scope: ApiScope) -> None:
        """Raises Forbidden."""
        if scope not in self.scopes:
            raise Forbidden(f'the API key "{self.key}" lacks the scope "{scope.value}"')


_CURRENT: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039  (frozen)


def current_caller() -> Caller:
    """The caller that the running task serves; in this process's own code, one that may do everything."""
    return _CURRENT.get()


def set_caller(caller: Caller) -> None:
    """For the rest of the running task."""
    _CURRENT.set(caller)


@contextmanager
def acting_as(caller: Caller) -> Iterator[None]:
    """For the block."""
    token = _CURRENT.set(caller)
    try:
        yield
    finally:
        _CURRENT.reset(token)
