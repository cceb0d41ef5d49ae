"""Usage of API keys by day."""

from __future__ import annotations

from datetime import date, timedelta

from tts_worker.session.usage import MAX_DAYS, Usage


def test_days_and_keys_are_counted_apart() -> None:
    today = date(2026, 11, 28)
    usage = Usage(lambda: today)
    usage.of("app").sessions += 1
    usage.of("app").characters += 5
    usage.of(None).sessions += 1
    today += timedelta(days=1)
    usage.of("app").characters += 7
    assert [(day.day, key, used.sessions, used.characters) for day, key, used in usage] == [
        (28, "app", 1, 5),
        (28, None, 1, 0),
        (29, "app", 0, 7),
    ]


def test_old_days_are_forgotten_also_when_the_clock_goes_back() -> None:
    today = date(2026, 1, 1)
    usage = Usage(lambda: today)
    for _ in range(2 * MAX_DAYS):
        usage.of("app").sessions += 1
        today += timedelta(days=1)
    today = date(2026, 1, 1)
    usage.of("app").sessions += 1
    assert len({day for day, _, _ in usage}) <= MAX_DAYS
