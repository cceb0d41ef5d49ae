"""Streaming vocoder of the CPU voice: converts spectra to a waveform in blocks of frames.

The formulas and constants are those of ``hibari.dsp``. The first audio of a long phrase does not wait for its end.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.hibari.model import FREE, FREE_PHASE, HARMONIC, HARMONIC_PHASE, NOISE, Spectra
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES
from tts_worker.types import SAMPLE_RATE_HZ

OVERLAP = 4  # frames that contribute to each sample
WINDOW_SAMPLES = OVERLAP * FRAME_SAMPLES
BINS = WINDOW_SAMPLES // 2 + 1

_MIN_PITCH_HZ = np.float32(40.0)
_MAX_HARMONIC_HZ = np.float32(11_000.0)
MAX_LOG_MAGNITUDE = np.float32(7.0)
_PI = np.float32(np.pi)

_NOISE_VALUES = 1 << 16
"""Complex values of noise that the frames of one place in the overlap share."""


class Vocoder:
    """Renders the waveform of ``spectra`` from ``first_frame`` on, in order.

    A frame contributes from two frames before its position to two after, so the first frames only fill the overlap and
    ``position_samples`` (position of the next sample in the phrase) starts one frame after ``first_frame``. The same
    generator gives the same samples.
    """

    def __init__(self, spectra: Spectra, noise: np.random.Generator, first_frame: int = 0) -> None:
        from hibari import dsp

        self._dsp: Any = dsp
        self._spectra: Spectra | None = spectra
        self._frames = spectra.frames
        # Drawing the noise itself takes as long as all other work on a block.
        self._noise_generator = noise
        self._noise_starts = noise.integers(0, _NOISE_VALUES - BINS, spectra.frames)
        self._frame = first_frame
        self._tail = np.zeros((OVERLAP - 1, FRAME_SAMPLES), np.float32)
        # Output before the first sample, or incomplete because earlier frames are skipped, is dropped.
        self._drop_frames = 2 if first_frame == 0 else OVERLAP - 1
        self.position_samples = (first_frame + self._drop_frames - 2) * FRAME_SAMPLES
        # Sum of the squared window over the overlap: constant except at the ends, which are silent.
        self._scale = np.float32(1 / np.sum(dsp.WIN[::FRAME_SAMPLES] ** 2))
        self._f0_hz = spectra.f0_hz
        self._set_pulses()

    def _set_pulses(self) -> None:
        pulses = np.pad(pulse_train(self._f0_hz), WINDOW_SAMPLES // 2, mode="reflect")
        self._windows: Floats = sliding_window_view(pulses, WINDOW_SAMPLES)[::FRAME_SAMPLES]
        has_pulses = pulses.reshape(-1, FRAME_SAMPLES).any(axis=1)
        self._is_voiced: NDArray[np.bool_] = np.any(sliding_window_view(has_pulses, OVERLAP), axis=1)

    @property
    def finished(self) -> bool:
        return self._frame >= self._frames

    @property
    def suspended(self) -> bool:
        return self._spectra is None

    @property
    def spectra_frames(self) -> int:
        """Length of the spectra in memory: 0 while suspended."""
        return 0 if self._spectra is None else self._frames

    def suspend(self) -> None:
        """Free the spectra: 12 KB per frame, nine tenths of the memory of a phrase."""
        self._spectra = None

    def resume(self, spectra: Spectra) -> None:
        """Continue after ``suspend`` with spectra predicted again, which differ at most where ``has_begun`` is False.

        The pitch so far stays, and so does the phase of the pulses.
        """
        self._spectra = spectra
        begun = self._frame + OVERLAP
        f0_hz = np.concatenate((self._f0_hz[:begun], spectra.f0_hz[begun:]))
        if not np.array_equal(f0_hz, self._f0_hz):
            more = self._noise_generator.integers(0, _NOISE_VALUES - BINS, max(0, len(f0_hz) - len(self._noise_starts)))
            self._noise_starts = np.concatenate((self._noise_starts, more))
            self._f0_hz = f0_hz
            self._frames = spectra.frames
            self._set_pulses()

    def has_begun(self, sample: int) -> bool:
        """Whether audio that reaches to ``sample`` of the phrase is rendered or in the overlap."""
        return sample < (self._frame + OVERLAP) * FRAME_SAMPLES

    def render(self, frames: int) -> Floats:
        """Render at most ``frames`` more frames and return the complete samples ``[N]``, about 300 per frame."""
        first = self._frame
        last = min(self._frame + frames, self._frames)
        if first == last:
            return np.zeros(0, np.float32)
        if self._spectra is None:
            raise RuntimeError("the vocoder is suspended: call resume() first")
        self._frame = last
        waves = self._inverse(self._mix(self._spectra, first, last))
        rows = last - first
        out = np.zeros((rows + OVERLAP - 1, FRAME_SAMPLES), np.float32)
        out[: OVERLAP - 1] = self._tail
        for shift in range(OVERLAP):
            out[shift : shift + rows] += waves[:, shift]
        self._tail = out[rows:]
        drop = min(self._drop_frames, rows)
        self._drop_frames -= drop
        samples: Floats = out[drop:rows].reshape(-1) * self._scale
        self.position_samples += len(samples)
        return samples

    def _mix(self, spectra: Spectra, first: int, last: int) -> NDArray[np.complex64]:
        """Compute the mixed spectra ``[last - first, 601]``.

        A spectrum is the sum of pulses through the harmonic filter, shaped noise and the free branch, as in
        ``hibari.dsp.synth`` and therefore as in the training of the model.
        """
        parts = spectra.parts[first:last]
        # The harmonic filter has an effect only on frames whose window contains pulses.
        voiced = np.flatnonzero(self._is_voiced[first:last])
        count = len(voiced)
        shape = (count + last - first, BINS)  # the harmonic branch of voiced frames, then the free one of all
        magnitudes: Floats = np.empty(shape, np.float32)
        magnitudes[:count] = parts[voiced, HARMONIC]
        magnitudes[count:] = parts[:, FREE]
        np.minimum(magnitudes, MAX_LOG_MAGNITUDE, out=magnitudes)
        np.exp(magnitudes, out=magnitudes)
        angles: Floats = np.empty(shape, np.float32)
        np.tanh(parts[voiced, HARMONIC_PHASE], out=angles[:count])
        angles[:count] *= _PI
        angles[count:] = parts[:, FREE_PHASE]
        filters = np.empty(shape, np.complex64)
        filters.real = np.cos(angles) * magnitudes
        filters.imag = np.sin(angles) * magnitudes

        mixed: NDArray[np.complex64] = np.zeros((last - first, BINS), np.complex64)
        if count:
            mixed[voiced] = self._dsp.rfft(self._windows[first + voiced] * self._dsp.WIN_SRC, 1) * filters[:count]
        noise = self._noise(first, last)
        noise *= np.exp(np.minimum(parts[:, NOISE], MAX_LOG_MAGNITUDE))
        mixed += noise
        mixed += filters[count:]
        if spectra.gains is not None:
            mixed *= spectra.gains[first:last, None]
        return mixed

    def _noise(self, first: int, last: int) -> NDArray[np.complex64]:
        """Return white noise for frames ``[last - first, 601]``.

        Every frame takes neighboring values from a random place. Frames that overlap take them from different tables.
        """
        return noise_windows()[np.arange(first, last) % OVERLAP, self._noise_starts[first:last]]

    def _inverse(self, mixed: NDArray[np.complex64]) -> Floats:
        """Return each frame's windowed waveform, divided into the four frames that it overlaps: ``[F, 4, 300]``."""
        waves: Floats = self._dsp.irfft(mixed, WINDOW_SAMPLES, 1)
        waves *= self._dsp.WIN
        return waves.reshape(len(waves), OVERLAP, FRAME_SAMPLES)


def pulse_train(f0_hz: Floats) -> Floats:
    """Return ``hibari.dsp.pulses(f0_hz)``, equal to the bit, faster: unvoiced frames are skipped.

    The phase is a sum of frequencies of at least 40 Hz. As float32 they are multiples of 2**-18, so that their sums
    are exact in 64 bits, in any order.
    """
    around = np.pad(f0_hz, 1, mode="edge")
    neighbors = sliding_window_view(around, 3)
    rows = np.flatnonzero(neighbors.max(axis=1) >= _MIN_PITCH_HZ)  # the mean of two equal ones may be rounded up
    # Pitch is linear between the centers of frames: half a frame from the previous center, half to the next one.
    weights = ((np.arange(0.5, FRAME_SAMPLES) / FRAME_SAMPLES - 0.5) % 1).astype(np.float32).reshape(2, -1)
    near = neighbors[rows]
    f0 = near[:, :2, None] * (1 - weights) + near[:, 1:, None] * weights
    unvoiced = f0 <= _MIN_PITCH_HZ
    np.maximum(f0, _MIN_PITCH_HZ, out=f0)

    cycles = np.cumsum(f0.astype(np.float64)).reshape(f0.shape)
    skipped = rows - np.arange(len(rows))
    cycles += (_MIN_PITCH_HZ * FRAME_SAMPLES * skipped)[:, None, None]
    cycles *= 1 / SAMPLE_RATE_HZ
    cycles -= np.floor(cycles)
    cycles *= 2 * np.pi
    phase = cycles.astype(np.float32)

    # The sum of the cosines of all harmonics; at a multiple of a whole cycle it is their number.
    harmonics = np.floor(_MAX_HARMONIC_HZ / f0)
    harmonics += np.float32(0.5)
    divisor = 2 * np.sin(phase * np.float32(0.5))
    at_pulse = np.abs(divisor) <= np.float32(2e-3)
    np.copyto(divisor, 1, where=at_pulse)
    phase *= harmonics
    sums = np.sin(phase, out=phase)
    sums /= divisor
    np.copyto(sums, harmonics, where=at_pulse)
    sums -= np.float32(0.5)
    np.copyto(sums, 0, where=unvoiced)
    pulses = np.zeros((len(f0_hz), FRAME_SAMPLES), np.float32)
    pulses[rows] = sums.reshape(len(rows), FRAME_SAMPLES)
    return pulses.reshape(-1)


@cache
def noise_windows() -> NDArray[np.complex64]:
    """Return the 601 values at each place of four tables of noise, ``[4, N, 601]`` in 2 MB.

    The noise is white and complex: real and imaginary part have the variance 1.
    """
    values = np.random.default_rng(0).standard_normal((OVERLAP, 2 * _NOISE_VALUES), dtype=np.float32)
    return sliding_window_view(values.view(np.complex64), BINS, axis=1)
