from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tts_worker.engine.schedule import (
    FIRST_AUDIO_FLOOR_SAMPLES,
    FIRST_AUDIO_TARGET_SAMPLES,
    UNPACED_LEAD_SAMPLES,
    UNPACED_SHARE,
    Job,
    Scheduler,
    by_urgency,
    slack_samples,
)
from tts_worker.types import SAMPLE_RATE_HZ, UtteranceKey, unpaced_share

keys = st.builds(UtteranceKey, st.sampled_from("abcd"), st.integers(1, 50))
jobs = st.lists(
    st.builds(Job, keys, st.integers(-500, 200_000), st.integers(0, 10**7), st.booleans(), st.booleans()),
    unique_by=lambda job: job.key,
    max_size=20,
)


def job(name: str, lead: int = 0, since_us: int = 0, started: bool = True, paced: bool = True) -> Job:
    return Job(UtteranceKey(name, 1), lead, since_us, started, paced)


def pick(pool: Sequence[Job], now_us: int) -> Job | None:
    return Scheduler().pick(pool, now_us)


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


def test_an_unpaced_stream_never_overtakes_a_paced_one() -> None:
    download = job("download", lead=0, since_us=0, paced=False)
    assert pick([download, job("call", 30_000, since_us=10**6)], 10**7) == job("call", 30_000, since_us=10**6)
    assert pick([download, job("call", since_us=10**6, started=False)], 10**7) != download


def test_unpaced_streams_far_ahead_take_turns() -> None:
    far, near = UNPACED_LEAD_SAMPLES * 9, UNPACED_LEAD_SAMPLES
    older = job("older", far, since_us=1, paced=False)
    assert pick([job("newer", near, since_us=2, paced=False), older], 10) == older


def test_a_first_unpaced_chunk_goes_before_streams_ahead() -> None:
    new = job("new", since_us=9, started=False, paced=False)
    assert pick([job("ahead", 1, since_us=1, paced=False), new], 10) == new


def test_first_chunks_come_in_the_order_of_arrival() -> None:
    for paced in (True, False):
        pool = [job(name, since_us=since, started=False, paced=paced) for name, since in (("b", 2), ("a", 3), ("c", 1))]
        assert [each.key.session for each in by_urgency(pool, 10**7)] == ["c", "b", "a"]


def test_a_share_is_kept_for_unpaced_streams() -> None:
    scheduler, step_us = Scheduler(), 10_000
    pool = [job("call", 0), job("download", 0, paced=False)]
    served = [scheduler.pick(pool, step * step_us) for step in range(2_000)]
    settled = served[len(served) // 2 :]  # the first step of a download is awaited as if it were a long one
    share = sum(each is not None and not each.paced for each in settled) / len(settled)
    assert abs(share - UNPACED_SHARE) < 0.25 * UNPACED_SHARE


def test_idle_time_is_no_step() -> None:
    scheduler = Scheduler()
    scheduler.pick([job("download", paced=False)], 0)
    later_us = 10**10
    pool = [job("call", 0), job("download", 0, paced=False)]
    served = [scheduler.pick(pool, later_us + step * 10_000) for step in range(1_000)]
    assert any(each is not None and not each.paced for each in served)


@given(st.integers(1, 10_000))
def test_a_quarter_of_the_slots_is_for_paced_streams(slots: int) -> None:
    assert 1 <= unpaced_share(slots) <= max(1, 3 * slots / 4)


@given(jobs, st.integers(0, 10**8))
def test_the_choice_does_not_depend_on_the_order(pool: list[Job], now_us: int) -> None:
    chosen = pick(pool, now_us)
    assert chosen == pick(list(reversed(pool)), now_us)
    if chosen is not None:
        same_class = [other for other in pool if other.paced is chosen.paced]
        assert chosen.paced or len(same_class) == len(pool)
        assert all(slack_samples(chosen, now_us) <= slack_samples(other, now_us) for other in same_class)
        assert by_urgency(pool, now_us)[0] == chosen


@given(jobs, st.integers(0, 10**8))
def test_urgency_orders_every_job_once(pool: list[Job], now_us: int) -> None:
    ordered = by_urgency(pool, now_us)
    assert sorted(ordered, key=lambda j: j.key) == sorted(pool, key=lambda j: j.key)
    ranks = [(not j.paced, slack_samples(j, now_us)) for j in ordered]
    assert ranks == sorted(ranks)
