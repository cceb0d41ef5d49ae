"""Finds the watermark in a recording, whatever its sample rate, level, start or speed.

The levels of the cells of the pattern are compared with what their neighbors let expect, which removes most of the
speech, and are correlated with the signs that are known. The score of a window is the correlation divided by the
root of the sum of squares of what is correlated: with signs that have nothing to do with the audio, its distribution is
that of a sum of independent terms of unit variance in all, close to the normal one, whether the audio is speech, music
or noise. ``THRESHOLD`` allows for the number of positions and speeds among which the best one is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from tts_worker.audio.pcm import Floats
from tts_worker.errors import InvalidRequest
from tts_worker.features.marking.pattern import (
    BAND_HZ,
    BANDS,
    CHIP_MS,
    PERIOD_CHIPS,
    data_cells,
    data_signs,
    decode,
    known_signs,
)

WINDOW_S = 5.0
LONG_WINDOW_S = 20.0
THRESHOLD = 6.3
"""Score from which a window is marked. See ``bench/results/watermark.json`` for the scores of unmarked audio."""

_RATE_HZ = 8_000
_HOPS_PER_CHIP = 4
_HOP = _RATE_HZ * CHIP_MS // (1_000 * _HOPS_PER_CHIP)
_FRAME = _RATE_HZ * 24 // 1_000
_HOPS_PER_S = _RATE_HZ / _HOP
_SPEEDS = np.arange(-14, 15) * 0.0016 + 1  # of the recording; a window of the wrong neighbor is off by 2 ms
_REFINED = np.array([-0.0008, -0.0004, 0, 0.0004, 0.0008])  # to the speed of a window of 5 s
_SCALES = np.arange(-2, 3) * 0.011 + 1  # of its frequencies; a third of a band at most between two
_FLOOR = 1e-5  # of the mean energy; quieter cells count less and less
_NOISE = 10, 4.0  # likewise below this multiple of this percentile of their band: noise between the words
_CLIP_DB = 3.0
_MIN_S, MAX_S = 1.0, 600.0
_MIN_RATE_HZ, _MAX_RATE_HZ = 8_000, 192_000

_KNOWN_SHARE = 1 - data_cells().size / (PERIOD_CHIPS * BANDS)
_NEIGHBORS = np.array([[0, 0.37, 0.09], [0.52, -0.15, -0.08], [-0.04, -0.01, 0.02]], np.float32)
"""Weights of the levels of a cell's neighbors in the best linear estimate of its own, by distance in chips and bands.

They were fitted to speech of people and of the CPU voices, and add up to 1 over all neighbors, so that the level of the
audio does not matter. What such an estimate leaves is, but for a factor, the product of the levels and the inverse of
their covariance: what the optimal linear detector correlates with the signs.
"""


@dataclass(frozen=True, slots=True)
class Detection:
    """What was found.

    Attributes:
        marked: Whether the recording, or a part of it, has the watermark.
        score: Highest score of a window of 5 s or more, in standard deviations of what unmarked audio has.
        deployment_id: The id in the watermark; None if it cannot be read, which takes about 10 s of speech.
        parts: Start and end of the marked parts, in seconds.
        speed: Speed of the recording relative to the one that was marked; 1.0 if nothing was found.
    """

    marked: bool
    score: float
    deployment_id: int | None = None
    parts: tuple[tuple[float, float], ...] = ()
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class _Window:
    start_s: float
    end_s: float
    score: float
    speed: float
    evidence: Floats  # for each code bit


def detect(samples: Floats, rate_hz: int) -> Detection:
    """Look for the watermark.

    Args:
        samples: ``[N]`` or ``[N, channels]``, integers or floats of any scale.
        rate_hz: Their rate, 8 to 192 kHz.

    Raises:
        InvalidRequest: The rate or the shape is wrong, the audio is not between a second and ten minutes long, or it
            has NaN or infinite samples.
    """
    mono = _checked(samples, rate_hz)
    if rate_hz != _RATE_HZ:
        import soxr

        mono = soxr.resample(mono, rate_hz, _RATE_HZ)
    windows = score_windows(mono)
    marked = [window for window in windows if window.score >= THRESHOLD]
    best = max(windows, key=lambda window: window.score)
    if not marked:
        return Detection(False, round(best.score, 2))
    evidence = np.sum([window.evidence for window in marked], axis=0)
    parts: list[tuple[float, float]] = []
    for start_s, end_s in sorted((window.start_s, window.end_s) for window in marked):
        if parts and start_s <= parts[-1][1]:
            parts[-1] = parts[-1][0], max(end_s, parts[-1][1])
        else:
            parts.append((start_s, end_s))
    return Detection(True, round(best.score, 2), decode(evidence), tuple(parts), round(best.speed, 4))


def score_windows(mono: Floats, known: Floats | None = None) -> list[_Window]:
    """Score the windows of audio at 8 kHz: those of 5 s, and longer ones that follow the speed of the best of these.

    Args:
        mono: ``[N]``.
        known: The signs to look for, those of ``known_signs`` unless given; others show what chance yields.
    """
    spectrum = np.conj(np.fft.rfft(known_signs() if known is None else known, axis=0))
    residuals = _residuals(mono)
    windows = [_score_window(each, spectrum, start_s, _SPEEDS) for start_s, each in _cut(residuals, WINDOW_S)]
    if residuals.shape[1] > int(WINDOW_S * _HOPS_PER_S):
        speed = max(windows, key=lambda window: window.score).speed
        speeds = np.array([1.0, *(speed + _REFINED)])
        windows += [_score_window(each, spectrum, at, speeds) for at, each in _cut(residuals, LONG_WINDOW_S)]
    return windows


def _cut(residuals: Floats, seconds: float) -> Iterator[tuple[float, Floats]]:
    """Yield windows and their starts in seconds, overlapping by half; the last one ends with the audio."""
    frames = residuals.shape[1]
    length = min(int(seconds * _HOPS_PER_S), frames)
    for start in {*range(0, frames - length, length // 2), frames - length}:
        yield start / _HOPS_PER_S, residuals[:, start : start + length]


def _score_window(residuals: Floats, spectrum: Floats, start_s: float, speeds: Floats) -> _Window:
    """Score a window ``[scales, frames, bands]`` at these speeds and all positions."""
    best: tuple[float, float, int, Floats] | None = None
    for speed in speeds:
        scale = int(np.abs(_SCALES - speed).argmin())
        folded = _fold(residuals[scale], speed)
        power = np.sqrt(np.square(folded).sum(axis=(1, 2)) * _KNOWN_SHARE) + 1e-9
        products = np.fft.rfft(folded, axis=1) * spectrum
        scores = np.fft.irfft(products.sum(axis=2), PERIOD_CHIPS, axis=1) / power[:, None]
        phase, shift = np.unravel_index(scores.argmax(), scores.shape)
        if best is None or scores[phase, shift] > best[0]:
            aligned = np.roll(folded[phase], -shift, axis=0) / power[phase]
            best = float(scores[phase, shift]), float(speed), int(shift), aligned
    assert best is not None
    evidence: Floats = (best[3].ravel()[data_cells()] * data_signs()).sum(axis=1) * best[0]
    end_s = start_s + residuals.shape[1] / _HOPS_PER_S
    return _Window(start_s, end_s, best[0], best[1], evidence)


def _fold(residuals: Floats, speed: float) -> Floats:
    """Add up the periods ``[phases, chips, bands]`` of a window, for each phase of the chips."""
    count = int((len(residuals) - _HOPS_PER_CHIP) * speed / _HOPS_PER_CHIP)
    rows = np.arange(count) * _HOPS_PER_CHIP + np.arange(_HOPS_PER_CHIP)[:, None]
    cells = residuals[np.rint(rows / speed).astype(np.intp)]
    periods = -(-count // PERIOD_CHIPS)
    padded = np.zeros((_HOPS_PER_CHIP, periods * PERIOD_CHIPS, BANDS), np.float32)
    padded[:, :count] = cells
    folded: Floats = padded.reshape(_HOPS_PER_CHIP, periods, PERIOD_CHIPS, BANDS).sum(axis=1)
    return folded


def _residuals(mono: Floats) -> Floats:
    """Return what the neighbors of a cell do not explain of its level, ``[scales, frames, bands]`` in dB, limited."""
    levels = _levels(mono)
    step = _HOPS_PER_CHIP
    reach = len(_NEIGHBORS) - 1
    padded = np.pad(levels, ((0, 0), (reach * step, reach * step), (reach, reach)), mode="edge")
    frames = levels.shape[1]
    residuals: Floats = levels.copy()
    for chips in range(-reach, reach + 1):
        for bands in range(-reach, reach + 1):
            weight = _NEIGHBORS[abs(chips), abs(bands)]
            if weight:
                start = (reach + chips) * step
                residuals -= weight * padded[:, start : start + frames, reach + bands : reach + bands + BANDS]
    np.clip(residuals, -_CLIP_DB, _CLIP_DB, out=residuals)
    return residuals


def _levels(mono: Floats) -> Floats:
    """Return the level of each band around each hop, averaged over a chip, for each scale of the frequencies."""
    samples = mono.astype(np.float32)
    if len(samples) < _FRAME:
        samples = np.pad(samples, (0, _FRAME - len(samples)))
    frames = np.lib.stride_tricks.sliding_window_view(samples, _FRAME)[::_HOP]
    parts = [np.fft.rfft(frames[at : at + 4096] * _window()) for at in range(0, len(frames), 4096)]
    energy = np.concatenate([np.square(part.real) + np.square(part.imag) for part in parts])
    sums = np.zeros((len(energy), energy.shape[1] + 1))
    np.cumsum(energy, axis=1, out=sums[:, 1:])
    low, width = BAND_HZ
    floor = _FLOOR * sums[:, -1].mean() + 1e-12
    levels = []
    for scale in _SCALES:
        edges = (low + width * np.arange(BANDS + 1)) * scale * _FRAME / _RATE_HZ
        whole = edges.astype(int)
        share = edges - whole
        at_edges = sums[:, whole] * (1 - share) + sums[:, whole + 1] * share
        bands = np.diff(at_edges, axis=1)
        noise = np.percentile(bands[::_HOPS_PER_CHIP], _NOISE[0], axis=0)
        level = 10 * np.log10(bands + _NOISE[1] * noise + floor)
        padded = np.pad(level, ((1, 1), (0, 0)), mode="edge")
        levels.append((padded[:-2] + padded[1:-1] + padded[2:]) / 3)
    return np.asarray(levels, np.float32)


@cache
def _window() -> Floats:
    return np.hanning(_FRAME + 1)[:-1].astype(np.float32)


def _checked(samples: Floats, rate_hz: int) -> Floats:
    """Return mono samples. Raises InvalidRequest."""
    audio = np.asarray(samples)
    if not _MIN_RATE_HZ <= rate_hz <= _MAX_RATE_HZ:
        raise InvalidRequest(f"the sample rate must be {_MIN_RATE_HZ} to {_MAX_RATE_HZ} Hz, not {rate_hz}")
    if audio.dtype.kind not in "iuf" or audio.ndim not in (1, 2):
        raise InvalidRequest("samples must be an array of numbers, [N] or [N, channels]")
    mono = audio.astype(np.float32) if audio.ndim == 1 else audio.mean(axis=1, dtype=np.float32)
    seconds = len(mono) / rate_hz
    if not _MIN_S <= seconds <= MAX_S:
        raise InvalidRequest(f"the audio has {seconds:.1f} s; {_MIN_S:g} s to {MAX_S:g} s can be examined")
    if not np.isfinite(mono).all():
        raise InvalidRequest("the audio contains NaN or infinite samples")
    return mono
