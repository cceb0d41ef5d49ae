"""How the words of a phrase are spoken, as values of its phoneme ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.phrases.text import Phrase
from tts_worker.types import NEUTRAL, Expression, Segment

SPEED_RANGE = (0.5, 2.0)

_SMOOTHING_FRAMES = 7
"""A change takes 90 ms: neither a click nor a jump."""


def expressed(
    phrase: Phrase,
    segment: Segment,
    outer: Expression,
    perform: Callable[[Expression], Expression],
    begun: int = 0,
) -> Phrase:
    """Return ``phrase`` with the expressions that the text of ``segment`` gives its words.

    Args:
        phrase: The phrase.
        segment: Its segment.
        outer: The expression of the session.
        perform: Adds what the voice makes of a style (``PhraseNetwork.perform``).
        begun: Number of words that keep their expression.
    """
    former = (phrase.expressions or (NEUTRAL,) * len(phrase.words))[:begun]
    words = phrase.words[begun:]
    expressions = (*former, *(perform(segment.expression_at(word.start_char).within(outer)) for word in words))
    return replace(phrase, expressions=expressions if any(each != NEUTRAL for each in expressions) else ())


def per_id(phrase: Phrase, values: Iterable[float]) -> Floats:
    """Return a value of each phoneme id ``[L] float32`` from those of the words. Spaces and marks have the last one.

    The pads, and marks before the first word, have its value.
    """
    starts = [word.first_id for word in phrase.words]
    words = np.searchsorted(starts, np.arange(len(phrase.ids)), side="right") - 1
    return np.fromiter(values, np.float32)[np.maximum(words, 0)]


def speeds_of(phrase: Phrase, speed: float) -> float | Floats:
    """Return the speed of each phoneme id ``[L]``, or one for all, if the utterance has ``speed``."""
    if not phrase.expressions:
        return speed
    speeds: Floats = np.clip(speed * per_id(phrase, (each.rate for each in phrase.expressions)), *SPEED_RANGE)
    return speeds


def slowest_speed(segment: Segment, speed: float) -> float:
    """Return the lowest speed of a segment if the utterance has ``speed``."""
    return max(SPEED_RANGE[0], speed * min((1.0, *(each.rate for _, each in segment.expressions))))


def smoothed(values: Floats) -> Floats:
    """Return the moving average of the values of frames ``[F]``."""
    padded = np.pad(values, _SMOOTHING_FRAMES // 2, mode="edge")
    return np.convolve(padded, np.full(_SMOOTHING_FRAMES, 1 / _SMOOTHING_FRAMES, np.float32), mode="valid")
