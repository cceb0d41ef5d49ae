"""Streaming vocoder of the CPU voice: converts spectra to a waveform in blocks of frames.

The formulas and constants are those of ``hibari.dsp``. The first audio of a long phrase does not wait for its end.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats
from tts_worker.engine.hibari.model import FREE, FREE_PHASE, HARMONIC, HARMONIC_PHASE, NOISE, Spectra
from tts_worker.engine.phrases.timing import FRAME_SAMPLES

_OVERLAP = 4  # frames that contribute to each sample
_WINDOW_SAMPLES = _OVERLAP * FRAME_SAMPLES
_BINS = _WINDOW_SAMPLES // 2 + 1

_MAX_LOG_MAGNITUDE = np.float32(7.0)
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
        self._noise_starts = noise.integers(0, _NOISE_VALUES - _BINS, spectra.frames)
        self._frame = first_frame
        self._tail = np.zeros((_OVERLAP - 1, FRAME_SAMPLES), np.float32)
        # Output before the first sample, or incomplete because earlier frames are skipped, is dropped.
        self._drop_frames = 2 if first_frame == 0 else _OVERLAP - 1
        self.position_samples = (first_frame + self._drop_frames - 2) * FRAME_SAMPLES
        # Sum of the squared window over the overlap: constant except at the ends, which are silent.
        self._scale = np.float32(1 / np.sum(dsp.WIN[::FRAME_SAMPLES] ** 2))
        pulses = dsp.pulses(spectra.f0_hz)
        self._pulses = np.pad(pulses, _WINDOW_SAMPLES // 2, mode="reflect")

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
        """Continue after ``suspend`` with the same spectra, predicted again."""
        self._spectra = spectra

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
        out = np.zeros((rows + _OVERLAP - 1, FRAME_SAMPLES), np.float32)
        out[: _OVERLAP - 1] = self._tail
        for shift in range(_OVERLAP):
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
        shape = (2, last - first, _BINS)  # the harmonic and the free branch
        magnitudes: Floats = np.empty(shape, np.float32)
        np.minimum(parts[:, HARMONIC], _MAX_LOG_MAGNITUDE, out=magnitudes[0])
        np.minimum(parts[:, FREE], _MAX_LOG_MAGNITUDE, out=magnitudes[1])
        np.exp(magnitudes, out=magnitudes)
        angles: Floats = np.empty(shape, np.float32)
        np.tanh(parts[:, HARMONIC_PHASE], out=angles[0])
        angles[0] *= _PI
        angles[1] = parts[:, FREE_PHASE]
        filters = np.empty(shape, np.complex64)
        filters.real = np.cos(angles) * magnitudes
        filters.imag = np.sin(angles) * magnitudes

        windows = np.lib.stride_tricks.sliding_window_view(self._pulses, _WINDOW_SAMPLES)[::FRAME_SAMPLES]
        mixed: NDArray[np.complex64] = self._dsp.rfft(windows[first:last] * self._dsp.WIN_SRC, 1)
        mixed *= filters[0]
        mixed += self._noise(first, last) * np.exp(np.minimum(parts[:, NOISE], _MAX_LOG_MAGNITUDE))
        mixed += filters[1]
        return mixed

    def _noise(self, first: int, last: int) -> NDArray[np.complex64]:
        """Return white noise for frames ``[last - first, 601]``.

        Every frame takes neighbouring values from a random place. Frames that overlap take them from different tables.
        """
        windows = np.lib.stride_tricks.sliding_window_view(noise_tables(), _BINS, axis=1)
        return windows[np.arange(first, last) % _OVERLAP, self._noise_starts[first:last]]

    def _inverse(self, mixed: NDArray[np.complex64]) -> Floats:
        """Return each frame's windowed waveform, divided into the four frames that it overlaps: ``[F, 4, 300]``."""
        waves: Floats = self._dsp.irfft(mixed, _WINDOW_SAMPLES, 1)
        waves *= self._dsp.WIN
        return waves.reshape(len(waves), _OVERLAP, FRAME_SAMPLES)


@cache
def noise_tables() -> NDArray[np.complex64]:
    """Return complex white noise ``[4, N]``, 2 MB: real and imaginary part have the variance 1."""
    values = np.random.default_rng(0).standard_normal((_OVERLAP, 2 * _NOISE_VALUES), dtype=np.float32)
    return values.view(np.complex64)
