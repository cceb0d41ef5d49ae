"""Speech detection by level: finds where speech begins and ends in a recording."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats, samples_of_ms
from tts_worker.types import SAMPLE_RATE_HZ


@dataclass(frozen=True, slots=True)
class TrimOptions:
    """Detector settings.

    Attributes:
        threshold_dbfs: A window is speech if its RMS is above this level.
        window_ms: Length of a window.
        pre_roll_ms: Audio retained before the first window of speech, which preserves soft consonants.
        post_roll_ms: Audio retained after the last window of speech.
        sample_rate_hz: Sample rate of the recording.
    """

    threshold_dbfs: float = -50.0
    window_ms: float = 5.0
    pre_roll_ms: float = 20.0
    post_roll_ms: float = 40.0
    sample_rate_hz: int = SAMPLE_RATE_HZ


def speech_range(samples: Floats, options: TrimOptions | None = None) -> tuple[int, int] | None:
    """Return ``[start, end)`` of the speech in ``samples [N]`` with pre- and post-roll, or None if all is silence."""
    options = options or TrimOptions()
    window = max(1, samples_of_ms(options.window_ms, options.sample_rate_hz))
    loud = np.flatnonzero(_is_loud(samples, window, options))
    if not len(loud):
        return None
    start = int(loud[0]) * window - samples_of_ms(options.pre_roll_ms, options.sample_rate_hz)
    end = (int(loud[-1]) + 1) * window + samples_of_ms(options.post_roll_ms, options.sample_rate_hz)
    return max(0, start), min(len(samples), end)


def _is_loud(samples: Floats, window: int, options: TrimOptions) -> NDArray[np.bool_]:
    """Return whether each window of ``samples`` is speech. An incomplete last window uses the mean of its samples."""
    if not len(samples):
        return np.zeros(0, np.bool_)
    starts = np.arange(0, len(samples), window)
    power = np.add.reduceat(np.square(samples, dtype=np.float64), starts)
    lengths = np.minimum(len(samples) - starts, window)
    return np.asarray(power > lengths * 10.0 ** (options.threshold_dbfs / 10), np.bool_)
