"""The search for the highest load: what it returns was confirmed, and nothing far above it passes."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tts_worker.features.bench.search import Trial, highest_load


def search(first: int, most: int, passes: Callable[[Trial], bool]) -> tuple[int, list[tuple[Trial, bool]]]:
    """Run a search and return its result and its trials."""
    tried: list[tuple[Trial, bool]] = []
    steps = highest_load(first, most)
    try:
        trial = next(steps)
        while True:
            tried.append((trial, passes(trial)))
            trial = steps.send(tried[-1][1])
    except StopIteration as end:
        return end.value, tried


@given(limit=st.integers(0, 5_000), first=st.integers(1, 64), most=st.integers(1, 2_000))
def test_search_finds_a_fixed_limit_within_a_twentieth(limit: int, first: int, most: int) -> None:
    found, tried = search(first, most, lambda trial: trial.load <= limit)
    best = min(limit, most)
    assert found <= best <= max(found + 1, 1.05 * found + 1)
    assert len(tried) < 25
    assert all(1 <= trial.load <= most for trial, _ in tried)


@given(answers=st.lists(st.booleans(), max_size=60), first=st.integers(1, 64), most=st.integers(1, 2_000))
def test_result_of_varying_trials_was_confirmed(answers: list[bool], first: int, most: int) -> None:
    replies = iter(answers)
    found, tried = search(first, most, lambda _: next(replies, False))
    assert found == 0 or tried[-1] == (Trial(found, confirms=True), True)
    assert found <= most


def test_load_that_is_not_confirmed_is_reduced() -> None:
    found, tried = search(8, 64, lambda trial: trial.load <= (40 if trial.confirms else 50))
    assert [trial.load for trial, _ in tried] == [8, 16, 32, 64, 48, 56, 52, 50, 50, 45, 40]
    assert found == 40
