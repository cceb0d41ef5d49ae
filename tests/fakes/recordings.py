"""Recordings of a buzzing voice, for tests of enrollment."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import soundfile

from tts_worker.audio.decode import Recording

SAID = "The quick brown fox jumps over the lazy dog, and so on."


@lru_cache
def speech(
    seconds: float, rate_hz: int = 24_000, level: float = 0.1, before_s: float = 0.0, after_s: float = 0.0
) -> Recording:
    """Syllables of a buzzing voice over faint noise, with near-silence at the ends."""
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    buzz = sum(np.sin(2 * np.pi * 120 * h * t) / h for h in range(1, 8))
    audio = level * buzz * np.clip(np.sin(2 * np.pi * 3 * t + 0.5) + 0.6, 0.05, None)
    silence = [np.zeros(int(s * rate_hz)) for s in (before_s, after_s)]
    audio = np.concatenate([silence[0], audio, silence[1]])
    audio += np.random.default_rng(0).normal(size=len(audio)) * 1e-4
    return Recording(audio.astype(np.float32), rate_hz)


def wav(recording: Recording, channels: int = 1, kind: str = "WAV") -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.stack([recording.samples] * channels, axis=1), recording.rate_hz, format=kind)
    return out.getvalue()
