"""Pure measures: which words were heard, when words begin, and steps of level and pitch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tts_worker.audio.loudness import integrated_lufs
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import SAMPLE_RATE_HZ, Boundary, Word

Floats = npt.NDArray[np.floating]

_REACH_S = 1.0
"""Speech before and after a join that is compared; about three words."""
_PITCH_RATE_HZ = 8_000
_PITCH_FRAME = 320  # 40 ms
_PITCH_HOP = 80
_LOWEST_HZ, _HIGHEST_HZ = 70, 400
_VOICED = 0.6  # of the energy of a frame repeats after a period
_PEAK = 0.9  # of the highest peak: the first one is the period, the next ones are twice, three times as long
_DRAWS = 2000


def letters_of(text: str) -> str:
    """Letters and digits in lower case."""
    return "".join(char for char in text.lower() if char.isalnum())


def heard_words(words: Sequence[str], recognized: str) -> int:
    """Return how many of the first ``words`` were heard.

    It is the beginning of the text that differs least from ``recognized``, in edits of letters: a word that is
    recognized as another one still counts.
    """
    heard = letters_of(recognized)
    row = list(range(len(heard) + 1))  # edits from the letters said so far to each beginning of ``heard``
    best, fewest = 0, len(heard)
    for number, word in enumerate(words, 1):
        for letter in letters_of(word):
            above, row[0] = row[0], row[0] + 1
            for i, other in enumerate(heard, 1):
                above, row[i] = row[i], min(row[i] + 1, row[i - 1] + 1, above + (letter != other))
        if row[-1] < fewest:
            best, fewest = number, row[-1]
    return best


def time_errors_s(said: Sequence[tuple[str, float]], recognized: Sequence[tuple[str, float]]) -> list[float]:
    """Return by how much the words that were recognized begin later than announced; both are words and seconds."""
    matcher = SequenceMatcher(None, [word for word, _ in said], [word for word, _ in recognized], autojunk=False)
    return [
        recognized[block.b + place][1] - said[block.a + place][1]
        for block in matcher.get_matching_blocks()
        for place in range(block.size)
    ]


@dataclass(frozen=True)
class Joins:
    """Samples of an utterance: where clauses and sentences begin, and other words."""

    clauses: tuple[int, ...]
    sentences: tuple[int, ...]
    elsewhere: tuple[int, ...]


def joins_of(text: str, words: Sequence[Word]) -> Joins:
    """Find the joins: the first word of a segment begins exactly where its run of the language model does."""
    pipeline = TextPipeline(TextOptions())
    segments = [*pipeline.feed(text), *pipeline.end()]
    found: dict[bool, list[int]] = {True: [], False: []}
    for before, segment in pairwise(segments):
        first = next((word for word in words if word.start_char >= segment.start), None)
        if first is not None:
            found[before.boundary is Boundary.SENTENCE].append(first.start_sample)
    joins = [*found[True], *found[False]]
    reach = round(_REACH_S * SAMPLE_RATE_HZ)
    others = [word.start_sample for word in words if all(abs(word.start_sample - join) >= reach for join in joins)]
    return Joins(tuple(found[False]), tuple(found[True]), tuple(others))


def level_step_lu(audio: Floats, at: int) -> float:
    """Return the step of the gated loudness of one second after and before sample ``at``; NaN at an end."""
    reach = round(_REACH_S * SAMPLE_RATE_HZ)
    if at < reach or at + reach > len(audio):
        return math.nan
    before, after = (integrated_lufs(part, SAMPLE_RATE_HZ) for part in (audio[at - reach : at], audio[at:][:reach]))
    step = after - before
    return step if math.isfinite(step) else math.nan


def pitch_step(pitch_hz: Floats, at: int) -> float:
    """Return the step of the median pitch (``pitches_hz``) of one second, in semitones; NaN if either has no voice."""
    frame = at * _PITCH_RATE_HZ // SAMPLE_RATE_HZ // _PITCH_HOP
    reach = round(_REACH_S * _PITCH_RATE_HZ / _PITCH_HOP)
    if frame < reach or frame + reach > len(pitch_hz):
        return math.nan
    parts = pitch_hz[frame - reach : frame], pitch_hz[frame : frame + reach]
    if min(np.count_nonzero(part) for part in parts) < reach // 10:
        return math.nan
    before, after = (float(np.median(part[part > 0])) for part in parts)
    return 12 * math.log2(after / before)


def pitches_hz(audio: Floats) -> Floats:
    """Return the pitch of every 10 ms by autocorrelation; 0 where the audio has no voice."""
    factor = SAMPLE_RATE_HZ // _PITCH_RATE_HZ
    usable = len(audio) // factor * factor
    low = np.pad(audio[:usable].reshape(-1, factor).mean(1), _PITCH_FRAME)  # averaging is the low-pass filter
    frames = np.lib.stride_tricks.sliding_window_view(low, _PITCH_FRAME)[_PITCH_FRAME::_PITCH_HOP]
    frames = (frames - frames.mean(1, keepdims=True)) * np.hanning(_PITCH_FRAME)
    spectrum = np.fft.rfft(frames, 2 * _PITCH_FRAME)
    correlation = np.fft.irfft(np.abs(spectrum) ** 2)[:, :_PITCH_FRAME]
    window = np.fft.irfft(np.abs(np.fft.rfft(np.hanning(_PITCH_FRAME), 2 * _PITCH_FRAME)) ** 2)[:_PITCH_FRAME]
    energy = correlation[:, :1] + 1e-9
    shortest, longest = _PITCH_RATE_HZ // _HIGHEST_HZ, _PITCH_RATE_HZ // _LOWEST_HZ
    likeness = (correlation / energy)[:, shortest : longest + 1] / (window / window[0])[shortest : longest + 1]
    highest = np.maximum(likeness.max(1, keepdims=True), _VOICED)
    inner = likeness[:, 1:-1]
    is_peak = (inner >= likeness[:, :-2]) & (inner > likeness[:, 2:]) & (inner >= _PEAK * highest)
    is_voiced = is_peak.any(1) & (energy[:, 0] > 1e-3 * energy.max())
    return np.where(is_voiced, _PITCH_RATE_HZ / (is_peak.argmax(1) + 1 + shortest), 0.0)


def compared(steps: Sequence[float], others: Sequence[float], seed: int = 0) -> dict[str, float | int | list[float]]:
    """Compare the median size of ``steps`` with that of as many random ``others``.

    Returns:
        Number and median size of the steps, median size elsewhere, and the range of 95 % of the draws.
    """
    sizes = np.abs([step for step in steps if math.isfinite(step)])
    pool = np.abs([step for step in others if math.isfinite(step)])
    if not len(sizes) or not len(pool):
        return {"count": len(sizes)}
    draws = np.median(np.random.default_rng(seed).choice(pool, (_DRAWS, len(sizes))), axis=1)
    return {
        "count": len(sizes),
        "median": round(float(np.median(sizes)), 2),
        "elsewhere": round(float(np.median(pool)), 2),
        "usual": [round(float(limit), 2) for limit in np.quantile(draws, (0.025, 0.975))],
    }
