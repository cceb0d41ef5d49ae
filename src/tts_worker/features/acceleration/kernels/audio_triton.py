"""Triton kernels of the flow and the vocoder. Arguments and results are those of audio.py.

Sums and what lies between loading and storing are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tts_worker.engine.cosyvoice.ops import sampler

_INF = tl.constexpr(float("inf"))
_M1 = tl.constexpr(sampler.M1)
_M2 = tl.constexpr(sampler.M2)
_LOG2_E = 1.4426950408889634
_MIN_DOT = 16  # smallest size of tl.dot
_MIN_PROGRAMS = 64  # fewer leave most of a large device idle; more read keys and values too often
_PRECISION = tl.constexpr(
    "tf32x3"
)  # of float32 products: three of TensorFloat-32, exact to a few units in the last place
_PLAIN = tl.constexpr(0)
_MISH = tl.constexpr(1)
_NORM_MISH = tl.constexpr(2)
_NORM_MISH_ADD_NORM = tl.constexpr(3)


def _block(size: int) -> int:
    return max(_MIN_DOT, 1 << (size - 1).bit_length())


# -- attention --------------------------------------------------------------------------------------------------------


def paged_attention(
    qkv: Tensor, rotations: Tensor | None, store: Tensor, table: Tensor, fresh: Tensor, start: Tensor, total: Tensor
) -> Tensor:
    qkv = qkv.contiguous()
    rows, span, _, heads, dim = qkv.shape
    batch, page = table.shape[0], store.shape[4]
    out = qkv.new_empty(rows, span, heads * dim)
    angles = qkv if rotations is None else torch.view_as_real(rotations)
    largest = 64 if qkv.dtype.itemsize == 2 else 32  # larger tiles do not fit into registers and shared memory
    block = largest
    while block > _MIN_DOT and rows * heads * triton.cdiv(span, block) < _MIN_PROGRAMS:
        block //= 2
    _paged_attention[(rows * heads, triton.cdiv(span, block))](
        qkv,
        angles,
        store,
        table,
        fresh,
        start,
        total,
        out,
        dim**-0.5 * _LOG2_E,
        batch,
        span,
        store.stride(0),
        store.stride(1),
        store.stride(2),
        table.stride(0),
        fresh.stride(0),
        0 if rotations is None else angles.stride(0),
        0 if rotations is None else angles.stride(1),
        HEADS=heads,
        DIM=dim,
        PAGE=page,
        CHUNKS=span // page,
        ROTATES=rotations is not None,
        BLOCK_ROWS=block,
        BLOCK_KEYS=_block(page),
        BLOCK_PAST=largest,
        BLOCK_DIM=_block(dim),
        num_warps=4,
        num_stages=5,  # two buffers for keys and values, whose addresses are loaded first
    )
    return out


@triton.jit
def _load_rotated(
    frames,
    row,
    is_row,
    rotations,
    frame_stride,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    ROTATES: tl.constexpr,
    angle_stride,
    head,
):
    """Load rows of one head; head 0 is rotated."""
    column = tl.arange(0, BLOCK_DIM)
    inside = is_row[:, None] & (column < DIM)[None, :]
    at = row[:, None] * frame_stride
    x = tl.load(frames + at + column[None, :], mask=inside, other=0.0)
    if ROTATES:  # noqa: SIM102 - the only condition that is known when the kernel is compiled
        if head == 0:
            # Pairs (a, b) become (a cos - b sin, b cos + a sin).
            partner = tl.load(frames + at + (column ^ 1)[None, :], mask=inside, other=0.0).to(tl.float32)
            angle = rotations + row[:, None] * angle_stride + (column // 2 * 2)[None, :]
            cos = tl.load(angle, mask=inside, other=0.0)
            sin = tl.load(angle + 1, mask=inside, other=0.0)
            sin = tl.where((column % 2 == 0)[None, :], -sin, sin)
            x = (x.to(tl.float32) * cos + partner * sin).to(x.dtype)
    return x


@triton.jit
def _attend(query, key, value, visible, best, total, result, scale):
    """One block of keys of an online softmax."""
    score = tl.dot(query, tl.trans(key), input_precision=_PRECISION) * scale
    score = tl.where(visible, score, -_INF)
    higher = tl.maximum(best, tl.max(score, 1))
    shift = tl.where(higher == -_INF, 0.0, higher)  # nothing visible yet
    weight = tl.exp2(score - shift[:, None])
    decay = tl.exp2(best - shift)
    total = total * decay + tl.sum(weight, 1)
    result = result * decay[:, None] + tl.dot(weight.to(value.dtype), value, input_precision=_PRECISION)
    return higher, total, result


@triton.jit
def _paged_attention(
    qkv,
    rotations,
    store,
    table,
    fresh,
    start,
    total,
    out,
    scale,
    batch,
    span,
    which_stride,  # from keys to values
    head_stride,
    branch_stride,
    table_stride,
    fresh_stride,
    angle_row_stride,
    angle_stride,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROTATES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_PAST: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Attention of some frames of one head: to the pages of the past, then to the new frames, which it stores."""
    row = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    branch = row // batch
    utterance = row % batch
    frame_stride = 3 * HEADS * DIM
    qkv += row * span * frame_stride + head * DIM
    rotations += row * angle_row_stride
    store += head.to(tl.int64) * head_stride + branch * branch_stride
    table += utterance * table_stride
    fresh += utterance * fresh_stride

    frame = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_frame = frame < span
    column = tl.arange(0, BLOCK_DIM)
    is_column = column < DIM
    key_row = tl.arange(0, BLOCK_KEYS)
    is_key = key_row < PAGE
    in_page = is_key[:, None] & is_column[None, :]

    query = _load_rotated(qkv, frame, is_frame, rotations, frame_stride, DIM, BLOCK_DIM, ROTATES, angle_stride, head)
    best = tl.full([BLOCK_ROWS], -_INF, tl.float32)
    weights = tl.zeros([BLOCK_ROWS], tl.float32)
    result = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    first = tl.load(start + utterance)
    for begin in range(0, first, BLOCK_PAST):
        past = begin + tl.arange(0, BLOCK_PAST)
        is_past = past < first
        page = tl.load(table + past // PAGE, mask=is_past, other=0)
        at = (page * PAGE + past % PAGE)[:, None] * DIM + column[None, :]
        in_past = is_past[:, None] & is_column[None, :]
        key = tl.load(store + at, mask=in_past, other=0.0).to(query.dtype)
        value = tl.load(store + which_stride + at, mask=in_past, other=0.0).to(query.dtype)
        best, weights, result = _attend(query, key, value, is_past[None, :], best, weights, result, scale)
    exist = tl.load(total + utterance) - first
    new_keys = qkv + HEADS * DIM
    new_values = new_keys + HEADS * DIM
    for chunk in tl.range(0, CHUNKS, num_stages=1):
        new = chunk * PAGE + key_row
        key = _load_rotated(new_keys, new, is_key, rotations, frame_stride, DIM, BLOCK_DIM, ROTATES, angle_stride, head)
        value = tl.load(new_values + new[:, None] * frame_stride + column[None, :], mask=in_page, other=0.0)
        visible = (is_key & (new < exist))[None, :] & (frame // PAGE >= chunk)[:, None]
        best, weights, result = _attend(query, key, value, visible, best, weights, result, scale)
    result = result / tl.where(weights == 0.0, 1.0, weights)[:, None]
    stored = is_frame[:, None] & is_column[None, :]
    to = out + (row * span + frame)[:, None] * (HEADS * DIM) + head * DIM + column[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=stored)

    new_page = tl.load(fresh + frame // PAGE, mask=is_frame, other=0)
    to = store + (new_page * PAGE + frame % PAGE)[:, None] * DIM + column[None, :]
    key = _load_rotated(new_keys, frame, is_frame, rotations, frame_stride, DIM, BLOCK_DIM, ROTATES, angle_stride, head)
    value = tl.load(new_values + frame[:, None] * frame_stride + column[None, :], mask=stored, other=0.0)
    tl.store(to, key.to(store.dtype.element_ty), mask=stored)
    tl.store(to + which_stride, value.to(store.dtype.element_ty), mask=stored)


# -- convolutions -----------------------------------------------------------------------------------------------------


def causal_conv(
    x: Tensor, past: Tensor, slots: Tensor, weight: Tensor, bias: Tensor, groups: int, has_mish: bool
) -> Tensor:
    out = x.new_empty(*x.shape[:2], bias.shape[0])
    _launch_conv(x, past, slots, weight, bias, out, _MISH if has_mish else _PLAIN)
    return out


def conv_norm_mish(
    x: Tensor,
    past: Tensor,
    slots: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    shift: Tensor | None,
) -> Tensor:
    out = x.new_empty(*x.shape[:2], bias.shape[0])
    _launch_conv(x, past, slots, weight, bias, out, _NORM_MISH, (norm_weight, norm_bias), eps, shift)
    return out


def conv_norm_mish_add_norm(
    x: Tensor,
    past: Tensor,
    slots: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    shortcut: Tensor,
    next_weight: Tensor,
    next_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    out = x.new_empty(*x.shape[:2], bias.shape[0])
    total = torch.empty_like(out, dtype=torch.float32)
    norms = norm_weight, norm_bias, next_weight, next_bias
    _launch_conv(x, past, slots, weight, bias, out, _NORM_MISH_ADD_NORM, norms, eps, shortcut.contiguous(), total)
    return total, out


def _launch_conv(
    x: Tensor,
    past: Tensor,
    slots: Tensor,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    epilogue: tl.constexpr,
    norms: tuple[Tensor, ...] = (),
    eps: float = 0.0,
    added: Tensor | None = None,
    total: Tensor | None = None,
) -> None:
    x = x.contiguous()
    rows, span, channels = x.shape
    kernel, groups, in_group, out_group = weight.shape
    width = past.shape[3]
    assert width <= span
    # Only the first block reads the past, which it then overwrites: no other program may.
    block_rows = _block(width)
    block_out = _block(out_group) if groups == 1 else min(64, _block(out_group))
    assert block_out >= out_group
    norms = (*norms, *[bias] * (4 - len(norms)))
    _conv[(rows, triton.cdiv(span, block_rows), groups)](
        x,
        past,
        slots,
        weight,
        bias,
        *norms,
        bias if added is None else added,
        out if total is None else total,
        out,
        eps,
        slots.shape[0],
        span,
        past.stride(0),
        past.stride(1),
        CHANNELS=channels,
        KERNEL=kernel,
        GROUPS=groups,
        IN_GROUP=in_group,
        OUT_GROUP=out_group,
        EPILOGUE=epilogue,
        ADDS=added is not None,
        BLOCK_ROWS=block_rows,
        BLOCK_IN=min(64 if block_out <= 64 else 32, _block(in_group)),
        BLOCK_OUT=block_out,
        BLOCK_PAST=triton.next_power_of_2(width),
        num_warps=4 if block_out <= 64 else 8,
    )


@triton.jit
def _mish(x):
    """x tanh(log(1 + e^x)), without the logarithm."""
    power = tl.exp(tl.minimum(x, 30.0))
    power = power * (power + 2.0)
    return x * power / (power + 2.0)


@triton.jit
def _norm(x, column, SIZE: tl.constexpr, weight, bias, eps):
    """Layer norm of ``x [rows, columns]``, zero outside."""
    inside = column < SIZE
    mean = tl.sum(x, 1) / SIZE
    centered = tl.where(inside[None, :], x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centered * centered, 1) / SIZE + eps)
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    return centered * scale[:, None] * gain[None, :] + shift[None, :]


@triton.jit
def _conv(
    x,
    past,
    slots,
    weight,
    bias,
    norm_weight,
    norm_bias,
    next_weight,
    next_bias,
    added,
    total,
    out,
    eps,
    batch,
    span,
    branch_stride,
    slot_stride,
    CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr,
    GROUPS: tl.constexpr,
    IN_GROUP: tl.constexpr,
    OUT_GROUP: tl.constexpr,
    EPILOGUE: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_PAST: tl.constexpr,
):
    """Some frames of one group of channels."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    group = tl.program_id(2)
    WIDTH: tl.constexpr = KERNEL - 1
    past += (row // batch) * branch_stride + tl.load(slots + row % batch) * slot_stride + group * IN_GROUP * WIDTH
    x += row * span * CHANNELS + group * IN_GROUP
    frame = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_OUT)
    is_column = column < OUT_GROUP
    result = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.float32)
    for tap in range(0, KERNEL):
        source = frame + tap - WIDTH
        is_new = (source >= 0) & (source < span)
        for first in range(0, IN_GROUP, BLOCK_IN):
            channel = first + tl.arange(0, BLOCK_IN)
            is_channel = channel < IN_GROUP
            values = tl.load(
                x + source[:, None] * CHANNELS + channel[None, :], mask=is_new[:, None] & is_channel[None, :], other=0.0
            )
            if block == 0:
                before = tl.load(
                    past + channel[None, :] * WIDTH + (source + WIDTH)[:, None],
                    mask=(source < 0)[:, None] & is_channel[None, :],
                    other=0.0,
                )
                values += before.to(values.dtype)
            factors = tl.load(
                weight + ((tap * GROUPS + group) * IN_GROUP + channel)[:, None] * OUT_GROUP + column[None, :],
                mask=is_channel[:, None] & is_column[None, :],
                other=0.0,
            )
            result += tl.dot(values.to(factors.dtype), factors, input_precision=_PRECISION)
    at = group * OUT_GROUP + column
    result += tl.load(bias + at, mask=is_column, other=0.0).to(tl.float32)[None, :]
    inside = (frame < span)[:, None] & is_column[None, :]
    to = (row * span + frame)[:, None] * (GROUPS * OUT_GROUP) + at[None, :]
    if EPILOGUE == _MISH:
        result = _mish(result)
    if EPILOGUE >= _NORM_MISH:
        result = _mish(_norm(result, column, OUT_GROUP, norm_weight, norm_bias, eps))
    if EPILOGUE == _NORM_MISH and ADDS:
        result += tl.load(added + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    if EPILOGUE == _NORM_MISH_ADD_NORM:
        result += tl.load(added + to, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + to, result, mask=inside)
        result = tl.where(is_column[None, :], result, 0.0)
        result = _norm(result, column, OUT_GROUP, next_weight, next_bias, eps)
    tl.store(out + to, result.to(out.dtype.element_ty), mask=inside)

    if block == 0:
        tl.debug_barrier()  # all of the past has been read
        step = tl.arange(0, BLOCK_PAST)
        for begin in range(0, IN_GROUP, BLOCK_IN):
            tail_channel = begin + tl.arange(0, BLOCK_IN)
            in_tail = (tail_channel < IN_GROUP)[:, None] & (step < WIDTH)[None, :]
            source_row = span - WIDTH + step
            last = tl.load(x + tail_channel[:, None] + source_row[None, :] * CHANNELS, mask=in_tail, other=0.0)
            to_past = past + tail_channel[:, None] * WIDTH + step[None, :]
            tl.store(to_past, last.to(past.dtype.element_ty), mask=in_tail)


# -- rows -------------------------------------------------------------------------------------------------------------


def add_norm(
    x: Tensor, y: Tensor, gate: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x, y = x.contiguous(), y.contiguous()
    size = x.shape[-1]
    total = torch.empty_like(x, dtype=torch.float32)
    out = torch.empty_like(y)
    _add_norm[(x.numel() // size,)](
        x,
        y,
        weight if gate is None else gate,
        weight,
        bias,
        total,
        out,
        eps,
        SIZE=size,
        GATES=gate is not None,
        BLOCK=triton.next_power_of_2(size),
    )
    return total, out


@triton.jit
def _add_norm(x, y, gate, weight, bias, total, out, eps, SIZE: tl.constexpr, GATES: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    at = tl.program_id(0).to(tl.int64) * SIZE + column
    added = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    if GATES:
        added *= tl.load(gate + column, mask=inside, other=0.0).to(tl.float32)
    result = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + added
    tl.store(total + at, result, mask=inside)
    centered = tl.where(inside, result - tl.sum(result, 0) / SIZE, 0.0)
    result = centered * tl.rsqrt(tl.sum(centered * centered, 0) / SIZE + eps)
    result *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    result += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


# -- products ---------------------------------------------------------------------------------------------------------


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, is_tanh: bool) -> Tensor:
    inputs = x.reshape(-1, x.shape[-1])
    if is_tanh and x.is_cuda and hasattr(torch, "_addmm_activation"):  # cuBLASLt, which has the approximation only
        out = torch._addmm_activation(bias, inputs, weight.t(), use_gelu=True)
        return out.view(*x.shape[:-1], -1)
    inputs, weight = inputs.contiguous(), weight.contiguous()
    rows, size = inputs.shape
    outputs = weight.shape[0]
    out = inputs.new_empty(rows, outputs)
    block_out = min(64, _block(outputs))
    block_rows = 64 if x.dtype.itemsize == 2 else 32
    while block_rows > _MIN_DOT and triton.cdiv(rows, block_rows) * triton.cdiv(outputs, block_out) < _MIN_PROGRAMS:
        block_rows //= 2
    _linear_gelu[(triton.cdiv(rows, block_rows), triton.cdiv(outputs, block_out))](
        inputs,
        weight,
        bias,
        out,
        rows,
        SIZE=size,
        OUTPUTS=outputs,
        IS_TANH=is_tanh,
        BLOCK_ROWS=block_rows,
        BLOCK_OUT=block_out,
        BLOCK_IN=min(64, _block(size)),
        num_warps=4,
    )
    return out.view(*x.shape[:-1], outputs)


@triton.jit
def _linear_gelu(
    x,
    weight,
    bias,
    out,
    rows,
    SIZE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    IS_TANH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    is_row, is_column = row < rows, column < OUTPUTS
    result = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.float32)
    for first in range(0, SIZE, BLOCK_IN):
        channel = first + tl.arange(0, BLOCK_IN)
        is_channel = channel < SIZE
        values = tl.load(
            x + row[:, None] * SIZE + channel[None, :], mask=is_row[:, None] & is_channel[None, :], other=0.0
        )
        factors = tl.load(
            weight + column[None, :] * SIZE + channel[:, None], mask=is_channel[:, None] & is_column[None, :], other=0.0
        )
        result += tl.dot(values, factors, input_precision=_PRECISION)
    result += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    if IS_TANH:
        # (1 + tanh u) / 2 == sigmoid(2u) with 2u = sqrt(8 / pi) * (x + 0.044715 x^3)
        result = result * tl.sigmoid(1.5957691216057308 * result * (1.0 + 0.044715 * result * result))
    else:
        result = 0.5 * result * (1.0 + tl.erf(result * 0.7071067811865476))
    to = out + row[:, None] * OUTPUTS + column[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


# -- vocoder ----------------------------------------------------------------------------------------------------------

_BLOCK_SAMPLES = 1024


def _rows(x: Tensor) -> Tensor:
    """``x [B, C, T]`` with contiguous rows."""
    return x if x.stride(2) == 1 else x.contiguous()


def snake(y: Tensor, alpha: Tensor, reciprocal: Tensor, mask: Tensor | None) -> Tensor:
    y = _rows(y)
    batch, channels, span = y.shape
    out = y.new_empty(y.shape)
    _snake[(batch * channels, triton.cdiv(span, _BLOCK_SAMPLES))](
        y,
        y,
        alpha,
        reciprocal,
        y if mask is None else mask,
        out,
        out,
        channels,
        span,
        0,
        0,
        y.stride(0),
        y.stride(1),
        ADDS=False,
        MASKS=mask is not None,
        BLOCK=_BLOCK_SAMPLES,
    )
    return out


def add_snake(x: Tensor, y: Tensor, alpha: Tensor, reciprocal: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    x, y = _rows(x), _rows(y)
    batch, channels, span = y.shape
    total, out = y.new_empty(y.shape), y.new_empty(y.shape)
    _snake[(batch * channels, triton.cdiv(span, _BLOCK_SAMPLES))](
        x,
        y,
        alpha,
        reciprocal,
        y if mask is None else mask,
        total,
        out,
        channels,
        span,
        x.stride(0),
        x.stride(1),
        y.stride(0),
        y.stride(1),
        ADDS=True,
        MASKS=mask is not None,
        BLOCK=_BLOCK_SAMPLES,
    )
    return total, out


@triton.jit
def _snake(
    x,
    y,
    alpha,
    reciprocal,
    mask,
    total,
    out,
    channels,
    span,
    x_batch,
    x_channel,
    y_batch,
    y_channel,
    ADDS: tl.constexpr,
    MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    batch, channel = row // channels, row % channels
    sample = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = sample < span
    result = tl.load(y + batch * y_batch + channel * y_channel + sample, mask=inside, other=0.0)
    if MASKS:
        result *= tl.load(mask + batch * span + sample, mask=inside, other=0.0)
    if ADDS:
        result += tl.load(x + batch * x_batch + channel * x_channel + sample, mask=inside, other=0.0)
        tl.store(total + row * span + sample, result, mask=inside)
    wave = tl.sin(result * tl.load(alpha + channel))
    tl.store(out + row * span + sample, result + wave * wave * tl.load(reciprocal + channel), mask=inside)


def merge_snakes(
    up: Tensor,
    rate: int,
    has_reflection: bool,
    x: Tensor,
    y: Tensor,
    alphas: Tensor,
    reciprocals: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    up, x, y = _rows(up), _rows(x), _rows(y)
    batch, channels, span = x.shape
    count = alphas.shape[0]
    total = x.new_empty(x.shape)
    out = x.new_empty(count, *x.shape)
    _merge_snakes[(batch * channels, triton.cdiv(span, _BLOCK_SAMPLES))](
        up,
        x,
        y,
        alphas,
        reciprocals,
        x if mask is None else mask,
        total,
        out,
        channels,
        span,
        total.numel(),
        up.stride(0),
        up.stride(1),
        x.stride(0),
        x.stride(1),
        y.stride(0),
        y.stride(1),
        RATE=rate,
        REFLECTED=int(has_reflection),
        COUNT=count,
        MASKS=mask is not None,
        BLOCK=_BLOCK_SAMPLES,
    )
    return total, out


@triton.jit
def _merge_snakes(
    up,
    x,
    y,
    alphas,
    reciprocals,
    mask,
    total,
    out,
    channels,
    span,
    size,
    up_batch,
    up_channel,
    x_batch,
    x_channel,
    y_batch,
    y_channel,
    RATE: tl.constexpr,
    REFLECTED: tl.constexpr,
    COUNT: tl.constexpr,
    MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    batch, channel = row // channels, row % channels
    sample = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = sample < span
    source = sample - REFLECTED
    source = tl.where(source < 0, 1, source)
    at = up + batch * up_batch + (channel * RATE + source % RATE) * up_channel + source // RATE
    result = tl.load(at, mask=inside, other=0.0)
    added = tl.load(x + batch * x_batch + channel * x_channel + sample, mask=inside, other=0.0)
    result += added + tl.load(y + batch * y_batch + channel * y_channel + sample, mask=inside, other=0.0)
    if MASKS:
        result *= tl.load(mask + batch * span + sample, mask=inside, other=0.0)
    tl.store(total + row * span + sample, result, mask=inside)
    for i in tl.static_range(COUNT):
        wave = tl.sin(result * tl.load(alphas + i * channels + channel))
        activated = result + wave * wave * tl.load(reciprocals + i * channels + channel)
        tl.store(out + i * size.to(tl.int64) + row * span + sample, activated, mask=inside)


def mean_leaky_relu(
    x1: Tensor, y1: Tensor, x2: Tensor, y2: Tensor, x3: Tensor, y3: Tensor, mask: Tensor | None, slope: float
) -> Tensor:
    xs = [x.contiguous() for x in (x1, x2, x3)]
    ys = [_rows(y) for y in (y1, y2, y3)]
    assert ys[0].stride(1) >= ys[0].shape[2]
    batch, channels, span = x1.shape
    out = xs[0].new_empty(x1.shape)
    _mean_leaky_relu[(batch * channels, triton.cdiv(span, _BLOCK_SAMPLES))](
        *xs,
        *ys,
        out if mask is None else mask,
        out,
        channels,
        span,
        slope,
        *[stride for y in ys for stride in y.stride()[:2]],
        MASKS=mask is not None,
        BLOCK=_BLOCK_SAMPLES,
    )
    return out


@triton.jit
def _mean_leaky_relu(
    x1,
    x2,
    x3,
    y1,
    y2,
    y3,
    mask,
    out,
    channels,
    span,
    slope,
    y1_batch,
    y1_channel,
    y2_batch,
    y2_channel,
    y3_batch,
    y3_channel,
    MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    batch, channel = row // channels, row % channels
    sample = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = sample < span
    at = row * span + sample
    first = tl.load(x1 + at, mask=inside, other=0.0)
    first += tl.load(y1 + batch * y1_batch + channel * y1_channel + sample, mask=inside, other=0.0)
    second = tl.load(x2 + at, mask=inside, other=0.0)
    second += tl.load(y2 + batch * y2_batch + channel * y2_channel + sample, mask=inside, other=0.0)
    third = tl.load(x3 + at, mask=inside, other=0.0)
    third += tl.load(y3 + batch * y3_batch + channel * y3_channel + sample, mask=inside, other=0.0)
    result = (first + second + third) * (1.0 / 3.0)
    if MASKS:
        result *= tl.load(mask + batch * span + sample, mask=inside, other=0.0)
    tl.store(out + at, tl.where(result > 0.0, result, result * slope), mask=inside)


def elu_rows(x: Tensor, width: int, left: int, has_elu: bool, mask: Tensor | None) -> Tensor:
    batch, span, channels = x.shape
    out = torch.empty(batch, span, width * channels, dtype=torch.float64, device=x.device)
    _elu_rows[(batch * span, width)](
        x,
        out if mask is None else mask,
        out,
        span,
        channels,
        *x.stride(),
        LEFT=left,
        WIDTH=width,
        HAS_ELU=has_elu,
        MASKS=mask is not None,
        BLOCK=triton.next_power_of_2(channels),
    )
    return out


@triton.jit
def _elu_rows(
    x,
    mask,
    out,
    span,
    channels,
    batch_stride,
    frame_stride,
    channel_stride,
    LEFT: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_ELU: tl.constexpr,
    MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    neighbor = tl.program_id(1)
    batch = row // span
    channel = tl.arange(0, BLOCK)
    is_channel = channel < channels
    frame = row % span + neighbor - LEFT + tl.zeros_like(channel)
    inside = is_channel & (frame >= 0) & (frame < span)
    at = x + batch * batch_stride + frame * frame_stride + channel * channel_stride
    value = tl.load(at, mask=inside, other=0.0).to(tl.float64)
    if HAS_ELU:
        value = tl.where(value > 0.0, value, tl.exp(tl.minimum(value, 0.0)) - 1.0)
    if MASKS:
        value *= tl.load(mask + batch * span + frame, mask=inside, other=0.0).to(tl.float64)
    tl.store(out + (row * WIDTH + neighbor) * channels + channel, value, mask=is_channel)


def excitation(
    f0: Tensor,
    phase: Tensor,
    first: Tensor,
    seeds: Tensor,
    weight: Tensor,
    bias: Tensor,
    frame: int,
    sample_rate_hz: int,
    alpha: float,
    sigma: float,
    threshold: float,
    is_causal: bool,
) -> Tensor:
    f0, phase, first, seeds = f0.contiguous(), phase.contiguous(), first.contiguous(), seeds.contiguous()
    batch, frames = f0.shape
    out = f0.new_empty(batch, 1, frames * frame)
    _excitation[(batch, frames)](
        f0,
        phase,
        first,
        seeds,
        weight,
        bias,
        out,
        frames,
        float(sample_rate_hz),
        alpha,
        sigma,
        threshold,
        FRAME=frame,
        HARMONICS=phase.shape[1],
        IS_CAUSAL=is_causal,
        BLOCK=triton.next_power_of_2(frame),
        BLOCK_FRAMES=triton.next_power_of_2(frames),
    )
    return out


@triton.jit
def _cycles(pitch, index, last, start, number, sample_rate_hz):
    """Phase after frame ``last`` in cycles / frame."""
    cycles = tl.div_rn(pitch * number, sample_rate_hz + tl.zeros_like(pitch))
    cycles = cycles - tl.floor(cycles)
    return start + tl.sum(tl.where(index <= last, cycles, 0.0).to(tl.float64), 0)


@triton.jit
def _excitation(
    f0,
    phase,
    first,
    seeds,
    weight,
    bias,
    out,
    frames,
    sample_rate_hz,
    alpha,
    sigma,
    threshold,
    FRAME: tl.constexpr,
    HARMONICS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_FRAMES: tl.constexpr,
):
    """One frame: its program adds up the pitch of the frames before it."""
    row = tl.program_id(0).to(tl.int64)
    frame = tl.program_id(1)
    index = tl.arange(0, BLOCK_FRAMES)
    pitch = tl.load(f0 + row * frames + index, mask=index < frames, other=0.0)
    is_voiced = tl.load(f0 + row * frames + frame) > threshold
    level = tl.where(is_voiced, sigma, alpha / 3.0)
    gain = tl.where(is_voiced, alpha, 0.0)
    sample = tl.arange(0, BLOCK)
    key = _mix(_mix(tl.load(seeds + row)) + 0x5EED)
    counter = (tl.load(first + row) + frame * FRAME) * HARMONICS + key
    low = counter.to(tl.uint32)
    high = (key >> 32).to(tl.uint32)
    # Position between the middles of frames, as PyTorch interpolates.
    position = (sample.to(tl.float64) + 0.5) * (1.0 / FRAME) - 0.5
    is_before = position < 0.0
    mixture = tl.zeros([BLOCK], tl.float32)
    for harmonic in range(HARMONICS):
        start = tl.load(phase + row * HARMONICS + harmonic)
        here = _cycles(pitch, index, frame, start, harmonic + 1, sample_rate_hz) * FRAME
        if IS_CAUSAL:
            angle = here + tl.zeros([BLOCK], tl.float64)
        else:
            before = _cycles(pitch, index, tl.maximum(frame - 1, 0), start, harmonic + 1, sample_rate_hz) * FRAME
            after = (
                _cycles(pitch, index, tl.minimum(frame + 1, frames - 1), start, harmonic + 1, sample_rate_hz) * FRAME
            )
            left = tl.where(is_before, before, here)
            right = tl.where(is_before, here, after)
            share = tl.where(is_before, position + 1.0, position)
            angle = left * (1.0 - share) + right * share
        turn = ((angle - tl.floor(angle)) * 6.283185307179586).to(tl.float32)
        noise = _hash(low + (sample * HARMONICS + harmonic).to(tl.uint32), high)
        if not IS_CAUSAL:
            noise = _normal_quantile(noise)
        mixture += tl.load(weight + harmonic) * (tl.sin(turn) * gain + noise * level)
    mixture += tl.load(bias)
    # tanh
    power = tl.exp(-2.0 * tl.abs(mixture))
    result = (1.0 - power) / (1.0 + power)
    result = tl.where(mixture < 0.0, -result, result)
    tl.store(out + (row * frames + frame) * FRAME + sample, result, mask=sample < FRAME)


@triton.jit
def _mix(x):
    """The splitmix64 finalizer on wrapping int64 (``sampler.mix``)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _M1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _M2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _hash(x, high):
    """``hashed_noise``: uniform in 0..1."""
    x = (x ^ (x >> 16)) * 0x7FEB352D + high
    x = (x ^ (x >> 15)) * 0x846CA68B
    return ((x >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07


@triton.jit
def _normal_quantile(u):
    """Inverse of the normal distribution function for ``u`` in 2^-24 .. 1 - 2^-24 (Cephes, ndtri.c)."""
    is_upper = u > 0.8646647167633873
    y = tl.where(is_upper, 1.0 - u, u)
    # The middle: a rational function of (y - 1/2)^2.
    z = y - 0.5
    s = z * z
    above = -59.9633501014107895267 * s + 98.0010754185999661536
    above = (above * s - 56.6762857469070293439) * s + 13.9312609387279679503
    above = above * s - 1.23916583867381258016
    below = s + 1.95448858338141759834
    below = (below * s + 4.67627912898881538453) * s + 86.3602421390890590575
    below = (below * s - 225.462687854119370527) * s + 200.260212380060660359
    below = (below * s - 82.0372256168333339912) * s + 15.9056225126211695515
    below = below * s - 1.18331621121330003142
    middle = (z + z * (s * above / below)) * 2.50662827463100050242
    # The tails.
    t = tl.sqrt(-2.0 * tl.log(y))
    r = 1.0 / t
    above = 4.05544892305962419923 * r + 31.5251094599893866154
    above = (above * r + 57.1628192246421288162) * r + 44.0805073893200834700
    above = (above * r + 14.6849561928858024014) * r + 2.18663306850790267539
    above = (above * r - 0.140256079171354495875) * r - 0.0350424626827848203418
    above = above * r - 8.57456785154685413611e-4
    below = r + 15.7799883256466749731
    below = (below * r + 45.3907635128879210584) * r + 41.3172038254672030440
    below = (below * r + 15.0425385692907503408) * r + 2.50464946208309415979
    below = (below * r - 0.142182922854787788574) * r - 0.0380806407691578277194
    below = below * r - 9.33259480895457427372e-4
    tail = t - tl.log(t) * r - r * above / below
    tail = tl.where(is_upper, tail, -tail)
    return tl.where(y > 0.1353352832366127, middle, tail)


def waveform(
    spectrum: Tensor,
    kernel: Tensor,
    window_square: Tensor,
    mask: Tensor | None,
    hop: int,
    max_magnitude: float,
    limit: float,
) -> Tensor:
    spectrum = _rows(spectrum)
    batch, _, columns = spectrum.shape
    size = kernel.shape[2]
    assert size % hop == 0
    out = spectrum.new_empty(batch, (columns - 1) * hop)
    _waveform[(batch, triton.cdiv(out.shape[1], 256))](
        spectrum,
        kernel,
        window_square,
        out if mask is None else mask,
        out,
        columns,
        out.shape[1],
        spectrum.stride(0),
        spectrum.stride(1),
        max_magnitude,
        limit,
        SIZE=size,
        HOP=hop,
        BINS=spectrum.shape[1] // 2,
        MASKS=mask is not None,
        BLOCK=256,
    )
    return out


@triton.jit
def _waveform(
    spectrum,
    kernel,
    window_square,
    mask,
    out,
    columns,
    span,
    batch_stride,
    bin_stride,
    max_magnitude,
    limit,
    SIZE: tl.constexpr,
    HOP: tl.constexpr,
    BINS: tl.constexpr,
    MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some samples: each adds up the columns whose windows cover it."""
    batch = tl.program_id(0).to(tl.int64)
    sample = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = sample < span
    spectrum += batch * batch_stride
    place = sample + SIZE // 2
    total = tl.zeros([BLOCK], tl.float32)
    weight = tl.zeros([BLOCK], tl.float32)
    for i in range(SIZE // HOP):
        column = place // HOP - i
        offset = place - column * HOP
        exists = inside & (column >= 0) & (column < columns)
        share = tl.full([BLOCK], 1.0, tl.float32)
        if MASKS:
            share = tl.load(mask + batch * columns + column, mask=exists, other=0.0)
        weight += tl.load(window_square + offset, mask=exists, other=0.0) * share
        for k in range(BINS):
            magnitude = tl.exp(tl.load(spectrum + k * bin_stride + column, mask=exists, other=0.0))
            magnitude = tl.minimum(magnitude, max_magnitude) * share
            angle = tl.sin(tl.load(spectrum + (BINS + k) * bin_stride + column, mask=exists, other=0.0))
            real = tl.load(kernel + k * SIZE + offset, mask=exists, other=0.0)
            imaginary = tl.load(kernel + (BINS + k) * SIZE + offset, mask=exists, other=0.0)
            total += magnitude * (tl.cos(angle) * real + tl.sin(angle) * imaginary)
    result = tl.div_rn(total, tl.maximum(weight, 1e-11))
    result = tl.minimum(tl.maximum(result, -limit), limit)
    tl.store(out + batch * span + sample, result, mask=inside)
