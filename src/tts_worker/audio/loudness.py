"""Integrated loudness of mono audio (EBU R 128, ITU-R BS.1770-4), for measuring a voice once."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.limiter import Limiter
from tts_worker.audio.pcm import Floats, to_float

_BLOCK_S = 0.4
_STEP_S = 0.1  # 75 % overlap
_ABSOLUTE_GATE_LUFS = -70.0
_RELATIVE_GATE_LU = -10.0
_OFFSET_LUFS = -0.691  # makes a full-scale sine of 1 kHz -3.01 LUFS
_RINGING_S = 0.5  # after which the high-pass filter at 38 Hz is silent

_MAX_LIMITED_DB = 4.0
"""What the limiter may take from a voice, made up for by a higher gain; beyond it speech would come out pressed."""

_CORRECTIONS = 5

_Biquad = tuple[tuple[float, float, float], tuple[float, float, float]]


def lufs_for_gain(pcm: bytes, sample_rate_hz: int, target_lufs: float) -> float:
    """Measure the loudness whose distance to ``target_lufs`` is the gain that brings speech there.

    It is the integrated loudness less what the limiter takes away, 1 to 3 dB of a voice with high peaks.

    Args:
        pcm: s16le mono, some seconds of the voice.
        sample_rate_hz: Its rate.
        target_lufs: Loudness to be reached.

    Returns:
        LUFS; minus infinity as for ``integrated_lufs``.
    """
    measured = level = integrated_lufs(to_float(pcm), sample_rate_hz)
    if math.isinf(measured):
        return measured
    for _ in range(_CORRECTIONS):
        limiter = Limiter(10 ** ((target_lufs - level) / 20), sample_rate_hz)
        limited = limiter.process(pcm) + limiter.flush()
        missing_db = target_lufs - integrated_lufs(to_float(limited), sample_rate_hz)
        if missing_db < 0.05:
            break
        level -= missing_db
    return max(measured - _MAX_LIMITED_DB, level)


def integrated_lufs(samples: Floats, sample_rate_hz: int) -> float:
    """Measure the integrated loudness.

    Args:
        samples: ``[N]`` in [-1, 1).
        sample_rate_hz: Their rate.

    Returns:
        LUFS; minus infinity for audio that is silent or shorter than 0.4 s.
    """
    weighted = _weight(samples, sample_rate_hz)
    block = round(_BLOCK_S * sample_rate_hz)
    step = round(_STEP_S * sample_rate_hz)
    energy = np.concatenate(([0.0], np.cumsum(np.square(weighted))))
    starts = np.arange(0, len(samples) - block + 1, step)
    power = (energy[starts + block] - energy[starts]) / block
    power = power[power > _power(_ABSOLUTE_GATE_LUFS)]
    if not len(power):
        return -math.inf
    threshold = power.mean() * 10 ** (_RELATIVE_GATE_LU / 10)
    return _OFFSET_LUFS + 10 * math.log10(power[power > threshold].mean())


def _power(lufs: float) -> float:
    return float(10 ** ((lufs - _OFFSET_LUFS) / 10))


def _weight(samples: Floats, sample_rate_hz: int) -> NDArray[np.float64]:
    """Apply the K weighting: a shelf for the head, then a high-pass filter.

    The filters are applied in the frequency domain, because numpy has no recursive filter; the padding contains what
    rings on after the end, so that nothing wraps around.
    """
    padded = 1 << (len(samples) + round(_RINGING_S * sample_rate_hz)).bit_length()
    response = np.ones(padded // 2 + 1, np.complex128)
    delay = np.exp(-2j * np.pi * np.arange(padded // 2 + 1) / padded)
    for numerator, denominator in _k_weighting(sample_rate_hz):
        response *= np.polyval(numerator[::-1], delay) / np.polyval(denominator[::-1], delay)
    weighted: NDArray[np.float64] = np.fft.irfft(np.fft.rfft(samples, padded) * response, padded)
    return weighted[: len(samples)]


def _k_weighting(sample_rate_hz: int) -> tuple[_Biquad, _Biquad]:
    """Coefficients at any rate, by the bilinear transform of the analogue filters behind the table for 48 kHz.

    Source: ITU-R BS.1770-4, annex 1; parameters of the analogue filters from De Man, "Evaluation of implementations of
    the EBU R128 loudness measurement" (AES 145, 2018).
    """
    k, denominator = _second_order(1681.974450955533, 0.7071752369554196, sample_rate_hz)
    high = 10 ** (3.999843853973347 / 20)
    band = high**0.4996667741545416 * k / 0.7071752369554196
    scale = 1 + k / 0.7071752369554196 + k * k
    shelf = ((high + band + k * k) / scale, 2 * (k * k - high) / scale, (high - band + k * k) / scale)
    _, high_pass = _second_order(38.13547087602444, 0.5003270373238773, sample_rate_hz)
    return (shelf, denominator), ((1.0, -2.0, 1.0), high_pass)


def _second_order(frequency_hz: float, quality: float, sample_rate_hz: int) -> tuple[float, tuple[float, float, float]]:
    k = math.tan(math.pi * frequency_hz / sample_rate_hz)
    scale = 1 + k / quality + k * k
    return k, (1.0, 2 * (k * k - 1) / scale, (1 - k / quality + k * k) / scale)
