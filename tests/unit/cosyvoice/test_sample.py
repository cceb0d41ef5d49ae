"""Draws: the distribution is the rule's, the randomness depends on (seed, step, id) and on nothing else."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

from tests.unit.cosyvoice.bundles import FAMILIES, GOLDEN
from tests.unit.cosyvoice.networks import noise
from tools.reference.algorithms import nucleus, reference_draw
from tts_worker.engine.cosyvoice.ops.language_model import draw_ids
from tts_worker.engine.cosyvoice.ops.sampler import DrawState, SampleRule, draw, mix, uniform

RULE = SampleRule(0.8, 25, 10, 0.1)
MASK64 = (1 << 64) - 1


def everything(scores: Tensor) -> Tensor:
    return torch.ones_like(scores, dtype=torch.bool)


def state(seeds: list[int], rule: SampleRule = RULE, history: list[int] | None = None) -> tuple[DrawState, Tensor]:
    drawn = DrawState(len(seeds), rule)
    slots = torch.arange(len(seeds))
    drawn.start(slots, torch.tensor(seeds))
    for token in history or []:
        drawn.record(slots, torch.full([len(seeds)], token))
    return drawn, slots


def exact(scores: Tensor, rule: SampleRule, history: list[int]) -> Tensor:
    """The distribution of one draw from ``scores [V]``, by the rule's words."""
    probs, ids = scores.double().softmax(0).sort(descending=True, stable=True)
    kept: list[int] = []
    total = 0.0
    for p, i in zip(probs.tolist(), ids.tolist(), strict=True):
        if total >= rule.top_p or len(kept) >= rule.top_k:
            break
        kept.append(i)
        total += p
    full = scores.double().softmax(0)
    out = torch.zeros_like(full)
    for i in kept:
        p = float(full[i]) / total
        if history[-rule.window :].count(i) >= rule.window * rule.tau:
            rest = full.clone()
            rest[i] = 0
            out += p * rest / rest.sum()
        else:
            out[i] += p
    return out


@pytest.mark.parametrize("history", [[], [2], [0, 1, 2, 3]])
@pytest.mark.parametrize("rule", [RULE, SampleRule(0.6, 3, 4, 0.5), SampleRule(1.0, 8, 10, 1.0)])
def test_samples_follow_the_rule_distribution(rule: SampleRule, history: list[int]) -> None:
    scores = noise(8, seed=5) * 1.5
    count = 40_000
    drawn, slots = state(list(range(count)), rule, history)
    got = draw(scores.expand(count, -1), torch.ones(count, 8, dtype=torch.bool), drawn, slots).bincount(minlength=8)
    expected = exact(scores, rule, history) * count
    assert float(got[expected == 0].sum()) == 0
    likely = expected > 0
    chi2 = float(((got[likely] - expected[likely]).square() / expected[likely]).sum())
    assert chi2 < 30  # 7 degrees of freedom: beyond 30 lies less than 1 in 10 000


def test_steps_are_as_independent_as_seeds() -> None:
    scores = torch.zeros(1, 4)
    count = 4000
    drawn, slots = state([7], SampleRule(1.0, 4, 1, 2.0))
    tokens = []
    for _ in range(count):
        token = draw(scores, everything(scores), drawn, slots)
        drawn.record(slots, token)
        tokens.append(int(token))
    pairs = torch.zeros(4, 4).index_put_((torch.tensor(tokens[:-1]), torch.tensor(tokens[1:])), torch.ones(()), True)
    assert float(((pairs - count / 16).square() / (count / 16)).sum()) < 45  # 15 degrees of freedom


@settings(deadline=None, max_examples=40)
@given(seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=6), steps=st.integers(0, 12))
def test_sampling_is_independent_of_the_batch(seeds: list[int], steps: int) -> None:
    scores = noise(len(seeds), 50, seed=3)
    history = list(range(steps))
    crowd, slots = state(seeds, history=history)
    together = draw(scores, everything(scores), crowd, slots).tolist()
    alone = []
    for row, seed in enumerate(seeds):
        one, slot = state([seed], history=history)
        alone.append(int(draw(scores[row : row + 1], everything(scores[:1]), one, slot)))
    assert together == alone


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**62),
    allowed=st.sets(st.integers(0, 11), min_size=1),
    history=st.lists(st.integers(0, 11), max_size=12),
    flat=st.booleans(),
)
def test_samples_are_allowed_and_avoid_repeats(seed: int, allowed: set[int], history: list[int], flat: bool) -> None:
    scores = noise(1, 12, seed=seed % 1000) * (0 if flat else 20)
    drawn, slots = state([seed], SampleRule(0.8, 12, 10, 0.1), history)
    mask = torch.zeros(1, 12, dtype=torch.bool)
    mask[0, list(allowed)] = True
    token = int(draw(scores, mask, drawn, slots))
    assert token in allowed
    first = int(scores[0].masked_fill(~mask[0], -torch.inf).argmax())
    if not flat and len(allowed) > 1 and scores[0].softmax(0)[first] > 0.9 and first in history[-10:]:
        assert token != first


def test_scores_in_half_are_normalized_in_float32() -> None:
    """Scores of bfloat16 give the ids of the same numbers in float32: sums of them need more digits."""
    count = 300
    scores = noise(count, 60).bfloat16()
    slots = torch.arange(count)
    plan = torch.stack([slots, mix(slots), torch.full([count], -1), torch.full([count], -1)])[..., None]

    def ids(scores: Tensor) -> list[list[int]]:
        remaining, recent, steps = torch.ones(count, 1).long(), torch.full([count, 10], -1), torch.zeros(count).long()
        return draw_ids(scores, plan, slots, remaining, recent, steps, 50, 0.8, 25, 1).tolist()

    assert ids(scores) == ids(scores.float())


def test_tokens_outside_the_window_may_repeat() -> None:
    scores = torch.tensor([[30.0, 0.0, 0.0]])
    drawn, slots = state([1])
    tokens = []
    for _ in range(23):
        token = draw(scores, everything(scores), drawn, slots)
        drawn.record(slots, token)
        tokens.append(int(token))
    assert [i for i, token in enumerate(tokens) if token == 0] == [0, 11, 22]


def test_hash_equals_splitmix64() -> None:
    """splitmix64's finalizer in Python's own integers: what every device must give."""

    def reference(x: int) -> int:
        x &= MASK64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK64
        x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK64
        return x ^ x >> 31

    values = [0, 1, -1, 2**62, -(2**63), 2**63 - 1, 123456789, -987654321]
    got = [int(v) & MASK64 for v in mix(torch.tensor(values))]
    assert got == [reference(v) for v in values]
    keys = torch.tensor(values)[:, None]
    ids = torch.arange(5)
    expected = [[((reference(k + i * 0x9E3779B97F4A7C15) >> 41) + 0.5) / 2**23 for i in range(5)] for k in values]
    assert uniform(keys, ids).tolist() == expected
    assert (
        0 < uniform(torch.arange(100_000), torch.tensor(0)).min() < uniform(torch.arange(9), torch.tensor(0)).max() < 1
    )


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), top_p=st.floats(0.05, 1.0), top_k=st.integers(1, 30), sharp=st.floats(0.1, 8))
def test_reference_nucleus_follows_the_rule(seed: int, top_p: float, top_k: int, sharp: float) -> None:
    scores = noise(20, seed=seed) * sharp
    ids, probs = nucleus(scores, SampleRule(top_p, top_k, 10, 0.1))
    assert len(ids) <= min(top_k, 20)
    assert probs.tolist() == sorted(probs.tolist(), reverse=True)
    assert float(probs[:-1].sum()) < top_p + 1e-5
    assert len(ids) in (top_k, 20) or float(probs.sum()) > top_p - 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_draw_reproduces_recorded_ids(family: str) -> None:
    with safe_open(GOLDEN[family] / "sampling.safetensors", "pt") as file:
        scores = file.get_tensor("logp")
        cases = json.loads(file.metadata()["meta"])["cases"]
    assert cases
    for case in cases:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case["seed"])
            assert reference_draw(scores[case["logits"]], case["history"], RULE) == case["ras"]
