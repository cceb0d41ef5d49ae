"""A pitch tracker for recordings: what Kokoro's pitch network says of its own audio, measured.

Candidates are the peaks of the normalized autocorrelation; the path through them costs for octaves and for changes
between voiced and not (Boersma 1993, "Accurate short-term analysis of the fundamental frequency").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tools.train.fast.acoustics import runs, windows
from tts_worker.audio.pcm import Floats
from tts_worker.types import SAMPLE_RATE_HZ

UNVOICED_HZ = 4.0
"""What the teacher's curves have where it is not voiced: the median below 40 Hz of all its voices."""
VOICED_HZ = 60.0
"""Above this a frame counts as voiced."""

_RANGE_HZ = (55.0, 550.0)
_OWN_RANGE = (0.5, 2.2)  # of the median pitch of a voice
_PERIODS = 3  # of the lowest pitch, in a window
_MAX_HZ = 2000.0  # harmonics above it are left out
_CANDIDATES = 6  # of a frame, beside "not voiced"
_VOICING = 0.3  # correlation of a candidate that is as good as "not voiced"
_EXPECTATION = 0.25  # that a frame is voiced, or not
_SURE = 0.55  # correlation from which the pitch is not interpolated
_SILENCE = 0.01  # peak relative to that of the phrase, below which a frame is rather not voiced
_OCTAVE_COST = 0.02  # in favor of higher candidates, an octave
_JUMP_COST = 1.2  # per octave between frames
_CHANGE_COST = 0.4  # between voiced and not
_GAP_FRAMES, _MEDIAN_FRAMES = 3, 5
"""Chosen by the curves of six voices of Kokoro's, which are smooth, and voiced through voiced consonants."""


def track_pitch(
    samples: Floats,
    frames: int,
    range_hz: tuple[float, float] = _RANGE_HZ,
    is_expected: NDArray[np.bool_] | None = None,
) -> Floats:
    """Return the pitch of a phrase ``[F]`` in Hz, ``UNVOICED_HZ`` where it is not voiced.

    Args:
        samples: At 24 kHz.
        frames: F.
        range_hz: Lowest and highest pitch.
        is_expected: Which frames another voice has voiced ``[F]``: phonemes are voiced by what they are as much as by
            how periodic they are.
    """
    pitch, strength = _candidates(samples, frames, range_hz)
    if is_expected is not None:
        strength[:, 0] += np.where(is_expected, -_EXPECTATION, _EXPECTATION)
    path = np.arange(frames), _best_path(pitch, strength)
    return _smooth(pitch[path], (pitch[path] > 0) & (strength[path] > _SURE))


def voice_range_hz(curves: Sequence[Floats]) -> tuple[float, float]:
    """Return the range in which a voice speaks that has these curves; a second pass within it confuses no octaves."""
    voiced = np.concatenate([curve[curve > VOICED_HZ] for curve in curves])
    if not len(voiced):
        return _RANGE_HZ
    middle = float(np.median(voiced))
    return max(_RANGE_HZ[0], _OWN_RANGE[0] * middle), min(_RANGE_HZ[1], _OWN_RANGE[1] * middle)


def _candidates(
    samples: Floats, frames: int, range_hz: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return pitch and strength of the candidates ``[F, 1 + N]``, the first of which is "not voiced", pitch 0."""
    low_hz, high_hz = range_hz
    size = round(_PERIODS * SAMPLE_RATE_HZ / low_hz)
    size += size % 2
    cut = windows(samples, frames, size, centered=False)
    window = np.hanning(size)
    cut -= cut.mean(1, keepdims=True) * window / window.mean()
    fft = 1 << (2 * size - 1).bit_length()
    keep = np.fft.rfftfreq(fft, 1 / SAMPLE_RATE_HZ) < _MAX_HZ

    def correlate(values: NDArray[np.float64]) -> NDArray[np.float64]:
        power = np.square(np.abs(np.fft.rfft(values, fft, axis=-1))) * keep
        correlation: NDArray[np.float64] = np.fft.irfft(power, fft, axis=-1)
        return correlation

    first, last = int(SAMPLE_RATE_HZ / high_hz), int(SAMPLE_RATE_HZ / low_hz) + 1
    own = correlate(window)
    raw = correlate(cut)[:, : last + 2]
    normalized = raw / np.maximum(raw[:, :1], 1e-9) / (own / own[0])[: last + 2]
    before, here, after = (normalized[:, first + shift : last + 1 + shift] for shift in (-1, 0, 1))
    curvature = np.minimum(before - 2 * here + after, -1e-9)
    offset = np.clip(0.5 * (before - after) / curvature, -0.5, 0.5)
    height = here - 0.25 * (before - after) * offset
    lags = np.arange(first, last + 1)
    is_peak = (here >= before) & (here > after)
    strength = np.where(is_peak, height - _OCTAVE_COST * np.log2(lags * low_hz / SAMPLE_RATE_HZ), -1.0)
    best = np.argsort(-strength, axis=1)[:, :_CANDIDATES]
    found = np.take_along_axis(strength, best, 1)
    pitch = SAMPLE_RATE_HZ / np.take_along_axis(lags + offset, best, 1)
    peaks = np.abs(cut).max(1)
    loudness = peaks / max(float(np.percentile(peaks, 98)), 1e-9)
    unvoiced = _VOICING + np.maximum(0.0, 2 - loudness / _SILENCE)
    return np.hstack([np.zeros((frames, 1)), pitch]), np.hstack([unvoiced[:, None], found])


def _best_path(pitch: NDArray[np.float64], strength: NDArray[np.float64]) -> NDArray[np.int64]:
    frames, count = pitch.shape
    octaves = np.log2(np.maximum(pitch, 1.0))
    is_voiced = pitch > 0
    score = strength[0]
    came_from = np.zeros((frames, count), np.int64)
    for frame in range(1, frames):
        both = is_voiced[frame - 1][:, None] & is_voiced[frame]
        jump = _JUMP_COST * np.abs(octaves[frame - 1][:, None] - octaves[frame])
        change = _CHANGE_COST * (is_voiced[frame - 1][:, None] != is_voiced[frame])
        total = score[:, None] - np.where(both, jump, change)
        came_from[frame] = total.argmax(0)
        score = total.max(0) + strength[frame]
    path = np.zeros(frames, np.int64)
    path[-1] = score.argmax()
    for frame in range(frames - 1, 0, -1):
        path[frame - 1] = came_from[frame, path[frame]]
    return path


def _smooth(pitch: NDArray[np.float64], is_sure: NDArray[np.bool_]) -> Floats:
    """Return the curve without short gaps, interpolated where a frame is voiced but hardly periodic."""
    is_voiced = pitch > 0
    for begin, end in runs(~is_voiced):
        is_voiced[begin:end] = begin > 0 and end < len(pitch) and end - begin <= _GAP_FRAMES
    curve = np.full(len(pitch), UNVOICED_HZ, np.float32)
    for begin, end in runs(is_voiced):
        if len(sure := begin + np.flatnonzero(is_sure[begin:end])):
            padded = np.pad(np.log(pitch[sure]), _MEDIAN_FRAMES // 2, mode="edge")
            logs = np.median(sliding_window_view(padded, _MEDIAN_FRAMES), axis=1)
            curve[begin:end] = np.exp(np.interp(np.arange(begin, end), sure, logs))
    return curve
