"""From the progress of speech tokens to word times: an estimate, and an honest one.

The networks know no durations, so a word's share of a run follows from its length, the pace from the voice's prompt
and from the runs that ended; where a run's end is known, its words fill it exactly. Word times depend on token counts
alone, never on when something was computed. Pure arithmetic; positions are speech tokens of a passage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tts_worker.text.rewrite_alignment import word_weight
from tts_worker.text.spoken_words import SpokenWord

USUAL_TOKENS_PER_WEIGHT = 25 / 15
"""25 speech tokens a second; 15 units of spoken weight a second."""

_SLOWEST = 4.0
_FASTEST = 0.7
_PAUSES = {".": 5, "!": 5, "?": 5, "…": 5, "。": 5, "！": 5, "？": 5, ",": 2, ";": 2, ":": 2, "，": 2, "、": 2, "；": 2}


def pace_of(text: str, tokens: int) -> float:
    """Tokens per unit of weight of somebody who said ``text`` in so many ``tokens``; usual if that says nothing."""
    weight = sum(word_weight(word) for word in text.split())
    return _sane(tokens / weight) if weight and tokens else USUAL_TOKENS_PER_WEIGHT


def _sane(pace: float) -> float:
    return min(max(pace, _FASTEST), _SLOWEST)


def _cost(word: SpokenWord) -> int:
    """Weight of a word and of the pause that follows it."""
    said = word.text.rstrip("\"')]}»”’ ")
    return word_weight(word.text) + _PAUSES.get(said[-1:], 0)


@dataclass(frozen=True, slots=True)
class PlacedWord:
    """Original characters ``[start_char, end_char)`` sound in tokens ``[start, end)`` of the passage."""

    start_char: int
    end_char: int
    start: float
    end: float


@dataclass(slots=True)
class _Run:
    start: int
    words: deque[tuple[SpokenWord, int]] = field(default_factory=deque)  # and the token count at which it was read
    end: int | None = None
    weight: int = 0  # of all its words
    at: float = 0.0  # where the next word begins
    settled: list[PlacedWord] | None = None  # once its end is known: the words that are left, in reverse


class WordClock:
    """The words of one passage, which consists of runs of the language model."""

    def __init__(self, pace: float = USUAL_TOKENS_PER_WEIGHT) -> None:
        self.pace = pace
        self._runs: deque[_Run] = deque()
        self._told = 0  # words that begin before this token are told

    def begin(self, start: int) -> None:
        """A run begins at token ``start``."""
        self._runs.append(_Run(start, at=start))

    def add(self, words: Sequence[SpokenWord], since: int) -> None:
        """The present run will say ``words``; the language model read them when there were ``since`` tokens."""
        run = self._runs[-1]
        run.words.extend((word, since) for word in words)
        run.weight += sum(map(_cost, words))

    @property
    def expected_tokens(self) -> float:
        """How many tokens the runs so far will have, as far as one can tell."""
        return sum(run.end - run.start if run.end is not None else run.weight * self.pace for run in self._runs)

    def finish(self, end: int) -> None:
        """The present run ended before token ``end``."""
        self._runs[-1].end = end

    def restart(self) -> None:
        """The present run begins again (none of it was heard) and has no words yet."""
        start = self._runs.pop().start
        self.begin(start)

    def take(self, end: int, known: int, final: bool) -> list[PlacedWord]:
        """The words that begin before token ``end``, in order, each once. ``known``: tokens that exist for certain,
        however fast they came; ``final``: there will be no others."""
        placed: list[PlacedWord] = []
        end = max(end, self._told)
        while self._runs:
            run = self._runs[0]
            if run.start >= end and not final:
                break
            self._place(run, end, known, final, placed)
            if run.settled is None or run.settled:
                break
            self._runs.popleft()
        self._told = end
        return placed

    def _place(self, run: _Run, end: int, known: int, final: bool, placed: list[PlacedWord]) -> None:
        # An end is known for certain where a token of the next run lies before ``known``.
        if run.settled is None and run.end is not None and (final or run.end < known):
            self._settle(run, run.end)
        if run.settled is not None:
            while run.settled and (final or run.settled[-1].start < end):
                placed.append(run.settled.pop())
            return
        while run.words and run.at < end and run.words[0][1] < known:
            word, _ = run.words.popleft()
            start = max(run.at, float(self._told))
            run.at = start + _cost(word) * self.pace
            placed.append(PlacedWord(word.start_char, word.end_char, start, min(run.at, end)))

    def _settle(self, run: _Run, end: int) -> None:
        """All that is left of the run is shared among the words that are left."""
        at = min(max(run.at, float(self._told)), float(end))
        left = sum(_cost(word) for word, _ in run.words)
        unit = (end - at) / left if left else 0.0
        settled = []
        for word, _ in run.words:
            finish = min(at + unit * _cost(word), float(end))  # sums round
            settled.append(PlacedWord(word.start_char, word.end_char, at, finish))
            at = finish
        run.words.clear()
        run.settled = settled[::-1]
        if run.weight and end > run.start:
            self.pace = _sane((self.pace + (end - run.start) / run.weight) / 2)
