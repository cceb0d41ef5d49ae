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

_HOP = SAMPLE_RATE_HZ // 100
_WINDOW = 2 * _HOP
_HOPS_PER_CHIP = CHIP_MS // 10
_LINES_PER_BAND = BAND_HZ[1] * _WINDOW // SAMPLE_RATE_HZ
_FIRST_LINE = BAND_HZ[0] * _WINDOW // SAMPLE_RATE_HZ
_MARKED_LINES = slice(_FIRST_LINE, _FIRST_LINE + BANDS * _LINES_PER_BAND)
_HOP_BYTES = BYTES_PER_SAMPLE * _HOP
_PCM = np.dtype("<i2")

Spectra = NDArray[np.complex64]


class Watermark:
    """Marks one stream of s16le at 24 kHz; as many samples come out as go in, each in its place.

    The concatenated output does not depend on how the input is divided into calls. Each block of 10 ms is the sum of
    two overlapping frames of 20 ms, whose spectra are multiplied by the pattern.

    Args:
        gains: The result of ``watermark_gains``.
    """

    def __init__(self, gains: Spectra) -> None:
        self._gains = gains
        self._pcm = bytes(_HOP_BYTES)  # from the start of the next frame; a hop precedes the stream
        self._late: Floats = np.zeros(_HOP, np.float32)  # the half of the last frame that is in the next block
        self._frames = 0
        self._received = self._emitted = 0

    def process(self, pcm: bytes) -> bytes:
        """Mark the next audio. Output within the look-ahead, at most 20 ms, follows with a later call."""
        self._received += len(pcm) // BYTES_PER_SAMPLE
        out = self._mark(pcm)
        self._emitted += len(out) // BYTES_PER_SAMPLE
        return out

    def flush(self) -> bytes:
        """Return the rest. Call it once."""
        missing = self._received - self._emitted
        return self._mark(bytes(2 * _HOP_BYTES))[: BYTES_PER_SAMPLE * missing]

    def _mark(self, pcm: bytes) -> bytes:
        # Between two chunks other code runs, which replaces this one in the caches of the processor. So what counts is
        # how many functions of numpy are called, more than how many samples they take.
        pcm = self._pcm + pcm
        count = len(pcm) // _HOP_BYTES - 1
        if count < 1:
            self._pcm = pcm
            return b""
        self._pcm = pcm[count * _HOP_BYTES :]
        frames = np.ndarray((count, _WINDOW), _PCM, pcm, strides=(_HOP_BYTES, BYTES_PER_SAMPLE)) * _HANN
        position = self._frames % len(self._gains)
        if position + count <= len(self._gains):
            gains = self._gains[position : position + count]
        else:
            gains = self._gains.take(np.arange(position, position + count), axis=0, mode="wrap")
        marked = filter_frames(frames, gains)
        blocks = marked[:, :_HOP]
        blocks[0] += self._late
        blocks[1:] += marked[:-1, _HOP:]  # frame k ends with the block that frame k + 1 begins with
        self._late = marked[-1, _HOP:].copy()
        np.rint(blocks, out=blocks)
        out = np.empty((count, _HOP), _PCM)
        blocks.clip(-FULL_SCALE, FULL_SCALE - 1, out=out, casting="unsafe")
        first = 1 if self._frames == 0 else 0  # the block before the stream
        self._frames += count
        return out[first:].tobytes()


def watermark_gains(deployment_id: int) -> Spectra:
    """Return the factor ``[hops, lines]`` of each spectral line over one period, for all streams.

    The values are real. They have the type of the spectra, because a product that converts one side takes longer.
    """
    gains = np.ones((PERIOD_CHIPS, _WINDOW // 2 + 1), np.complex64)
    gains[:, _MARKED_LINES] += np.repeat(pattern(deployment_id) * DEPTHS, _LINES_PER_BAND, axis=1)
    return np.repeat(gains, _HOPS_PER_CHIP, axis=0)


def filter_by_fft(frames: Floats, gains: Spectra) -> Floats:
    """Return the frames ``[n, samples]`` with their spectra multiplied by the gains ``[n, lines]``."""
    return np.fft.irfft(np.fft.rfft(frames) * gains, _WINDOW).astype(np.float32)


def filter_by_loops(frames: Floats, gains: Spectra) -> Floats:
    """Do the same in place, with the compiled loops of ``np.fft`` (numpy 2.0 and later), in single precision.

    On chunks of a call the functions of ``np.fft`` take about as long as these loops.
    """
    spectra = np.empty(gains.shape, np.complex64)
    _loops.rfft_n_even(frames, np.float32(1), out=spectra)
    spectra *= gains
    filtered: Floats = _loops.irfft(spectra, np.float32(1 / _WINDOW), out=frames)
    return filtered


def _choose_filter() -> Callable[[Floats, Spectra], Floats]:
    """Return ``filter_by_loops`` if this numpy has the loops, which are no public interface, and they do the same."""
    noise = np.random.default_rng(0).normal(0, 1, (2, _WINDOW)).astype(np.float32)
    gains = watermark_gains(0)[:2]
    try:
        is_same = np.allclose(filter_by_loops(noise.copy(), gains), filter_by_fft(noise, gains), atol=1e-4)
    except (AttributeError, TypeError, ValueError):
        is_same = False
    return filter_by_loops if is_same else filter_by_fft


_HANN = np.hanning(_WINDOW + 1)[:-1].astype(np.float32)
_loops: Any = getattr(np.fft, "_pocketfft_umath", None)
filter_frames = _choose_filter()
