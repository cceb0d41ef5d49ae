"""Audio features of prompts: three log spectrograms.

Every step follows the order and precision of the library with which the models were trained, so that log features agree
to about 1e-5. Audio is float32 in [-1, 1], mono, ``[1, samples]``.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

WHISPER_RATE_HZ = 16_000


def slaney_filters(rate_hz: int, n_fft: int, bins: int, low_hz: float, high_hz: float | None) -> Tensor:
    """Equal-area triangular filters on Slaney's mel scale, as in librosa: ``[bins, n_fft // 2 + 1]``."""
    linear_hz = 200.0 / 3
    knee_hz = 1000.0
    log_step = math.log(6.4) / 27.0
    knee_mel = knee_hz / linear_hz

    def to_mel(hz: float) -> float:
        return hz / linear_hz if hz < knee_hz else knee_mel + math.log(hz / knee_hz) / log_step

    mels = np.linspace(to_mel(low_hz), to_mel(rate_hz / 2 if high_hz is None else high_hz), bins + 2)
    edges = np.where(mels < knee_mel, mels * linear_hz, knee_hz * np.exp(log_step * (mels - knee_mel)))
    ramps = edges[:, None] - np.linspace(0, rate_hz / 2, n_fft // 2 + 1)[None]  # [bins + 2, freqs]
    widths = np.diff(edges)
    rising = -ramps[:-2] / widths[:-1, None]
    falling = ramps[2:] / widths[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    return torch.from_numpy((triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32))


class MelSpectrogram:
    """Log mel magnitudes with frames aligned to hops, as in HiFi-GAN: the acoustic features of the flow."""

    def __init__(
        self, rate_hz: int, n_fft: int, window: int, hop: int, bins: int, low_hz: float, high_hz: float | None
    ) -> None:
        self.n_fft = n_fft
        self.hop = hop
        self.filters = slaney_filters(rate_hz, n_fft, bins, low_hz, high_hz)
        self.window = torch.hann_window(window)

    @property
    def least_samples(self) -> int:
        """Shortest input: reflect padding needs more samples than it adds on a side."""
        return (self.n_fft - self.hop) // 2 + 1

    def __call__(self, audio: Tensor) -> Tensor:
        """``[1, n] -> [1, n // hop, bins]``, natural logarithm, floor 1e-5."""
        pad = (self.n_fft - self.hop) // 2
        padded = F.pad(audio[:, None], (pad, pad), mode="reflect")[:, 0]
        spectrum = torch.stft(
            padded,
            self.n_fft,
            hop_length=self.hop,
            win_length=len(self.window),
            window=self.window,
            center=False,
            return_complex=True,
        )
        magnitude = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)  # [1, freqs, T]
        return torch.log(torch.clamp(self.filters @ magnitude, min=1e-5)).transpose(1, 2)


class WhisperMel:
    """Whisper's log mel spectrogram without the padding to 30 s: input of the speech tokenizer. 16 kHz."""

    n_fft = 400
    hop = 160
    least_samples = 201

    def __init__(self, bins: int = 128) -> None:
        self.filters = slaney_filters(WHISPER_RATE_HZ, self.n_fft, bins, 0, None)
        self.window = torch.hann_window(self.n_fft)

    def __call__(self, audio: Tensor) -> Tensor:
        """``[1, n] -> [1, bins, n // hop]``, about -1..1."""
        spectrum = torch.stft(audio, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = spectrum[..., :-1].abs() ** 2
        log = torch.clamp(self.filters @ power, min=1e-10).log10()
        return (torch.maximum(log, log.max() - 8.0) + 4.0) / 4.0


class KaldiFbank:
    """Kaldi's log mel filter bank with default options and no dither: input of the speaker encoder. 16 kHz.

    25 ms windows every 10 ms (complete windows only), mean removed, pre-emphasis 0.97, Povey window.
    https://kaldi-asr.org/doc/feat.html

    Args:
        bins: Number of mel bands.
        fft_dtype: float64 agrees on all processors to about 1e-4, even in bands that hold only the rounding error of a
            float32 transform. float32 equals Kaldi, but only on the same processor.
    """

    window = 400
    hop = 160
    n_fft = 512
    low_hz = 20.0

    def __init__(self, bins: int = 80, fft_dtype: torch.dtype = torch.float64) -> None:
        def to_mel(hz: float) -> float:
            return 1127.0 * math.log(1.0 + hz / 700.0)

        low = to_mel(self.low_hz)
        high = to_mel(WHISPER_RATE_HZ / 2)
        step = (high - low) / (bins + 1)
        index = torch.arange(bins)[:, None]
        left = low + index * step
        center = low + (index + 1.0) * step
        right = low + (index + 2.0) * step
        hz = WHISPER_RATE_HZ / self.n_fft * torch.arange(self.n_fft // 2)
        mel = (1127.0 * (1.0 + hz / 700.0).log())[None]
        triangles = torch.minimum((mel - left) / (center - left), (right - mel) / (right - center)).clamp(min=0)
        self.filters = F.pad(triangles, (0, 1))  # [bins, n_fft / 2 + 1]; zero at the Nyquist frequency
        self.fft_dtype = fft_dtype
        hann = torch.hann_window(self.window, periodic=False)
        self.povey = hann.to(fft_dtype).pow(0.85).float()

    @property
    def least_samples(self) -> int:
        return self.window

    def __call__(self, audio: Tensor) -> Tensor:
        """``[1, n] -> [1 + (n - 400) // 160, bins]``, natural logarithm."""
        frames = audio[0].unfold(0, self.window, self.hop)  # [T, window]
        frames = frames - frames.mean(dim=1, keepdim=True)
        before = F.pad(frames[None], (1, 0), mode="replicate")[0, :, :-1]
        frames = (frames - 0.97 * before) * self.povey
        frames = F.pad(frames, (0, self.n_fft - self.window)).to(self.fft_dtype)
        power = torch.fft.rfft(frames).abs().pow(2.0).float()
        return torch.clamp(power @ self.filters.T, min=torch.finfo(torch.float32).eps).log()
