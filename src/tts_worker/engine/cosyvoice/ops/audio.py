"""Fused operators of the flow and the vocoder.

Compositions here, kernels in ``features/acceleration/kernels``. ``N`` are branches x utterances, branch-major
(classifier-free guidance runs ``R`` = 1 or 2 branches of ``B`` utterances), ``T`` new frames, ``C`` or ``D`` channels.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_worker.engine.cosyvoice.ops import fused_operator
from tts_worker.engine.cosyvoice.ops.sampler import mix

_TRITON = "tts_worker.features.acceleration.kernels.audio_triton"


def rotate_first_heads(qkv: Tensor, rotations: Tensor) -> Tensor:
    """Rotate head 0 of queries and keys in ``qkv [N, T, 3, H, d]`` in place, computing in float32.

    ``rotations`` are complex, ``[N, T, 1, d/2]``.
    """
    head = qkv[:, :, :2, 0]
    head = head.view(*head.shape[:-1], -1, 2)  # [N, T, 2, d/2, 2]
    if qkv.dtype == torch.float32:
        torch.view_as_complex(head).mul_(rotations)
    else:
        head.copy_(torch.view_as_real(torch.view_as_complex(head.float()) * rotations))
    return qkv


@fused_operator(_TRITON, mutates={"store"})
def paged_attention(
    qkv: Tensor, rotations: Tensor | None, store: Tensor, table: Tensor, fresh: Tensor, start: Tensor, total: Tensor
) -> Tensor:
    """Store new keys and values and attend to all pages of an utterance, under the chunk mask of one page.

    Args:
        qkv: ``[N, T, 3, H, d]``, of ``T/page`` chunks.
        rotations: ``[N, T, 1, d/2]`` complex, for head 0; ``None``: no position embedding.
        store: ``[2, H, R, pages, page, d]`` keys and values, changed in place.
        table: ``[B, m]`` pages in time order; what follows the last one is not read.
        fresh: ``[B, T/page]`` the pages to write.
        start: ``[B]`` position of the first new frame, a multiple of the page size.
        total: ``[B]``, the frames before this position exist.

    Returns:
        ``[N, T, H*d]``.
    """
    if rotations is not None:
        qkv = rotate_first_heads(qkv.clone(), rotations)
    page = store.shape[4]
    branches, batch = store.shape[2], table.shape[0]
    span = qkv.shape[1]
    queries, *new = qkv.permute(2, 0, 3, 1, 4)  # [N, H, T, d] each
    heads, dim = queries.shape[1], queries.shape[3]
    gathered: list[Tensor] = []
    for which, values in enumerate(new):
        chunks = values.reshape(branches, batch, heads, -1, page, dim)
        chunks = chunks.permute(2, 0, 1, 3, 4, 5).flatten(2, 3)  # [H, R, B*n, page, d]
        store[which].index_copy_(2, fresh.flatten(), chunks.to(store.dtype))
        past = store[which].index_select(2, table.flatten())
        past = past.view(heads, branches, batch, -1, dim)  # [H, R, B, L, d]
        gathered.append(past.permute(1, 2, 0, 3, 4).flatten(0, 1).to(qkv.dtype))  # [N, H, L, d]
    keys, values = gathered
    query = start[:, None] + torch.arange(span, device=start.device)  # [B, T]
    end = torch.minimum((query // page + 1) * page, total[:, None])
    visible = torch.arange(table.shape[1] * page, device=start.device) < end[:, :, None]  # [B, T, L]
    out = F.scaled_dot_product_attention(queries, keys, values, visible[:, None].repeat(branches, 1, 1, 1))
    return out.transpose(1, 2).flatten(2).contiguous()


@fused_operator(_TRITON, mutates={"past"})
def causal_conv(
    x: Tensor, past: Tensor, slots: Tensor, weight: Tensor, bias: Tensor, groups: int, has_mish: bool
) -> Tensor:
    """Causal convolution after the past of its input, which then holds the end of ``x``; with Mish on request.

    Args:
        x: ``[N, T, C]``, ``T`` at least ``w``.
        past: ``[R, slots, C, w]`` previous inputs, changed in place.
        slots: ``[B]``.
        weight: ``[w+1, groups, C/groups, C'/groups]`` (``pack_conv``).
        bias: ``[C']``.
        groups: Groups of channels.
        has_mish: Whether Mish follows.

    Returns:
        ``[N, T, C']``.
    """
    y = _conv(x, past, slots, weight, bias, groups)
    return (F.mish(y) if has_mish else y).to(x.dtype)


@fused_operator(_TRITON, mutates={"past"})
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
    """``causal_conv``, layer norm, Mish, and the addition of ``shift [C']``: ``[N, T, C']``."""
    y = _conv(x, past, slots, weight, bias, 1)
    y = F.mish(F.layer_norm(y, y.shape[-1:], norm_weight.float(), norm_bias.float(), eps))
    return (y if shift is None else y + shift).to(x.dtype)


@fused_operator(_TRITON, mutates={"past"})
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
    """``conv_norm_mish``, the addition of ``shortcut [N, T, C']``, and another layer norm.

    Returns:
        The sum in float32 and its norm in the dtype of ``x``.
    """
    y = _conv(x, past, slots, weight, bias, 1)
    y = F.mish(F.layer_norm(y, y.shape[-1:], norm_weight.float(), norm_bias.float(), eps)) + shortcut
    return y, F.layer_norm(y, y.shape[-1:], next_weight.float(), next_bias.float(), eps).to(x.dtype)


def _conv(x: Tensor, past: Tensor, slots: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
    """Convolve ``x [N, T, C]`` and update its past: ``[N, T, C']`` float32."""
    branches, batch = past.shape[0], slots.shape[0]
    before = past.index_select(1, slots).flatten(0, 1).to(x.dtype)  # [N, C, w]
    inputs = torch.cat([before, x.transpose(1, 2)], dim=2)
    last = inputs[:, :, -past.shape[3] :].reshape(branches, batch, *past.shape[2:])
    past.index_copy_(1, slots, last.to(past.dtype))
    y = F.conv1d(inputs.float(), unpack_conv(weight).float(), bias.float(), groups=groups)
    return y.transpose(1, 2).contiguous()


def pack_conv(weight: Tensor, groups: int) -> Tensor:
    """Reorder the weight of a convolution ``[C', C/groups, k]`` to ``[k, groups, C/groups, C'/groups]``."""
    return weight.view(groups, -1, *weight.shape[1:]).permute(3, 0, 2, 1).contiguous()


def unpack_conv(weight: Tensor) -> Tensor:
    """The inverse of ``pack_conv``."""
    return weight.permute(1, 3, 2, 0).flatten(0, 1)


@fused_operator(_TRITON)
def add_norm(
    x: Tensor, y: Tensor, gate: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Residual connection, then layer norm.

    Args:
        x: ``[N, T, D]`` residual stream.
        y: ``[N, T, D]`` what is added.
        gate: ``[D]`` factor of ``y``; ``None``: 1.
        weight: ``[D]`` of the norm.
        bias: ``[D]`` of the norm.
        eps: Of the norm.

    Returns:
        The sum in float32 and its norm in the dtype of ``y``.
    """
    x = x.float() + y if gate is None else torch.addcmul(x.float(), gate.float(), y.float())
    return x, F.layer_norm(x, x.shape[-1:], weight.float(), bias.float(), eps).to(y.dtype)


@fused_operator(_TRITON)
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, is_tanh: bool) -> Tensor:
    """Linear layer and GELU (with the tanh approximation if ``is_tanh``): ``[N, T, D] -> [N, T, D']``."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh" if is_tanh else "none")


@fused_operator(_TRITON)
def snake(y: Tensor, alpha: Tensor, reciprocal: Tensor, mask: Tensor | None) -> Tensor:
    """The activation ``y + sin(alpha y)^2 / alpha`` of ``y [B, C, T]``, 0 where ``mask [B, 1, T]`` is.

    ``alpha, reciprocal [C]``.
    """
    y = y if mask is None else y * mask
    return torch.addcmul(y, (y * alpha[:, None]).sin_().square_(), reciprocal[:, None])


@fused_operator(_TRITON)
def add_snake(x: Tensor, y: Tensor, alpha: Tensor, reciprocal: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Residual connection of ``x`` and ``y [B, C, T]``, which is masked first; the sum and its ``snake``."""
    x = x + (y if mask is None else y * mask)
    return x, torch.addcmul(x, (x * alpha[:, None]).sin_().square_(), reciprocal[:, None])


@fused_operator(_TRITON)
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
    """Begin a stage of the vocoder: bring the signal into order, add the excitation, and apply all first activations.

    Args:
        up: ``[B, C*rate, T/rate]``, consecutive samples in neighboring channels.
        rate: Samples in neighboring channels.
        has_reflection: Whether the signal is reflected by one sample on the left, to ``[B, C, T+1]``.
        x: Excitation in two parts, ``[B, C, T]`` or ``[B, C, T+1]`` each.
        y: The other part.
        alphas: ``[n, C]`` of n activations.
        reciprocals: ``[n, C]``.
        mask: ``[B, 1, T]`` or ``[B, 1, T+1]``; 0 where the sum shall be 0.

    Returns:
        The sum, ``[B, C, T]`` or ``[B, C, T+1]``, and its activations, ``[n, B, C, ..]``.
    """
    up = up.reshape(up.shape[0], -1, rate, up.shape[2]).transpose(2, 3).flatten(2)
    up = F.pad(up, (1, 0), mode="reflect") if has_reflection else up
    total = up + (x + y)
    total = total if mask is None else total * mask
    squares = (total * alphas[:, None, :, None]).sin_().square_()
    return total, torch.addcmul(total, squares, reciprocals[:, None, :, None])


@fused_operator(_TRITON)
def mean_leaky_relu(
    x1: Tensor, y1: Tensor, x2: Tensor, y2: Tensor, x3: Tensor, y3: Tensor, mask: Tensor | None, slope: float
) -> Tensor:
    """Leaky ReLU of the mean of three sums ``[B, C, T]``, 0 where ``mask [B, 1, T]`` is."""
    total = ((x1 + y1) + (x2 + y2) + (x3 + y3)) / 3
    return F.leaky_relu(total if mask is None else total * mask, slope)


@fused_operator(_TRITON)
def elu_rows(x: Tensor, width: int, left: int, has_elu: bool, mask: Tensor | None) -> Tensor:
    """Rows of a convolution as a matrix product: ELU on request, and ``width`` neighbors side by side.

    Args:
        x: ``[B, T, C]``.
        width: Kernel size.
        left: Neighbors before the current one; zeros outside.
        has_elu: Whether ELU comes first.
        mask: ``[B, 1, T]``, 0 where the neighbors are 0.

    Returns:
        ``[B, T, width*C]``, float64.
    """
    x = x.double()
    x = F.elu(x) if has_elu else x
    x = x if mask is None else x * mask.transpose(1, 2)
    x = F.pad(x, (0, 0, left, width - 1 - left))
    return x.unfold(1, width, 1).transpose(2, 3).flatten(2).contiguous()


@fused_operator(_TRITON)
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
    """Harmonics and noise, mixed (``Source`` in hift.py, with the exact phase).

    Args:
        f0: ``[B, F]`` pitch in Hz.
        phase: ``[B, H]`` float64, cycles / frame before the first frame.
        first: ``[B]`` absolute index of the first sample.
        seeds: ``[B]`` of the noise.
        weight: ``[1, H]`` of the mixture.
        bias: ``[1]``.
        frame: Samples per frame.
        sample_rate_hz: Of the samples.
        alpha: Amplitude of the harmonics.
        sigma: Amplitude of the noise in voiced frames.
        threshold: Lowest pitch of voiced frames.
        is_causal: Whether the phase is constant within a frame and the noise uniform; otherwise the phase is
            interpolated and the noise normal.

    Returns:
        ``[B, 1, F*frame]``.
    """
    harmonics = phase.shape[1]
    cycles = cycles_per_sample(f0, harmonics, sample_rate_hz)
    sines = harmonic_sines(cycles, phase, frame, is_causal=is_causal, is_exact=True) * alpha
    voiced = voiced_samples(f0, threshold, frame)
    level = voiced * sigma + (1 - voiced) * alpha / 3
    noise = hashed_noise(first, seeds, f0.shape[1] * frame, harmonics, not is_causal)
    return F.linear(sines * voiced + level * noise, weight, bias).tanh().transpose(1, 2).contiguous()


def cycles_per_sample(f0: Tensor, harmonics: int, sample_rate_hz: int) -> Tensor:
    """Frequency of each harmonic in cycles per sample: ``[B, F] -> [B, F, H]``, float32 as in the reference."""
    number = torch.arange(1, harmonics + 1, device=f0.device, dtype=f0.dtype)
    return (f0[:, :, None] * number / sample_rate_hz) % 1


def harmonic_sines(cycles: Tensor, phase: Tensor, frame: int, *, is_causal: bool, is_exact: bool) -> Tensor:
    """Unit sines of each harmonic.

    Args:
        cycles: ``[B, F, H]``, per sample.
        phase: ``[B, H]`` float64, cycles / frame before the first frame.
        frame: Samples per frame.
        is_causal: Whether the phase is constant within a frame, as the causal vocoder was trained; otherwise it is
            interpolated.
        is_exact: Whether the phase is float64. The reference keeps it in float32, which drifts over time (0.03 in
            harmonic 9 after 30 s).

    Returns:
        ``[B, F*frame, H]`` float32.
    """
    total = phase[:, None] + cycles.double().cumsum(1)  # [B, F, H], in cycles / frame
    angle = total * frame if is_exact else total.float() * 2 * math.pi * frame
    if not is_causal:
        angle = F.interpolate(angle.transpose(1, 2), scale_factor=frame, mode="linear").transpose(1, 2)
    sines = ((angle % 1) * (2 * math.pi)).float().sin() if is_exact else angle.sin()
    return sines.repeat_interleave(frame, dim=1) if is_causal else sines


def voiced_samples(f0: Tensor, threshold: float, frame: int) -> Tensor:
    """Which samples have a pitch above ``threshold``: ``[B, F] -> [B, F*frame, 1]``, 0 or 1."""
    return (f0 > threshold).to(f0.dtype).repeat_interleave(frame, 1)[:, :, None]


def hashed_noise(first: Tensor, seeds: Tensor, samples: int, harmonics: int, is_normal: bool) -> Tensor:
    """Noise per harmonic as a hash of (seed, sample, harmonic): ``[B, samples, harmonics]`` float32.

    Uniform in 0..1, or normal. Uses 32-bit in-place operations for speed (the mixer is "lowbias32",
    https://nullprogram.com/blog/2018/07/31).

    Args:
        first: ``[B]`` absolute index of the first sample.
        seeds: ``[B]``.
        samples: Number of samples.
        harmonics: Number of harmonics.
        is_normal: Whether the noise is normal.
    """
    keys = mix(mix(seeds) + 0x5EED)[:, None, None]  # [B, 1, 1]
    count = torch.arange(samples * harmonics, dtype=torch.int32, device=first.device).view(samples, harmonics)
    x = count + ((first * harmonics)[:, None, None].to(torch.int32) + keys.to(torch.int32))  # [B, L, H]
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D).add_((keys >> 32).to(torch.int32))
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(-0x7B935975)
    u = (x >> 9).bitwise_and_(0x7FFFFF).float().add_(0.5).mul_(2.0**-23)
    return torch.special.ndtri(u) if is_normal else u


@fused_operator(_TRITON)
def waveform(
    spectrum: Tensor,
    kernel: Tensor,
    window_square: Tensor,
    mask: Tensor | None,
    hop: int,
    max_magnitude: float,
    limit: float,
) -> Tensor:
    """Inverse STFT of what the vocoder predicts.

    Args:
        spectrum: ``[B, 2*bins, T]``: log magnitudes, then the arcsines of the phases.
        kernel: ``[2*bins, 1, n_fft]`` of the inverse transform, windowed.
        window_square: ``[1, 1, n_fft]``.
        mask: ``[B, 1, T]``, which columns exist; ``None``: all.
        hop: Samples per column.
        max_magnitude: Magnitudes are clipped to it.
        limit: Samples are clipped to it.

    Returns:
        ``[B, (T-1)*hop]``.
    """
    magnitude, phase = spectrum.chunk(2, dim=1)
    magnitude = magnitude.exp().clamp(max=max_magnitude)
    return inverse_stft(magnitude, phase.sin(), kernel, window_square, mask, hop).clamp(-limit, limit)


def inverse_stft(
    magnitude: Tensor, phase: Tensor, kernel: Tensor, window_square: Tensor, mask: Tensor | None, hop: int
) -> Tensor:
    """Inverse STFT of magnitude and phase ``[B, bins, T]``: ``[B, (T-1)*hop]``. The rest as in ``waveform``."""
    spectrum = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=1)
    return inverse_fourier(spectrum, kernel, window_square, mask, hop)


def inverse_fourier(spectrum: Tensor, kernel: Tensor, window_square: Tensor, mask: Tensor | None, hop: int) -> Tensor:
    """Inverse STFT of real and imaginary parts ``[B, 2*bins, T]``: ``[B, (T-1)*hop]``. The rest as in ``waveform``."""
    if mask is None:
        mask = torch.ones_like(spectrum[:1, :1])
    else:
        spectrum = spectrum * mask
    x = F.conv_transpose1d(spectrum, kernel, stride=hop)
    weight = F.conv_transpose1d(mask, window_square, stride=hop)
    half = kernel.shape[2] // 2
    return (x / weight.clamp(min=1e-11))[:, 0, half:-half]
