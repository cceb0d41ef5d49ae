"""Spectra become a waveform, some frames at a time: the streaming form of hibari's signal processing.

Owns the overlap between blocks and the order in which noise is drawn, so that the first sound of a long phrase need
not wait for its last. Uses the formulas and constants of ``hibari.dsp``; knows no text, no trimming and no utterance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats
from tts_worker.engine.hibari_model import FRAME_SAMPLES, Spectra

_OVERLAP = 4  # frames that sound at the same time
_WINDOW_SAMPLES = _OVERLAP * FRAME_SAMPLES


class Vocoder:
    """The waveform of ``spectra`` from ``first_frame`` on, in order.

    A frame sounds from two frames before its place to two after, so the first frames only warm the overlap up:
    ``position_samples`` (place of the next sample in the phrase) begins a frame after ``first_frame``. The same
    generator and the same blocks give the same samples.
    """

    def __init__(self, spectra: Spectra, noise: np.random.Generator, first_frame: int = 0) -> None:
        from hibari import dsp

        self._dsp: Any = dsp
        self._spectra: Spectra | None = spectra
        self._frames = spectra.frames
        self._noise = noise
        self._frame = first_frame
        self._tail = np.zeros((_OVERLAP - 1, FRAME_SAMPLES), np.float32)
        # What comes before the first sample, or is incomplete because earlier frames are left out, is dropped.
        self._drop = 2 if first_frame == 0 else _OVERLAP - 1
        self.position_samples = (first_frame + self._drop - 2) * FRAME_SAMPLES
        # Window-squared summed over the overlap: the same everywhere but at the very ends, which are silent.
        self._scale = np.float32(1 / np.sum(dsp.WIN[::FRAME_SAMPLES] ** 2))
        pulses = dsp.pulses(spectra.f0_hz)
        self._pulses = np.pad(pulses, _WINDOW_SAMPLES // 2, mode="reflect")

    @property
    def finished(self) -> bool:
        return self._frame >= self._frames

    @property
    def parked(self) -> bool:
        return self._spectra is None

    def park(self) -> None:
        """Let the spectra go (12 KB a frame, nine tenths of all that a phrase holds)."""
        self._spectra = None

    def unpark(self, spectra: Spectra) -> None:
        """Go on where ``park`` left, with the same spectra predicted anew."""
        self._spectra = spectra

    def render(self, frames: int) -> Floats:
        """The sound that is complete after at most ``frames`` more frames: ``[N]``, about 300 samples each."""
        first = self._frame
        last = min(self._frame + frames, self._frames)
        if first == last:
            return np.zeros(0, np.float32)
        if self._spectra is None:
            raise RuntimeError("unpark before rendering")
        self._frame = last
        waves = self._inverse(self._mix(self._spectra, first, last))
        rows = last - first
        out = np.zeros((rows + _OVERLAP - 1, FRAME_SAMPLES), np.float32)
        out[: _OVERLAP - 1] = self._tail
        for shift in range(_OVERLAP):
            out[shift : shift + rows] += waves[:, shift]
        self._tail = out[rows:]
        drop = min(self._drop, rows)
        self._drop -= drop
        sound: Floats = out[drop:rows].reshape(-1) * self._scale
        self.position_samples += len(sound)
        return sound

    def _mix(self, said: Spectra, first: int, last: int) -> NDArray[np.complex64]:
        """``[601, last - first]``: pulses through the harmonic filter, plus shaped noise, plus the free branch. The
        formula is that of ``hibari.dsp.synth``, which has it from the model's training."""
        dsp = self._dsp
        frames = slice(first, last)
        windows = np.lib.stride_tricks.sliding_window_view(self._pulses, _WINDOW_SAMPLES)[::FRAME_SAMPLES]
        mixed = np.ascontiguousarray(dsp.rfft(windows[frames] * dsp.WIN_SRC, 1).T)
        mixed *= _polar(dsp.ex(said.harmonic[:, frames]), np.tanh(said.harmonic_phase[:, frames]) * np.float32(np.pi))
        shape = (mixed.shape[0], 2 * (last - first))
        noise = self._noise.standard_normal(shape, dtype=np.float32).view(np.complex64)
        noise *= dsp.ex(said.noise[:, frames])
        mixed += noise
        mixed += _polar(dsp.ex(said.free[:, frames]), said.free_phase[:, frames])
        return mixed

    def _inverse(self, mixed: NDArray[np.complex64]) -> Floats:
        """``[F, 4, 300]``: every frame's windowed wave, cut into the four places it sounds in."""
        waves: Floats = self._dsp.irfft(mixed.T, _WINDOW_SAMPLES, 1)
        waves *= self._dsp.WIN
        return waves.reshape(len(waves), _OVERLAP, FRAME_SAMPLES)


def _polar(magnitude: Floats, angle: Floats) -> NDArray[np.complex64]:
    turned = np.empty(magnitude.shape, np.complex64)
    np.cos(angle, out=turned.real)
    np.sin(angle, out=turned.imag)
    turned *= magnitude
    return turned
