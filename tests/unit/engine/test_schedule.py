from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tts_worker.engine.schedule import (
    FIRST_AUDIO_FLOOR_SAMPLES,
    FIRST_AUDIO_TARGET_SAMPLES,
    Job,
    by_urgency,
    pick,
    slack_samples,
)
from tts_worker.types import SAMPLE_RATE_HZ, UtteranceKey

keys = st.builds(UtteranceKey, st.sampled_from("abcd"), st.integers(1, 50))
jobs = st.lists(
    st.builds(Job, keys, st.integers(-500, 50_000), st.integers(0, 10**7), st.booleans()),
    unique_by=lambda job: job.key,
    max_size=20,
)


def job(name: str, lead: int = 0, since_us: int = 0, started: bool = True) -> Job:
    return Job(UtteranceKey(name, 1), lead, since_us, started)


def test_nothing_to_do() -> None:
    assert pick([], 0) is None


def test_who_will_fall_silent_first_is_served_first() -> None:
    assert pick([job("rich", 9_000), job("poor", 700), job("middle", 4_000)], 0) == job("poor", 700)


def test_a_first_chunk_overtakes_streams_that_have_enough() -> None:
    new = job("new", since_us=0, started=False)
    assert pick([job("rich", FIRST_AUDIO_TARGET_SAMPLES + 1), new], 0) == new


def test_a_first_chunk_never_overtakes_a_stream_about_to_fall_silent() -> None:
    dry = job("dry", FIRST_AUDIO_FLOOR_SAMPLES - 1)
    assert pick([job("new", since_us=0, started=False), dry], 10**9) == dry


def test_a_first_chunk_becomes_more_urgent_while_it_waits() -> None:
    new = job("new", since_us=0, started=False)
    assert slack_samples(new, 50_000) == FIRST_AUDIO_TARGET_SAMPLES - SAMPLE_RATE_HZ // 20
    assert slack_samples(new, 10**9) == FIRST_AUDIO_FLOOR_SAMPLES


@given(jobs, st.integers(0, 10**8))
def test_the_choice_is_the_least_slack_and_does_not_depend_on_the_order(pool: list[Job], now_us: int) -> None:
    chosen = pick(pool, now_us)
    assert chosen == pick(list(reversed(pool)), now_us)
    if chosen is not None:
        assert all(slack_samples(chosen, now_us) <= slack_samples(other, now_us) for other in pool)
        assert by_urgency(pool, now_us)[0] == chosen


@given(jobs, st.integers(0, 10**8))
def test_urgency_orders_everybody_once(pool: list[Job], now_us: int) -> None:
    ordered = by_urgency(pool, now_us)
    assert sorted(ordered, key=lambda j: j.key) == sorted(pool, key=lambda j: j.key)
    slacks = [slack_samples(j, now_us) for j in ordered]
    assert slacks == sorted(slacks)
