"""What the API keys have used of this worker, by day: for billing, and to find the key behind a load. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone

MAX_DAYS = 62
"""Days that are kept; the oldest are forgotten."""


@dataclass(slots=True)
class DayUsage:
    """What one key has used on one day.

    Attributes:
        sessions: Sessions that were opened.
        characters: Accepted text, as the quotas count it.
        audio_s: Audio that was sent, in seconds; counted when an utterance ends.
        source_s: Source audio of conversions, in seconds.
    """

    sessions: int = 0
    characters: int = 0
    audio_s: float = 0.0
    source_s: float = 0.0


def _today() -> date:
    return datetime.now(timezone.utc).date()


class Usage:
    """Counts since the start of the worker. Days are those of UTC.

    Args:
        today: Returns the day.
    """

    def __init__(self, today: Callable[[], date] = _today) -> None:
        self._today = today
        self._days: dict[date, dict[str | None, DayUsage]] = {}

    def of(self, key: str | None) -> DayUsage:
        """Return what a key has used today, to be added to; None is a caller without a key."""
        today = self._today()
        if today not in self._days:
            self._days[today] = {}
            for old in list(self._days)[:-MAX_DAYS]:  # in the order of their use: a clock may go back
                del self._days[old]
        return self._days[today].setdefault(key, DayUsage())

    def __iter__(self) -> Iterator[tuple[date, str | None, DayUsage]]:
        """Yield day, key and usage, the oldest day first."""
        for day in sorted(self._days):
            for key, used in self._days[day].items():
                yield day, key, used
