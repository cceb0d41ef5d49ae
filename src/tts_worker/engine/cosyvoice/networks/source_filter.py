"""Vocoder that filters its excitation, for small voices: no official model has it.

``Hift`` computes every spectrum from the mel and the excitation, which takes much training. Here, the network
computes only two gains per bin, of the harmonics and of the noise; all phases are those of the excitation. Windows,
look-ahead and streaming are those of ``Hift``. Differentiable source and filter: https://arxiv.org/abs/2001.04643.
"""

from __future__ import annotations

import itertools
import math
import operator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.networks.dims import HiftDims
from tts_worker.engine.cosyvoice.networks.hift import EXTRA_HISTORY_FRAMES, Hift, Noise, Source, StreamEnds
from tts_worker.engine.cosyvoice.ops.audio import voiced_samples

MAX_GAIN = 100.0
_POST_REACH = 3  # columns on each side that the last convolution sees
_PRE_REACH = 3  # frames on each side that the first convolution sees


def noise_level(dims: HiftDims) -> float:
    """Standard deviation of the excitation's noise, as that of ``Source`` where there is no voice."""
    return dims.nsf_alpha / 3


class SplitSource(Source):
    """Pitch to excitation: harmonics and noise, ``[B, 2, F*frame]``."""

    channels = 2

    def forward(self, f0: Tensor, phase: Tensor, noise: Tensor) -> Tensor:
        """Excitation from ``f0 [B, F]``, ``phase [B, H]`` and the first of ``noise [B, F*frame, 1 or more]``."""
        dims = self.dims
        voiced = voiced_samples(f0, dims.nsf_voiced_threshold, dims.frame_samples)
        harmonics = self.l_linear(self.harmonics(f0, phase) * dims.nsf_alpha).tanh() * voiced
        return torch.cat([harmonics, noise[..., :1] * noise_level(dims)], dim=2).transpose(1, 2)

    def from_noise(self, f0: Tensor, phase: Tensor, start: Tensor, noise: Noise) -> Tensor:
        frame = self.dims.frame_samples
        return self.forward(f0, phase, noise(start * frame, f0.shape[1] * frame, 1).to(f0))


class SourceFilter(Hift):
    """The vocoder of a bundle with ``source_filter: true``."""

    def __init__(self, dims: HiftDims, exact_phase: bool = True) -> None:
        super().__init__(dims, exact_phase)
        self.m_source = SplitSource(dims, exact_phase)
        self.source_downs = nn.ModuleList()
        self.source_resblocks = nn.ModuleList()

    @property
    def history(self) -> int:
        return self._needed_frames(0) + _PRE_REACH + EXTRA_HISTORY_FRAMES

    def _needed_frames(self, i: int) -> int:
        dims = self.dims
        head = (_POST_REACH * dims.hop + dims.n_fft // 2) / dims.frame_samples
        return math.ceil(self._stage_reach(i) + head)

    def log_gains(self, mel: Tensor) -> Tensor:
        """Log gains ``[B, n_fft+2, columns]`` of the harmonics, then of the noise, for all of ``mel [B, mel, T]``."""
        x = F.leaky_relu(self.conv_pre(mel), self.dims.lrelu_slope)
        for i, rate in enumerate(itertools.accumulate(self.dims.upsample_rates, operator.mul)):
            x = self._stage(i, x, x, None, rate)
        return cast("Tensor", self.conv_post(x))

    def _analyze(self, source: Tensor, samples: Tensor | None) -> Tensor:
        return torch.cat([self.fourier.analyze(part, samples) for part in source.split(1, dim=1)], dim=1)

    def _synthesize(self, x: Tensor, spectrum: Tensor, columns: Tensor | None) -> Tensor:
        bins = x.shape[1] // 2
        harmonic, noise = x.exp().clamp(max=MAX_GAIN).split(bins, dim=1)
        real, imaginary, noise_real, noise_imaginary = spectrum.split(bins, dim=1)
        # The source's sines become cosines, whose sum is a pulse.
        real, imaginary = noise_real * noise - imaginary * harmonic, noise_imaginary * noise + real * harmonic
        return self.fourier.inverse(torch.cat([real, imaginary], dim=1), columns, self.dims.audio_limit)

    def _stage(self, i: int, x: Tensor, spectrum: Tensor, ends: StreamEnds | None, rate: int) -> Tensor:
        is_last = i == len(self.ups) - 1
        x = self.ups[i](x)
        if is_last:
            x = F.pad(x, (1, 0), mode="reflect")
        mask = None
        if ends is not None:
            mask = ends.mask(x, rate, int(is_last))
            x = x * mask
        blocks = self._blocks(i)
        x = cast("Tensor", sum(block(x, mask) for block in blocks)) / len(blocks)
        return F.leaky_relu(x, self._slope(i))

    def _is_fused(self, x: Tensor) -> bool:
        return False
