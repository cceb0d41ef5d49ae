from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tts_worker.engine.scheduler import (
    FIRST_AUDIO_FLOOR_SAMPLES,
    FIRST_AUDIO_TARGET_SAMPLES,
    UNPACED_LEAD_SAMPLES,
    UNPACED_SHARE,
    Budgets,
    Candidate,
    Scheduler,
    by_urgency,
    slack_samples,
)
from tts_worker.types import SAMPLE_RATE_HZ, UtteranceKey, unpaced_share

keys = st.builds(UtteranceKey, st.sampled_from("abcd"), st.integers(1, 50))
candidates = st.lists(
    st.builds(
        lambda *values: Candidate(*values),
        keys,
        st.integers(-500, 200_000),
        st.integers(0, 10**7),
        st.booleans(),
        st.booleans(),
    ),
    unique_by=lambda candidate: candidate.key,
    max_size=20,
)


def candidate(name: str, lead: int = 0, since_us: int = 0, started: bool = True, paced: bool = True) -> Candidate:
    return Candidate(UtteranceKey(name, 1), lead, since_us, started, paced)


def pick(pool: Sequence[Candidate], now_us: int, scheduler: Scheduler | None = None) -> Candidate | None:
    """The candidate that a step of an engine with one stage serves."""
    batch = (scheduler or Scheduler()).schedule(pool, Budgets(), now_us).audio
    return None if batch is None else next(each for each in pool if each.key == batch.members[0])


def test_nothing_is_planned_without_candidates() -> None:
    assert pick([], 0) is None


def test_stream_closest_to_underrun_goes_first() -> None:
    assert pick([candidate("ahead", 9_000), candidate("behind", 700), candidate("middle", 4_000)], 0) == candidate(
        "behind", 700
    )


def test_first_chunk_precedes_streams_with_enough_lead() -> None:
    new = candidate("new", since_us=0, started=False)
    assert pick([candidate("ahead", FIRST_AUDIO_TARGET_SAMPLES + 1), new], 0) == new


def test_stream_near_underrun_precedes_a_first_chunk() -> None:
    behind = candidate("behind", FIRST_AUDIO_FLOOR_SAMPLES - 1)
    assert pick([candidate("new", since_us=0, started=False), behind], 10**9) == behind


def test_slack_of_a_first_chunk_falls_while_it_waits() -> None:
    new = candidate("new", since_us=0, started=False)
    assert slack_samples(new, 50_000) == FIRST_AUDIO_TARGET_SAMPLES - SAMPLE_RATE_HZ // 20
    assert slack_samples(new, 10**9) == FIRST_AUDIO_FLOOR_SAMPLES


def test_paced_stream_precedes_unpaced_stream() -> None:
    download = candidate("download", lead=0, since_us=0, paced=False)
    assert pick([download, candidate("call", 30_000, since_us=10**6)], 10**7) == candidate(
        "call", 30_000, since_us=10**6
    )
    assert pick([download, candidate("call", since_us=10**6, started=False)], 10**7) != download


def test_unpaced_streams_beyond_max_lead_take_turns() -> None:
    far = UNPACED_LEAD_SAMPLES * 9
    near = UNPACED_LEAD_SAMPLES
    older = candidate("older", far, since_us=1, paced=False)
    assert pick([candidate("newer", near, since_us=2, paced=False), older], 10) == older


def test_first_unpaced_chunk_precedes_streams_with_lead() -> None:
    new = candidate("new", since_us=9, started=False, paced=False)
    assert pick([candidate("ahead", 1, since_us=1, paced=False), new], 10) == new


def test_first_chunks_are_served_in_order_of_arrival() -> None:
    for paced in (True, False):
        pool = [
            candidate(name, since_us=since, started=False, paced=paced)
            for name, since in (("b", 2), ("a", 3), ("c", 1))
        ]
        assert [each.key.session for each in by_urgency(pool, 10**7)] == ["c", "b", "a"]


@given(candidates, st.integers(0, 10**7), st.randoms(use_true_random=False))
def test_utterances_of_one_step_are_served_in_order(pool: list[Candidate], since_us: int, rng: Random) -> None:
    """All that arrive in one step begin to wait at the same time; their keys are no order."""
    together = [each._replace(waiting_since_us=since_us, started=False, paced=True) for each in pool]
    rng.shuffle(together)
    assert by_urgency(together, 10**8) == together


def test_unpaced_streams_get_their_share_of_steps() -> None:
    scheduler = Scheduler()
    step_us = 10_000
    pool = [candidate("call", 0), candidate("download", 0, paced=False)]
    served = [pick(pool, step * step_us, scheduler) for step in range(2_000)]
    steady = served[len(served) // 2 :]  # the time of the first unpaced step is an assumption
    share = sum(each is not None and not each.paced for each in steady) / len(steady)
    assert abs(share - UNPACED_SHARE) < 0.25 * UNPACED_SHARE


def test_idle_time_is_not_charged_as_a_step() -> None:
    scheduler = Scheduler()
    pick([candidate("download", paced=False)], 0, scheduler)
    later_us = 10**10
    pool = [candidate("call", 0), candidate("download", 0, paced=False)]
    served = [pick(pool, later_us + step * 10_000, scheduler) for step in range(1_000)]
    assert any(each is not None and not each.paced for each in served)


@given(st.integers(1, 10_000))
def test_a_quarter_of_slots_is_reserved_for_paced_streams(slots: int) -> None:
    assert 1 <= unpaced_share(slots) <= max(1, 3 * slots / 4)


@given(candidates, st.integers(0, 10**8))
def test_plan_is_independent_of_candidate_order(pool: list[Candidate], now_us: int) -> None:
    # Equal times would be served in the order given.
    pool = [each._replace(waiting_since_us=100 * each.waiting_since_us + place) for place, each in enumerate(pool)]
    picked = pick(pool, now_us)
    assert picked == pick(list(reversed(pool)), now_us)
    if picked is not None:
        same_class = [other for other in pool if other.paced is picked.paced]
        assert picked.paced or len(same_class) == len(pool)
        assert all(slack_samples(picked, now_us) <= slack_samples(other, now_us) for other in same_class)
        assert by_urgency(pool, now_us)[0] == picked


@given(candidates, st.integers(0, 10**8))
def test_by_urgency_sorts_every_candidate_once(pool: list[Candidate], now_us: int) -> None:
    ordered = by_urgency(pool, now_us)
    assert sorted(ordered, key=lambda c: c.key) == sorted(pool, key=lambda c: c.key)
    ranks = [(not c.paced, slack_samples(c, now_us)) for c in ordered]
    assert ranks == sorted(ranks)
