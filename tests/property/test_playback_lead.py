"""Least-slack-first scheduling avoids underruns under a load at which first-in-first-out does not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pytest

from tests.fakes.simulation import Simulation
from tts_worker.engine.scheduler import Batch, Budgets, Candidate, Plan, Policy
from tts_worker.types import Outcome

STREAMS = 32
LOAD = 0.95
SECONDS_EACH = 20

SHORT = "abcdefgh "  # 0.5 s a clause at 60 ms a letter
LONG = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz "  # 3 s a clause


def first_come(candidates: Sequence[Candidate], budgets: Budgets, now_us: int) -> Plan:
    """First in, first out: the baseline."""
    first = min(candidates, key=lambda candidate: (candidate.waiting_since_us, candidate.key), default=None)
    return Plan() if first is None else Plan(audio=Batch(first.needs, (first.key,)))


@lru_cache
def simulate(policy: Policy | None, within_s: float) -> Simulation:
    """32 calls that start within ``within_s``, half with short clauses and half with long ones; tests only read it."""
    per_clause_s = {SHORT: 0.48, LONG: 3.12}
    streams = []
    for i in range(STREAMS):
        clause = SHORT if i % 2 else LONG
        streams.append((i / STREAMS * within_s, clause * round(SECONDS_EACH / per_clause_s[clause])))
    return Simulation(streams, cost_per_audio_s=LOAD / STREAMS, policy=policy).run(until_s=60.0)


@pytest.mark.parametrize("within_s", [0.0, 2.0, 10.0])
def test_32_streams_at_95_percent_load_have_no_underrun(within_s: float) -> None:
    ours = simulate(None, within_s)
    assert all(listener.outcome is Outcome.DONE for listener in ours.listeners)
    assert sum(listener.pacer.underruns for listener in ours.listeners) == 0
    # The engine was as busy as stated, and neither a late start nor a long lead avoided the underruns.
    assert ours.busy_s / SECONDS_EACH >= 0.9
    assert max(listener.first_audio_s or 99.0 for listener in ours.listeners) <= 2.5
    assert max(listener.longest_lead_s for listener in ours.listeners) <= 1.5 + 0.08 + 0.005


def test_first_come_first_served_underruns_at_that_load() -> None:
    fifo = simulate(first_come, 2.0)
    ours = simulate(None, 2.0)
    assert sum(listener.pacer.underruns for listener in fifo.listeners) >= 10
    assert sum(listener.pacer.underrun_s for listener in fifo.listeners) >= 1.0
    assert sum(listener.pacer.underruns for listener in ours.listeners) == 0
