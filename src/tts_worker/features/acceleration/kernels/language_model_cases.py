"""Arguments of the official sizes and random values, to check the kernels of the language model with."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.execution.settings import LM_TOKENS
from tts_worker.engine.cosyvoice.networks.dims import LmDims
from tts_worker.engine.cosyvoice.ops.language_model import (
    NOT_FORCED,
    add_rms_norm,
    attention_splits,
    begin_step,
    draw_ids,
    plan_draws,
    rotate_and_store,
    silu_mul,
    slot_attention,
)
from tts_worker.engine.cosyvoice.ops.sampler import SampleRule
from tts_worker.features.acceleration.kernels import Case, tolerance


def language_model_cases(dims: LmDims, rule: SampleRule, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Return arguments of the official sizes and random values, to check the kernels with."""
    generator = torch.Generator(device).manual_seed(0)
    limit = tolerance(dtype)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    def numbers(*values: int) -> Tensor:
        return torch.tensor(values, device=device)

    slots, max_tokens = 6, LM_TOKENS
    cache = noise(1, 2, slots, dims.kv_heads, max_tokens + 1, dims.head_dim)
    for batch, span in ((1, 1), (4, 1), (2, 20)):
        rows = batch * span
        weight = noise(dims.hidden_size)
        yield Case(add_rms_norm, (noise(rows, dims.hidden_size), noise(rows, dims.hidden_size), weight, 1e-6), limit)
        yield Case(silu_mul, (noise(rows, 2 * dims.intermediate_size),), limit)
        which = numbers(*range(batch, 0, -1))
        begins = torch.arange(batch, device=device) * 300 + 3
        steps = torch.arange(span, device=device)
        ends = begins + span - torch.arange(batch, device=device) * (span // 4)
        at = begins[:, None] + steps
        at = torch.where(at < ends[:, None], at, max_tokens)
        qkv = noise(rows, (dims.heads + 2 * dims.kv_heads) * dims.head_dim)
        angle = torch.rand(rows, dims.head_dim // 2, generator=generator, device=device)
        rotations = torch.stack([angle.cos(), -angle.sin(), angle.sin()], dim=1).to(dtype)
        yield Case(rotate_and_store, (qkv, rotations, at, which, cache, 0), limit)
        queries = noise(rows, dims.heads, dims.head_dim)
        for splits in (1, attention_splits(max_tokens)) if span == 1 else (1,):
            yield Case(slot_attention, (queries, cache, 0, which, at, ends, splits), limit)
    yield from _sampling_cases(dims, rule, dtype, device)


def _sampling_cases(dims: LmDims, rule: SampleRule, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    generator = torch.Generator(device).manual_seed(1)
    batch = 8

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, device=device)

    # Distinct scores: which of equal ones belong to the nucleus is not defined.
    order = torch.rand(batch, dims.speech_rows, generator=generator, device=device).argsort(dim=-1)
    scores = (order + (0x4180 - dims.speech_rows)).to(torch.int16).view(torch.bfloat16).to(dtype)  # up to 16.0
    slots = torch.arange(batch, device=device) + 1
    remaining = integers(1, 9, batch + 2, 1)
    remaining[3] = 0
    recent = integers(-1, dims.speech_tokens, batch + 2, rule.window)
    likely = scores.argsort(dim=-1, descending=True)
    recent[1 : batch + 1, :4] = likely[:, :4]
    state = (integers(0, 2**62, batch + 2), integers(0, 99, batch + 2))
    table = torch.randn(dims.speech_rows, dims.hidden_size, generator=generator, device=device).to(dtype)
    lengths = integers(0, 99, batch + 2)
    yield Case(begin_step, (slots, remaining, recent, lengths, table, 3000), 0.0)
    forced = integers(-40, 40, batch, 3).clamp(min=NOT_FORCED)
    sent = torch.cat([slots[:, None], integers(dims.speech_tokens, dims.speech_rows, batch, 1)], dim=1)
    sent = torch.cat([sent, integers(0, 99, batch, 1), integers(1, 9, batch, 1), forced], dim=1)
    yield Case(plan_draws, (sent, *state, remaining), 0.0)
    settings = (dims.speech_tokens, rule.top_p, rule.top_k, rule.repeats)
    for plan in plan_draws.composition(sent, *state, remaining.clone()):
        yield Case(draw_ids, (scores, plan, slots, remaining, recent, state[1], *settings), 0.0)
    broken = scores.clone()
    broken[0, 7] = torch.nan
    broken[1] = -torch.inf
    broken[4, 5] = torch.inf
    yield Case(draw_ids, (broken, plan, slots, remaining, recent, state[1], *settings), 0.0)
