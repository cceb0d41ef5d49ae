"""Streaming gain with a look-ahead true-peak limiter (ITU-R BS.1770-4, annex 2).

The gain is constant; only where the amplified audio would exceed the ceiling is it lowered, over 2 ms before the peak
and with a slow release after it. Output sample n stands for input sample n: the limiter holds audio back but does not
shift it, so positions stay exact.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from math import exp

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import FULL_SCALE

CEILING_DBTP = -1.0
_MARGIN_DB = 0.5  # peaks between the points of the oversampling, and of the changing gain
_BLOCKS_PER_S = 2_000
_ATTACK_BLOCKS = 3
_RELEASE_S = 0.08
_AT_REST = 0.9999  # a gain this near to 1 (0.001 dB) has recovered
_TAPS = 16  # of a phase of the oversampling filter
_OVERSAMPLING = 4
_KAISER_BETA = 2.5
_ONE_THREAD_PRODUCTS = 200_000
"""Multiplications of a matrix product up to which OpenBLAS, which numpy brings, stays on the calling thread.

Beyond 262 144 it wakes threads that share the work and then wait actively for more: beside many calls they take a fifth
of a core from the voice. Source: OpenBLAS, ``interface/gemm.c``.
"""

_Doubles = NDArray[np.float64]


@lru_cache(maxsize=1)
def _phases() -> _Doubles:
    """Filters ``[3, taps]`` for the points at 1/4, 1/2 and 3/4 between two samples: Kaiser-windowed sinc."""
    half = _TAPS // 2
    taps = np.arange(1 - half, half + 1, dtype=np.float64)
    distance = taps[None, :] - np.arange(1, _OVERSAMPLING)[:, None] / _OVERSAMPLING
    window = np.i0(_KAISER_BETA * np.sqrt(1 - (distance / half) ** 2)) / np.i0(_KAISER_BETA)
    return np.asarray(np.sinc(distance) * window)


@lru_cache(maxsize=8)
def _oversampling(block: int) -> _Doubles:
    """Matrix ``[block + taps, 4 * block]`` from a block with half a filter to either side to its points and between."""
    half = _TAPS // 2
    points = np.zeros((block, _OVERSAMPLING, block + _TAPS))
    for n in range(block):
        points[n, 0, half + n] = 1.0
        points[n, 1:, 1 + n : 1 + n + _TAPS] = _phases()
    return np.ascontiguousarray(points.reshape(-1, block + _TAPS).T)


class Limiter:
    """Amplifies one stream and limits its true peak to ``CEILING_DBTP``.

    The concatenated output does not depend on how the input is divided into calls: gains are computed for blocks of
    half a millisecond that are counted from the start of the stream, and are linear within a block.

    Args:
        gain: Linear gain.
        sample_rate_hz: Rate of the stream.
    """

    def __init__(self, gain: float, sample_rate_hz: int) -> None:
        self._gain = float(gain)  # an int would overflow s16
        self._block = sample_rate_hz // _BLOCKS_PER_S
        self._ceiling = FULL_SCALE * 10 ** ((CEILING_DBTP - _MARGIN_DB) / 20)
        # Below this no point between samples can exceed the ceiling.
        self._safe_peak = self._ceiling / float(np.abs(_phases()).sum(axis=1).max())
        self._release = 1 - exp(-1 / (_RELEASE_S * _BLOCKS_PER_S))
        self._ramp = np.arange(self._block) / self._block
        # Silent blocks precede the stream, in which the gain is lowered for a peak at its very beginning.
        silent = (_ATTACK_BLOCKS + 1) * self._block
        self._samples = np.zeros(silent + _TAPS // 2)  # from half a filter before the next output on
        self._skip = silent  # outputs that stand for the silent blocks
        self._analysed = silent  # of the samples, without the half filter
        self._received = 0
        self._emitted = 0
        self._needed = np.ones(_ATTACK_BLOCKS + 1)  # gains that blocks need: the one before the next target and later
        self._targets = np.ones(_ATTACK_BLOCKS)  # gains with release, not yet smoothed
        self._last_gain = 1.0

    @property
    def delay_samples(self) -> int:
        """Most audio that ``process`` holds back, in samples: 2.5 ms, an incomplete block and half a filter."""
        return (_ATTACK_BLOCKS + 3) * self._block - 1 + _TAPS // 2

    def process(self, pcm: bytes) -> bytes:
        """Amplify s16le. Output within the look-ahead follows with a later call."""
        samples = np.frombuffer(pcm, "<i2")
        self._received += len(samples)
        return self._limit(samples * self._gain)

    def flush(self) -> bytes:
        """Return the rest. Call it once."""
        missing = self._received - self._emitted
        return self._limit(np.zeros(self.delay_samples + self._block))[: 2 * missing]

    def _limit(self, samples: _Doubles) -> bytes:
        self._samples = np.concatenate((self._samples, samples))
        blocks = (len(self._samples) - _TAPS - self._analysed) // self._block
        if blocks <= 0:
            return b""
        needed = np.concatenate((self._needed, self._needed_gains(blocks)))
        self._analysed += blocks * self._block
        self._needed = needed[-(_ATTACK_BLOCKS + 1) :]
        lowest = reduce(np.minimum, (needed[at : at + blocks] for at in range(_ATTACK_BLOCKS + 2)))
        targets = np.concatenate((self._targets, self._with_release(lowest)))
        self._targets = targets[-_ATTACK_BLOCKS:]
        smooth = sum(targets[at : at + blocks] for at in range(_ATTACK_BLOCKS + 1)) / (_ATTACK_BLOCKS + 1)
        ends = np.asarray(smooth)
        starts = np.concatenate(([self._last_gain], ends[:-1]))
        self._last_gain = float(ends[-1])
        return self._emit(starts, ends)

    def _emit(self, starts: _Doubles, ends: _Doubles) -> bytes:
        """Apply the gains of blocks, which change linearly from ``starts`` to ``ends``."""
        count = len(starts) * self._block
        half = _TAPS // 2
        out = self._samples[half : half + count]
        if starts.min() < 1 or ends[-1] < 1:
            gains = starts[:, None] + (ends - starts)[:, None] * self._ramp
            out = out * gains.ravel()
        self._samples = self._samples[count:]
        self._analysed -= count
        out = np.rint(out[self._skip :])
        self._skip = max(0, self._skip - count)
        self._emitted += len(out)
        return out.astype("<i2").tobytes()

    def _needed_gains(self, blocks: int) -> _Doubles:
        """Return the gain that each of the next blocks needs, 1 where its true peak is below the ceiling."""
        reach = self._block + _TAPS
        region = self._samples[self._analysed : self._analysed + blocks * self._block + _TAPS]
        needed = np.ones(blocks)
        loud = self._loud_blocks(region, blocks)
        if len(loud):
            filters = _oversampling(self._block)
            rows = _ONE_THREAD_PRODUCTS // filters.size
            for part in (loud[at : at + rows] for at in range(0, len(loud), rows)):
                windows = region[part[:, None] * self._block + np.arange(reach)]
                peaks = np.abs(windows @ filters).max(axis=1)
                needed[part] = np.minimum(1.0, self._ceiling / np.maximum(peaks, 1.0))
        return needed

    def _loud_blocks(self, region: _Doubles, blocks: int) -> NDArray[np.intp]:
        """Indices of the blocks that could have a peak over the ceiling within or between their samples."""
        loud = np.flatnonzero(np.abs(region) > self._safe_peak)
        # A sample reaches half a filter to either side.
        first = np.maximum((loud - _TAPS) // self._block, 0)
        last = np.minimum(loud // self._block, blocks - 1)
        touched = np.zeros(blocks + 1, np.intp)
        np.add.at(touched, first, 1)
        np.add.at(touched, last + 1, -1)
        return np.flatnonzero(np.cumsum(touched[:-1]))

    def _with_release(self, lowest: _Doubles) -> _Doubles:
        """Let the gain follow a fall at once and recover slowly."""
        gain = float(self._targets[-1])
        if gain == 1.0 and lowest.min() == 1.0:
            return lowest
        out = []
        for bound in lowest.tolist():
            gain += (1 - gain) * self._release
            if gain > bound:
                gain = bound
            elif gain > _AT_REST:
                gain = bound  # at most 1
            out.append(gain)
        return np.array(out)
