"""How many Mandarin syllables a voice says as its teacher does, without a recognizer of that language.

Both say the same sentences, and the networks say where each syllable is. A syllable is right if, of all those that the
teacher says, the one most like it is the same syllable with the same tone. Likeness is told by mel
spectra, without what is constant over a clip, and by the course of the pitch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.train.fast.acoustics import log_mels
from tools.train.fast.evaluate import Predict
from tools.train.fast.teacher import FRAMES_PER_DURATION, SpokenPhrase
from tts_worker.audio.pcm import Floats, to_float, to_pcm
from tts_worker.engine.cpu.hibari.vocoder import Vocoder
from tts_worker.engine.cpu.phrases.text import Phrase
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES

TONES = "↓→↗↘"
_WINDOW = 1024
_MELS = 26
_POINTS = 6  # of a syllable, over its length
_PITCH_WEIGHT = 6.0
_VOICED_HZ = 60.0
_FLOOR = 1e-3


@dataclass(frozen=True)
class Syllable:
    """A syllable as a voice says it.

    Attributes:
        ids: Its phonemes and its tone.
        features: Its spectra and its pitch ``[V]``.
    """

    ids: tuple[int, ...]
    features: Floats


def syllables(phrase: SpokenPhrase, vocabulary: Mapping[str, int]) -> Iterator[Syllable]:
    """Yield the syllables of a phrase: what ends with a tone; neutral ones belong to what follows."""
    tones = {vocabulary[tone] for tone in TONES}
    samples = to_float(phrase.samples.astype("<i2").tobytes())
    mels = log_mels(samples, phrase.frames, window=_WINDOW, bins=_MELS, floor=_FLOOR)
    mels -= mels[mels.mean(1) > np.median(mels.mean(1))].mean(0)
    pitch = _relative_pitch(phrase.f0_hz)
    ends = FRAMES_PER_DURATION * np.cumsum(phrase.durations, dtype=np.int64)
    first = 1  # behind the pad
    for number, symbol in enumerate(phrase.ids):
        if int(symbol) in tones:
            frames = slice(int(ends[first - 1]), int(ends[number]))
            features = np.concatenate([_points(mels[frames]), _PITCH_WEIGHT * _points(pitch[frames, None])])
            yield Syllable(tuple(map(int, phrase.ids[first : number + 1])), features)
            first = number + 1


def spoken_by(predict: Predict, phrases: Sequence[Phrase]) -> Iterator[SpokenPhrase]:
    """Yield phrases as a voice of the engine says them, with the silence around them."""
    for number, phrase in enumerate(phrases):
        spectra = predict(phrase)
        audio = Vocoder(spectra, np.random.default_rng(number)).render(spectra.frames)
        samples = np.pad(audio, (0, spectra.frames * FRAME_SAMPLES - len(audio)))
        yield SpokenPhrase(
            np.array(phrase.ids, np.int16),
            (spectra.duration_frames // FRAMES_PER_DURATION).astype(np.int16),
            spectra.f0_hz,
            np.zeros_like(spectra.f0_hz),
            np.frombuffer(to_pcm(samples), "<i2"),
        )


def syllable_error(
    predict: Predict, phrases: Sequence[Phrase], teacher: Sequence[SpokenPhrase], vocabulary: Mapping[str, int]
) -> float:
    """Return the share of syllables of phrases that a voice says unlike its teacher; 0 is perfect."""
    own, theirs = (
        [syllable for phrase in said for syllable in syllables(phrase, vocabulary)]
        for said in (spoken_by(predict, phrases), teacher)
    )
    return error_rate(own, theirs)


def error_rate(voice: Sequence[Syllable], teacher: Sequence[Syllable]) -> float:
    """Return the share of syllables of a voice that are most like another one of its teacher's."""
    templates = np.stack([syllable.features for syllable in teacher])
    wrong = 0
    for syllable in voice:
        nearest = int(np.square(templates - syllable.features).sum(1).argmin())
        wrong += teacher[nearest].ids != syllable.ids
    return wrong / len(voice)


def _relative_pitch(f0_hz: Floats) -> Floats:
    """Return the logarithm of the pitch relative to its median; unvoiced frames have that of those beside them."""
    voiced = np.flatnonzero(f0_hz > _VOICED_HZ)
    if not len(voiced):
        return np.zeros_like(f0_hz)
    log = np.log(f0_hz[voiced])
    return np.asarray(np.interp(np.arange(len(f0_hz)), voiced, log - np.median(log)), np.float32)


def _points(values: NDArray[Any]) -> Floats:
    """Return ``[T, N]`` at equally distant times, one after the other."""
    at = np.linspace(0, max(0, len(values) - 1), _POINTS).round().astype(int)
    return np.asarray(values[at].reshape(-1), np.float32)
