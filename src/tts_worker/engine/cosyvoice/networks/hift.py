"""HiFT vocoder: mel frames to audio with a neural source filter and an inverse Fourier transform.

Implements the vocoder of CosyVoice-300M and CosyVoice2 and the causal one of CosyVoice3, offline (``forward``) and
streaming (``stream``), where a window of past frames and the running phase replace the full past. Noise is
passed in, indexed by absolute sample.
HiFTNet: https://arxiv.org/abs/2309.09493; harmonic source: https://arxiv.org/abs/1904.12088.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from tts_worker.engine.cosyvoice.networks.dims import HiftDims
from tts_worker.engine.cosyvoice.ops.audio import (
    add_snake,
    cycles_per_sample,
    elu_rows,
    excitation,
    harmonic_sines,
    hashed_noise,
    inverse_fourier,
    mean_leaky_relu,
    merge_snakes,
    snake,
    voiced_samples,
    waveform,
)

EXTRA_HISTORY_FRAMES = 2  # past beyond the decoder's receptive field: the excitation reaches a little further
HELD_FRAMES = 8  # not causal: frames withheld until more future is known; the reference's cross-fade holds as many
LAST_SLOPE = 0.01  # of the last leaky ReLU: the reference leaves PyTorch's default
MAX_MAGNITUDE = 100.0  # of the spectrum
BLEND_FRAMES = 2  # not causal: length of the cross-fade from the early to the final version of the held frames


class Noise(Protocol):
    def __call__(self, start: Tensor, samples: int, harmonics: int) -> Tensor:
        """Noise per harmonic from absolute sample ``start [B]``: ``[B, samples, harmonics]`` float32."""
        ...


class HashedNoise:
    """Noise as a hash of (seed, sample, harmonic): stateless and independent of chunk boundaries.

    Uniform in 0..1 for the causal vocoder, normal for the other, as each was trained.
    """

    def __init__(self, seeds: Tensor, normal: bool) -> None:
        self.seeds = seeds
        self._normal = normal

    def __call__(self, start: Tensor, samples: int, harmonics: int) -> Tensor:
        return hashed_noise(start, self.seeds, samples, harmonics, self._normal)


class StreamEnds:
    """Ends of the streams in a window of fixed size, ``[B]`` frames each.

    What lies after an end must be zero wherever a layer would see the zero padding of a shorter window.
    """

    def __init__(self, frames: Tensor) -> None:
        self.frames = frames

    def mask(self, x: Tensor, rate: int, extra: int = 0) -> Tensor:
        """Return 1 before the ends and 0 after them, ``[B, 1, T]`` for ``x [B, C, T]``.

        Args:
            x: A signal with ``rate`` positions per frame.
            rate: Positions per frame.
            extra: Further positions after the last frame.
        """
        ends = self.frames * rate + extra
        return (torch.arange(x.shape[2], device=x.device) < ends[:, None])[:, None].to(x.dtype)


class Conv(nn.Conv1d):
    """Convolution over ``[B, C, T]`` with separate zero padding on the left and right.

    On CUDA the convolution pads both sides with the wider padding and the surplus outputs are cut off, because padding
    takes two kernels. On a CPU the input is padded: there, reading the cut outputs costs more than the copy.
    With a stride, ``T`` is a multiple of it plus 1, so that there is no surplus.
    """

    def __init__(self, i: int, o: int, kernel: int, pad: tuple[int, int], stride: int = 1, dilation: int = 1) -> None:
        even = pad[0] if pad[0] == pad[1] else 0
        super().__init__(i, o, kernel, stride, padding=even, dilation=dilation)
        self.pad = (pad[0] - even, pad[1] - even)
        widest = max(pad)
        self.both = widest
        self.cut = slice((widest - pad[0]) // stride, -((widest - pad[1]) // stride) or None)

    def forward(self, x: Tensor) -> Tensor:
        if not any(self.pad):
            return super().forward(x)
        if x.is_cuda:
            x = F.conv1d(x, self.weight, self.bias, self.stride, self.both, self.dilation)
            return x[:, :, self.cut]
        return super().forward(F.pad(x, self.pad))


def _widest(kernels: Sequence[int], dilations: Sequence[Sequence[int]]) -> int:
    """Most past positions that one of several residual blocks reaches."""
    blocks = zip(kernels, dilations, strict=True)
    return max(sum((kernel - 1) * (width + 1) for width in widths) for kernel, widths in blocks)


def same_padding(kernel: int, dilation: int, causal: bool) -> tuple[int, int]:
    """Padding that keeps the length: all on the left if causal, otherwise split evenly."""
    reach = (kernel - 1) * dilation
    return (reach, 0) if causal else (reach // 2, reach - reach // 2)


class RepeatConv(Conv):
    """Causal upsampling: every input repeated ``rate`` times, then a causal convolution. Call ``prepare`` first.

    Most positions of the kernel see the same input, so ``prepare`` adds their weights up: one convolution at the rate
    of the input, with an output channel for each repetition, and a fraction of the products.
    """

    def __init__(self, i: int, o: int, kernel: int, rate: int) -> None:
        self.taps = 1 + -(-(kernel - 1) // rate)  # inputs that an output depends on
        super().__init__(i, o, kernel, (self.taps - 1, 0))
        self.rate = rate

    def prepare(self) -> None:
        """Fold the repetition into the loaded weights."""
        kernel = self.weight.shape[2]
        folded = self.weight.new_zeros(self.out_channels, self.rate, self.in_channels, self.taps, dtype=torch.float64)
        for repetition in range(self.rate):
            for column in range(kernel):
                tap = self.taps - 1 + (repetition + column - kernel + 1) // self.rate
                folded[:, repetition, :, tap] += self.weight[:, :, column]
        assert self.bias is not None
        self.bias = nn.Parameter(self.bias.repeat_interleave(self.rate), requires_grad=False)
        self.weight = nn.Parameter(folded.flatten(0, 1).to(self.weight.dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, T] -> [B, C', rate*T]
        return self.unordered(x).unflatten(1, (-1, self.rate)).transpose(2, 3).flatten(2)

    def unordered(self, x: Tensor) -> Tensor:
        """``forward`` with the repetitions in neighboring channels, ``[B, C'*rate, T]``."""
        return super().forward(x)


class Snake(nn.Module):
    """The activation ``x + sin(alpha x)^2 / alpha`` of ``x [B, C, T]``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))
        self.reciprocal = torch.zeros(0)  # [C], set by ``prepare``

    def prepare(self) -> None:
        self.reciprocal = (self.alpha + 1e-9).reciprocal()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``mask [B, 1, T]`` is 0 where the result shall be 0."""
        return snake(x, self.alpha, self.reciprocal, mask)


class ResBlock(nn.Module):
    """Dilated residual convolutions: ``[B, C, T] -> [B, C, T]``."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...], causal: bool) -> None:
        super().__init__()

        def convs(widths: tuple[int, ...]) -> nn.ModuleList:
            pads = [(d, same_padding(kernel, d, causal)) for d in widths]
            return nn.ModuleList(weight_norm(Conv(channels, channels, kernel, pad, dilation=d)) for d, pad in pads)

        self.convs1 = convs(dilations)
        self.convs2 = convs((1,) * len(dilations))
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``mask [B, 1, T]``: where the stream exists; the input is zero elsewhere."""
        for a1, c1, a2, c2 in zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True):
            y = c2(a2(c1(a1(x)), mask))
            x = x + (y if mask is None else y * mask)
        return x

    def fused(self, x: Tensor, activated: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """``forward`` without the last addition.

        Args:
            x: ``[B, C, T]``.
            activated: Its first activation.
            mask: As in ``forward``.

        Returns:
            Two tensors whose sum is the result, the second one without its mask.
        """
        last = len(self.convs1) - 1
        for i, (c1, a2, c2) in enumerate(zip(self.convs1, self.activations2, self.convs2, strict=True)):
            y = c2(a2(c1(activated), mask))
            if i < last:
                following = cast("Snake", self.activations1[i + 1])
                x, activated = add_snake(x, y, following.alpha, following.reciprocal, mask)
        return x, y


class F0Predictor(nn.Module):
    """Mel to pitch in Hz: ``[B, mel, T] -> [B, T - ahead]``."""

    def __init__(self, dims: HiftDims) -> None:
        super().__init__()
        channels = dims.f0_channels
        self.ahead = 3 if dims.causal else 0
        self.left = 8 if dims.causal else 5
        kernel, pad = (4, (0, 0)) if dims.causal else (3, (1, 1))
        first = Conv(dims.in_channels, channels, kernel, pad)
        layers: list[nn.Module] = [weight_norm(first), nn.ELU()]
        for _ in range(4):
            layers += [weight_norm(Conv(channels, channels, 3, same_padding(3, 1, dims.causal))), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, 1)
        self.row_weights: list[Tensor] = []  # [C', k*C] of each convolution, set by ``prepare``

    def prepare(self) -> None:
        """Reorder the weights for CUDA, where float64 convolutions are matrix products."""
        convs = [layer for layer in self.condnet if isinstance(layer, Conv)]
        self.row_weights = [conv.weight.double().permute(0, 2, 1).flatten(1) for conv in convs]

    def forward(self, mel: Tensor, final: bool = True, mask: Tensor | None = None) -> Tensor:
        """Predict pitch; unless ``final`` (silence follows), the last ``ahead`` frames are look-ahead only.

        ``mask [B, 1, T]``: where the stream exists; ``mel`` is zero elsewhere.
        """
        if self.row_weights and elu_rows.is_fused(mel):
            return self._fused(mel, mask)[:, : None if final else mel.shape[2] - self.ahead]
        x = F.pad(mel.to(self.classifier.weight.dtype), (0, self.ahead if final else 0))
        if mask is None:
            x = self.condnet(x)
        else:
            for layer in self.condnet:
                x = layer(x) * mask
        return self.classifier(x.transpose(1, 2)).squeeze(-1).abs().to(mel.dtype)

    def _fused(self, mel: Tensor, mask: Tensor | None) -> Tensor:  # [B, mel, T] -> [B, T]
        mask = None if self.ahead else mask  # a causal network does not see what follows
        x = mel.transpose(1, 2)
        for i, weight in enumerate(self.row_weights):
            conv = cast("Conv", self.condnet[2 * i])
            width = conv.kernel_size[0]
            left = width - 1 if self.ahead else width // 2
            x = elu_rows(x, width, left if i or not self.ahead else 0, i > 0, mask)
            x = F.linear(x, weight, conv.bias)
        return self.classifier(F.elu(x)).squeeze(-1).abs().to(mel.dtype)


class Source(nn.Module):
    """Pitch to excitation: harmonics and noise, mixed with learned weights.

    In CosyVoice-300M, the phase advances with every sample and every harmonic has another start phase.
    """

    channels = 1

    def __init__(self, dims: HiftDims, exact_phase: bool) -> None:
        super().__init__()
        self.dims = dims
        self.exact_phase = exact_phase
        self.l_linear = nn.Linear(dims.nb_harmonics + 1, 1)

    def cycles_per_sample(self, f0: Tensor) -> Tensor:
        """Frequency of each harmonic in cycles per sample: ``[B, F] -> [B, F, H]``, float32 as in the reference."""
        return cycles_per_sample(f0, self.dims.nb_harmonics + 1, self.dims.sample_rate_hz)

    def harmonics(self, f0: Tensor, phase: Tensor) -> Tensor:
        """Unit sines of each harmonic from ``phase [B, H]`` (float64, cycles / frame): ``[B, F*frame, H]``."""
        dims = self.dims
        if dims.has_sample_phase:
            return self._sample_harmonics(self.cycles_per_sample(f0).double(), phase)
        return harmonic_sines(
            self.cycles_per_sample(f0), phase, dims.frame_samples, is_causal=dims.causal, is_exact=self.exact_phase
        )

    def _sample_harmonics(self, cycles: Tensor, phase: Tensor) -> Tensor:
        frame = self.dims.frame_samples
        before = (phase[:, None] + cycles.cumsum(1) - cycles) * frame  # [B, F, H], in cycles
        sample = torch.arange(1, frame + 1, device=cycles.device)[:, None]
        angle = before[:, :, None] % 1 + cycles[:, :, None] * sample  # [B, F, frame, H]
        return ((angle % 1) * (2 * math.pi)).float().sin().flatten(1, 2)

    def start_phase(self) -> Tensor:
        """Phase of each harmonic before the first sample, ``[H]`` float64, cycles / frame.

        The reference of CosyVoice-300M draws the phases of all but the first harmonic; here, one draw serves always.
        """
        phase = torch.zeros(self.dims.nb_harmonics + 1, dtype=torch.float64)
        if self.dims.has_sample_phase:
            drawn = torch.rand(len(phase), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            phase[1:] = drawn[1:] / self.dims.frame_samples
        return phase

    def forward(self, f0: Tensor, phase: Tensor, noise: Tensor) -> Tensor:
        """Excitation ``[B, 1, F*frame]`` from ``f0 [B, F]``, ``phase [B, H]`` and ``noise [B, F*frame, H]``."""
        dims = self.dims
        voiced = voiced_samples(f0, dims.nsf_voiced_threshold, dims.frame_samples)
        sines = self.harmonics(f0, phase) * dims.nsf_alpha
        level = voiced * dims.nsf_sigma + (1 - voiced) * dims.nsf_alpha / 3
        return self.l_linear(sines * voiced + level * noise).tanh().transpose(1, 2)

    def from_noise(self, f0: Tensor, phase: Tensor, start: Tensor, noise: Noise) -> Tensor:
        """``forward`` with ``noise`` from frame ``start [B]`` on."""
        dims = self.dims
        first = start * dims.frame_samples
        if isinstance(noise, HashedNoise) and self.exact_phase and not dims.has_sample_phase:
            return excitation(
                f0,
                phase,
                first,
                noise.seeds,
                self.l_linear.weight,
                self.l_linear.bias,
                dims.frame_samples,
                dims.sample_rate_hz,
                dims.nsf_alpha,
                dims.nsf_sigma,
                dims.nsf_voiced_threshold,
                dims.causal,
            )
        return self.forward(f0, phase, noise(first, f0.shape[1] * dims.frame_samples, dims.nb_harmonics + 1).to(f0))


class Fourier(nn.Module):
    """STFT and inverse STFT as convolutions with fixed kernels: exact, and supported by every back end."""

    def __init__(self, n_fft: int, hop: int) -> None:
        super().__init__()
        self.n_fft = n_fft
        self.hop = hop
        self.forward_kernel = self.inverse_kernel = self.window_square = torch.zeros(0)  # set by ``prepare``

    def prepare(self, device: torch.device) -> None:
        n = self.n_fft
        bins = self.n_fft // 2 + 1
        window = torch.hann_window(n, periodic=True, dtype=torch.float64)
        angle = (torch.arange(bins)[:, None] * torch.arange(n)).double() * (2 * math.pi / n)
        basis = torch.cat([angle.cos(), -angle.sin()])[:, None] * window  # [2*bins, 1, n_fft]
        twice = torch.full([bins, 1, 1], 2.0).index_fill_(0, torch.tensor([0, bins - 1]), 1.0).repeat(2, 1, 1)
        self.forward_kernel = basis.float().to(device)
        self.inverse_kernel = (basis * twice / n).float().to(device)
        self.window_square = (window[None, None] ** 2).float().to(device)

    def analyze(self, x: Tensor, ends: Tensor | None = None) -> Tensor:
        """STFT: ``[B, 1, L] -> [B, 2*bins, L/hop + 1]``, real parts then imaginary parts.

        ``ends [B]``: samples of each signal; its end is reflected there instead of at ``L``.
        """
        half = self.n_fft // 2
        if ends is None:
            padded = F.pad(x, (half, half), mode="reflect")
        else:
            position = torch.arange(-half, x.shape[2] + half, device=x.device).abs()
            last = ends[:, None] - 1
            padded = x.gather(2, (last - (last - position).abs()).clamp(min=0)[:, None])
        return F.conv1d(padded, self.forward_kernel, stride=self.hop)

    def synthesize(self, x: Tensor, mask: Tensor | None, limit: float) -> Tensor:
        """Inverse STFT of ``x [B, 2*bins, T]``, log magnitudes and arcsines of phases: ``[B, (T-1)*hop]``.

        ``mask [B, 1, T]``: which columns exist. Samples are clipped to ``limit``.
        """
        return waveform(x, self.inverse_kernel, self.window_square, mask, self.hop, MAX_MAGNITUDE, limit)

    def inverse(self, x: Tensor, mask: Tensor | None, limit: float) -> Tensor:
        """``synthesize`` from real and imaginary parts."""
        return inverse_fourier(x, self.inverse_kernel, self.window_square, mask, self.hop).clamp(-limit, limit)


@dataclass
class HiftState:
    """State of a batch of streams with the same number of cached frames; start and phase differ per stream."""

    cached_mel: Tensor  # [B, mel, K]
    cached_f0: Tensor  # [B, K'] final pitch of the first K' <= K cached frames
    phase: Tensor  # [B, H] float64, cycles / frame before the first cached frame
    start: Tensor  # [B] absolute index of the first cached frame
    emitted_frames: int = 0  # how many of the cached frames were emitted
    tail: Tensor | None = None  # [B, samples] v2: early audio of the next frames, for the cross-fade


@dataclass(frozen=True, slots=True)
class WindowRow:
    """What ``Hift.window`` does with one stream.

    Attributes:
        frames: Frames of the stream in the window.
        known: Frames whose pitch is given.
        emitted: First frame whose audio is returned.
        end: Frame after the last one whose audio is returned.
        drop: Frames that the next window no longer needs.
        fade: Samples of the cross-fade from the previous window.
    """

    frames: int
    known: int
    emitted: int
    end: int
    drop: int
    fade: int


class Hift(nn.Module):
    """The vocoder of every family. Call ``prepare`` after loading the weights."""

    def __init__(self, dims: HiftDims, exact_phase: bool = True) -> None:
        super().__init__()
        self.dims = dims
        base = dims.base_channels
        causal = dims.causal
        self.m_source = Source(dims, exact_phase)
        self.fourier = Fourier(dims.n_fft, dims.hop)
        kernel, pad = (dims.conv_pre_look_right + 1, (0, 0)) if causal else (7, (3, 3))
        self.conv_pre = weight_norm(Conv(dims.in_channels, base, kernel, pad))
        self.ups = nn.ModuleList()
        self.source_downs = nn.ModuleList()
        self.source_resblocks = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        rates = dims.upsample_rates
        bins = dims.n_fft + 2
        for i, (rate, kernel) in enumerate(zip(rates, dims.upsample_kernel_sizes, strict=True)):
            inner = base >> i
            outer = base >> (i + 1)
            up = nn.ConvTranspose1d(inner, outer, kernel, rate, padding=(kernel - rate) // 2)
            self.ups.append(weight_norm(RepeatConv(inner, outer, kernel, rate) if causal else up))
            down = math.prod(rates[i + 1 :])  # from the rate of the source to the rate of this stage
            pad = (down - 1, 0) if causal else (down // 2, down // 2)
            self.source_downs.append(
                Conv(bins, outer, 1, (0, 0)) if down == 1 else Conv(bins, outer, 2 * down, pad, stride=down)
            )
            source = dims.source_resblock_kernel_sizes[i], dims.source_resblock_dilation_sizes[i]
            self.source_resblocks.append(ResBlock(outer, *source, causal))
            for k, d in zip(dims.resblock_kernel_sizes, dims.resblock_dilation_sizes, strict=True):
                self.resblocks.append(ResBlock(outer, k, d, causal))
        self.conv_post = weight_norm(Conv(base >> len(rates), bins, 7, same_padding(7, 1, causal)))
        self.f0_predictor = F0Predictor(dims)
        self.firsts: list[tuple[Tensor, Tensor]] = []  # parameters of the first activations by stage, [blocks, C] each

    def prepare(self) -> Hift:
        """Fold the weight norm into the weights and convert the pitch predictor to float64.

        Pitch rounding errors accumulate in the phase (the reference uses float64 for the causal vocoder only).
        Afterwards the state dict no longer has the official names.
        """
        self.fourier.prepare(self.conv_post.bias.device)
        for module in self.modules():
            if isinstance(module, Snake):
                module.prepare()
        if self.dims.causal or self.m_source.exact_phase:
            self.f0_predictor.double()
        for module in list(self.modules()):
            if isinstance(module, nn.Conv1d | nn.ConvTranspose1d) and parametrize.is_parametrized(module):
                parametrize.remove_parametrizations(module, "weight")
            if isinstance(module, RepeatConv):
                module.prepare()
        if self.conv_post.weight.is_cuda:
            self.f0_predictor.prepare()
        for i in range(len(self.ups)):
            firsts = [cast("Snake", block.activations1[0]) for block in self._blocks(i)]
            self.firsts.append((torch.stack([x.alpha for x in firsts]), torch.stack([x.reciprocal for x in firsts])))
        return self

    @property
    def held(self) -> int:
        """Number of frames withheld until their look-ahead is available."""
        return self.f0_predictor.ahead + self.dims.conv_pre_look_right + 1 if self.dims.causal else HELD_FRAMES

    @property
    def f0_ahead(self) -> int:
        """Look-ahead frames of the pitch."""
        return self.f0_predictor.ahead

    @property
    def history(self) -> int:
        """Number of past frames a window needs; 24 at the official sizes, where more than 22 change nothing (8e-7)."""
        return math.ceil(self._stage_reach(0)) + EXTRA_HISTORY_FRAMES

    def _stage_reach(self, i: int) -> float:
        """Number of past frames that the signal reaches through stage ``i`` and those after it."""
        dims = self.dims
        widest = _widest(dims.resblock_kernel_sizes, dims.resblock_dilation_sizes)
        stages = list(
            zip(itertools.accumulate(dims.upsample_rates, operator.mul), dims.upsample_kernel_sizes, strict=True)
        )
        return sum((kernel - 1 + widest) / rate for rate, kernel in stages[i:])

    def _needed_frames(self, i: int) -> int:
        """Number of past frames that stage ``i`` and what follows need: fewer, the higher their rate."""
        dims = self.dims
        # The excitation first passes a strided convolution and other blocks.
        merged = 2 + _widest(dims.source_resblock_kernel_sizes[i:], dims.source_resblock_dilation_sizes[i:])
        reach = self._stage_reach(i) + merged / math.prod(dims.upsample_rates[: i + 1])
        return math.ceil(reach) + 1  # 1: the last convolution, and the inverse transform

    def decode(
        self, mel: Tensor, source: Tensor, final: bool = True, ends: StreamEnds | None = None, first: int = 0
    ) -> Tensor:
        """Synthesize audio ``[B, T*frame]`` from ``mel [B, mel, T]`` and ``source [B, 1, T*frame]``.

        Causal and not ``final``: the last frames are look-ahead only, and one more is dropped because its inverse
        transform is incomplete.

        Args:
            mel: Mel frames, zero after ``ends``.
            source: Excitation.
            final: Whether nothing follows.
            ends: Where each stream ends, if some are shorter than ``T``; the audio after an end is undefined.
            first: First frame whose audio is needed; the audio before it is not returned: ``[B, (T - first)*frame]``.
        """
        dims = self.dims
        stages = len(self.ups)
        columns = None  # which columns of the spectrum exist
        if ends is None:
            spectrum = self._analyze(source, None)  # [B, n_fft+2, T*frame/hop + 1]
        else:
            spectrum = self._analyze(source, ends.frames * dims.frame_samples)
            columns = ends.mask(spectrum, dims.frame_samples // dims.hop, 1)
            spectrum = spectrum * columns
        ahead = dims.conv_pre_look_right if dims.causal else 0
        if final:
            mel = F.pad(mel, (0, ahead))
        else:
            spectrum = spectrum[:, :, : spectrum.shape[2] - ahead * dims.frame_samples // dims.hop]
        x = self.conv_pre(mel)  # [B, base, T']
        # Causal layers do not look past an end.
        masked = ends if not dims.causal else None
        if masked is not None:
            x = x * masked.mask(x, 1)
        stage = self._fused_stage if self._is_fused(x) else self._stage
        x = F.leaky_relu(x, dims.lrelu_slope)
        rate = 1
        dropped = 0  # frames
        for i in range(stages):
            surplus = max(0, first - self._needed_frames(i) - dropped)
            if surplus:
                x = x[:, :, surplus * rate :]
                spectrum = spectrum[:, :, surplus * dims.frame_samples // dims.hop :]
                dropped += surplus
            rate *= dims.upsample_rates[i]
            x = stage(i, x, spectrum, masked, rate)
        x = self.conv_post(x)  # [B, n_fft+2, T'*frame/hop + 1]
        audio = self._synthesize(x, spectrum, columns)[:, (first - dropped) * dims.frame_samples :]
        return audio[:, : -dims.frame_samples] if dims.causal and not final else audio

    def _analyze(self, source: Tensor, samples: Tensor | None) -> Tensor:
        """Spectrum of the excitation; ``samples [B]``: length of each."""
        return self.fourier.analyze(source, samples)

    def _synthesize(self, x: Tensor, spectrum: Tensor, columns: Tensor | None) -> Tensor:
        """Audio from the output of the last convolution and the excitation's spectrum of the same columns."""
        return self.fourier.synthesize(x, columns, self.dims.audio_limit)

    def _stage(self, i: int, x: Tensor, spectrum: Tensor, ends: StreamEnds | None, rate: int) -> Tensor:
        """Run upsampling stage ``i``.

        Args:
            i: The stage.
            x: ``[B, C, T]``.
            spectrum: Of the excitation, ``[B, n_fft+2, T'']``.
            ends: Ends of the streams that layers may not look past.
            rate: Positions per frame after the stage.

        Returns:
            ``[B, C/2, T']``, after the leaky ReLU that follows.
        """
        is_last = i == len(self.ups) - 1
        x = self.ups[i](x)
        if is_last:
            x = F.pad(x, (1, 0), mode="reflect")
        added = self.source_downs[i](spectrum)
        mask = None
        if ends is not None:
            mask = ends.mask(x, rate, int(is_last))
            x = x * mask
            added = added * mask
        x = x + self.source_resblocks[i](added, mask)
        blocks = self._blocks(i)
        x = sum(block(x, mask) for block in blocks) / len(blocks)
        return F.leaky_relu(x, self._slope(i))

    def _fused_stage(self, i: int, x: Tensor, spectrum: Tensor, ends: StreamEnds | None, rate: int) -> Tensor:
        """``_stage`` with fused operators."""
        is_last = i == len(self.ups) - 1
        up = self.ups[i]
        merge = cast("ResBlock", self.source_resblocks[i])
        added = self.source_downs[i](spectrum)
        mask = None
        if ends is not None:
            mask = ends.mask(added, rate, int(is_last))
            added = added * mask
        first = cast("Snake", merge.activations1[0])
        repeats = up.rate if isinstance(up, RepeatConv) else 1
        x = up.unordered(x) if isinstance(up, RepeatConv) else up(x)
        x, activated = merge_snakes(x, repeats, is_last, *merge.fused(added, first(added), mask), *self.firsts[i], mask)
        parts = [block.fused(x, y, mask) for block, y in zip(self._blocks(i), activated, strict=True)]
        (x1, y1), (x2, y2), (x3, y3) = parts
        return mean_leaky_relu(x1, y1, x2, y2, x3, y3, mask, self._slope(i))

    def _is_fused(self, x: Tensor) -> bool:
        return add_snake.is_fused(x) and len(self.resblocks) == 3 * len(self.ups)

    def _blocks(self, i: int) -> list[ResBlock]:
        """Residual blocks of stage ``i``."""
        count = len(self.resblocks) // len(self.ups)
        return cast("list[ResBlock]", list(self.resblocks[i * count : (i + 1) * count]))

    def _slope(self, i: int) -> float:
        """Slope of the leaky ReLU after stage ``i``."""
        return self.dims.lrelu_slope if i < len(self.ups) - 1 else LAST_SLOPE

    def start(self, batch: int, device: torch.device | str = "cpu") -> HiftState:
        """State before the first frame."""
        phase = self.m_source.start_phase().to(device).repeat(batch, 1)
        mel = torch.zeros(batch, self.dims.in_channels, 0, device=device)
        return HiftState(mel, mel[:, 0], phase, torch.zeros(batch, dtype=torch.long, device=device))

    @torch.inference_mode()
    def forward(self, mel: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Synthesize all of ``mel [B, mel, T]``: audio ``[B, T*frame]`` and excitation ``[B, 1, T*frame]``."""
        state = self.start(mel.shape[0], mel.device)
        f0 = self.f0_predictor(mel)
        source = self.m_source.from_noise(f0, state.phase, state.start, noise)
        return self.decode(mel, source), source

    @torch.inference_mode()
    def stream(
        self, mel: Tensor, state: HiftState, noise: Noise, final: bool, pitch_factors: Tensor | None = None
    ) -> tuple[Tensor, HiftState]:
        """Continue with ``mel [B, mel, T]``, whose pitch, and that of the cached frames, is scaled if asked ``[B, n]``.

        Exact for the causal vocoder. The other vocoder has a longer look-ahead than ``held`` frames, so the audio of
        the held frames is cross-faded into its final version once that is known.

        Returns:
            The audio that is final now, ``[B, n*frame]``, and the state after it.
        """
        frame = self.dims.frame_samples
        predictor = self.f0_predictor
        mel = torch.cat([state.cached_mel, mel], dim=2)  # [B, mel, n]
        frames = mel.shape[2]
        known = state.cached_f0.shape[1]
        end = frames if final else frames - self.held
        if end <= state.emitted_frames:  # nothing is final yet
            return mel.new_zeros(mel.shape[0], 0), replace(state, cached_mel=mel)
        first = max(0, known - predictor.left)
        new_f0 = predictor(mel[:, :, first:], final)[:, known - first :]
        if pitch_factors is not None:
            new_f0 = new_f0 * pitch_factors[:, known : known + new_f0.shape[1]]
        f0 = torch.cat([state.cached_f0, new_f0], dim=1)  # [B, n - ahead]
        source = self.m_source.from_noise(f0, state.phase, state.start, noise)
        emitted = state.emitted_frames
        audio = self.decode(mel[:, :, : f0.shape[1]], source, final, first=emitted)  # from there on
        out = audio[:, : (end - emitted) * frame]
        if state.tail is not None:
            n = min(state.tail.shape[1], out.shape[1])
            fade_in = torch.linspace(0, 1, n + 2, device=out.device)[1:-1]
            out = torch.cat([state.tail[:, :n] * (1 - fade_in) + out[:, :n] * fade_in, out[:, n:]], dim=1)
        drop = max(0, end - self.history)
        phase = state.phase + self.m_source.cycles_per_sample(f0[:, :drop]).double().sum(1)
        tail = None
        if not (final or self.dims.causal):
            tail = audio[:, (end - emitted) * frame : (end - emitted + BLEND_FRAMES) * frame]
        known = f0.shape[1] if self.dims.causal else end
        return out, HiftState(mel[:, :, drop:], f0[:, drop:known], phase, state.start + drop, end - drop, tail)

    def plan_window(self, cached: int, known: int, emitted: int, new: int, has_tail: bool, final: bool) -> WindowRow:
        """Plan a window of ``new`` frames after ``cached`` ones, of which ``emitted`` were emitted.

        The same arithmetic as in ``stream``. If ``end`` equals ``emitted``, nothing is final yet.
        """
        frames = cached + new
        end = max(emitted, frames if final else frames - self.held)
        fade = min(BLEND_FRAMES, end - emitted) * self.dims.frame_samples if has_tail else 0
        return WindowRow(frames, known, emitted, end, max(0, end - self.history), fade)

    def window(
        self,
        mel: Tensor,
        f0: Tensor,
        phase: Tensor,
        tail: Tensor,
        rows: Tensor,
        start: Tensor,
        noise: Noise,
        ends: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Continue streams with windows of one fixed size: the audio of ``stream`` up to rounding. Needs no gradients.

        Streams of any lengths share a batch, and every length has the same shapes, so that there are few of them.

        Args:
            mel: ``[B, mel, W]``: the cached frames, the new ones, then zeros.
            f0: ``[B, W]`` final pitch of the first ``known`` frames, then the factor of what is predicted.
            phase: ``[B, H]`` float64, cycles / frame before the window.
            tail: ``[B, BLEND_FRAMES*frame]`` end of the previous window for the cross-fade; causal: ``[B, 0]``.
            rows: ``[B, 6]``, the fields of ``WindowRow``.
            start: ``[B]`` absolute index of the first frame.
            noise: Noise of the streams.
            ends: Whether a stream may end before the end of its window (or, causal, in it).

        Returns:
            Audio ``[B, W*frame]`` from frame ``emitted`` to ``end``, then undefined; pitch ``[B, W]``; the phase after
            ``drop`` frames; the next tail.
        """
        dims = self.dims
        frame = dims.frame_samples
        size = mel.shape[2]
        frames, known, emitted, end, drop, fade = rows.unbind(1)
        stream_ends = StreamEnds(frames) if ends else None
        mask = None if stream_ends is None or dims.causal else stream_ends.mask(mel, 1)
        position = torch.arange(size, device=mel.device)
        f0 = torch.where(position < known[:, None], f0, self.f0_predictor(mel, True, mask) * f0)
        if mask is not None:
            f0 = f0 * mask[:, 0]  # the phase then stays where the stream ends
        audio = self.decode(mel, self.m_source.from_noise(f0, phase, start, noise), True, stream_ends)
        sample = torch.arange(size * frame, device=mel.device)
        out = audio.gather(1, (emitted[:, None] * frame + sample).clamp(max=size * frame - 1))
        if not dims.causal:
            sample = sample[: tail.shape[1]]
            weight = ((sample + 1) / (fade[:, None] + 1)).clamp(max=1.0)  # [B, samples], 1 after the cross-fade
            out[:, : tail.shape[1]] = tail * (1 - weight) + out[:, : tail.shape[1]] * weight
            tail = audio.gather(1, (end[:, None] * frame + sample).clamp(max=size * frame - 1))
        cycles = self.m_source.cycles_per_sample(f0).double() * (position < drop[:, None])[:, :, None]
        return out, f0, phase + cycles.sum(1), tail
