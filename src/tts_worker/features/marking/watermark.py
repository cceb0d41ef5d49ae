"""Writes the watermark into a stream: raises or lowers the level of each cell of the pattern by 0.5 to 1.7 dB.

The change follows the audio: silence stays silent, and what is changed lies in the same 20 ms and the same band as the
speech that masks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import FULL_SCALE, Floats
from tts_worker.features.marking.pattern import BAND_HZ, BANDS, CHIP_MS, PERIOD_CHIPS, pattern
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

DEPTHS = np.linspace(0.06, 0.18, BANDS, dtype=np.float32)
"""Relative change of the amplitude in each band: 0.5 dB in the lowest, 1.4 dB up and 1.7 dB down in the highest.

A quality model notices what changes in the low bands, where voiced speech is loud, and hardly notices the others.
"""

_HOP = SAMPLE_RATE_HZ * CHIP_MS // 1_000
_RAMP = SAMPLE_RATE_HZ // 200  # in which one frame fades into the next
_FRAME = _HOP + _RAMP
_LINES = _FRAME // 2 + 1
_HOP_BYTES, _RAMP_BYTES = BYTES_PER_SAMPLE * _HOP, BYTES_PER_SAMPLE * _RAMP
_PCM = np.dtype("<i2")

Spectra = NDArray[np.complex64]


class Watermark:
    """Marks one stream of s16le at 24 kHz; as many samples come out as go in, each in its place.

    The concatenated output does not depend on how the input is divided into calls. Each chip is a frame of 20 ms, whose
    spectrum is multiplied by the pattern, and which fades into the next one in its last 5 ms.

    Args:
        gains: The result of ``watermark_gains``.
    """

    def __init__(self, gains: Spectra) -> None:
        self._gains = gains
        self._pcm = bytes(_HOP_BYTES + _RAMP_BYTES)  # the last frame, which fades into the next; at first, silence
        self._frame = 0  # position of that frame in the pattern
        self._early = _RAMP_BYTES  # of the next block, before the stream

    def process(self, pcm: bytes) -> bytes:
        """Mark the next audio. Output within the look-ahead, less than 20 ms, follows with a later call."""
        # Between two chunks other code runs, which replaces this one in the caches of the processor. So what counts is
        # how many functions of numpy are called, more than how many samples they take. That is why the last frame is
        # transformed once more instead of being kept.
        pcm = self._pcm + pcm
        new = (len(pcm) - _RAMP_BYTES) // _HOP_BYTES - 1
        if new < 1:
            self._pcm = pcm
            return b""
        self._pcm = pcm[new * _HOP_BYTES :]
        first, end = self._frame, self._frame + new + 1
        self._frame = (first + new) % PERIOD_CHIPS
        frames = np.ndarray((new + 1, _FRAME), _PCM, pcm, strides=(_HOP_BYTES, BYTES_PER_SAMPLE)) * _WINDOW
        if end <= PERIOD_CHIPS:
            gains = self._gains[first:end]
        else:
            gains = self._gains.take(np.arange(first, end), axis=0, mode="wrap")
        marked = filter_frames(frames, gains)
        blocks = marked[1:, :_HOP]
        blocks[:, :_RAMP] += marked[:-1, _HOP:]
        # On the whole array, since numpy takes a shorter way where an array has no gaps.
        np.rint(marked, out=marked)
        np.maximum(marked, _LOWEST, out=marked)
        np.minimum(marked, _HIGHEST, out=marked)
        out = blocks.astype(_PCM).tobytes()
        if self._early:
            out, self._early = out[self._early :], 0
        return out

    def flush(self) -> bytes:
        """Return the rest. Call it once."""
        held = len(self._pcm) - _HOP_BYTES - self._early
        return self.process(bytes(BYTES_PER_SAMPLE * _FRAME))[:held]


def watermark_gains(deployment_id: int) -> Spectra:
    """Return the factor ``[chips, lines]`` of each spectral line over one period, for all streams.

    A line at the edge of two bands has half of each. The values are real. They have the type of the spectra, because a
    product that converts one side takes longer.
    """
    low_hz, width_hz = BAND_HZ
    edges = (low_hz + width_hz * np.arange(BANDS + 1)) * _FRAME / SAMPLE_RATE_HZ
    above = np.clip(np.arange(_LINES) - edges[:, None] + 0.5, 0, 1)  # the share of a line that is above each edge
    gains = 1 + (pattern(deployment_id) * DEPTHS) @ (above[:-1] - above[1:])
    return gains.astype(np.complex64)


def filter_by_fft(frames: Floats, gains: Spectra) -> Floats:
    """Return the frames ``[n, samples]`` with their spectra multiplied by the gains ``[n, lines]``."""
    return np.fft.irfft(np.fft.rfft(frames) * gains, _FRAME).astype(np.float32)


def filter_by_loops(frames: Floats, gains: Spectra) -> Floats:
    """Do the same in place, with the compiled loops of ``np.fft`` (numpy 2.0 and later), in single precision.

    On chunks of a call the functions of ``np.fft`` take about as long as these loops.
    """
    spectra = np.empty(gains.shape, np.complex64)
    _loops.rfft_n_even(frames, _ONE, out=spectra)
    spectra *= gains
    filtered: Floats = _loops.irfft(spectra, _SHARE, out=frames)
    return filtered


def _choose_filter() -> Callable[[Floats, Spectra], Floats]:
    """Return ``filter_by_loops`` if this numpy has the loops, which are no public interface, and they do the same."""
    noise = np.random.default_rng(0).normal(0, 1, (2, _FRAME)).astype(np.float32)
    gains = watermark_gains(0)[:2]
    try:
        is_same = np.allclose(filter_by_loops(noise.copy(), gains), filter_by_fft(noise, gains), atol=1e-4)
    except (AttributeError, TypeError, ValueError):
        is_same = False
    return filter_by_loops if is_same else filter_by_fft


def _make_window() -> Floats:
    """Return the weights of a frame; those of two that overlap add up to 1."""
    rise = np.square(np.sin(np.pi / 2 * (np.arange(_RAMP) + 0.5) / _RAMP))
    return np.concatenate((rise, np.ones(_FRAME - 2 * _RAMP), rise[::-1])).astype(np.float32)


_WINDOW = _make_window()
_ONE, _SHARE = np.float32(1), np.float32(1 / _FRAME)
_LOWEST, _HIGHEST = np.float32(-FULL_SCALE), np.float32(FULL_SCALE - 1)
_loops: Any = getattr(np.fft, "_pocketfft_umath", None)
filter_frames = _choose_filter()
