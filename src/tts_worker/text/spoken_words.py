"""Maps spoken text to original text and samples.

``spoken_words`` finds the original words of a segment, and ``split_spoken`` finds where a playback report splits the
text. Pure functions over strings and integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tts_worker.text.characters import breaks_before, cluster_end, is_opener, is_spoken
from tts_worker.types import Receipt, Segment, Word, WordTiming


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """One original word and where ``segment.text`` contains it.

    Attributes:
        start_char: Start in the original text.
        end_char: End in the original text (exclusive).
        spoken_start: Start in ``segment.text``, punctuation included.
        spoken_end: End in ``segment.text`` (exclusive).
        text: ``segment.text[spoken_start:spoken_end]``.
    """

    start_char: int
    end_char: int
    spoken_start: int
    spoken_end: int
    text: str = ""


# -- the words of a segment -------------------------------------------------------------------------------------------


def spoken_words(segment: Segment) -> tuple[SpokenWord, ...]:
    """Return the original words that ``segment`` speaks, in order.

    A word is a run of original characters without whitespace, with punctuation attached as in the original; in scripts
    without spaces it is one grapheme cluster. A rewritten span ("$100" spoken as "one hundred dollars") is never split:
    it is one word, joined with its neighbors if no space separates them. Filtered characters belong to no word and end
    it. Punctuation alone is not a word; its place in ``segment.text`` goes to the preceding word, or to the first word
    at the start. Ranges are disjoint and increasing in the original and in the spoken text.
    """
    text = segment.text
    words: list[SpokenWord] = []
    spoken = 0  # end of the text that is assigned to a word
    for run in _runs(segment):
        if not run.is_audible:
            if words:  # the pause of this punctuation belongs to the preceding word
                spoken = run.spoken_end
                words[-1] = replace(words[-1], spoken_end=spoken, text=text[words[-1].spoken_start : spoken])
            continue
        if words or text[spoken : run.spoken_start].isspace():
            spoken = run.spoken_start
        words.append(SpokenWord(run.start_char, run.end_char, spoken, run.spoken_end, text[spoken : run.spoken_end]))
        spoken = run.spoken_end
    return tuple(words)


@dataclass(slots=True)
class _Run:
    """Original characters ``[start_char, end_char)`` spoken as ``segment.text[spoken_start:spoken_end]``."""

    start_char: int
    end_char: int
    spoken_start: int
    spoken_end: int
    is_audible: bool
    is_space: bool = False

    @property
    def is_inserted(self) -> bool:
        return self.start_char == self.end_char


def _runs(segment: Segment) -> Iterator[_Run]:
    """Yield the runs of original characters without whitespace, rewritten spans included."""
    text = segment.text
    run: _Run | None = None
    for part in _parts(segment):
        if part.is_space:
            if run is not None and not part.is_inserted:
                yield run
                run = None
        elif run is not None and _continues(text, run, part):
            run.end_char = part.end_char
            run.spoken_end = part.spoken_end
            run.is_audible = run.is_audible or part.is_audible
        else:
            if run is not None:
                yield run
            run = part
    if run is not None:
        yield run


def _continues(text: str, run: _Run, part: _Run) -> bool:
    """Return whether ``part`` belongs to the same word as ``run``."""
    if part.start_char != run.end_char:
        return False
    return part.is_inserted or not breaks_before(text[run.spoken_end - 1], text[part.spoken_start])


def _parts(segment: Segment) -> Iterator[_Run]:
    """Yield every plain character, and every rewritten or inserted span as a whole."""
    offset = 0
    for span in segment.spans:
        if span.phonemes is not None or len(span.text) != span.end - span.start:
            end = offset + len(span.text)
            is_audible = span.phonemes is not None or any(map(is_spoken, span.text))
            is_space = span.text.isspace() and span.phonemes is None
            if span.text:
                yield _Run(span.start, span.end, offset, end, is_audible and span.start < span.end, is_space)
        else:
            for step, char in enumerate(span.text):
                place = span.start + step
                yield _Run(place, place + 1, offset + step, offset + step + 1, is_spoken(char), char.isspace())
        offset += len(span.text)


# -- playback reports -------------------------------------------------------------------------------------------------


def cut_at(report: Receipt, position_samples: int, *, fully_played: bool = False) -> Receipt:
    """Return a playback report for audio that was played up to a position.

    Args:
        report: The report; its ``text_spoken`` is cut, as its words tell.
        position_samples: Samples played.
        fully_played: Whether everything was played, including text that no word covers.
    """
    return report.split(split_spoken(report.text_spoken, report.words, position_samples, fully_played))


def split_spoken(text: str, words: Sequence[WordTiming | Word], position_samples: int, fully_played: bool) -> int:
    """Return the offset in ``text`` that separates the spoken from the remaining part.

    A word counts as spoken once at least half of its samples are played. The first word below that ends the search, so
    that the spoken part is contiguous. The split lies after the last spoken word and the characters attached to it
    (closing quotes, filtered Markdown), up to the next whitespace or word; whitespace belongs to the remaining part. A
    grapheme cluster is never split.

    Args:
        text: Original text of the utterance.
        words: Word times, in order.
        position_samples: Samples played; 0 or less returns 0.
        fully_played: Whether everything was played; returns ``len(text)``, including text that no word covers.
    """
    if fully_played:
        return len(text)
    if position_samples <= 0:
        return 0
    cut = 0
    following = len(text)
    for word in words:
        if 2 * position_samples < word.start_sample + word.end_sample:
            following = word.start_char
            break
        cut = max(cut, word.end_char)
    if cut <= 0:
        return 0
    cut = min(cut, len(text))
    while cut < min(following, len(text)) and not text[cut].isspace() and not is_opener(text[cut]):
        cut += 1
    return cluster_end(text, cut)
