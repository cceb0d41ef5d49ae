"""What has been said so far: ties spoken text, original text and samples together.

Owns the original words of a segment (``spoken_words``), the honest guess of their times (``spread``) and where a
receipt cuts the text (``split_spoken``); ``project`` ties a rewriting to its source. Pure functions over strings and
integers; knows no stream, no engine, no clock, and never sees sound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tts_worker.text.characters import cluster_end, is_closer, is_opener, is_spoken
from tts_worker.text.rewrite_alignment import breaks_before, source_ranges, word_weight
from tts_worker.types import Segment, WordTiming

__all__ = ["SpokenWord", "estimate_timings", "source_ranges", "split_spoken", "spoken_words"]

# Pauses after a word, in the unit of ``spoken_weight`` (about 1/15 s).
_CLAUSE_PAUSE = 2
_SENTENCE_PAUSE = 5


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """An original word, characters ``[start_char, end_char)`` of the original text, and where ``segment.text`` says it:
    ``[spoken_start, spoken_end)``, punctuation included. ``text`` is that part of ``segment.text``."""

    start_char: int
    end_char: int
    spoken_start: int
    spoken_end: int
    text: str = ""


# -- the words of a segment -------------------------------------------------------------------------------------------


def spoken_words(segment: Segment) -> tuple[SpokenWord, ...]:
    """The original words that ``segment`` says, in order.

    A word is a run of original characters without whitespace, punctuation attached as in the original; in scripts
    without spaces, one grapheme cluster. A rewritten span ("$100" said as "one hundred dollars") is never split, so it
    stays one word, or one with its neighbours if no space lies between. Characters that a filter removed belong to no
    word: a word ends where they are. Punctuation alone is no word; its place in ``segment.text`` goes to the word
    before it (the first word, at the start). Ranges are disjoint and increasing, in the original and in the spoken
    text.
    """
    text = segment.text
    words: list[SpokenWord] = []
    spoken = 0  # where an unclaimed stretch of ``text`` begins
    for start, end, first, last, sounds in _pieces(segment):
        if not sounds:
            if words:  # the pause of this punctuation is the word's before it
                before = words[-1]
                words[-1] = SpokenWord(
                    before.start_char, before.end_char, before.spoken_start, last, text[before.spoken_start : last]
                )
                spoken = last
            continue
        if words or text[spoken:first].isspace():
            spoken = first
        words.append(SpokenWord(start, end, spoken, last, text[spoken:last]))
        spoken = last
    return tuple(words)


def _pieces(segment: Segment) -> Iterator[tuple[int, int, int, int, bool]]:
    """``(start_char, end_char, spoken_start, spoken_end, sounds)`` of every run of non-space original characters."""
    run: tuple[int, int, int, int, bool] | None = None
    last_char = ""  # of the run
    offset = 0
    for span in segment.spans:
        if not span.text:
            continue
        if span.phonemes is not None or len(span.text) != span.end - span.start:
            # Rewritten or inserted: said as a whole.
            offset += len(span.text)
            if span.text.isspace() and span.phonemes is None:
                if run is not None and span.end > span.start:
                    yield run
                    run = None
                continue
            sounds = span.phonemes is not None or any(map(is_spoken, span.text))
            begins = offset - len(span.text)
            inserted = span.end == span.start
            if run is not None and span.start == run[1] and (inserted or not breaks_before(last_char, span.text[0])):
                run = (run[0], span.end, run[2], offset, run[4] or (sounds and not inserted))
            else:
                if run is not None:
                    yield run
                run = (span.start, span.end, begins, offset, sounds and not inserted)
            last_char = span.text[-1]
            continue
        for step, char in enumerate(span.text):
            place = span.start + step
            if char.isspace():
                if run is not None:
                    yield run
                run = None
            elif run is None or place != run[1] or breaks_before(last_char, char):
                if run is not None:
                    yield run
                run = (place, place + 1, offset + step, offset + step + 1, is_spoken(char))
            else:
                run = (run[0], place + 1, run[2], offset + step + 1, run[4] or is_spoken(char))
            last_char = char
        offset += len(span.text)
    if run is not None:
        yield run


# -- time -------------------------------------------------------------------------------------------------------------


def estimate_timings(words: Sequence[SpokenWord], start_sample: int, end_sample: int) -> tuple[WordTiming, ...]:
    """An estimate of when ``words`` sound within ``[start_sample, end_sample)``, for engines that know no durations.

    Time is shared by spoken weight: letters count one, digits, symbols and ideographs more; commas and stops take a
    pause after the word (not after the last: engines trim it). Monotonic, inside the range, first word at its start,
    last word to its end; say ``Alignment.ESTIMATED`` with it.
    """
    end_sample = max(start_sample, end_sample)
    shares = [(word_weight(word.text) if word.text else 1 + word.spoken_end - word.spoken_start) for word in words]
    pauses = [_pause(word.text) for word in words[:-1]] + [0]
    total = sum(shares) + sum(pauses)
    length = end_sample - start_sample
    timings: list[WordTiming] = []
    done = 0
    for word, share, pause in zip(words, shares, pauses, strict=False):
        begin = start_sample + length * done // total
        finish = start_sample + length * (done + share) // total
        timings.append(WordTiming(word.start_char, word.end_char, begin, finish))
        done += share + pause
    return tuple(timings)


def _pause(text: str) -> int:
    """The pause that the punctuation at the end of a word asks for, in the unit of ``spoken_weight``."""
    end = len(text)
    while end and is_closer(text[end - 1]):
        end -= 1
    last = text[end - 1 : end]
    if last and last in ".!?…。！？।؟۔":
        return _SENTENCE_PAUSE
    return _CLAUSE_PAUSE if last and last in ",;:—–，、；：،؛-" else 0


def split_spoken(text: str, words: Sequence[WordTiming], position_samples: int, fully_played: bool) -> int:
    """Where a receipt cuts ``text``: the offset between what was spoken and what remains.

    * ``fully_played``: everything, ``len(text)``, also what no word covers (a filtered tail).
    * Nothing heard (``position_samples <= 0``) or no word heard: 0.
    * A word counts as spoken when at least half of its samples were heard; the first word that does not ends the
      search, so that the spoken part is one piece from the start.
    * The cut lies after the last spoken word and whatever hangs on it (closing quotes, Markdown that was filtered), up
      to the next whitespace or the next word; whitespace belongs to what remains.
    * A grapheme cluster is never cut: the cut moves behind it.
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
