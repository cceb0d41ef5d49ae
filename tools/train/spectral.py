"""Distances between waveforms by spectra of several resolutions, and a discriminator that sees such spectra."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tts_worker.engine.cosyvoice.features import slaney_filters

RESOLUTIONS = ((1024, 240), (512, 120), (256, 60), (128, 32))  # samples of a window and of a hop
_COMPLEX = 3  # of the resolutions
_MELS = ((1920, 480, 80), (512, 120, 64))  # window, hop, bins
_FLOOR = 1e-4
_MEL_FLOOR = 1e-5


class SpectralDistance(nn.Module):
    """Distances of audio ``[B, samples]`` from a reference."""

    def __init__(self, rate_hz: int) -> None:
        super().__init__()
        self._filters = [(size, hop, slaney_filters(rate_hz, size, bins, 0.0, None)) for size, hop, bins in _MELS]

    def forward(self, audio: Tensor, reference: Tensor) -> dict[str, Tensor]:
        """``convergence``, ``log`` magnitude, ``mel`` and ``complex``, each a mean over resolutions."""
        convergence, log, phase = [], [], []
        for i, (size, hop) in enumerate(RESOLUTIONS):
            ours, theirs = spectrum(audio, size, hop), spectrum(reference, size, hop)
            if i < _COMPLEX:
                phase.append((ours - theirs).norm() / theirs.norm().clamp(min=1e-3))
            ours, theirs = magnitude(ours), magnitude(theirs)
            convergence.append((ours - theirs).norm() / theirs.norm().clamp(min=1e-3))
            log.append((ours.clamp(min=_FLOOR).log() - theirs.clamp(min=_FLOOR).log()).abs().mean())
        mel = []
        for size, hop, filters in self._filters:
            weights = filters.to(audio.device)
            ours, theirs = (
                (weights @ magnitude(spectrum(x, size, hop))).clamp(min=_MEL_FLOOR).log() for x in (audio, reference)
            )
            mel.append((ours - theirs).abs().mean())
        parts = {"convergence": convergence, "log": log, "mel": mel, "complex": phase}
        return {name: torch.stack(values).mean() for name, values in parts.items()}


class Discriminator(nn.Module):
    """Tells real from synthetic audio by spectra of several resolutions, in the manner of UnivNet.

    https://arxiv.org/abs/2106.07889
    """

    def __init__(self, channels: int = 24) -> None:
        super().__init__()
        self.nets = nn.ModuleList(_discriminator(channels) for _ in RESOLUTIONS[:_COMPLEX])

    def forward(self, audio: Tensor) -> list[list[Tensor]]:
        """Outputs of all layers for ``audio [B, samples]``, by resolution; the last one is the verdict."""
        results = []
        for (size, hop), net in zip(RESOLUTIONS, self.nets, strict=False):
            x = magnitude(spectrum(audio, size, hop)).clamp(min=_FLOOR).log()[:, None]  # [B, 1, freqs, T]
            layers: list[Tensor] = []
            for layer in net:  # type: ignore[attr-defined]
                x = layer(x)
                if isinstance(layer, nn.Conv2d):
                    layers.append(x)
            results.append(layers)
        return results


def discriminator_loss(real: list[list[Tensor]], fake: list[list[Tensor]]) -> Tensor:
    """Squared distance of the verdicts from 1 for real audio and 0 for synthetic audio."""
    pairs = zip(real, fake, strict=True)
    return torch.stack([(1 - r[-1]).square().mean() + f[-1].square().mean() for r, f in pairs]).mean()


def adversarial_loss(fake: list[list[Tensor]]) -> Tensor:
    return torch.stack([(1 - layers[-1]).square().mean() for layers in fake]).mean()


def feature_loss(real: list[list[Tensor]], fake: list[list[Tensor]]) -> Tensor:
    """Distance of the inner layers, relative to their size."""
    return torch.stack(
        [
            (a.detach() - b).abs().mean() / a.detach().abs().mean().clamp(min=1e-3)
            for ours, theirs in zip(real, fake, strict=True)
            for a, b in zip(ours[:-1], theirs[:-1], strict=True)
        ]
    ).mean()


def spectrum(x: Tensor, size: int, hop: int) -> Tensor:
    """``[B, samples]`` to real and imaginary parts ``[B, freqs, T, 2]``."""
    window = torch.hann_window(size, device=x.device)
    return torch.view_as_real(torch.stft(x, size, hop, window=window, return_complex=True))


def magnitude(parts: Tensor) -> Tensor:
    return parts.square().sum(-1).clamp(min=1e-9).sqrt()


def _discriminator(channels: int) -> nn.Sequential:
    def conv(i: int, o: int, stride: tuple[int, int]) -> nn.Module:
        layer: nn.Module = weight_norm(nn.Conv2d(i, o, (5, 3), stride, (2, 1)))
        return layer

    layers: list[nn.Module] = []
    inner = 1
    for stride in ((2, 1), (2, 1), (2, 2), (2, 1)):
        layers += [conv(inner, channels, stride), nn.LeakyReLU(0.1)]
        inner = channels
    return nn.Sequential(*layers, conv(channels, 1, (1, 1)))
