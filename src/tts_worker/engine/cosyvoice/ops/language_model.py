"""Fused operators of the language model: norms, rotary embedding with the cache write, attention, and drawing ids.

Compositions here, kernels in ``features/acceleration/kernels``. ``N`` are the rows of a batch of ``B``
sequences with ``T`` new positions each, ``H`` the query heads, ``K`` the key heads, ``S`` the slots and ``P`` their
positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_worker.engine.cosyvoice.ops import fused_operator
from tts_worker.engine.cosyvoice.ops.sampler import mix, pick

_TRITON = "tts_worker.features.acceleration.kernels.language_model_triton"

IDLE = -2  # in place of an id: the slot was idle
BROKEN = -1  # in place of an id: the scores were NaN
NOT_FORCED = -1

SPLIT_POSITIONS = 512
"""Longer contexts are shared by several programs, whose results a second kernel combines."""


def attention_splits(context: int) -> int:
    """Return the number of programs that share a context in ``slot_attention``."""
    return 1 if context <= SPLIT_POSITIONS else -(-2 * context // SPLIT_POSITIONS)


@fused_operator(_TRITON, mutates={"residual"})
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add ``x [N, D]`` to ``residual`` in place and return the RMS norm of the sum."""
    residual.add_(x)
    return F.rms_norm(residual, weight.shape, weight, eps)


@fused_operator(_TRITON)
def silu_mul(gate_up: Tensor) -> Tensor:
    """Gate of the feed-forward layer: ``[N, 2*I] -> [N, I]``."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


@fused_operator(_TRITON, mutates={"cache"})
def rotate_and_store(
    qkv: Tensor, rotations: Tensor, positions: Tensor, slots: Tensor, cache: Tensor, layer: int
) -> Tensor:
    """Apply the rotary position embedding and store keys and values.

    Args:
        qkv: ``[N, (H+2*K)*d]`` queries, keys and values.
        rotations: ``[N, 3, d/2]`` cosines, negated sines, sines.
        positions: ``[B, T]`` where to store.
        slots: ``[B]``.
        cache: ``[layers, 2, S, K, P, d]``, changed in place.
        layer: Layer of the cache.

    Returns:
        Rotated queries ``[N, H, d]``.
    """
    heads, dim = cache.shape[3], cache.shape[5]
    x = qkv.view(qkv.shape[0], -1, 2, dim // 2)  # [N, H+2*K, 2, d/2]
    rotated = x[:, :-heads]
    cos, sin = rotations[:, None, :1], rotations[:, None, 1:]  # [N, 1, 1, d/2], [N, 1, 2, d/2]
    rotated = torch.addcmul(rotated * cos, rotated.flip(-2), sin).flatten(2)  # [N, H+K, d]
    batch, span = positions.shape
    queries, keys = rotated.tensor_split((-heads,), dim=1)
    values = qkv.view(batch, span, -1, dim)[:, :, -heads:]  # [B, T, K, d]
    keys = keys.view(batch, span, heads, dim)
    for which, new in enumerate((keys, values)):
        cache[layer, which, slots[:, None], :, positions] = new
    return queries


@fused_operator(_TRITON)
def slot_attention(
    queries: Tensor, cache: Tensor, layer: int, slots: Tensor, positions: Tensor, ends: Tensor, splits: int
) -> Tensor:
    """Causal attention to the positions of a slot, grouped over query heads. Reads nothing beyond the ends.

    Args:
        queries: ``[N, H, d]``.
        cache: ``[layers, 2, S, K, P, d]``.
        layer: Layer of the cache.
        slots: ``[B]``.
        positions: ``[B, T]`` of the queries. Those of padding are not before ``ends``; their results are arbitrary.
        ends: ``[B]`` written positions of the slots.
        splits: Programs that share a context (``attention_splits``).

    Returns:
        ``[N, H*d]``.
    """
    batch, span = positions.shape
    heads, dim = cache.shape[3], cache.shape[5]
    at = torch.arange(cache.shape[4], device=cache.device)
    keys, values = cache[layer].index_select(1, slots).masked_fill((at >= ends[:, None])[:, None, :, None], 0.0)
    visible = (at <= positions[:, :, None]) & (at < ends[:, None, None])  # [B, T, P]
    groups = queries.shape[1] // heads
    query = queries.view(batch, span, heads, groups, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, K, G*T, d]
    mask = visible.repeat(1, groups, 1)[:, None]
    out = F.scaled_dot_product_attention(query, keys, values, mask)
    out = out.view(batch, heads, groups, span, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(batch * span, -1)


@fused_operator(_TRITON, mutates={"lengths"})
def begin_step(
    slots: Tensor, remaining: Tensor, recent: Tensor, lengths: Tensor, table: Tensor, max_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Prepare a decode step: its input, where it is stored, and the new lengths of the slots.

    Args:
        slots: ``[B]``, distinct except for idle ones.
        remaining: ``[S, 1]`` draws that remain; 0 for idle slots.
        recent: ``[S, window]`` last ids.
        lengths: ``[S]`` written positions, changed in place.
        table: ``[V, D]`` embedding of ids.
        max_tokens: Position that takes the writes of idle slots.

    Returns:
        Input vectors ``[B, D]`` (arbitrary for idle slots), positions ``[B, 1]`` and new lengths ``[B]``.
    """
    new = remaining[slots].clamp(max=1).view(-1)
    begin = lengths[slots]
    lengths.index_add_(0, slots, new)
    x = F.embedding(recent[slots, -1].clamp(min=0), table)
    return x, torch.where(new > 0, begin, max_tokens)[:, None], begin + new


@fused_operator(_TRITON, mutates={"remaining", "recent", "steps"})
def draw_ids(
    scores: Tensor,
    plan: Tensor,
    slots: Tensor,
    remaining: Tensor,
    recent: Tensor,
    steps: Tensor,
    speech_tokens: int,
    top_p: float,
    top_k: int,
    repeats: int,
) -> Tensor:
    """Draw one id per slot by repetition-aware sampling (sampler.py) and update the state of the slots.

    Args:
        scores: ``[B, V]``, not normalized.
        plan: ``[4, B, 1]``, one step of ``plan_draws``.
        slots: ``[B]``, distinct except for idle ones.
        remaining: ``[S, 1]`` draws that remain, changed in place.
        recent: ``[S, window]`` last ids, changed in place.
        steps: ``[S]`` number of draws, changed in place.
        speech_tokens: Ids below are speech, the others special.
        top_p: Of ``SampleRule``, as are ``top_k`` and ``repeats``.

    Returns:
        Ids ``[B, 1]``, ``IDLE`` or ``BROKEN``.
    """
    _, key, special, forced = plan.unbind()
    rows = remaining[slots]
    last = recent[slots]
    is_active = rows > 0
    scores = scores.log_softmax(-1, dtype=torch.float32)
    ids = torch.arange(speech_tokens, scores.shape[1], device=scores.device)
    scores[:, speech_tokens:].masked_fill_(ids != special, -torch.inf)
    is_valid = scores.amax(-1, keepdim=True) > -torch.inf
    drawn = torch.where(forced >= 0, forced, pick(scores, key, last, top_p, top_k, repeats))
    drawn = torch.where(is_valid, drawn, BROKEN)
    recent[slots] = torch.where(is_active, torch.cat([last[:, 1:], drawn], dim=1), last)
    steps.index_add_(0, slots, rows.clamp(max=1).view(-1))
    remaining[slots] = torch.where((drawn < speech_tokens) & is_valid & is_active, rows - 1, 0)
    return torch.where(is_active, drawn, IDLE)


@fused_operator(_TRITON, mutates={"remaining"})
def plan_draws(sent: Tensor, keys: Tensor, steps: Tensor, remaining: Tensor) -> Tensor:
    """Unpack the plan of the next draws and set the draws that remain.

    Args:
        sent: ``[B, 4+n]``: slot, special id, number of the first draw that may give it, draws that remain, and the
            forced ids (or ``NOT_FORCED``) of n draws.
        keys: ``[S]`` hashed seeds.
        steps: ``[S]`` number of draws.
        remaining: ``[S, 1]`` draws that remain, changed in place.

    Returns:
        For each draw ``[n, 4, B, 1]``: the slot, the random key of the draw, the special id that may be drawn (or
        ``NOT_FORCED``, which matches no id), and the forced id (or ``NOT_FORCED``).
    """
    slots, special, special_from = sent[:, :3].T.contiguous()  # [B] each
    remaining[slots] = sent[:, 3:4]
    draws = steps[slots] + torch.arange(sent.shape[1] - 4, device=sent.device)[:, None]  # [n, B]
    special = torch.where(draws >= special_from, special, NOT_FORCED)
    return torch.stack([slots.expand_as(draws), mix(keys[slots] + draws * 2), special, sent[:, 4:].T], dim=1)[..., None]
