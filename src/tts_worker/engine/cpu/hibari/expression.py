"""Pitch, volume and mood of the spans of a phrase, as changes of its spectra."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.hibari.model import FREE, HARMONIC, HARMONIC_PHASE, NOISE, Spectra
from tts_worker.engine.cpu.hibari.moods import mood_of
from tts_worker.engine.cpu.hibari.vocoder import BINS, WINDOW_SAMPLES
from tts_worker.engine.cpu.phrases.expression import per_id, smoothed
from tts_worker.engine.cpu.phrases.text import Phrase
from tts_worker.types import SAMPLE_RATE_HZ

_BIN_HZ = SAMPLE_RATE_HZ / WINDOW_SAMPLES
_DB_PER_SEMITONE = 0.5
"""What speech loses by a higher pitch, for it has fewer harmonics. Measured; a lower one changes the level by less."""
_OCTAVES = np.log2(np.clip(np.arange(BINS) * _BIN_HZ, 1000, 8000) / 1000).astype(np.float32)
"""Of each bin above 1 kHz, at most three."""
_MIN_HZ = 60.0  # below, the network glides between voiced and unvoiced
_MAX_HEIGHT = 7.0  # semitones of a contour around its median; beyond lie errors of the pitch
_LOG_PER_DB = np.log(10) / 20


def express(spectra: Spectra, phrase: Phrase) -> Spectra:
    """Return ``spectra`` with the pitch, the volume and the mood of the expressions of ``phrase``.

    The rate is in them. The range of the pitch is that around its median in the phrase.
    """

    def frames(values: Iterable[float]) -> Floats:
        return smoothed(np.repeat(per_id(phrase, values), spectra.duration_frames))

    moods = [mood_of(each.style) for each in phrase.expressions]
    semitones = frames(each.pitch_semitones for each in phrase.expressions)
    volume_db = frames(each.volume_db for each in phrase.expressions)
    voiced = np.flatnonzero(spectra.f0_hz > _MIN_HZ)
    if len(voiced) and any(mood.pitch_range != 1 for mood in moods):
        height = 12 * np.log2(spectra.f0_hz[voiced])
        height = np.clip(height - np.median(height), -_MAX_HEIGHT, _MAX_HEIGHT)
        widening = frames(mood.pitch_range for mood in moods)[voiced] - 1
        semitones[voiced] += widening * height
    if any(mood.tilt_db for mood in moods):
        tilt = frames(mood.tilt_db * _LOG_PER_DB for mood in moods)[:, None] * _OCTAVES
        for part in (HARMONIC, NOISE, FREE):
            spectra.parts[:, part] += tilt
    shifted = np.flatnonzero((semitones != 0) & (spectra.f0_hz > 0))
    _interpolate_harmonics(spectra.parts, spectra.f0_hz, shifted)
    return replace(
        spectra,
        f0_hz=spectra.f0_hz * np.exp2(semitones / 12, dtype=np.float32),
        gains=np.power(10, (volume_db + _DB_PER_SEMITONE * np.maximum(semitones, 0)) / 20, dtype=np.float32),
    )


def _interpolate_harmonics(parts: Floats, f0_hz: Floats, frames: NDArray[np.intp]) -> None:
    """Make the filters of the harmonics of ``frames`` smooth, in place, so that they fit any pitch.

    The network says nothing about the bins between the harmonics of its own pitch, which no training audio had.
    """
    if not len(frames):
        return
    spacing = f0_hz[frames, None] / _BIN_HZ  # from one harmonic to the next one, in bins
    harmonics = np.arange(BINS) / spacing
    below = np.floor(harmonics)
    weights = (harmonics - below).astype(np.float32)
    for part in (HARMONIC, HARMONIC_PHASE):
        values = parts[frames, part]
        lower, upper = (
            np.take_along_axis(values, np.clip(np.rint(number * spacing), 0, BINS - 1).astype(np.intp), axis=1)
            for number in (np.maximum(below, 1), below + 1)
        )
        parts[frames, part] = lower + weights * (upper - lower)
