"""Streaming vocoder of the CPU voice: converts spectra to a waveform in blocks of frames.

The formulas and constants are those of ``hibari.dsp``. The first audio of a long phrase does not wait for its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats
from tts_worker.engine.hibari.model import Spectra
from tts_worker.engine.phrases.timing import FRAME_SAMPLES

_OVERLAP = 4  # frames that contribute to each sample
_WINDOW_SAMPLES = _OVERLAP * FRAME_SAMPLES


class Vocoder:
    """Renders the waveform of ``spectra`` from ``first_frame`` on, in order.

    A frame contributes from two frames before its position to two after, so the first frames only fill the overlap and
    ``position_samples`` (position of the next sample in the phrase) starts one frame after ``first_frame``. The same
    generator and the same block sizes give the same samples.
    """

    def __init__(self, spectra: Spectra, noise: np.random.Generator, first_frame: int = 0) -> None:
        from hibari import dsp

        self._dsp: Any = dsp
        self._spectra: Spectra | None = spectra
        self._frames = spectra.frames
        self._noise = noise
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
        """Compute the mixed spectrum ``[601, last - first]``.

        It is the sum of pulses through the harmonic filter, shaped noise and the free branch, as in
        ``hibari.dsp.synth`` and therefore as in the training of the model.
        """
        dsp = self._dsp
        frames = slice(first, last)
        windows = np.lib.stride_tricks.sliding_window_view(self._pulses, _WINDOW_SAMPLES)[::FRAME_SAMPLES]
        mixed = np.ascontiguousarray(dsp.rfft(windows[frames] * dsp.WIN_SRC, 1).T)
        mixed *= _polar(
            dsp.ex(spectra.harmonic[:, frames]), np.tanh(spectra.harmonic_phase[:, frames]) * np.float32(np.pi)
        )
        shape = (mixed.shape[0], 2 * (last - first))
        noise = self._noise.standard_normal(shape, dtype=np.float32).view(np.complex64)
        noise *= dsp.ex(spectra.noise[:, frames])
        mixed += noise
        mixed += _polar(dsp.ex(spectra.free[:, frames]), spectra.free_phase[:, frames])
        return mixed

    def _inverse(self, mixed: NDArray[np.complex64]) -> Floats:
        """Return each frame's windowed waveform, divided into the four frames that it overlaps: ``[F, 4, 300]``."""
        waves: Floats = self._dsp.irfft(mixed.T, _WINDOW_SAMPLES, 1)
        waves *= self._dsp.WIN
        return waves.reshape(len(waves), _OVERLAP, FRAME_SAMPLES)


def _polar(magnitude: Floats, angle: Floats) -> NDArray[np.complex64]:
    result = np.empty(magnitude.shape, np.complex64)
    np.cos(angle, out=result.real)
    np.sin(angle, out=result.imag)
    result *= magnitude
    return result
