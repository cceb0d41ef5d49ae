"""Arguments of the official sizes and random values, to check the kernels of the flow and the vocoder with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_worker.engine.cosyvoice.networks.dims import DitDims, FlowDims, HiftDims, UnetDims
from tts_worker.engine.cosyvoice.ops.audio import (
    add_norm,
    add_snake,
    causal_conv,
    conv_norm_mish,
    conv_norm_mish_add_norm,
    elu_rows,
    excitation,
    linear_gelu,
    mean_leaky_relu,
    merge_snakes,
    pack_conv,
    paged_attention,
    snake,
    waveform,
)
from tts_worker.features.acceleration.kernels import Case, tolerance


def flow_cases(dims: FlowDims, dtype: torch.dtype, device: torch.device, stride_chunks: int = 2) -> Iterator[Case]:
    """Return arguments of the estimator's sizes and random values, to check the kernels with.

    Args:
        dims: Of the flow.
        dtype: Of the estimator.
        device: Where the kernels run.
        stride_chunks: Most chunks of a pass: there is a kernel for each number of them.
    """
    draw = _Draw(dtype, device)
    if dims.dit is not None:
        yield from _dit_cases(dims.dit, draw, stride_chunks)
    if dims.unet is not None:
        yield from _unet_cases(dims.unet, draw, stride_chunks)


class _Draw:
    """Random arguments.

    Attributes:
        tolerance: For results in this dtype.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(0)
        self.dtype = dtype
        self.device = device
        self.tolerance = tolerance(dtype)

    def floats(self, *shape: int) -> Tensor:
        """Normal float32 numbers."""
        return torch.randn(shape, generator=self._generator, device=self.device)

    def __call__(self, *shape: int) -> Tensor:
        """Normal numbers."""
        return self.floats(*shape).to(self.dtype)

    def positive(self, *shape: int) -> Tensor:
        """Float32 numbers in 0..1."""
        return torch.rand(shape, generator=self._generator, device=self.device)

    def conv(self, outputs: int, inputs: int, width: int, groups: int) -> tuple[Tensor, Tensor]:
        """Packed weight and bias of a convolution."""
        weight = self.floats(outputs, inputs // groups, width) / math.sqrt(inputs // groups * width)
        return pack_conv(weight.to(self.dtype), groups), self(outputs)

    def past(self, channels: int, width: int, branches: int = 2) -> tuple[Tensor, Tensor]:
        """Past of a convolution of two utterances, and their slots."""
        return self(branches, 4, channels, width), torch.tensor([3, 1], device=self.device)


def attention_arguments(
    heads: int,
    dim: int,
    page: int,
    chunks: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    is_rotated: bool = True,
    branches: int = 2,
    batch: int = 2,
) -> tuple[tuple[Any, ...], float]:
    """Return random arguments of ``paged_attention`` and the tolerance of its results.

    Utterances of ``chunks`` new chunks; the last one is shorter, with a partial last chunk.
    """
    draw = _Draw(dtype, device)
    span = chunks * page
    angle = draw.positive(branches * batch, span, 1, dim // 2) * math.tau
    past = [*[2] * (batch - 1), 1]
    count = sum(past) + batch * chunks
    numbers = iter(range(count, 0, -1))  # backwards: nothing may take consecutive pages for granted
    rows = [[next(numbers) for _ in range(pages + chunks)] for pages in past]
    store = draw(2, heads, branches + 1, count + 1, page, dim)[:, :, 1:]
    table = torch.tensor([row + [0] * (2 + chunks - len(row)) for row in rows], device=device)
    start = torch.tensor(past, device=device) * page
    total = start + span
    total[-1] -= page // 2
    fresh = torch.tensor([row[-chunks:] for row in rows], device=device)
    rotations = torch.polar(torch.ones_like(angle), angle) if is_rotated else None
    qkv = draw(branches * batch, span, 3, heads, dim)
    return (qkv, rotations, store, table, fresh, start, total), draw.tolerance


def _attention_cases(dims: DitDims | UnetDims, draw: _Draw, stride_chunks: int, *, is_rotated: bool) -> Iterator[Case]:
    """All numbers of rows that are captured by default: the kernel has other block sizes for few of them."""
    for branches, batch in ((1, 1), (2, 1), (2, 2), (2, 4), (2, 8)):
        for chunks in range(1, stride_chunks + 1):
            sizes = dims.heads, dims.head_dim, dims.chunk_frames, chunks, draw.dtype, draw.device
            arguments = attention_arguments(*sizes, is_rotated=is_rotated, branches=branches, batch=batch)
            yield Case(paged_attention, *arguments)


def _dit_cases(dims: DitDims, draw: _Draw, stride_chunks: int) -> Iterator[Case]:
    page = dims.chunk_frames
    yield from _attention_cases(dims, draw, stride_chunks, is_rotated=True)
    x = draw(2, page, dims.dim)
    width, groups = 31, 16  # of the position embedding
    conv = draw.conv(dims.dim, dims.dim, width, groups)
    yield Case(causal_conv, (x, *draw.past(dims.dim, width - 1, 1), *conv, groups, True), draw.tolerance)
    gate, weight, bias = draw.floats(3, dims.dim)
    for residual, factor in ((x, None), (x.float(), gate)):
        yield Case(add_norm, (residual, draw(2, page, dims.dim), factor, weight, bias, 1e-6), draw.tolerance)
    inner = int(dims.dim * dims.ff_mult)
    linear = draw(inner, dims.dim) / math.sqrt(dims.dim), draw(inner)
    yield Case(linear_gelu, (x, *linear, True), draw.tolerance)


def _unet_cases(dims: UnetDims, draw: _Draw, stride_chunks: int) -> Iterator[Case]:
    page, channels = dims.chunk_frames, dims.channels
    yield from _attention_cases(dims, draw, stride_chunks, is_rotated=False)
    x = draw(4, page, channels)
    past = draw.past(channels, 2)
    conv = draw.conv(channels, channels, 3, 1)
    norm = draw.floats(channels), draw.floats(channels)
    eps = 1e-5
    yield Case(causal_conv, (x, *past, *conv, 1, False), draw.tolerance)
    shift = draw.floats(channels)
    blocks = ((dims.in_channels, shift), (channels, shift), (2 * channels, shift), (channels, None))
    for inputs, added in blocks:
        first = draw.conv(channels, inputs, 3, 1)
        before = draw(4, page, inputs), *draw.past(inputs, 2)
        yield Case(conv_norm_mish, (*before, *first, *norm, eps, added), draw.tolerance)
    following = draw.floats(channels), draw.floats(channels)
    after = draw(4, page, channels), *following
    yield Case(conv_norm_mish_add_norm, (x, *past, *conv, *norm, eps, *after), draw.tolerance)
    yield Case(add_norm, (x.float(), draw(4, page, channels), None, *following, eps), draw.tolerance)
    linear = draw(4 * channels, channels) / math.sqrt(channels), draw(4 * channels)
    for rows in (1, 2, 4):  # the kernel has other block sizes for few of them
        yield Case(linear_gelu, (x[:rows], *linear, False), draw.tolerance)


def vocoder_cases(dims: HiftDims, device: torch.device) -> Iterator[Case]:
    """Return arguments of the vocoder's sizes and random values, to check the kernels with."""
    draw = _Draw(torch.float32, device)
    frames, cut = 12, 7
    mel = draw(2, dims.in_channels, frames)
    exists = (torch.arange(frames, device=device) < torch.tensor([[frames], [5]], device=device))[:, None].float()
    width, left = (4, 0) if dims.causal else (3, 1)
    hidden = draw(2, frames, dims.f0_channels).double()
    for mask in (None, exists):
        yield Case(elu_rows, (mel.transpose(1, 2), width, left, False, mask), 1e-15)
        yield Case(elu_rows, (hidden, 3, 2 if dims.causal else 1, True, mask), 1e-15)
    for window in (frames, 50, 100, 200):  # the kernel reads the pitch of the whole window in one block
        yield from _excitation_cases(dims, draw, window)
    yield from _waveform_cases(dims, draw, frames)
    yield from _merge_cases(dims, draw, exists, cut)
    channels = dims.base_channels // 2
    span = frames * dims.upsample_rates[0]
    for mask in (None, exists.repeat_interleave(dims.upsample_rates[0], dim=2)):
        x, *parts = (draw(2, channels, span) for _ in range(6))
        y = draw(2, channels, span + cut)[:, :, :span]  # an output of a convolution with its surplus cut off
        alpha = draw.positive(3, channels) + 0.5
        reciprocal = 1 / alpha
        yield Case(snake, (y, alpha[0], reciprocal[0], mask), draw.tolerance)
        yield Case(add_snake, (x, y, alpha[0], reciprocal[0], mask), draw.tolerance)
        yield Case(mean_leaky_relu, (x, y, *parts[:4], mask, dims.lrelu_slope), draw.tolerance)


def _merge_cases(dims: HiftDims, draw: _Draw, exists: Tensor, cut: int) -> Iterator[Case]:
    """The begin of every stage, whose input has ``cut`` surplus samples."""
    frames, channels = exists.shape[2], dims.base_channels // 2
    for stage, rate in enumerate(dims.upsample_rates):
        has_reflection = stage == len(dims.upsample_rates) - 1
        repeats = rate if dims.causal else 1
        up = draw(2, channels * repeats, frames * rate // repeats + cut)[:, :, :-cut]
        x, y = (draw(2, channels, frames * rate + has_reflection) for _ in range(2))
        alphas = draw.positive(3, channels) + 0.5
        mask = F.pad(exists.repeat_interleave(rate, dim=2), (int(has_reflection), 0), value=1.0)
        for some in (None, mask):
            arguments = up, repeats, has_reflection, x, y, alphas, 1 / alphas, some
            yield Case(merge_snakes, arguments, draw.tolerance)


def _excitation_cases(dims: HiftDims, draw: _Draw, frames: int) -> Iterator[Case]:
    harmonics = dims.nb_harmonics + 1
    f0 = draw.positive(2, frames) * 400
    f0[:, 3:5] = dims.nsf_voiced_threshold / 2
    phase = draw.positive(2, harmonics).double() * 50
    first = torch.tensor([2**40, 0], device=draw.device)
    seeds = torch.tensor([2**62 + 1, 3], device=draw.device)
    arguments = (f0, phase, first, seeds, draw(1, harmonics), draw(1), dims.frame_samples, dims.sample_rate_hz)
    amplitudes = dims.nsf_alpha, dims.nsf_sigma, dims.nsf_voiced_threshold
    yield Case(excitation, (*arguments, *amplitudes, dims.causal), draw.tolerance)


def _waveform_cases(dims: HiftDims, draw: _Draw, frames: int) -> Iterator[Case]:
    size, hop, bins = dims.n_fft, dims.hop, dims.n_fft // 2 + 1
    spectrum = draw(2, 2 * bins, frames)
    window = torch.hann_window(size, device=draw.device).square()[None, None]
    exists = (torch.arange(frames, device=draw.device) < frames - 2).float().expand(2, 1, -1).contiguous()
    for mask in (None, exists):
        settings = hop, 3.0, dims.audio_limit
        yield Case(waveform, (spectrum, draw(2 * bins, 1, size), window, mask, *settings), draw.tolerance)
