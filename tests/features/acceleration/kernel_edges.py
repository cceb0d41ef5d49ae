"""Small arguments at the limits of the Triton kernels: lengths, pages, heads, masks, and memory that must not be read.

Memory that nothing has written holds NaN, which shows in every result that depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.ops import audio as a
from tts_worker.engine.cosyvoice.ops import language_model as lm
from tts_worker.features.acceleration import kernels
from tts_worker.features.acceleration.kernels import Case

NAN = float("nan")


class Draw:
    """Random tensors of one dtype, with the tolerance of results in it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._generator = torch.Generator().manual_seed(1)
        self.dtype = dtype
        self.tolerance = 2e-5 if dtype == torch.float32 else 6 * torch.finfo(dtype).eps

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator).to(self.dtype)


def edge_cases(dtype: torch.dtype) -> Iterator[Case]:
    draw = Draw(dtype)
    yield from _language_model(draw)
    yield from _slots(draw)
    yield from _flow(draw)
    if dtype == torch.float32:
        yield from _sampling()
        yield from _vocoder(draw)


def _language_model(draw: Draw) -> Iterator[Case]:
    for rows, size in ((1, 1), (3, 33)):
        yield Case(lm.add_rms_norm, (draw(rows, size), draw(rows, size), draw(size), 1e-6), draw.tolerance)
    for size in (1, 1025):  # one more than a block
        yield Case(lm.silu_mul, (draw(2, 2 * size),), draw.tolerance)
    cache = draw(2, 2, 3, 1, 6, 8)
    angle = torch.arange(8.0).view(2, 4)
    rotations = torch.stack([angle.cos(), -angle.sin(), angle.sin()], dim=1).to(draw.dtype)
    at = torch.tensor([[5], [0]])  # the last position takes the writes of padding
    yield Case(lm.rotate_and_store, (draw(2, 9 * 8), rotations, at, torch.tensor([2, 0]), cache, 1), draw.tolerance)


def _slots(draw: Draw) -> Iterator[Case]:
    """Attention to slots that end at, before and behind the borders of blocks, in a cache of NaN otherwise."""
    length = 270
    for query_heads, heads, dim, values, splits in (
        (7, 1, 16, (1, 64, 129), 3),  # a split of the shortest context is empty
        (4, 2, 24, (63, 128, length - 1), 1),
    ):
        batch = len(values)
        slots = torch.tensor([4, 0, 2])
        ends = torch.tensor(values)
        cache = torch.full((2, 2, 5, heads, length, dim), NAN, dtype=draw.dtype)
        for slot, end in zip(slots.tolist(), values, strict=True):
            cache[:, :, slot, :, :end] = draw(2, 2, heads, end, dim)
        at = ends[:, None] - 1
        queries = draw(batch, query_heads, dim)
        yield Case(lm.slot_attention, (queries, cache, 1, slots, at, ends, splits), 2 * draw.tolerance)
        at = at + torch.arange(-1, 2)
        at = torch.where(at < ends[:, None], at.clamp(min=0), length - 1)  # the last one is padding
        queries = draw(3 * batch, query_heads, dim)
        yield Case(lm.slot_attention, (queries, cache, 0, slots, at, ends, 1), 2 * draw.tolerance)


def _sampling() -> Iterator[Case]:
    slots = torch.tensor([2, 0, 3, 3, 3])  # idle rows share a slot
    remaining = torch.tensor([[1], [0], [5], [0]])
    recent = torch.tensor([[-1, 4], [0, 1], [7, 7], [2, 2]])
    lengths, steps = torch.tensor([3, 9, 0, 7]), torch.tensor([0, 4, 9, 2])
    keys = torch.tensor([1, 2**62, -(2**62), 5])
    yield Case(lm.begin_step, (slots, remaining, recent, lengths, torch.arange(30.0).view(10, 3), 99), 0.0)
    for count in (1, 16, 33, 5):
        sent = torch.tensor([[2, 8, 9, 5], [0, 9, 0, 1], [3, 8, 0, 0]])
        sent = torch.cat([sent, torch.full((3, count), lm.NOT_FORCED)], dim=1)
        plans = lm.plan_draws.composition(sent, keys, steps, remaining.clone())
        yield Case(lm.plan_draws, (sent, keys, steps, remaining), 0.0)
    plan = plans[0][:, [0, 1, 2, 2, 2]]
    scores = torch.rand(5, 10, generator=torch.Generator().manual_seed(2)) * 4
    for top_p, top_k, repeats in ((0.8, 25, 1), (1.0, 1, 1), (0.0, 3, 2), (0.9, 10, 3)):
        yield Case(lm.draw_ids, (scores, plan, slots, remaining, recent, steps, 8, top_p, top_k, repeats), 0.0)
    lonely = torch.full_like(scores, -math.inf)
    lonely[:, 7] = 0.0  # the only id that can be drawn repeats
    yield Case(lm.draw_ids, (lonely, plan, slots, remaining, recent, steps, 8, 0.8, 25, 1), 0.0)


def _past(draw: Draw, branches: int, channels: int, width: int) -> tuple[Tensor, Tensor]:
    past = torch.full((branches, 4, channels, width), NAN, dtype=draw.dtype)
    slots = torch.tensor([3, 1])
    past[:, slots] = draw(branches, 2, channels, width)
    return past, slots


def _conv(draw: Draw, outputs: int, inputs: int, width: int, groups: int) -> tuple[Tensor, Tensor]:
    weight = draw(outputs, inputs // groups, width) / math.sqrt(inputs // groups * width)
    return a.pack_conv(weight, groups), draw(outputs)


def _flow(draw: Draw) -> Iterator[Case]:
    position = draw(2, 33, 4), *_past(draw, 1, 4, 30), *_conv(draw, 4, 4, 31, 2)  # longer than a block
    yield Case(a.causal_conv, (*position, 2, True), draw.tolerance)
    for span, outputs, inputs in ((2, 20, 66), (17, 5, 3)):  # as long as the past, and longer than a block
        before = draw(4, span, inputs), *_past(draw, 2, inputs, 2), *_conv(draw, outputs, inputs, 3, 1)
        norm = draw(outputs), draw(outputs), 1e-5
        yield Case(a.causal_conv, (*before, 1, False), draw.tolerance)
        yield Case(a.conv_norm_mish, (*before, *norm, draw(outputs) if span == 2 else None), draw.tolerance)
        after = draw(4, span, outputs), draw(outputs), draw(outputs)
        yield Case(a.conv_norm_mish_add_norm, (*before, *norm, *after), draw.tolerance)
    for size in (1, 33):
        for gate in (None, draw(size)):
            norm = draw(size), draw(size), 1e-5
            yield Case(a.add_norm, (draw(2, 3, size), draw(2, 3, size), gate, *norm), draw.tolerance)
    for rows, inputs, outputs in ((1, 3, 5), (17, 65, 66)):
        linear = draw(1, rows, inputs), draw(outputs, inputs) / math.sqrt(inputs), draw(outputs)
        for is_tanh in (False, True):
            yield Case(a.linear_gelu, (*linear, is_tanh), draw.tolerance)


def _vocoder(draw: Draw) -> Iterator[Case]:
    for span in (2, 1025):  # more than a block
        x, y, other = (draw(2, 3, span) for _ in range(3))
        alphas = draw(3, 3).abs() + 0.5
        mask = (torch.arange(span) < torch.tensor([[span], [1]]))[:, None].float()
        for exists in (None, mask):
            yield Case(a.snake, (x, alphas[0], 1 / alphas[0], exists), draw.tolerance)
            yield Case(a.add_snake, (x, y, alphas[0], 1 / alphas[0], exists), draw.tolerance)
            yield Case(a.mean_leaky_relu, (x, y, y, other, other, x, exists, 0.1), draw.tolerance)
            up = draw(2, 3, span - 1) if span > 2 else draw(2, 6, 1)  # reflected, or two samples side by side
            merged = up, up.shape[1] // 3, span > 2, x, y, alphas, 1 / alphas, exists
            yield Case(a.merge_snakes, merged, draw.tolerance)
    for width, left in ((1, 0), (3, 2), (5, 0)):
        yield Case(a.elu_rows, (draw(2, 2, 5), width, left, True, None), 1e-15)
    for is_causal in (False, True):
        f0 = torch.tensor([[0.0], [220.5]])
        state = torch.zeros(2, 2, dtype=torch.float64), torch.tensor([2**40, 0]), torch.tensor([2**62 + 1, 3])
        settings = 6, 24000, 0.1, 0.003, 10.0, is_causal
        yield Case(a.excitation, (f0, *state, draw(1, 2), draw(1), *settings), draw.tolerance)
    for columns in (2, 70):  # 276 samples, more than a block
        spectrum, kernel = draw(2, 18, columns), draw(18, 1, 16)
        window = torch.hann_window(16).square()[None, None]
        yield Case(a.waveform, (spectrum, kernel, window, None, 4, 3.0, 0.99), draw.tolerance)


def check_pages(dtype: torch.dtype) -> None:
    """Compare attention to pages with its composition, over pages of NaN that are not the utterance's.

    The composition gathers them, so it gets zeros in their place. Fresh pages must hold the same values afterwards and
    all others what they held before.
    """
    draw = Draw(dtype)
    for page, heads, dim, branches, past_pages, chunks, missing in (
        (3, 1, 8, 2, (23, 0), 2, 2),  # more past than a block, and none
        (17, 2, 24, 1, (1, 4), 1, 0),
        (50, 1, 16, 1, (1,), 3, 1),
    ):
        qkv, rotations, store, table, fresh, start, total = pages(
            draw, page, heads, dim, branches, past_pages, chunks, missing
        )
        where = f"{dtype}, {chunks} chunks of {page}"
        stored, expected_store = store.clone(), store.nan_to_num(0.0)
        expected = a.paged_attention.composition(qkv, rotations, expected_store, table, fresh, start, total)
        got = a.paged_attention.launch(qkv, rotations, stored, table, fresh, start, total)
        assert kernels.relative_difference(got, expected) <= 2 * draw.tolerance, where
        written = fresh.flatten()
        new = kernels.relative_difference(stored[:, :, :, written], expected_store[:, :, :, written])
        assert new <= draw.tolerance, where
        stored[:, :, :, written] = store[:, :, :, written]
        assert torch.equal(stored.nan_to_num(1e4), store.nan_to_num(1e4)), where


def pages(
    draw: Draw, page: int, heads: int, dim: int, branches: int, past_pages: tuple[int, ...], chunks: int, missing: int
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return arguments of ``paged_attention``: an utterance for each number of past pages, in memory of NaN otherwise.

    The last frames of the first utterance's last chunk do not exist; ``missing`` says how many.
    """
    batch, span = len(past_pages), chunks * page
    numbers = iter(torch.randperm(sum(past_pages) + batch * chunks, generator=torch.Generator().manual_seed(3)) + 1)
    count = sum(past_pages) + batch * chunks + 2
    unwritten = count - 1
    store = torch.full((2, heads, branches + 1, count, page, dim), NAN, dtype=draw.dtype)[:, :, 1:]
    table = torch.full((batch, max(past_pages) + chunks + 1), unwritten)  # what follows the last page is not read
    for row, past in enumerate(past_pages):
        for column in range(past + chunks):
            table[row, column] = number = int(next(numbers))
            if column < past:
                store[:, :, :, number] = draw(2, heads, branches, page, dim)
    start = torch.tensor(past_pages) * page
    total = start + span - torch.tensor([missing, *[0] * (batch - 1)])
    fresh = torch.stack([row[past : past + chunks] for row, past in zip(table, past_pages, strict=True)])
    angle = torch.rand(branches * batch, span, 1, dim // 2) * math.tau
    rotations = torch.polar(torch.ones_like(angle), angle) if chunks > 1 else None
    return draw(branches * batch, span, 3, heads, dim), rotations, store, table, fresh, start, total
