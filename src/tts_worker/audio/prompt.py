"""Preparation of a voice prompt: 3 to 30 s of speech, trimmed and brought to a normal level."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tts_worker.audio.decode import Recording
from tts_worker.audio.pcm import Floats
from tts_worker.audio.trim import TrimOptions, speech_range
from tts_worker.errors import InvalidRequest

MIN_PROMPT_S = 3.0
MAX_PROMPT_S = 30.0
SILENT_DBFS = -50.0
TARGET_DBFS = -22.0
TOLERANCE_DB = 6.0
MAX_GAIN_DB = 30.0
MAX_PEAK = 0.95
SPEECH_BELOW_LOUD_DB = 35.0  # anything quieter than the loud parts by more than this is not speech


def usable_speech(recording: Recording) -> tuple[Recording, float]:
    """Trim a recording to its speech and normalize the level.

    Returns:
        The speech, and the gain in dB that was applied to it.

    Raises:
        InvalidRequest: The recording is too long, silent or has too little speech.
    """
    if recording.seconds > MAX_PROMPT_S:
        raise InvalidRequest(
            f"the audio is {recording.seconds:.1f} s long; use {MIN_PROMPT_S:g} to {MAX_PROMPT_S:g} s of clear speech"
        )
    samples = recording.samples - recording.samples.mean(dtype=np.float64).astype(np.float32)
    loud_dbfs, speech_dbfs = _levels(samples, recording.rate_hz)
    if loud_dbfs < SILENT_DBFS:
        raise InvalidRequest("the audio is silent or nearly silent; check that it is the right channel")
    options = TrimOptions(loud_dbfs - SPEECH_BELOW_LOUD_DB, 10, 100, 200, recording.rate_hz)
    start, end = speech_range(samples, options) or (0, 0)
    samples = samples[start:end]
    speech = Recording(samples, recording.rate_hz)
    if speech.seconds < MIN_PROMPT_S:
        raise InvalidRequest(
            f"the audio has {speech.seconds:.1f} s of speech; use {MIN_PROMPT_S:g} to {MAX_PROMPT_S:g} s"
        )
    if abs(speech_dbfs - TARGET_DBFS) <= TOLERANCE_DB:
        return speech, 0.0
    headroom_db = 20 * np.log10(MAX_PEAK / float(np.abs(samples).max()))
    gain_db = float(min(TARGET_DBFS - speech_dbfs, MAX_GAIN_DB, max(headroom_db, 0.0)))
    return replace(speech, samples=samples * np.float32(10 ** (gain_db / 20))), gain_db


def _levels(samples: Floats, rate_hz: int) -> tuple[float, float]:
    """Measure, in dBFS, the loudest 20 ms windows (98th percentile, to ignore clicks) and the mean of the speech."""
    window = max(1, rate_hz // 50)
    power = np.square(samples[: len(samples) // window * window], dtype=np.float64).reshape(-1, window).mean(axis=1)
    if not len(power):
        return -np.inf, -np.inf
    loud = np.percentile(power, 98)
    speech = power[power >= loud * 10 ** (-SPEECH_BELOW_LOUD_DB / 20)].mean()
    return 10 * float(np.log10(loud + 1e-12)), 10 * float(np.log10(speech + 1e-12))
