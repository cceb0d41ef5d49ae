"""Triton kernels of the language model. Arguments and results are those of language_model.py.

A program of most kernels computes one row. Sums are float32, and intermediate results are rounded where PyTorch's
operators round them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tts_worker.engine.cosyvoice.ops import language_model, sampler

_M1 = tl.constexpr(sampler.M1)
_M2 = tl.constexpr(sampler.M2)
_GOLDEN = tl.constexpr(sampler.GOLDEN)
_IDLE = tl.constexpr(language_model.IDLE)
_BROKEN = tl.constexpr(language_model.BROKEN)
_NOT_FORCED = tl.constexpr(language_model.NOT_FORCED)
_INF = tl.constexpr(float("inf"))

_BLOCK_GATES = 1024
_BLOCK_DRAWS = 16
_MIN_DOT = 16  # smallest size of tl.dot


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.contiguous()
    assert residual.is_contiguous()
    rows, size = x.shape
    out = torch.empty_like(x)
    _add_rms_norm[(rows,)](x, residual, weight, out, eps, size, BLOCK=triton.next_power_of_2(size))
    return out


@triton.jit
def _add_rms_norm(x, residual, weight, out, eps, size: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    at = tl.program_id(0).to(tl.int64) * size + columns
    total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    total = total.to(residual.dtype.element_ty)
    tl.store(residual + at, total, mask=inside)
    total = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total) / size + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (total * scale * gain).to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate_up = gate_up.contiguous()
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, size)
    _silu_mul[(rows, triton.cdiv(size, _BLOCK_GATES))](gate_up, out, size, BLOCK=_BLOCK_GATES)
    return out


@triton.jit
def _silu_mul(gate_up, out, size: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    gate = tl.load(gate_up + row * 2 * size + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + columns, mask=inside, other=0.0).to(tl.float32)
    gate = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * size + columns, (gate * up).to(out.dtype.element_ty), mask=inside)


def rotate_and_store(
    qkv: Tensor, rotations: Tensor, positions: Tensor, slots: Tensor, cache: Tensor, layer: int
) -> Tensor:
    _, _, slot_count, heads, length, dim = cache.shape
    rows = qkv.shape[0]
    total_heads = qkv.shape[1] // dim
    qkv, rotations, positions = qkv.contiguous(), rotations.contiguous(), positions.contiguous()
    queries = qkv.new_empty(rows, total_heads - 2 * heads, dim)
    _rotate_and_store[(rows,)](
        qkv,
        rotations,
        positions,
        slots,
        cache[layer],
        queries,
        slot_count * heads * length * dim,
        positions.shape[1],
        length,
        QUERY_HEADS=total_heads - 2 * heads,
        HEADS=heads,
        HALF=dim // 2,
        BLOCK_HEADS=triton.next_power_of_2(total_heads),
        BLOCK_HALF=triton.next_power_of_2(dim // 2),
    )
    return queries


@triton.jit
def _rotate_and_store(
    qkv,
    rotations,
    positions,
    slots,
    cache,
    queries,
    which_stride,  # from keys to values
    span,
    length,
    QUERY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    column = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < QUERY_HEADS + 2 * HEADS) & (column < HALF)
    is_value = head >= QUERY_HEADS + HEADS
    at = qkv + row * (QUERY_HEADS + 2 * HEADS) * 2 * HALF + head * 2 * HALF + column
    left = tl.load(at, mask=inside, other=0.0)
    right = tl.load(at + HALF, mask=inside, other=0.0)
    angle = rotations + row * 3 * HALF + column
    cos = tl.load(angle, mask=column < HALF, other=0.0).to(tl.float32)
    sin = tl.load(angle + 2 * HALF, mask=column < HALF, other=0.0).to(tl.float32)
    dtype = qkv.dtype.element_ty
    left_cos = (left.to(tl.float32) * cos).to(dtype).to(tl.float32)
    right_cos = (right.to(tl.float32) * cos).to(dtype).to(tl.float32)
    rotated_left = (left_cos - right.to(tl.float32) * sin).to(dtype)
    rotated_right = (right_cos + left.to(tl.float32) * sin).to(dtype)
    left = tl.where(is_value, left, rotated_left)
    right = tl.where(is_value, right, rotated_right)

    to_query = queries + row * QUERY_HEADS * 2 * HALF + head * 2 * HALF + column
    is_query = inside & (head < QUERY_HEADS)
    tl.store(to_query, left, mask=is_query)
    tl.store(to_query + HALF, right, mask=is_query)

    slot = tl.load(slots + row // span)
    position = tl.load(positions + row)
    store_head = tl.where(is_value, head - QUERY_HEADS - HEADS, head - QUERY_HEADS)
    to_cache = cache + (slot * HEADS + store_head) * length * 2 * HALF + position * 2 * HALF + column
    to_cache += tl.where(is_value, which_stride, 0)
    is_stored = inside & (head >= QUERY_HEADS)
    tl.store(to_cache, left, mask=is_stored)
    tl.store(to_cache + HALF, right, mask=is_stored)


def slot_attention(
    queries: Tensor, cache: Tensor, layer: int, slots: Tensor, positions: Tensor, ends: Tensor, splits: int
) -> Tensor:
    _, _, slot_count, heads, length, dim = cache.shape
    batch, span = positions.shape
    query_heads = queries.shape[1]
    groups = query_heads // heads
    queries, positions = queries.contiguous(), positions.contiguous()
    out = queries.new_empty(batch * span, query_heads * dim)
    # Larger tiles do not fit into the registers or the shared memory of every device.
    is_half = queries.dtype.itemsize == 2
    block_rows = max(_MIN_DOT, min(64 if is_half else 16, triton.next_power_of_2(groups * span)))
    block_keys = (128 if is_half else 64) if span == 1 else 64
    blocks = triton.cdiv(groups * span, block_rows)
    partial = out
    if splits > 1:
        assert span == 1, "only single positions are split"
        partial = torch.empty(batch, query_heads, splits, dim + 2, dtype=torch.float32, device=queries.device)
    _slot_attention[(batch, heads, blocks * splits)](
        queries,
        cache[layer],
        slots,
        positions,
        ends,
        partial,
        dim**-0.5,
        slot_count * heads * length * dim,
        span,
        length,
        HEADS=heads,
        GROUPS=groups,
        DIM=dim,
        SPLITS=splits,
        BLOCK_ROWS=block_rows,
        BLOCK_KEYS=block_keys,
        BLOCK_DIM=max(_MIN_DOT, triton.next_power_of_2(dim)),
        num_warps=4,
    )
    if splits > 1:
        _combine[(batch, query_heads)](
            partial,
            out,
            HEADS=query_heads,
            DIM=dim,
            SPLITS=splits,
            BLOCK_SPLITS=triton.next_power_of_2(splits),
            BLOCK_DIM=triton.next_power_of_2(dim),
        )
    return out


@triton.jit
def _slot_attention(
    queries,
    cache,
    slots,
    positions,
    ends,
    out,
    scale,
    which_stride,  # from keys to values
    span,
    length,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Attention of some (position, query head) pairs of one key head; with splits, to a part of the context."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2) % SPLITS
    pair = (tl.program_id(2) // SPLITS) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    step = pair // GROUPS
    query_head = head * GROUPS + pair % GROUPS
    is_row = step < span
    row = sequence * span + step
    column = tl.arange(0, BLOCK_DIM)
    is_column = column < DIM
    query = tl.load(
        queries + (row * HEADS * GROUPS + query_head)[:, None] * DIM + column[None, :],
        mask=is_row[:, None] & is_column[None, :],
        other=0.0,
    )
    end = tl.load(ends + sequence)
    position = tl.load(positions + row, mask=is_row, other=-1)
    first = tl.zeros([], tl.int64)
    last = tl.minimum(end, tl.max(position) + 1)
    if SPLITS > 1:
        part = tl.cdiv(tl.cdiv(last, SPLITS), BLOCK_KEYS) * BLOCK_KEYS
        first = split * part
        last = tl.minimum(last, first + part)
    keys = cache + (tl.load(slots + sequence) * HEADS + head) * length * DIM
    values = keys + which_stride

    best = tl.full([BLOCK_ROWS], -_INF, tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    result = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    for begin in range(first, last, BLOCK_KEYS):
        key_position = begin + tl.arange(0, BLOCK_KEYS)
        at = key_position[:, None] * DIM + column[None, :]
        is_key = (key_position < last)[:, None] & is_column[None, :]
        key = tl.load(keys + at, mask=is_key, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        visible = (key_position[None, :] <= position[:, None]) & (key_position < last)[None, :]
        score = tl.where(visible, score, -_INF)
        higher = tl.maximum(best, tl.max(score, 1))
        shift = tl.where(higher == -_INF, 0.0, higher)  # nothing visible yet
        weight = tl.exp(score - shift[:, None])
        decay = tl.exp(best - shift)
        total = total * decay + tl.sum(weight, 1)
        value = tl.load(values + at, mask=is_key, other=0.0)
        result = result * decay[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        best = higher

    stored = is_row[:, None] & is_column[None, :]
    if SPLITS > 1:
        to = out + ((sequence * HEADS * GROUPS + query_head) * SPLITS + split) * (DIM + 2)
        tl.store(to[:, None] + column[None, :], result, mask=stored)
        tl.store(to + DIM, best, mask=is_row)
        tl.store(to + DIM + 1, total, mask=is_row)
    else:
        result = result / tl.where(total == 0.0, 1.0, total)[:, None]
        to = out + (row * HEADS * GROUPS + query_head)[:, None] * DIM + column[None, :]
        tl.store(to, result.to(out.dtype.element_ty), mask=stored)


@triton.jit
def _combine(
    partial,
    out,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Combine the splits of one query head."""
    row = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    split = tl.arange(0, BLOCK_SPLITS)
    column = tl.arange(0, BLOCK_DIM)
    is_split = split < SPLITS
    at = partial + (row * SPLITS + split) * (DIM + 2)
    result = tl.load(at[:, None] + column[None, :], mask=is_split[:, None] & (column < DIM)[None, :], other=0.0)
    best = tl.load(at + DIM, mask=is_split, other=-_INF)
    total = tl.load(at + DIM + 1, mask=is_split, other=0.0)
    highest = tl.max(best)
    weight = tl.exp(best - tl.where(highest == -_INF, 0.0, highest))
    total = tl.sum(total * weight)
    result = tl.sum(result * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * DIM + column, result.to(out.dtype.element_ty), mask=column < DIM)


def begin_step(
    slots: Tensor, remaining: Tensor, recent: Tensor, lengths: Tensor, table: Tensor, max_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, size = slots.shape[0], table.shape[1]
    x = table.new_empty(batch, size)
    positions = slots.new_empty(batch, 1)
    ends = torch.empty_like(slots)
    _begin_step[(batch,)](
        slots,
        remaining,
        recent,
        lengths,
        table,
        x,
        positions,
        ends,
        max_tokens,
        WINDOW=recent.shape[1],
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
    )
    return x, positions, ends


@triton.jit
def _begin_step(
    slots,
    remaining,
    recent,
    lengths,
    table,
    x,
    positions,
    ends,
    max_tokens,
    WINDOW: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    is_active = tl.load(remaining + slot) > 0
    token = tl.maximum(tl.load(recent + slot * WINDOW + WINDOW - 1), 0)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    tl.store(x + row * SIZE + column, tl.load(table + token * SIZE + column, mask=inside), mask=inside)
    begin = tl.load(lengths + slot)
    end = begin + is_active.to(tl.int64)
    tl.store(positions + row, tl.where(is_active, begin, max_tokens))
    tl.store(ends + row, end)
    if is_active:  # idle rows may share a slot
        tl.store(lengths + slot, end)


def plan_draws(sent: Tensor, keys: Tensor, steps: Tensor, remaining: Tensor) -> Tensor:
    sent = sent.contiguous()
    batch, count = sent.shape[0], sent.shape[1] - 4
    plan = sent.new_empty(count, 4, batch, 1)
    _plan_draws[(batch,)](sent, keys, steps, remaining, plan, batch, count, BLOCK=_BLOCK_DRAWS)
    return plan


# Launched outside of graphs with any batch and count: one binary serves all of them, so that none is built while calls
# wait. The others are built before their graphs are captured.
@triton.jit(do_not_specialize=["batch", "count"])
def _plan_draws(sent, keys, steps, remaining, plan, batch, count, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    sent += row * (count + 4)
    slot = tl.load(sent)
    special = tl.load(sent + 1)
    special_from = tl.load(sent + 2)
    tl.store(remaining + slot, tl.load(sent + 3))
    seed = tl.load(keys + slot)
    drawn = tl.load(steps + slot)
    for first in range(0, count, BLOCK):
        draw = first + tl.arange(0, BLOCK)
        inside = draw < count
        forced = tl.load(sent + 4 + draw, mask=inside, other=_NOT_FORCED)
        number = drawn + draw
        key = _mix(seed + number * 2)
        to = plan + draw * 4 * batch + row
        tl.store(to, slot + tl.zeros_like(key), mask=inside)
        tl.store(to + batch, key, mask=inside)
        tl.store(to + 2 * batch, tl.where(number >= special_from, special, _NOT_FORCED), mask=inside)
        tl.store(to + 3 * batch, forced, mask=inside)


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
    scores, plan = scores.contiguous(), plan.contiguous()
    batch, size = scores.shape
    drawn = slots.new_empty(batch, 1)
    _draw_ids[(batch,)](
        scores,
        plan,
        slots,
        remaining,
        recent,
        steps,
        drawn,
        batch,
        speech_tokens,
        top_p,
        min(top_k, size),
        repeats,
        SIZE=size,
        WINDOW=recent.shape[1],
        BLOCK=triton.next_power_of_2(size),
        BLOCK_WINDOW=triton.next_power_of_2(recent.shape[1]),
        num_warps=8,
    )
    return drawn


@triton.jit
def _draw_ids(
    scores,
    plan,
    slots,
    remaining,
    recent,
    steps,
    drawn,
    batch,
    speech_tokens,
    top_p,
    top_k,
    repeats,
    SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_WINDOW: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    draws_left = tl.load(remaining + slot)
    if draws_left <= 0:
        tl.store(drawn + row, tl.full([], _IDLE, tl.int64))
    else:
        key = tl.load(plan + batch + row)
        special = tl.load(plan + 2 * batch + row)
        forced = tl.load(plan + 3 * batch + row)
        place = tl.arange(0, BLOCK_WINDOW)
        last = tl.load(recent + slot * WINDOW + place, mask=place < WINDOW, other=-1)
        token = tl.arange(0, BLOCK)
        score = tl.load(scores + row * SIZE + token, mask=token < SIZE, other=-_INF).to(tl.float32)
        # NaN or +inf among the scores makes all probabilities NaN.
        is_finite = tl.sum(((score == score) & (score < _INF)).to(tl.int32)) == BLOCK
        score = tl.where((token < speech_tokens) | (token == special), score, -_INF)
        score = tl.where(token < SIZE, score, -_INF)
        highest = tl.max(score)
        is_valid = is_finite & (highest > -_INF)
        choice = tl.full([], _BROKEN, tl.int64)
        if is_valid:
            choice = forced
            if forced < 0:
                choice = _pick(score, highest, token, key, last, top_p, top_k, repeats)
        tl.store(drawn + row, choice)
        # The history is shifted in registers: every element is loaded before the first one is stored.
        shifted = tl.load(recent + slot * WINDOW + place + 1, mask=place < WINDOW - 1, other=0)
        shifted = tl.where(place == WINDOW - 1, choice, shifted)
        tl.debug_barrier()
        tl.store(recent + slot * WINDOW + place, shifted, mask=place < WINDOW)
        tl.store(steps + slot, tl.load(steps + slot) + 1)
        goes_on = is_valid & (choice < speech_tokens)
        tl.store(remaining + slot, tl.where(goes_on, draws_left - 1, 0))


@triton.jit
def _pick(score, highest, token, key, last, top_p, top_k, repeats):
    """Sample one id: from the nucleus, and again from all other ids if it repeats too often."""
    weight = tl.exp(score - highest)
    probability = tl.div_rn(weight, tl.sum(weight) + tl.zeros_like(weight))
    first = tl.zeros([], tl.int64)
    lowest = tl.full([], _INF, tl.float32)
    total = tl.zeros([], tl.float32)
    before = tl.zeros([], tl.float32)
    count = tl.zeros([], tl.int32)
    while (count == 0) | ((count < top_k) & (before < top_p)):  # the likeliest one even with top_p 0
        p, best = tl.max(probability, 0, return_indices=True)
        best = best.to(tl.int64)
        time = tl.div_rn(p, _log(_uniform(key, best)))  # negative: the lowest is drawn
        first = tl.where(time < lowest, best, first)
        lowest = tl.minimum(lowest, time)
        total += p
        before = total  # of the next one; the id that crosses top_p belongs to the nucleus
        probability = tl.where(token == best, -1.0, probability)
        count += 1
    choice = first
    if tl.sum((last == first).to(tl.int32)) >= repeats:
        rest = tl.where(token == first, -_INF, score)
        highest_rest = tl.max(rest)
        if highest_rest > -_INF:
            weight = tl.exp(rest - highest_rest)
            weight = tl.div_rn(weight, tl.sum(weight) + tl.zeros_like(weight))
            time = tl.div_rn(weight, _log(_uniform(_mix(key + 1), token.to(tl.int64))))
            choice = tl.argmin(time, 0).to(tl.int64)
    return choice


@triton.jit
def _mix_high(x):
    """The splitmix64 finalizer without its last step, on wrapping int64 (``sampler.mix``)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _M1
    return (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _M2


@triton.jit
def _mix(x):
    x = _mix_high(x)
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _uniform(key, token):
    """Uniform numbers in (0, 1): float32 with 23 random bits (``sampler.uniform``)."""
    bits = (_mix_high(key + token * _GOLDEN) >> 41) & 0x7FFFFF
    return (bits.to(tl.float32) + 0.5) * 1.1920928955078125e-07


@triton.jit
def _log(x):
    """Natural logarithm of normal float32 numbers, to one unit in the last place.

    ``tl.log`` is exact to 2^-22 only, which is the whole result for numbers near 1, and those are what is drawn.
    With x = 2^k * m and m in [sqrt(1/2), sqrt(2)): log m = 2 artanh s, s = (m - 1) / (m + 1).
    """
    bits = x.to(tl.int32, bitcast=True)
    shifted = bits - 0x3F3504F3  # sqrt(1/2)
    exponent = shifted >> 23
    m = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
    f = m - 1.0
    s = tl.div_rn(f, 2.0 + f)
    z = s * s
    # 2 artanh s = s * (2 + z * 2/3 + z^2 * 2/5 + ..); z is below 0.03.
    series = z * (2 / 3 + z * (2 / 5 + z * (2 / 7 + z * (2 / 9))))
    half = 0.5 * f * f
    k = exponent.to(tl.float32)
    # ln 2 in two parts: k times the first is exact.
    return k * 0.693138122558594 - ((half - (s * (half + series) + k * 9.05800061445916e-6)) - f)
