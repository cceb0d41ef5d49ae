"""Repetition-aware sampling of speech tokens, for many utterances at once and without asking the host.

A token is drawn from the nucleus (top-p within top-k); if it occurs among the last few of its utterance it is drawn
again from everything else (VALL-E 2, https://arxiv.org/abs/2406.05370, section 3.2). Randomness is a hash of (seed,
step, id): the same text and seed give the same tokens alone, in a crowd, on a CPU or a GPU.
It must not know what the ids mean: which of them may be drawn now comes in as a mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# as signed 64-bit integers
_M1 = -0x40A7B892E31B1A47
_M2 = -0x6B2FB644ECCEEE15
_GOLDEN = -0x61C8864680B583EB


@dataclass(frozen=True)
class SampleRule:
    """``top_p`` of the probability and at most ``top_k`` ids make the nucleus; an id that is at least ``window * tau``
    of the last ``window`` ids is drawn again."""

    top_p: float
    top_k: int
    window: int
    tau: float

    @property
    def repeats(self) -> int:
        return max(1, math.ceil(self.window * self.tau))


class DrawState:
    """What the draws of up to ``slots`` utterances depend on: seed, number of draws, the last ids (newest last)."""

    def __init__(self, slots: int, rule: SampleRule, device: str | torch.device = "cpu") -> None:
        self.rule = rule
        self.keys = torch.zeros(slots, dtype=torch.long, device=device)  # [slots] seeds, mixed
        self.steps = torch.zeros(slots, dtype=torch.long, device=device)  # [slots]
        self.recent = torch.full([slots, rule.window], -1, dtype=torch.long, device=device)  # [slots, window]

    def start(self, slots: Tensor, seeds: Tensor) -> None:
        self.keys[slots] = mix(seeds)
        self.steps[slots] = 0
        self.recent[slots] = -1

    def record(self, slots: Tensor, ids: Tensor) -> None:
        """Make ``ids [B]`` the newest of ``slots [B]`` (drawn, or forced by a schedule)."""
        self.recent[slots] = torch.cat([self.recent[slots, 1:], ids[:, None]], dim=1)
        self.steps[slots] += 1

    def ahead(self, slots: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Numbers and keys of the next ``count`` draws of ``slots [B]``: ``[count, B]`` each."""
        steps = self.steps[slots] + torch.arange(count, device=slots.device)[:, None]
        return steps, mix(self.keys[slots] + steps * 2)


def mix(x: Tensor, low: bool = True) -> Tensor:
    """splitmix64's finaliser (Steele, Lea and Flood 2014) on int64, whose products wrap. Its last step leaves the upper
    31 bits as they are: it is for those who want the ``low`` ones."""
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * _M1
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * _M2
    return x ^ (x >> 31 & 0x1FFFFFFFF) if low else x


def uniform(keys: Tensor, ids: Tensor) -> Tensor:
    """Numbers in (0, 1) that depend on ``keys [...]`` and ``ids [...]`` alone: float32, 23 bits."""
    bits = mix(torch.add(keys, ids, alpha=_GOLDEN), low=False) >> 41 & 0x7FFFFF
    return torch.add(bits, 0.5) * 2.0**-23


def draw(scores: Tensor, allowed: Tensor, state: DrawState, slots: Tensor) -> Tensor:
    """Draw the next id of ``slots [B]`` from ``scores [B, V]`` (any log-probabilities) among the ids that are
    ``allowed [B, V]`` (at least one each). Returns ``[B]``; the caller records what it keeps."""
    scores = scores.float().masked_fill(~allowed, -torch.inf)
    return pick(scores, state.ahead(slots, 1)[1].T, state.recent[slots], state.rule)[:, 0]


def pick(scores: Tensor, key: Tensor, recent: Tensor, rule: SampleRule) -> Tensor:
    """``[B, 1]`` from ``scores [B, V]``, ``-inf`` where not allowed, by ``key [B, 1]`` after ``recent [B, window]``."""
    top, top_ids = scores.softmax(-1).topk(min(rule.top_k, scores.shape[1]), dim=-1)  # [B, k], falling
    top = top * (top.cumsum(-1) - top < rule.top_p)  # the id that crosses top_p belongs to the nucleus
    # argmax of p / e with e ~ Exp(1) draws from p: no cumulative sum over the vocabulary, no host. Here e is negative.
    first = (top / uniform(key, top_ids).log()).argmin(-1, keepdim=True)  # [B, 1]
    first = top_ids.gather(1, first)
    repeated = (recent == first).sum(-1, keepdim=True) >= rule.repeats  # [B, 1]
    if not repeated.is_cuda and [True] not in repeated.tolist():
        return first  # on a CPU, looking is cheaper than a second draw that nobody needs
    rest = scores.scatter(1, first, -torch.inf)
    ids = torch.arange(scores.shape[1], device=scores.device)
    again = (rest.softmax(-1) / uniform(mix(key + 1), ids).log()).argmin(-1, keepdim=True)  # [B, 1]
    repeated &= rest.amax(-1, keepdim=True) > -torch.inf  # nothing else allowed: keep it
    return torch.where(repeated, again, first)
