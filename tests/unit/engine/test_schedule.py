from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tts_worker.engine.scheduler import (
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


def test_pick_without_jobs_is_none() -> None:
    assert pick([], 0) is None


def test_stream_closest_to_underrun_goes_first() -> None:
    assert pick([job("ahead", 9_000), job("behind", 700), job("middle", 4_000)], 0) == job("behind", 700)


def test_first_chunk_precedes_streams_with_enough_lead() -> None:
    new = job("new", since_us=0, started=False)
    assert pick([job("ahead", FIRST_AUDIO_TARGET_SAMPLES + 1), new], 0) == new


def test_stream_near_underrun_precedes_a_first_chunk() -> None:
    behind = job("behind", FIRST_AUDIO_FLOOR_SAMPLES - 1)
    assert pick([job("new", since_us=0, started=False), behind], 10**9) == behind


def test_slack_of_a_first_chunk_falls_while_it_waits() -> None:
    new = job("new", since_us=0, started=False)
    assert slack_samples(new, 50_000) == FIRST_AUDIO_TARGET_SAMPLES - SAMPLE_RATE_HZ // 20
    assert slack_samples(new, 10**9) == FIRST_AUDIO_FLOOR_SAMPLES


def test_paced_stream_precedes_unpaced_stream() -> None:
    download = job("download", lead=0, since_us=0, paced=False)
    assert pick([download, job("call", 30_000, since_us=10**6)], 10**7) == job("call", 30_000, since_us=10**6)
    assert pick([download, job("call", since_us=10**6, started=False)], 10**7) != download


def test_unpaced_streams_beyond_max_lead_take_turns() -> None:
    far = UNPACED_LEAD_SAMPLES * 9
    near = UNPACED_LEAD_SAMPLES
    older = job("older", far, since_us=1, paced=False)
    assert pick([job("newer", near, since_us=2, paced=False), older], 10) == older


def test_first_unpaced_chunk_precedes_streams_with_lead() -> None:
    new = job("new", since_us=9, started=False, paced=False)
    assert pick([job("ahead", 1, since_us=1, paced=False), new], 10) == new


def test_first_chunks_are_served_in_order_of_arrival() -> None:
    for paced in (True, False):
        pool = [job(name, since_us=since, started=False, paced=paced) for name, since in (("b", 2), ("a", 3), ("c", 1))]
        assert [each.key.session for each in by_urgency(pool, 10**7)] == ["c", "b", "a"]


def test_unpaced_streams_get_their_share_of_steps() -> None:
    scheduler = Scheduler()
    step_us = 10_000
    pool = [job("call", 0), job("download", 0, paced=False)]
    served = [scheduler.pick(pool, step * step_us) for step in range(2_000)]
    steady = served[len(served) // 2 :]  # the time of the first unpaced step is an assumption
    share = sum(each is not None and not each.paced for each in steady) / len(steady)
    assert abs(share - UNPACED_SHARE) < 0.25 * UNPACED_SHARE


def test_idle_time_is_not_charged_as_a_step() -> None:
    scheduler = Scheduler()
    scheduler.pick([job("download", paced=False)], 0)
    later_us = 10**10
    pool = [job("call", 0), job("download", 0, paced=False)]
    served = [scheduler.pick(pool, later_us + step * 10_000) for step in range(1_000)]
    assert any(each is not None and not each.paced for each in served)


@given(st.integers(1, 10_000))
def test_a_quarter_of_slots_is_reserved_for_paced_streams(slots: int) -> None:
    assert 1 <= unpaced_share(slots) <= max(1, 3 * slots / 4)


@given(jobs, st.integers(0, 10**8))
def test_pick_is_independent_of_job_order(pool: list[Job], now_us: int) -> None:
    picked = pick(pool, now_us)
    assert picked == pick(list(reversed(pool)), now_us)
    if picked is not None:
        same_class = [other for other in pool if other.paced is picked.paced]
        assert picked.paced or len(same_class) == len(pool)
        assert all(slack_samples(picked, now_us) <= slack_samples(other, now_us) for other in same_class)
        assert by_urgency(pool, now_us)[0] == picked


@given(jobs, st.integers(0, 10**8))
def test_by_urgency_sorts_every_job_once(pool: list[Job], now_us: int) -> None:
    ordered = by_urgency(pool, now_us)
    assert sorted(ordered, key=lambda j: j.key) == sorted(pool, key=lambda j: j.key)
    ranks = [(not j.paced, slack_samples(j, now_us)) for j in ordered]
    assert ranks == sorted(ranks)
