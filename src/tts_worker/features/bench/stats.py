"""Percentiles, garbage collection, and output of results."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter

Figure = float | int | str | None
Track = Callable[[range], Iterable[int]]
"""Yields the steps of a measurement, and may show how many are done."""


def untracked(steps: range) -> Iterable[int]:
    return steps


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the linearly interpolated percentile, or None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def rounded_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the listeners of a measurement from pausing: all calls would seem to have an underrun at once.

    A collection of everything takes 40 to 70 ms with the package imported, and a minute of calls leaves little.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class LoopLag:
    """Measures how late the event loop runs timers, every few milliseconds while the context is open."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopLag:
        self._task = asyncio.create_task(self._measure())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _measure(self) -> None:
        interval_s = 0.005
        while True:
            due_s = perf_counter() + interval_s
            await asyncio.sleep(interval_s)
            self.lags_s.append(max(0.0, perf_counter() - due_s))


def show(figures: Mapping[str, Figure], as_json: bool) -> None:
    """Print one JSON object or a table."""
    if as_json:
        print(json.dumps(figures))
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"  {name:{width}}  {'-' if value is None else value}")
