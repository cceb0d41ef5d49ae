"""Plans: batches, burst lengths, admission to pages, isolation of faults and the deferral of first chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_worker.engine.scheduler import (
    FIRST_AUDIO_BURST_STEPS,
    MIN_BURST_STEPS,
    TOKEN_NEEDS,
    Batch,
    Budgets,
    Candidate,
    ChunkTimes,
    Need,
    PageClaim,
    Plan,
    Scheduler,
    by_urgency,
    defers_first_chunk,
)
from tts_worker.types import SAMPLE_RATE_HZ, UtteranceKey

PLENTY = Budgets(max_token_batch=16, max_audio_batch=4, concurrent=True, free_pages=1_000)
needs = st.sampled_from(Need)
candidates = st.lists(
    st.builds(
        Candidate,
        key=st.builds(UtteranceKey, st.sampled_from("abcd"), st.integers(1, 50)),
        lead_samples=st.integers(-500, 200_000),
        waiting_since_us=st.integers(0, 10**7),
        started=st.booleans(),
        paced=st.booleans(),
        needs=needs,
        joins=st.sampled_from([Need.NONE, *TOKEN_NEEDS]),
        inputs=st.integers(1, 40),
        tokens_until_due=st.integers(-60, 12),
        on_device_draws=st.sampled_from([0, 0, 11]),
        pages=st.integers(0, 8),
        pages_ahead=st.integers(8, 30),
        starts=st.booleans(),
        runs_alone=st.booleans(),
    ),
    unique_by=lambda candidate: candidate.key,
    max_size=20,
)
claims = st.lists(
    st.builds(
        PageClaim,
        st.builds(UtteranceKey, st.sampled_from("abcd"), st.integers(1, 50)),
        st.booleans(),
        st.booleans(),
        st.integers(0, 30),
    ),
    unique_by=lambda claim: claim.key,
    max_size=6,
)
budgets = st.builds(
    Budgets,
    max_token_batch=st.integers(0, 8),
    max_audio_batch=st.integers(0, 4),
    concurrent=st.booleans(),
    burst_steps=st.integers(1, 8),
    free_pages=st.integers(0, 60),
    evictable_pages=st.integers(0, 20),
    call_pages=st.integers(0, 10),
    claims=claims,
)


def key(name: str) -> UtteranceKey:
    return UtteranceKey(name, 1)


def candidate(name: str, needs: Need = Need.RENDER, **changes: Any) -> Candidate:
    joins = needs if needs in TOKEN_NEEDS else Need.NONE
    base = Candidate(key(name), 0, 0, started=True, needs=needs, joins=joins)
    return base._replace(**changes)


def schedule(*pool: Candidate, budgets: Budgets = PLENTY) -> Plan:
    return Scheduler().schedule(pool, budgets, 0)


def names(batch: Batch | None) -> list[str]:
    return [] if batch is None else [member.session for member in batch.members]


# -- batches -----------------------------------------------------------------------------------------------------------


@given(candidates, budgets, st.integers(0, 10**8))
def test_plan_stays_within_budgets(pool: list[Candidate], free: Budgets, now_us: int) -> None:
    plan = Scheduler().schedule(pool, free, now_us)
    by_key = {each.key: each for each in pool}
    assert not (plan.tokens and plan.audio) or free.concurrent
    for batch, limit in ((plan.tokens, free.max_token_batch), (plan.audio, free.max_audio_batch)):
        if batch is None:
            continue
        members = [by_key[member] for member in batch.members]
        assert len({member.key for member in members}) == len(members) <= limit
        assert members[0].needs is batch.operation
        assert all(batch.operation in (member.needs, member.joins) for member in members)
        assert len(members) == 1 or not any(member.runs_alone for member in members)
        if any(member.awaits_first_audio for member in members):
            assert all(member.paced for member in members[1:])
        if batch.operation is Need.PREPARE_VOICE:
            assert len(members) == 1
        if batch.operation is Need.PREFILL and len(members) > 1:
            assert max(member.inputs for member in members) <= free.shared_inputs
        assert batch.steps <= free.burst_steps
        assert (batch.steps > 0) is (batch.operation is Need.DECODE)
        if batch.on_device_draws:  # the audio runner renders the first chunks
            assert batch.operation is Need.PREFILL
            assert free.concurrent
            assert plan.audio is None
            assert len(members) <= free.max_audio_batch
            assert {member.on_device_draws for member in members} == {batch.on_device_draws}
            assert sum(member.pages for member in members) <= plan.free_pages
    if plan.audio is not None:
        taken = sum(by_key[member].pages for member in plan.audio.members)
        assert taken <= plan.free_pages <= free.free_pages + free.evictable_pages


@given(candidates, budgets, st.integers(0, 10**8))
def test_most_urgent_candidate_that_fits_is_served(pool: list[Candidate], free: Budgets, now_us: int) -> None:
    plan = Scheduler().schedule(pool, free, now_us)
    stopped = {*plan.refused, *plan.out_of_memory}
    for each in by_urgency([c for c in pool if c.needs is not Need.NONE], now_us):
        limit = free.max_token_batch if each.needs in TOKEN_NEEDS else free.max_audio_batch
        if limit and each.key not in stopped:
            assert each.key in plan.urgent
            return
    assert not plan.urgent


@given(candidates, budgets, st.integers(0, 10**8))
def test_utterance_waits_only_for_pages_that_return(pool: list[Candidate], free: Budgets, now_us: int) -> None:
    plan = Scheduler().schedule(pool, free, now_us)
    by_key = {each.key: each for each in pool}
    returning = {claim.key for claim in free.claims} | set(plan.audio.members if plan.audio else ())
    for refused in plan.refused:
        assert by_key[refused].starts
        assert returning - {refused}
    for failed in plan.out_of_memory:
        assert by_key[failed].pages > 0


@given(candidates, budgets, st.integers(0, 10**8))
def test_concurrent_runners_are_both_kept_busy(pool: list[Candidate], free: Budgets, now_us: int) -> None:
    plan = Scheduler().schedule(pool, free, now_us)
    waiting = {each.needs for each in pool} & TOKEN_NEEDS
    if waiting and free.max_token_batch and (free.concurrent or plan.audio is None):
        assert plan.tokens is not None


def test_only_joining_candidates_start_nothing() -> None:
    assert not schedule(candidate("a", Need.NONE, joins=Need.DECODE)).urgent


def test_idle_candidates_join_a_burst() -> None:
    plan = schedule(candidate("a", Need.DECODE), candidate("b", Need.NONE, joins=Need.DECODE))
    assert names(plan.tokens) == ["a", "b"]


def test_long_prefill_runs_alone() -> None:
    long = candidate("a", Need.PREFILL, inputs=200)
    short = [candidate(name, Need.PREFILL, inputs=5, lead_samples=9) for name in "bc"]
    assert names(schedule(long, *short).tokens) == ["a"]
    assert names(schedule(long._replace(lead_samples=99), *short).tokens) == ["b", "c"]
    assert names(schedule(long, *short, budgets=Budgets(max_token_batch=8, shared_inputs=256)).tokens) == [
        "a",
        "b",
        "c",
    ]


@pytest.mark.parametrize("need", [Need.DECODE, Need.RENDER])
def test_downloads_do_not_prolong_a_first_chunk(need: Need) -> None:
    call = candidate("call", need, started=False)
    download = candidate("download", need, paced=False)
    plan = schedule(call, download)
    assert names(plan.tokens or plan.audio) == ["call"]
    plan = schedule(call._replace(started=True), download)
    assert names(plan.tokens or plan.audio) == ["call", "download"]


@pytest.mark.parametrize("need", [Need.DECODE, Need.RENDER])
def test_member_of_a_failed_batch_runs_alone(need: Need) -> None:
    suspect = candidate("suspect", need, runs_alone=True)
    other = candidate("other", need, lead_samples=9)
    plan = schedule(suspect, other)
    assert names(plan.tokens or plan.audio) == ["suspect"]
    plan = schedule(suspect._replace(lead_samples=99), other)
    assert names(plan.tokens or plan.audio) == ["other"]


# -- bursts ------------------------------------------------------------------------------------------------------------


def steps(*pool: Candidate, budgets: Budgets = PLENTY) -> int:
    batch = schedule(*pool, budgets=budgets).tokens
    assert batch is not None
    return batch.steps


def draws(*pool: Candidate, budgets: Budgets = PLENTY) -> int:
    batch = schedule(*pool, budgets=budgets).tokens
    assert batch is not None
    return batch.on_device_draws


def test_burst_ends_with_the_first_chunk() -> None:
    new = candidate("new", Need.DECODE, started=False)
    assert steps(new._replace(tokens_until_due=10)) == PLENTY.burst_steps
    assert steps(new._replace(tokens_until_due=5)) == 5
    assert steps(new._replace(tokens_until_due=1)) == MIN_BURST_STEPS >= 2, "not one step per host round trip"
    assert steps(new._replace(started=True, tokens_until_due=1)) == PLENTY.burst_steps


@pytest.mark.parametrize("missing", [0, -1, -40])
def test_burst_beside_a_due_first_chunk_is_not_single_steps(missing: int) -> None:
    """One step per host round trip would slow the whole batch until the first chunk has left."""
    new = candidate("new", Need.DECODE, started=False, tokens_until_due=missing)
    assert steps(new) == FIRST_AUDIO_BURST_STEPS


def test_bursts_are_short_while_a_call_waits() -> None:
    talking = candidate("talking", Need.DECODE)
    new = candidate("new", Need.PREFILL, started=False, inputs=200, lead_samples=9_999)
    assert steps(talking, new) == FIRST_AUDIO_BURST_STEPS
    assert steps(talking, new._replace(paced=False)) == PLENTY.burst_steps
    rendering = new._replace(needs=Need.RENDER)
    assert steps(talking, rendering) == PLENTY.burst_steps  # the audio runner works at the same time
    assert steps(talking, rendering, budgets=Budgets(max_token_batch=8)) == FIRST_AUDIO_BURST_STEPS


def test_burst_does_not_outlast_first_chunk_of_a_member() -> None:
    talking = candidate("talking", Need.DECODE)
    new = candidate("new", Need.DECODE, started=False, lead_samples=9_999)
    assert steps(talking, new._replace(tokens_until_due=3)) == FIRST_AUDIO_BURST_STEPS
    assert steps(talking, new._replace(tokens_until_due=8)) == PLENTY.burst_steps


def first(name: str, ids: int = 11, **changes: Any) -> Candidate:
    return candidate(name, Need.PREFILL, started=False, on_device_draws=ids, pages=1, pages_ahead=6, **changes)


def test_lone_prefill_goes_on_to_the_first_chunk() -> None:
    assert draws(first("new")) == 11
    assert draws(first("new"), first("other")) == 11
    assert draws(first("new"), candidate("talking", Need.DECODE, lead_samples=9_999)) == 11
    assert draws(first("new"), candidate("talking", Need.NONE, joins=Need.DECODE)) == 11


@pytest.mark.parametrize(
    "other",
    [
        candidate("talking", Need.RENDER, lead_samples=99_999),
        candidate("download", Need.PREPARE_VOICE, paced=False),
        candidate("call", Need.DECODE, started=False, lead_samples=9),
        first("call", 28),
        candidate("call", Need.PREFILL),
    ],
    ids=lambda other: f"{other.key.session}-{other.needs.value}",
)
def test_first_chunk_does_not_delay_others(other: Candidate) -> None:
    """The audio runner would wait for the ids, and the next tokens for all of them."""
    assert draws(first("new"), other) == 0


def test_first_chunk_needs_pages_and_both_runners() -> None:
    one = first("new", starts=True)
    scarce = replace(PLENTY, free_pages=10, claims=[PageClaim(key("holder"), True, True, 5)])
    plan = schedule(one, budgets=scarce)
    assert plan.tokens == Batch(Need.PREFILL, (one.key,))
    assert plan.refused == (), "it asks when the chunk is due"
    assert draws(one, budgets=replace(scarce, evictable_pages=1)) == 11
    for less in ({"max_audio_batch": 0}, {"concurrent": False}):
        assert draws(one, budgets=replace(PLENTY, **less)) == 0
    assert draws(one, first("other"), budgets=replace(PLENTY, max_audio_batch=1)) == 0


# -- pages -------------------------------------------------------------------------------------------------------------


def starting(name: str, pages: int = 1, ahead: int = 10, **changes: Any) -> Candidate:
    return candidate(name, pages=pages, pages_ahead=ahead, starts=True, **changes)


def holder(ahead: int = 5, *, paced: bool = True) -> PageClaim:
    return PageClaim(key("holder"), paced, True, ahead)


def test_new_utterance_waits_for_its_whole_length() -> None:
    fits = Budgets(free_pages=15, claims=[holder(5)])
    assert names(schedule(starting("new"), budgets=fits).audio) == ["new"]
    scarce = Budgets(free_pages=14, claims=[holder(5)])
    plan = schedule(starting("new"), budgets=scarce)
    assert (plan.audio, plan.refused, plan.out_of_memory) == (None, (key("new"),), ())


def test_lone_utterance_starts_with_its_first_pages() -> None:
    assert names(schedule(starting("new", 2), budgets=Budgets(free_pages=2)).audio) == ["new"]
    plan = schedule(starting("new", 2), budgets=Budgets(free_pages=1))
    assert (plan.audio, plan.refused, plan.out_of_memory) == (None, (), (key("new"),))


def test_started_utterance_takes_what_is_free() -> None:
    running = candidate("running", pages=2)
    assert names(schedule(running, budgets=Budgets(free_pages=2, claims=[holder(50)])).audio) == ["running"]
    plan = schedule(running, budgets=Budgets(free_pages=1, claims=[holder(50)]))
    assert plan.out_of_memory == (key("running"),)


def test_utterances_do_not_wait_for_each_other() -> None:
    """Two prompts in preparation that do not fit: one of them ends and returns its pages."""
    pool = [starting(name, 4) for name in "ab"]
    held = [PageClaim(key(name), True, True, 4) for name in "ab"]
    plan = schedule(*pool, budgets=Budgets(free_pages=3, claims=held))
    assert (plan.refused, plan.out_of_memory) == ((key("a"),), (key("b"),))


def test_refused_utterance_does_not_block_others() -> None:
    new = starting("new", ahead=50)
    running = candidate("running", pages=2, lead_samples=9)
    plan = schedule(new, running, budgets=Budgets(free_pages=20, claims=[holder()]))
    assert names(plan.audio) == ["running"]
    assert plan.refused == (key("new"),)


def test_new_download_leaves_pages_to_calls() -> None:
    free = Budgets(free_pages=20, call_pages=6, claims=[holder(5, paced=False)])
    assert schedule(starting("new", paced=False), budgets=free).refused == (key("new"),)
    assert names(schedule(starting("new"), budgets=free).audio) == ["new"]
    beside_a_call = Budgets(free_pages=20, call_pages=6, claims=[holder(5)])
    assert names(schedule(starting("new", paced=False), budgets=beside_a_call).audio) == ["new"]


def test_batch_does_not_exceed_free_pages() -> None:
    pool = [candidate(name, pages=2) for name in "abc"]
    plan = schedule(*pool, budgets=Budgets(max_audio_batch=4, free_pages=5))
    assert names(plan.audio) == ["a", "b"]
    assert not plan.out_of_memory  # the third asks again


def test_two_new_utterances_share_a_batch_if_both_fit() -> None:
    pool = [starting(name) for name in "ab"]
    assert names(schedule(*pool, budgets=Budgets(max_audio_batch=4, free_pages=20)).audio) == ["a", "b"]
    plan = schedule(*pool, budgets=Budgets(max_audio_batch=4, free_pages=19))
    assert names(plan.audio) == ["a"]
    assert plan.refused == (key("b"),)


def test_unused_voices_are_evicted_only_as_needed() -> None:
    plan = schedule(candidate("a", pages=5), budgets=Budgets(free_pages=3, evictable_pages=9))
    assert (names(plan.audio), plan.free_pages) == (["a"], 5)


# -- first chunk -------------------------------------------------------------------------------------------------------

TIMES = ChunkTimes(decode_us=20_000, render_us=40_000)


def defers(lead_ms: int, *others: Candidate, render_batch: int = 1, paced: bool = True) -> bool:
    first = candidate("first", lead_samples=lead_ms * SAMPLE_RATE_HZ // 1000, started=False, paced=paced)
    return defers_first_chunk(first, lambda now_us: others, len(others), TIMES, render_batch, 0)


def test_first_chunk_waits_if_the_second_comes_too_late() -> None:
    assert not defers(60)
    assert defers(59)


def test_streams_with_more_slack_do_not_defer_a_first_chunk() -> None:
    ahead = [candidate(f"ahead{i}", lead_samples=SAMPLE_RATE_HZ) for i in range(64)]
    assert not defers(320, *ahead)
    behind = [candidate(f"behind{i}", lead_samples=480) for i in range(7)]
    assert defers(320, *behind)
    assert not defers(320, *behind, render_batch=8)


@given(
    lead_ms=st.integers(0, 800), leads_ms=st.lists(st.integers(-100, 800), max_size=12), render_batch=st.integers(1, 4)
)
def test_others_are_looked_at_only_if_they_matter(lead_ms: int, leads_ms: list[int], render_batch: int) -> None:
    others = [candidate(f"other{i}", lead_samples=24 * lead) for i, lead in enumerate(leads_ms)]
    first = candidate("first", lead_samples=24 * lead_ms, started=False)
    asked = []

    def find(now_us: int) -> list[Candidate]:
        asked.append(others)
        return others

    decision = defers_first_chunk(first, find, len(others), TIMES, render_batch, 0)
    assert decision == defers_first_chunk(first, lambda now_us: others, 1000, TIMES, render_batch, 0)
    latest_ms = 20 + 40 * (1 + len(others) // render_batch)
    assert bool(asked) == (60 <= lead_ms < latest_ms)


def test_downloads_do_not_defer_first_chunk_of_a_call() -> None:
    downloads = [candidate(f"download{i}", lead_samples=0, paced=False) for i in range(64)]
    assert not defers(60, *downloads)
    assert defers(60, candidate("call", lead_samples=SAMPLE_RATE_HZ), paced=False)


def test_busy_runners_do_not_shorten_the_steps_of_downloads() -> None:
    """A download decodes and the engine plans again while it waits; that says nothing about the cost of a render."""
    scheduler = Scheduler()
    call = Candidate(UtteranceKey("call", 1), 4_000, 0, started=True, needs=Need.RENDER)
    download = Candidate(UtteranceKey("download", 1), 0, 0, started=True, paced=False, needs=Need.RENDER)
    decoding = Candidate(UtteranceKey("other", 1), 0, 0, started=True, paced=False, needs=Need.DECODE)
    rendered = []
    for turn in range(16):
        plan = scheduler.schedule([call, download, decoding], PLENTY, 20_000 * turn)
        assert plan.audio is not None
        rendered.append(plan.audio.members[0])
        busy = replace(PLENTY, max_token_batch=0, max_audio_batch=0)
        assert scheduler.schedule([call, download, decoding], busy, 20_000 * turn) == Plan()
    assert rendered.count(download.key) <= 1  # a sixteenth
