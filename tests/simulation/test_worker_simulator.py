"""Whole workers in virtual time, from fixed seeds: what always holds, and what must have been tried."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tools.worker_simulator.__main__ import replay_command
from tools.worker_simulator.mutants import MUTANTS
from tools.worker_simulator.properties import SOMETIMES
from tools.worker_simulator.world import SimulationResult, simulate

SEEDS = (4, 5, 6, 8, 9, 11, 14, 16, 19, 20, 24, 85, 107, 143, 160)
"""Together they reach every rare state more than once; ``--cover 3`` prints such seeds after a change."""

QUICK_MUTANTS = ("kept-slot", "lost-credit", "batch-item-twice", "over-claim")
"""Planted faults that the first seeds find. ``python -m tools.worker_simulator --mutants`` looks for all."""


@cache
def run(seed: int) -> SimulationResult:
    return simulate(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold_in_the_world_of_a_seed(seed: int) -> None:
    assert not run(seed).violations, replay_command(seed, None)


def test_fixed_seeds_reach_every_rare_state() -> None:
    reached = Counter(name for seed in SEEDS for name in run(seed).reached)
    assert [name for name in SOMETIMES if not reached[name]] == []


def test_seed_decides_everything() -> None:
    again = simulate(SEEDS[0])
    assert (again.digest, again.steps) == (run(SEEDS[0]).digest, run(SEEDS[0]).steps)


@pytest.mark.parametrize("name", QUICK_MUTANTS)
def test_planted_fault_is_found(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.planted():
        assert any(simulate(seed).violations for seed in range(mutant.seed, mutant.seed + 8))
