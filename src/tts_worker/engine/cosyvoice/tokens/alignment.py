"""Word timestamps estimated from the progress of speech tokens.

The networks predict no durations. The share of a word in a run follows from its length and the pace of the voice's
prompt and of finished runs. Once the end of a run is known, its words fill the run exactly. Word times depend on token
counts alone, never on time. Positions are speech tokens of an audio segment. Pure arithmetic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tts_worker.engine.cosyvoice.bundle.config import (
    DEFAULT_TOKENS_PER_WEIGHT,
    MAX_TOKENS_PER_WEIGHT,
    MIN_TOKENS_PER_WEIGHT,
)
from tts_worker.text.characters import word_weight
from tts_worker.text.spoken_words import SpokenWord

_RATE_HZ = 25  # of the figures of ``config``
_PAUSE_WEIGHTS = {**dict.fromkeys(".!?…。！？", 5), **dict.fromkeys(",;:，、；", 2)}


def estimate_pace(
    text: str, tokens: int, default: float = DEFAULT_TOKENS_PER_WEIGHT, token_rate_hz: int = _RATE_HZ
) -> float:
    """Return the tokens per unit of weight of ``text`` spoken in ``tokens``, or ``default`` if either is empty.

    ``default`` is a figure at 25 tokens per second.
    """
    scale = token_rate_hz / _RATE_HZ
    weight = text_weight(text)
    return _clamp_pace(tokens / weight, scale) if weight and tokens else default * scale


def text_weight(text: str) -> int:
    """Return the spoken weight of ``text``, pauses included."""
    return sum(map(_weight_with_pause, text.split()))


def _clamp_pace(pace: float, scale: float) -> float:
    return min(max(pace, MIN_TOKENS_PER_WEIGHT * scale), MAX_TOKENS_PER_WEIGHT * scale)


def _weight_with_pause(word: str) -> int:
    return word_weight(word) + _PAUSE_WEIGHTS.get(word.rstrip("\"')]}»”’ ")[-1:], 0)


def estimate_tokens(words: Iterable[SpokenWord], pace: float) -> float:
    """Return the estimated speech tokens of ``words`` at ``pace`` tokens per unit of weight."""
    return pace * sum(_weight_with_pause(word.text) for word in words)


@dataclass(frozen=True, slots=True)
class AlignedWord:
    """A word and its estimated position.

    Attributes:
        start_char: First character in the original text.
        end_char: End (exclusive) in the original text.
        start: First token in the audio segment; may be fractional.
        end: End (exclusive) in tokens; may be fractional.
    """

    start_char: int
    end_char: int
    start: float
    end: float


@dataclass(slots=True)
class _RunTiming:
    start: int
    words: deque[tuple[SpokenWord, int]] = field(default_factory=deque)  # and the token count when the model read it
    end: int | None = None
    weight: int = 0  # of all words of the run
    later_pace: float = 0.0  # after the end of the run
    position: float = 0.0  # start of the next word, in tokens
    final_words: list[AlignedWord] | None = None  # remaining words in reverse, once the end of the run is known


class WordAligner:
    """Estimates the positions of the words of one audio segment, which consists of language model runs.

    Attributes:
        pace: Tokens per unit of weight, of words whose run has not ended where they are reported.
        later_pace: Pace for the next audio segment. It depends on the runs that ended, not on what was reported.
    """

    def __init__(self, pace: float = DEFAULT_TOKENS_PER_WEIGHT, token_rate_hz: int = _RATE_HZ) -> None:
        self.pace = self.later_pace = pace
        self._scale = token_rate_hz / _RATE_HZ
        self._runs: deque[_RunTiming] = deque()
        self._reported_tokens = 0  # words that start before this token are reported

    def start_run(self, start: int) -> None:
        """Start a run at token ``start``."""
        self._runs.append(_RunTiming(start, position=start))

    def add_words(self, words: Sequence[SpokenWord], read_at: int) -> None:
        """Append words to the current run. ``read_at`` is the token count when the language model read them."""
        run = self._runs[-1]
        run.words.extend((word, read_at) for word in words)
        run.weight += sum(_weight_with_pause(word.text) for word in words)

    @property
    def expected_tokens(self) -> float:
        """Estimated total tokens of all runs so far."""
        return sum(run.end - run.start if run.end is not None else run.weight * self.pace for run in self._runs)

    def end_run(self, end: int) -> None:
        """End the current run before token ``end``, and learn from its pace."""
        run = self._runs[-1]
        run.end = end
        if run.weight and end > run.start:
            self.later_pace = _clamp_pace((self.later_pace + (end - run.start) / run.weight) / 2, self._scale)
        run.later_pace = self.later_pace

    def restart_run(self) -> None:
        """Start the current run again, without words. None of its words may be reported yet."""
        start = self._runs.pop().start
        self.start_run(start)

    def take_words(self, end: int, known: int, final: bool) -> list[AlignedWord]:
        """Return the words that start before token ``end``, in order, each once.

        Args:
            end: End of the chunk.
            known: Tokens that exist for this chunk, regardless of how fast they were drawn.
            final: Whether no more tokens follow.
        """
        aligned: list[AlignedWord] = []
        end = max(end, self._reported_tokens)
        while self._runs:
            run = self._runs[0]
            if run.start >= end and not final:
                break
            self._align(run, end, known, final, aligned)
            if run.final_words is None or run.final_words:
                break
            self._runs.popleft()
        self._reported_tokens = end
        return aligned

    def _align(self, run: _RunTiming, end: int, known: int, final: bool, aligned: list[AlignedWord]) -> None:
        # The end of a run is certain once a token of the next run lies before `known`.
        if run.final_words is None and run.end is not None and (final or run.end < known):
            self._align_remaining(run, run.end)
        if run.final_words is not None:
            while run.final_words and (final or run.final_words[-1].start < end):
                aligned.append(run.final_words.pop())
            return
        while run.words and run.position < end and run.words[0][1] < known:
            word, _ = run.words.popleft()
            start = max(run.position, float(self._reported_tokens))
            run.position = start + _weight_with_pause(word.text) * self.pace
            aligned.append(AlignedWord(word.start_char, word.end_char, start, min(run.position, end)))

    def _align_remaining(self, run: _RunTiming, end: int) -> None:
        """Share the rest of the run among its remaining words by weight, and take over its pace."""
        position = min(max(run.position, float(self._reported_tokens)), float(end))
        weight = sum(_weight_with_pause(word.text) for word, _ in run.words)
        tokens_per_weight = (end - position) / weight if weight else 0.0
        aligned = []
        for word, _ in run.words:
            # The minimum guards against rounding of the sum.
            word_end = min(position + tokens_per_weight * _weight_with_pause(word.text), float(end))
            aligned.append(AlignedWord(word.start_char, word.end_char, position, word_end))
            position = word_end
        run.words.clear()
        run.final_words = aligned[::-1]
        self.pace = run.later_pace
