"""Repetition-aware sampling of speech tokens, batched and without host synchronization.

A token is sampled from the nucleus (top-p within top-k); if it repeats too often among the last tokens of its utterance
it is resampled from all other ids (VALL-E 2, https://arxiv.org/abs/2406.05370, section 3.2). Randomness is a hash of
(seed, step, id): the same text and seed give the same tokens at any batch size, on a CPU or a GPU. The ids that are
currently valid are passed in as a mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Constants of splitmix64, as signed 64-bit integers.
M1 = -0x40A7B892E31B1A47
M2 = -0x6B2FB644ECCEEE15
GOLDEN = -0x61C8864680B583EB


@dataclass(frozen=True)
class SampleRule:
    """Sampling parameters.

    Attributes:
        top_p: Probability mass of the nucleus.
        top_k: Maximum number of ids in the nucleus.
        window: Number of recent ids that repetitions are counted in.
        tau: An id that makes up at least ``window * tau`` of the window is resampled.
    """

    top_p: float
    top_k: int
    window: int
    tau: float

    @property
    def repeats(self) -> int:
        return max(1, math.ceil(self.window * self.tau))


class DrawState:
    """Sampling state of up to ``slots`` utterances: seed, number of draws and the last ids (newest last)."""

    def __init__(self, slots: int, rule: SampleRule, device: str | torch.device = "cpu") -> None:
        self.rule = rule
        self.keys = torch.zeros(slots, dtype=torch.long, device=device)  # [slots] hashed seeds
        self.steps = torch.zeros(slots, dtype=torch.long, device=device)  # [slots]
        self.recent = torch.full([slots, rule.window], -1, dtype=torch.long, device=device)  # [slots, window]

    def start(self, slots: Tensor, seeds: Tensor) -> None:
        self.keys[slots] = mix(seeds)
        self.steps[slots] = 0
        self.recent[slots] = -1

    def record(self, slots: Tensor, ids: Tensor) -> None:
        """Append ``ids [B]`` (sampled or forced) to the history of ``slots [B]``."""
        self.recent[slots] = torch.cat([self.recent[slots, 1:], ids[:, None]], dim=1)
        self.steps[slots] += 1


def mix(x: Tensor, low: bool = True) -> Tensor:
    """The splitmix64 finalizer (Steele, Lea and Flood 2014) on wrapping int64.

    The last step does not change the upper 31 bits; ``low=False`` skips it.
    """
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * M1
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * M2
    return x ^ (x >> 31 & 0x1FFFFFFFF) if low else x


def uniform(keys: Tensor, ids: Tensor) -> Tensor:
    """Uniform numbers in (0, 1) from ``keys [...]`` and ``ids [...]``: float32 with 23 random bits."""
    bits = mix(torch.add(keys, ids, alpha=GOLDEN), low=False) >> 41 & 0x7FFFFF
    return torch.add(bits, 0.5) * 2.0**-23


def draw(scores: Tensor, allowed: Tensor, state: DrawState, slots: Tensor) -> Tensor:
    """Sample the next id of ``slots [B]``.

    Args:
        scores: ``[B, V]`` log-probabilities, not necessarily normalized.
        allowed: ``[B, V]`` bool; at least one id per row.
        state: Sampling state; not changed, the caller records the ids it accepts.
        slots: ``[B]``.

    Returns:
        Ids ``[B]``.
    """
    rule = state.rule
    scores = scores.float().masked_fill(~allowed, -torch.inf)
    keys = mix(state.keys[slots] + state.steps[slots] * 2)[:, None]
    return pick(scores, keys, state.recent[slots], rule.top_p, rule.top_k, rule.repeats)[:, 0]


def pick(scores: Tensor, key: Tensor, recent: Tensor, top_p: float, top_k: int, repeats: int) -> Tensor:
    """Sample ids ``[B, 1]`` from ``scores [B, V]`` (``-inf`` where not allowed) with ``key [B, 1]``.

    ``recent [B, window]`` are the last ids of each row; the others are parameters of ``SampleRule``.
    """
    top, top_ids = scores.softmax(-1).topk(min(top_k, scores.shape[1]), dim=-1)  # [B, k], descending
    top = top * (top.cumsum(-1) - top < top_p)  # the id that crosses top_p belongs to the nucleus
    # argmax of p / e with e ~ Exp(1) samples from p without a cumulative sum over the vocabulary. Here e is negative.
    first = (top / uniform(key, top_ids).log()).argmin(-1, keepdim=True)  # [B, 1]
    first = top_ids.gather(1, first)
    repeated = (recent == first).sum(-1, keepdim=True) >= repeats  # [B, 1]
    if not (repeated.is_cuda or torch.compiler.is_compiling()) and [True] not in repeated.tolist():
        return first  # on a CPU reading the values is cheaper than an unnecessary second draw
    rest = scores.scatter(1, first, -torch.inf)
    ids = torch.arange(scores.shape[1], device=scores.device)
    again = (rest.softmax(-1) / uniform(mix(key + 1), ids).log()).argmin(-1, keepdim=True)  # [B, 1]
    repeated &= rest.amax(-1, keepdim=True) > -torch.inf  # keep the id if no other is allowed
    return torch.where(repeated, again, first)
