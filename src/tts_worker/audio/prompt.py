"""What makes a recording a good prompt for a voice: 3 to 30 s of speech, not silent, of a sane level.

It must not know which model listens to it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tts_worker.audio.decode import Recording
from tts_worker.audio.pcm import Floats
from tts_worker.audio.trim import TrimOptions, speech_range
from tts_worker.errors import InvalidRequest

LEAST_S = 3.0
MOST_S = 30.0
SILENT_DBFS = -50.0
TARGET_DBFS = -22.0
TOLERANCE_DB = 6.0
MAX_GAIN_DB = 30.0
PEAK = 0.95
SPEECH_BELOW_LOUD_DB = 35.0  # what is so much quieter than the loud parts is not speech


def usable_speech(recording: Recording) -> tuple[Recording, float]:
    """The speech in ``recording`` at a usual level, and the gain in dB that made it so. Raises InvalidRequest."""
    if recording.seconds > MOST_S:
        raise InvalidRequest(
            f"the audio is {recording.seconds:.1f} s long; use {LEAST_S:g} to {MOST_S:g} s of clear speech"
        )
    samples = recording.samples - recording.samples.mean(dtype=np.float64).astype(np.float32)
    loud_dbfs, speech_dbfs = _levels(samples, recording.rate_hz)
    if loud_dbfs < SILENT_DBFS:
        raise InvalidRequest("the audio is silent, or nearly so; is it the right channel?")
    options = TrimOptions(loud_dbfs - SPEECH_BELOW_LOUD_DB, 10, 100, 200, recording.rate_hz)
    start, end = speech_range(samples, options) or (0, 0)
    samples = samples[start:end]
    speech = Recording(samples, recording.rate_hz)
    if speech.seconds < LEAST_S:
        raise InvalidRequest(f"the audio has {speech.seconds:.1f} s of speech; use {LEAST_S:g} to {MOST_S:g} s")
    if abs(speech_dbfs - TARGET_DBFS) <= TOLERANCE_DB:
        return speech, 0.0
    room_db = 20 * np.log10(PEAK / float(np.abs(samples).max()))
    gain_db = float(min(TARGET_DBFS - speech_dbfs, MAX_GAIN_DB, max(room_db, 0.0)))
    return replace(speech, samples=samples * np.float32(10 ** (gain_db / 20))), gain_db


def _levels(samples: Floats, rate_hz: int) -> tuple[float, float]:
    """In dB of full scale: the loudest 20 ms windows (but for a click or two), and the mean of all that is speech."""
    window = max(1, rate_hz // 50)
    power = np.square(samples[: len(samples) // window * window], dtype=np.float64).reshape(-1, window).mean(axis=1)
    if not len(power):
        return -np.inf, -np.inf
    loud = np.percentile(power, 98)
    speech = power[power >= loud * 10 ** (-SPEECH_BELOW_LOUD_DB / 20)].mean()
    return 10 * float(np.log10(loud + 1e-12)), 10 * float(np.log10(speech + 1e-12))
