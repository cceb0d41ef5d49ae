"""The vocoder of the CPU engine in torch, with gradients to the spectra."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_worker.engine.cpu.hibari.vocoder import BINS, MAX_LOG_MAGNITUDE, OVERLAP, WINDOW_SAMPLES
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES

_MAX_LOG = float(MAX_LOG_MAGNITUDE)


def vocode(parts: Tensor, pulses: Tensor, noise: Tensor) -> Tensor:
    """Synthesize whole phrases, as ``engine.cpu.hibari.vocoder.Vocoder`` does in blocks.

    The first and last two frames are not those of the engine, which drops them.

    Args:
        parts: Spectra ``[B, F, 5, 601]``, as ``Spectra.parts``.
        pulses: Pulse trains ``[B, 300 F]`` of the pitch.
        noise: White noise ``[B, F, 601]``, complex, of variance 1 in both parts.

    Returns:
        ``[B, 300 F]``.
    """
    frames = parts.shape[1]
    window = torch.hann_window(WINDOW_SAMPLES, device=parts.device)
    padded = F.pad(pulses[:, None], (WINDOW_SAMPLES // 2, WINDOW_SAMPLES // 2), mode="reflect")[:, 0]
    source = torch.fft.rfft(padded.unfold(1, WINDOW_SAMPLES, FRAME_SAMPLES)[:, :frames] * (window / FRAME_SAMPLES))
    harmonic, harmonic_phase, level, free, free_phase = parts.unbind(2)
    spectra = source * _polar(harmonic, math.pi * torch.tanh(harmonic_phase))
    spectra = spectra + noise * level.clamp(max=_MAX_LOG).exp() + _polar(free, free_phase)
    waves = (torch.fft.irfft(spectra, WINDOW_SAMPLES) * window).unflatten(2, (OVERLAP, FRAME_SAMPLES))
    total = parts.new_zeros(len(parts), frames + OVERLAP - 1, FRAME_SAMPLES)
    for shift in range(OVERLAP):
        total = total + F.pad(waves[:, :, shift], (0, 0, shift, OVERLAP - 1 - shift))
    scale = 1 / window[::FRAME_SAMPLES].square().sum()
    first = WINDOW_SAMPLES // 2
    return (total * scale).flatten(1)[:, first : first + frames * FRAME_SAMPLES]


def white_noise(batch: int, frames: int, generator: torch.Generator) -> Tensor:
    """Return complex noise for ``vocode``."""
    values = torch.randn(batch, frames, BINS, 2, generator=generator, device=generator.device)
    return torch.view_as_complex(values)


def _polar(log_magnitude: Tensor, angle: Tensor) -> Tensor:
    return torch.polar(log_magnitude.clamp(max=_MAX_LOG).exp(), angle)
