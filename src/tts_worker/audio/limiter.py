"""Streaming gain with a look-ahead true-peak limiter (ITU-R BS.1770-4, annex 2).

The gain is constant; only where the amplified audio would exceed the ceiling is it lowered, over 2 ms before the peak
and with a slow release after it. Output sample n stands for input sample n: the limiter holds audio back but does not
shift it, so positions stay exact.

It runs on the event loop beside engines that run Python. numpy releases the interpreter lock in every operation on many
numbers and may wait for it afterwards, so operations are few and short: they look for peaks in the 16-bit samples and
oversample only the blocks that may have one.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import FULL_SCALE
from tts_worker.types import BYTES_PER_SAMPLE

CEILING_DBTP = -1.0
_MARGIN_DB = 0.5  # peaks between the points of the oversampling, and of the changing gain
_BLOCKS_PER_S = 2_000
_ATTACK_BLOCKS = 3
_DECAY = exp(-1 / (0.08 * _BLOCKS_PER_S))  # of the reduction in a block, without a peak: 80 ms to a third
_AT_REST = 1e-4  # a reduction below this (0.001 dB) has ended
_PERIOD_BLOCKS = 20_000  # the release is computed from the start of such a period on, for any division into calls
_PART_BLOCKS = 2_000  # that are limited at once
_ROW_BLOCKS = 8  # that are searched for peaks at once
_TAPS = 16  # of a phase of the oversampling filter
_OVERSAMPLING = 4
_KAISER_BETA = 2.5
_ONE_THREAD_PRODUCTS = 200_000
"""Multiplications of a matrix product up to which OpenBLAS, which numpy brings, stays on the calling thread.

Beyond 262 144 it wakes threads that share the work and then wait actively for more: beside many calls they take a fifth
of a core from the voice. Source: OpenBLAS, ``interface/gemm.c``.
"""

_Doubles = NDArray[np.float64]
_Samples = NDArray[np.int16]


@lru_cache(maxsize=1)
def _phases() -> _Doubles:
    """Filters ``[3, taps]`` for the points at 1/4, 1/2 and 3/4 between two samples: Kaiser-windowed sinc."""
    half = _TAPS // 2
    taps = np.arange(1 - half, half + 1, dtype=np.float64)
    distance = taps[None, :] - np.arange(1, _OVERSAMPLING)[:, None] / _OVERSAMPLING
    window = np.i0(_KAISER_BETA * np.sqrt(1 - (distance / half) ** 2)) / np.i0(_KAISER_BETA)
    return np.asarray(np.sinc(distance) * window)


@lru_cache(maxsize=8)
def oversampling(block: int) -> _Doubles:
    """Matrix ``[block + taps, 4 * block]`` from a block with half a filter to either side to its points and between."""
    half = _TAPS // 2
    points = np.zeros((block, _OVERSAMPLING, block + _TAPS))
    for n in range(block):
        points[n, 0, half + n] = 1.0
        points[n, 1:, 1 + n : 1 + n + _TAPS] = _phases()
    return np.ascontiguousarray(points.reshape(-1, block + _TAPS).T)


@lru_cache(maxsize=1)
def _curvature_weight() -> float:
    """Return how much a point between two samples may exceed the larger one, per second difference of the samples.

    Each filter is an interpolation between the two samples with weights whose sum is below 1, plus a filter of second
    differences. This is the largest sum of that filter's absolute values.
    """
    weights = []
    for point, taps in enumerate(_phases(), 1):
        rest = taps.copy()
        first = _TAPS // 2 - 1  # the tap of the sample before the point
        sum_, share = taps.sum(), point / _OVERSAMPLING
        slope = taps @ np.arange(-first, _TAPS - first) - share * sum_
        rest[first] -= (1 - share) * sum_ - slope
        rest[first + 1] -= share * sum_ + slope
        weights.append(np.abs(rest.cumsum().cumsum()).sum())
    return float(max(weights))


@lru_cache(maxsize=1)
def _decay() -> _Doubles:
    """What is left of a reduction at each block of a period, and of one at its start when the next one begins."""
    return np.asarray(_DECAY ** np.arange(_PERIOD_BLOCKS + 1))


def _sliding_max(values: _Doubles) -> _Doubles:
    """Return the largest of each five (the attack and a block to either side) adjacent values."""
    pairs = np.maximum(values[:-1], values[1:])
    fours = np.maximum(pairs[:-2], pairs[2:])
    return np.maximum(fours[:-1], values[4:])


class Limiter:
    """Amplifies one stream and limits its true peak to ``CEILING_DBTP``.

    The concatenated output does not depend on how the input is divided into calls: gains are computed for blocks of
    half a millisecond that are counted from the start of the stream, and are linear within a block. A reduction is what
    a gain is lowered by.

    Args:
        gain: Linear gain.
        sample_rate_hz: Rate of the stream.
    """

    def __init__(self, gain: float, sample_rate_hz: int) -> None:
        self._gain = float(gain)  # an int would overflow s16
        self._block = sample_rate_hz // _BLOCKS_PER_S
        # In units of the samples, which have no gain yet.
        self._ceiling = FULL_SCALE * 10 ** ((CEILING_DBTP - _MARGIN_DB) / 20) / self._gain
        # Below this no point between samples can exceed the ceiling.
        self._safe_peak = self._ceiling / float(np.abs(_phases()).sum(axis=1).max())
        # From 1, and the sums of reductions at the start and at the end of a block, to the gain at each of its samples.
        end = np.arange(self._block) / self._block
        mean = self._gain / (_ATTACK_BLOCKS + 1)
        self._interpolation = np.array([np.full(self._block, self._gain), mean * (end - 1), -mean * end])
        # Silent blocks precede the stream, in which the gain is lowered for a peak at its very beginning.
        self._silent = (_ATTACK_BLOCKS + 1) * self._block
        self._pcm = bytes(BYTES_PER_SAMPLE * (self._silent + _TAPS // 2))  # from half a filter before the next output
        self._skip = self._silent  # outputs that stand for the silent blocks
        self._received = 0
        self._emitted = 0
        self._position = 0  # blocks since the start of the period
        self._needed = np.zeros(_ATTACK_BLOCKS + 1)  # reductions that the next blocks need
        self._targets = np.zeros(_ATTACK_BLOCKS + 1)  # reductions of the last blocks with release, not yet smoothed
        self._largest = 0.0  # reduction at the start of the period that decays to the present one

    @property
    def delay_samples(self) -> int:
        """Most audio that ``process`` holds back, in samples: 2.5 ms, an incomplete block and half a filter."""
        return (_ATTACK_BLOCKS + 3) * self._block - 1 + _TAPS // 2

    def process(self, pcm: bytes) -> bytes:
        """Amplify s16le. Output within the look-ahead follows with a later call."""
        self._received += len(pcm) // BYTES_PER_SAMPLE
        return self._limit(pcm)

    def flush(self) -> bytes:
        """Return the rest. Call it once."""
        missing = self._received - self._emitted
        out = self._limit(bytes(BYTES_PER_SAMPLE * (self.delay_samples + self._block)))
        return out[: BYTES_PER_SAMPLE * missing]

    def _limit(self, pcm: bytes) -> bytes:
        self._pcm += pcm
        samples = np.frombuffer(self._pcm, "<i2")
        blocks = (len(samples) - self._silent - _TAPS) // self._block
        if blocks <= 0:
            return b""
        out = np.empty(blocks * self._block, "<i2")
        done = 0
        while done < blocks:
            count = min(blocks - done, _PART_BLOCKS, _PERIOD_BLOCKS - self._position)
            part = slice(done * self._block, (done + count) * self._block)
            self._limit_blocks(samples[part.start :], out[part], count)
            done += count
        self._pcm = self._pcm[out.nbytes :]
        skip = min(self._skip, len(out))
        self._skip -= skip
        self._emitted += len(out) - skip
        return out.tobytes()[BYTES_PER_SAMPLE * skip :]

    def _limit_blocks(self, samples: _Samples, out: _Samples, count: int) -> None:
        """Write ``count`` blocks, which begin half a filter behind ``samples``, to ``out``."""
        source = samples[_TAPS // 2 : _TAPS // 2 + len(out)]
        blocks, peaks = self._peaks(samples[self._silent : self._silent + len(out) + _TAPS])
        if len(blocks) or self._needed.any() or self._targets.any():
            rows = np.ones((count, 3))
            self._reduce(rows, blocks, 1 - self._ceiling / peaks)
            gains = (rows @ self._interpolation).ravel()
            np.rint(source * gains, out=out, casting="unsafe")
        else:
            self._largest = 0.0  # of a reduction that has ended
            np.rint(source * self._gain, out=out, casting="unsafe")
        self._position += count
        if self._position == _PERIOD_BLOCKS:
            self._position = 0
            self._largest *= float(_decay()[-1])

    def _reduce(self, rows: _Doubles, blocks: NDArray[np.intp], reductions: _Doubles) -> None:
        """Compute the reductions at the start and at the end of each block, smoothed over the attack.

        Args:
            rows: ``[count, 3]``: the second column becomes those at the start, the third one those at the end, each
                the sum of the reductions of four blocks.
            blocks: The blocks that need a reduction, the look-ahead later than the outputs.
            reductions: What they need.
        """
        count = len(rows)
        needed = np.zeros(len(self._needed) + count)
        needed[: len(self._needed)] = self._needed
        needed[len(self._needed) + blocks] = reductions
        self._needed = needed[count:].copy()
        bounds = _sliding_max(needed)
        targets = np.empty(len(self._targets) + count)
        targets[: len(self._targets)] = self._targets
        targets[len(self._targets) :] = self._with_release(bounds)
        self._targets = targets[count:].copy()
        pairs = targets[:-1] + targets[1:]
        sums = pairs[:-2] + pairs[2:]
        rows[:, 1] = sums[:-1]
        rows[:, 2] = sums[1:]

    def _with_release(self, bounds: _Doubles) -> _Doubles:
        """Let the reduction follow a rise at once and decay slowly."""
        decay = _decay()[self._position : self._position + len(bounds)]
        largest = bounds / decay
        largest[0] = max(self._largest, largest[0])
        np.maximum.accumulate(largest, out=largest)
        self._largest = float(largest[-1])
        largest *= decay
        return np.where(largest < _AT_REST, bounds, largest)

    def _peaks(self, region: _Samples) -> tuple[NDArray[np.intp], _Doubles]:
        """Return the blocks of ``region`` whose true peak exceeds the ceiling, and these peaks.

        The first block begins half a filter behind its start, and the last one ends half a filter before its end.
        """
        blocks = self._loud_blocks(region)
        if not len(blocks):
            return blocks, np.zeros(0)
        filters = oversampling(self._block)
        rows = _ONE_THREAD_PRODUCTS // filters.size
        shape = (len(region) - _TAPS) // self._block, len(filters)
        windows = np.lib.stride_tricks.as_strided(region, shape, (self._block * region.itemsize, region.itemsize))
        parts = [windows[blocks[at : at + rows]] @ filters for at in range(0, len(blocks), rows)]
        peaks = np.concatenate([np.abs(part).max(axis=1) for part in parts])
        over = np.flatnonzero(peaks > self._ceiling)
        return blocks[over], peaks[over]

    def _loud_blocks(self, region: _Samples) -> NDArray[np.intp]:
        """Return the blocks that could have a peak over the ceiling within or between their samples, and others.

        Rows of 4 ms are examined with the samples that their points depend on.
        """
        count = (len(region) - _TAPS) // self._block
        row = _ROW_BLOCKS * self._block
        starts = np.arange(0, count * self._block, row)
        edges = (starts[:, None] + (0, row + _TAPS)).ravel()[:-1]  # the last row reaches to the end
        levels = np.maximum.reduceat(np.abs(region).view(np.uint16), edges)[::2]  # |-32768| is in range
        if levels.max() <= self._safe_peak:
            return np.zeros(0, np.intp)
        quarters = region >> 2  # whose second differences are in range
        steps = quarters[1:] - quarters[:-1]
        curves = np.maximum.reduceat(np.abs(steps[1:] - steps[:-1]), edges)[::2]
        highest = levels + 4 * _curvature_weight() * (curves + 2.0)  # rounded down by less than 1, 4 times
        rows = np.flatnonzero((levels > self._safe_peak) & (highest > self._ceiling))
        blocks = (rows[:, None] * _ROW_BLOCKS + np.arange(_ROW_BLOCKS)).ravel()
        return blocks[blocks < count]
