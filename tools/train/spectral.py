"""Distances between waveforms by spectra of several resolutions, and a discriminator that sees such spectra."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tts_worker.engine.cosyvoice.voices.features import slaney_filters

RESOLUTIONS = ((2048, 480), (1024, 240), (512, 120), (256, 60), (128, 32))  # samples of a window and of a hop
_PHASE_RESOLUTIONS = RESOLUTIONS[1:4]
_MELS = ((1920, 480, 80), (512, 120, 64))  # window, hop, bins
_FLOOR = 1e-4
_MEL_FLOOR = 1e-5
_AUDIBLE_SIZES = (512, 1024, 2048)  # windows of the audible distance
_AUDIBLE_MEL = (1024, 100)  # window, bins
_AUDIBLE_FLOOR = 1e-2
_AUDIBLE_MEL_FLOOR = 1e-4
_POWER_POOL, _POWER_STRIDE = (6, 8), (3, 4)  # bins and frames of 256 samples
_SMALLEST = 1e-3  # of what divides

Spectra = list[tuple[str, Tensor]]
"""``magnitude``, ``log``, ``mel`` ``[B, bins, T]`` and ``complex`` ``[B, bins, T, 2]``, each of several resolutions."""


class SpectralDistance:
    """Distances between waveforms: ``magnitude``, ``log`` magnitude, ``mel`` and ``complex``.

    Each is the mean over frames, segments and resolutions. Except for magnitudes, the distance of two frames is the
    Euclidean one of their bins.
    """

    def __init__(self, rate_hz: int) -> None:
        self._filters = [(size, hop, slaney_filters(rate_hz, size, bins, 0.0, None)) for size, hop, bins in _MELS]

    def energy(self, draws: Tensor, reference: Tensor) -> dict[str, Tensor]:
        """Distances between the distributions of ``draws`` and of ``reference``, but for a constant.

        The mean distance of the draws from the reference, less half of that between two draws: least if both have the
        same distribution. So what the mel does not tell is not averaged away, but stays as random as it is.
        https://arxiv.org/abs/2008.01160

        Args:
            draws: ``[2 B, samples]``: a first and a second draw of all segments, which differ by noise only.
            reference: ``[B, samples]``.
        """
        theirs = self._spectra(reference)
        spectra = self._spectra(draws)
        count = len(reference)
        first = [(name, values[:count]) for name, values in spectra]
        second = [(name, values[count:]) for name, values in spectra]
        to_first, to_second = _distances(first, theirs, theirs), _distances(second, theirs, theirs)
        between = _distances(first, second, theirs)
        return {name: (to_first[name] + to_second[name] - between[name]) / 2 for name in between}

    def _spectra(self, audio: Tensor) -> Spectra:
        spectra: Spectra = []
        for size, hop in RESOLUTIONS:
            parts = spectrum(audio, size, hop)
            values = magnitude(parts)
            spectra += [("magnitude", values), ("log", values.clamp(min=_FLOOR).log())]
            if (size, hop) in _PHASE_RESOLUTIONS:
                spectra.append(("complex", parts))
        for size, hop, filters in self._filters:
            mel = filters.to(audio.device) @ magnitude(spectrum(audio, size, hop))
            spectra.append(("mel", mel.clamp(min=_MEL_FLOOR).log()))
        return spectra


def _distances(ours: Spectra, theirs: Spectra, scale: Spectra) -> dict[str, Tensor]:
    """Distances by name. Those that grow with the level are divided by the level of ``scale``."""
    found: dict[str, list[Tensor]] = {}
    for (name, a), (_, b), (_, c) in zip(ours, theirs, scale, strict=True):
        if name == "magnitude":
            distance = (a - b).abs().mean((1, 2)) / c.mean((1, 2)).clamp(min=_SMALLEST)
        elif name == "complex":
            distance = _frame_norm(a - b) / _frame_norm(c).clamp(min=_SMALLEST)
        else:
            distance = ((a - b).square().mean(1) + 1e-8).sqrt().mean(1)
        found.setdefault(name, []).append(distance.mean())
    return {name: torch.stack(values).mean() for name, values in found.items()}


def _frame_norm(parts: Tensor) -> Tensor:
    """Mean over the frames of the norm of ``parts [B, bins, T, 2]``: ``[B]``."""
    return (parts.square().sum((1, 3)) + 1e-8).sqrt().mean(1)


class AudibleDistance:
    """Distance of one draw from its reference, of what is loud enough to be heard: ``stft`` and ``mel``.

    It needs half the work of the energy distance. Noise is learned a little too quiet, levels near silence hardly, and
    formants too flat. Against that there are ``power``, of several bins and frames, and ``contrast``, the standard
    deviation over frequency and time.
    """

    def __init__(self, rate_hz: int) -> None:
        self._filters = slaney_filters(rate_hz, _AUDIBLE_MEL[0], _AUDIBLE_MEL[1], 0.0, None)

    def __call__(self, audio: Tensor, reference: Tensor) -> dict[str, Tensor]:
        """Compare waveforms ``[B, samples]``."""
        found: dict[str, Tensor] = {}
        distances = []
        for size in _AUDIBLE_SIZES:
            ours, theirs = (magnitude(spectrum(each, size, size // 4)) for each in (audio, reference))
            error = (ours - theirs).norm() / theirs.norm().clamp(min=_SMALLEST)
            distances.append(error + _log_distance(ours, theirs, _AUDIBLE_FLOOR))
            if size == _AUDIBLE_MEL[0]:
                filters = self._filters.to(audio.device)
                mels = filters @ ours, filters @ theirs
                found["mel"] = _log_distance(*mels, _AUDIBLE_MEL_FLOOR)
                found["power"] = _power_distance(ours, theirs)
                found["contrast"] = _contrast_distance(*((mel + _AUDIBLE_MEL_FLOOR).log() for mel in mels))
        return {"stft": torch.stack(distances).mean(), **found}


def _power_distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """Distance of the logarithms of power over some bins and frames, which tells more than a draw of noise."""
    pooled = (F.avg_pool2d(each.square(), _POWER_POOL, stride=_POWER_STRIDE) for each in (ours, theirs))
    ours, theirs = ((each + _AUDIBLE_FLOOR**2).log() / 2 for each in pooled)
    return (ours - theirs).abs().mean()


def _contrast_distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """Distance of the standard deviations of logarithms over frequency and over time: what averaging flattens."""
    return torch.stack([(ours.std(axis) - theirs.std(axis)).abs().mean() for axis in (1, 2)]).mean()


def _log_distance(ours: Tensor, theirs: Tensor, floor: float) -> Tensor:
    return ((ours + floor).log() - (theirs + floor).log()).abs().mean()


class Discriminator(nn.Module):
    """Tells real from synthetic audio by spectra of several resolutions, in the manner of UnivNet.

    https://arxiv.org/abs/2106.07889
    """

    def __init__(self, channels: int = 24) -> None:
        super().__init__()
        self.nets = nn.ModuleList(_discriminator(channels) for _ in _PHASE_RESOLUTIONS)

    def forward(self, audio: Tensor) -> list[list[Tensor]]:
        """Outputs of all layers for ``audio [B, samples]``, by resolution; the last one is the verdict."""
        results = []
        for (size, hop), net in zip(_PHASE_RESOLUTIONS, self.nets, strict=True):
            x = magnitude(spectrum(audio, size, hop)).clamp(min=_FLOOR).log()[:, None]  # [B, 1, freqs, T]
            layers: list[Tensor] = []
            for layer in net:  # type: ignore[attr-defined]
                x = layer(x)
                if isinstance(layer, nn.Conv2d):
                    layers.append(x.float())
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
