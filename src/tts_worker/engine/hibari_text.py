"""How the CPU voice reads: a segment's text becomes phrases of phoneme ids that know which original words they say.

Owns the safety of the reading (markup cannot be smuggled in, no word or phrase is unbounded, what cannot be said is
skipped) and the bridge from phonemes back to the original words. Knows hibari's G2P and vocabulary as data it is
given; knows no model, no sound and no utterance.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tts_worker.text.spoken_words import SpokenWord, source_ranges, spoken_words
from tts_worker.types import Boundary, Segment

MAX_PHONEMES = 200
"""Of one phrase at normal pace: some 12 s of speech, 40 ms of one core in the network."""

MAX_READ_CHARS = 250
"""Of one reading: the G2P takes about a millisecond for so much."""

_PAD_ID = 0
_LONGEST_WORD_CHARS = 30  # the G2P's time grows with the cube of what stands without a space
_WORD_PIECE_CHARS = 24
_MOST_DIGITS = 15  # longer numbers are read digit by digit; the G2P has no names for them

_DIGITS = re.compile(rf"\d{{{_MOST_DIGITS + 1},}}")
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD_CHARS + 1},}}")
_INNER_BREAK = re.compile(r"(?<=[^\w\s])(?=\w)")
_LONG_PIECE = re.compile(rf"\S{{{_WORD_PIECE_CHARS}}}(?=\S)")
_READ_NUMERALS = "½¼¾²³"
_CLAUSE_MARKS = frozenset(",;:.!?—…")
_STRESSES = frozenset("ˈˌ")
_NO_SOUND = frozenset(' ;:,.!?—…"()“”ː↓→↗↘')
_SENTENCE_MARKS = frozenset(".!?…")


@dataclass(frozen=True, slots=True)
class Mark:
    """Original characters ``[start_char, end_char)`` are said by the phoneme ids ``[first, last)`` of a phrase."""

    start_char: int
    end_char: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Phrase:
    """What the network says in one go: phoneme ids with the pads it wants at both ends. ``boundary`` says which pause
    follows; ``marks`` are in order and do not overlap."""

    ids: tuple[int, ...]
    marks: tuple[Mark, ...]
    boundary: Boundary


@dataclass(frozen=True, slots=True)
class _Unit:
    """A word as the G2P reads it and the range of the segment's text it came from."""

    start: int
    end: int
    phonemes: str


class Reader:
    """Reads segments with hibari's American English G2P.

    ``g2p`` is a ``hibari.g2p.G2P``, ``normalise`` its ``normalize``, ``make_token`` its ``Tok``; ``vocabulary`` maps a
    phoneme character to its id. Characters that are not in it are skipped.
    """

    def __init__(
        self,
        g2p: Any,
        normalise: Callable[[str], str],
        make_token: Callable[..., Any],
        vocabulary: Mapping[str, int],
    ) -> None:
        self.g2p = g2p
        self._normalise = normalise
        self.make_token = make_token
        self.vocabulary = vocabulary
        self._silent_ids = frozenset(vocabulary[char] for char in _NO_SOUND | _STRESSES if char in vocabulary)
        self._stress_ids = frozenset(vocabulary[char] for char in _STRESSES if char in vocabulary)

    def read(self, segment: Segment, most_phonemes: int = MAX_PHONEMES) -> Iterator[Phrase | None]:
        """The phrases of a segment, lazily: each item costs a bounded piece of work. None is work without a phrase
        (nothing in this piece of text has a sound). The last phrase carries the segment's boundary, if it is said."""
        words = _Words(spoken_words(segment))
        pending: Phrase | None = None
        for runs in _pieces(segment):
            units = self._read_safely(runs)
            said = False
            for phrase in self._phrases(units, words, most_phonemes):
                if pending is not None:
                    yield pending
                pending = phrase
                said = True
            if not said:
                yield None
        if pending is not None:
            yield Phrase(pending.ids, pending.marks, segment.boundary)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read_safely(self, runs: Sequence[_Run]) -> list[_Unit]:
        """The words of some runs of text. What the G2P cannot take is left out, so that one word does not silence the
        rest: its dictionaries and rules are large, and nobody has read all of Unicode to them."""
        try:
            return self._read_piece(runs)
        except Exception:
            units: list[_Unit] = []
            for alone in _single_words(runs):
                with suppress(Exception):
                    units += self._read_piece([alone])
            return units

    def _read_piece(self, runs: Sequence[_Run]) -> list[_Unit]:
        """The words of some runs of text, with their phonemes. Raises what the G2P raises."""
        tokens: list[Any] = []
        chunks: list[tuple[int, int]] = []  # source range of every whitespace-separated stretch of tokens
        glued = False  # the last chunk goes on: no space has come since
        for run in runs:
            if run.phonemes is not None:
                token = self.make_token(run.text, "NN", "", phonemes=run.phonemes, rating=5)
                fresh = [token]
                ranges = [(run.start, run.start + len(run.text))]
                opens = glued
            else:
                said = self._normalise(_bounded(run.text))
                pairs = self.g2p.tokenizer(said)
                tags = self.g2p.tagger([text for text, _ in pairs]) if pairs else []
                fresh = [self.make_token(text, tag, space) for (text, space), tag in zip(pairs, tags, strict=True)]
                ranges = [(run.start + start, run.start + end) for start, end in source_ranges(run.text, said)]
                opens = glued and not run.text[:1].isspace()
            if glued and not opens:
                tokens[-1].whitespace = " "
            if fresh:
                if opens and chunks:
                    start, end = ranges[0]
                    chunks[-1] = (min(chunks[-1][0], start), max(chunks[-1][1], end))
                    ranges = ranges[1:]
                chunks += ranges
                tokens += fresh
                glued = not (run.phonemes is None and run.text[-1:].isspace())
                tokens[-1].whitespace = "" if glued else " "
            elif run.text[-1:].isspace():
                glued = False
        return list(_units(self.g2p.phonemize_tokens(tokens), chunks)) if tokens else []

    # -- phrases ------------------------------------------------------------------------------------------------------

    def _phrases(self, units: Sequence[_Unit], words: _Words, most: int) -> Iterator[Phrase]:
        """Pack words into phrases of at most ``most`` phonemes, cut after punctuation where there is some."""
        line: list[tuple[_Unit, list[int]]] = []
        length = 0
        for unit in units:
            ids = [self.vocabulary[char] for char in unit.phonemes if char in self.vocabulary]
            for start in range(0, len(ids), most):
                part = ids[start : start + most]
                while line and length + 1 + len(part) > most:
                    cut = _best_cut(line)
                    yield from self._phrase(line[:cut], words)
                    line = line[cut:]
                    length = sum(len(said) + 1 for _, said in line)
                line.append((unit, part))
                length += len(part) + 1
        yield from self._phrase(line, words)

    def _phrase(self, line: Sequence[tuple[_Unit, list[int]]], words: _Words) -> Iterator[Phrase]:
        ids = [_PAD_ID]
        placed: list[tuple[int, int, int, int]] = []  # source range, range of the ids that sound
        for unit, said in line:
            if len(ids) > 1:
                ids.append(self.vocabulary[" "])
            sounding = [index for index, phoneme in enumerate(said, len(ids)) if phoneme not in self._silent_ids]
            if sounding:
                first = sounding[0]
                while first > len(ids) and said[first - 1 - len(ids)] in self._stress_ids:
                    first -= 1  # the network gives part of a stressed sound's time to the mark before it
                placed.append((unit.start, unit.end, first, sounding[-1] + 1))
            ids += said
        ids.append(_PAD_ID)
        if placed:
            yield Phrase(tuple(ids), _marks(placed, words), _pause_within(line[-1][0].phonemes))


def _pause_within(phonemes: str) -> Boundary:
    """The pause between two phrases of one segment: that of the punctuation before the cut."""
    last = phonemes.rstrip('"”)')[-1:]
    if last in _SENTENCE_MARKS:
        return Boundary.SENTENCE
    return Boundary.CLAUSE if last in _CLAUSE_MARKS else Boundary.FORCED


def _best_cut(line: Sequence[tuple[_Unit, list[int]]]) -> int:
    """How many words of a full line to say now: up to the last punctuation in its second half, else all."""
    total = sum(len(said) for _, said in line)
    for cut in range(len(line), 0, -1):
        if 2 * sum(len(said) for _, said in line[:cut]) < total:
            break
        if line[cut - 1][0].phonemes[-1:] in _CLAUSE_MARKS:
            return cut
    return len(line)


def _units(tokens: Sequence[Any], chunks: Sequence[tuple[int, int]]) -> Iterator[_Unit]:
    """Join tokens that stand without a space between them; they are the chunks, one for one."""
    place = 0
    phonemes = ""
    for index, token in enumerate(tokens):
        phonemes += token.phonemes or ""
        if token.whitespace or index == len(tokens) - 1:
            # The G2P keeps spaces as they are; should it lose one, the rest is timed with the last chunk.
            start, end = chunks[min(place, len(chunks) - 1)]
            if phonemes.strip():
                yield _Unit(start, end, phonemes.strip())
            place = place + 1
            phonemes = ""


class _Words:
    """The original words of a segment, found by place in its spoken text."""

    def __init__(self, words: Sequence[SpokenWord]) -> None:
        self._words = words
        self._starts = [word.spoken_start for word in words]
        self._ends = [word.spoken_end for word in words]

    def within(self, start: int, end: int) -> list[SpokenWord]:
        """Those that overlap ``[start, end)`` of the spoken text."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        return list(self._words[first:last])


def _marks(placed: Sequence[tuple[int, int, int, int]], words: _Words) -> tuple[Mark, ...]:
    """Which ids say which original word. Ids that say several words ("7:30 pm" is read as one time) are shared in
    proportion to the characters of each."""
    marks: list[Mark] = []
    for start, end, first, last in placed:
        said = words.within(start, end)
        shares = [min(end, word.spoken_end) - max(start, word.spoken_start) for word in said]
        done = 0
        total = max(1, sum(shares))
        for word, share in zip(said, shares, strict=True):
            begin = first + (last - first) * done // total
            done += share
            finish = first + (last - first) * done // total
            if marks and marks[-1].start_char == word.start_char:
                marks[-1] = Mark(word.start_char, word.end_char, marks[-1].first, finish)
            elif not marks or word.start_char >= marks[-1].end_char:
                marks.append(Mark(word.start_char, word.end_char, begin, finish))
    return tuple(marks)


# -- text that the G2P can take ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """A stretch of the segment's text that begins at ``start``; said as ``phonemes`` if they are given."""

    text: str
    start: int
    phonemes: str | None = None


def _pieces(segment: Segment) -> Iterator[list[_Run]]:
    """The segment's text in pieces of bounded length, cut at spaces where there are some."""
    piece: list[_Run] = []
    room = MAX_READ_CHARS
    for run in _runs(segment):
        rest = run
        while rest.text:
            if rest.phonemes is not None or len(rest.text) <= room:
                piece.append(rest)
                room -= len(rest.text)
                break
            cut = _cut_before(rest.text, room)
            if cut:
                piece.append(_Run(rest.text[:cut], rest.start))
                rest = _Run(rest.text[cut:], rest.start + cut)
            if piece:
                yield piece
            piece = []
            room = MAX_READ_CHARS
        if room <= 0:
            yield piece
            piece = []
            room = MAX_READ_CHARS
    if piece:
        yield piece


def _cut_before(text: str, room: int) -> int:
    """Where to cut ``text`` so that at most ``room`` characters come before: after the last clause if that leaves half
    of the room used, else after the last space. 0 where the next piece begins better."""
    spaces = [index for index in range(1, room + 1) if text[index - 1].isspace()]
    for index in reversed(spaces):
        if 2 * index < room:
            break
        if text[index - 2] in _CLAUSE_MARKS:
            return index
    if spaces:
        return spaces[-1]
    return room if room == MAX_READ_CHARS else 0


def _runs(segment: Segment) -> Iterator[_Run]:
    """Spans joined where the G2P decides how they sound: a word may go on in the next span."""
    text = ""
    begin = 0
    place = 0
    for span in segment.spans:
        if span.phonemes is not None and span.text:
            if text:
                yield _Run(text, begin)
            yield _Run(span.text, place, span.phonemes)
            text = ""
            begin = place + len(span.text)
        else:
            text += span.text
        place += len(span.text)
    if text:
        yield _Run(text, begin)


def _single_words(runs: Sequence[_Run]) -> Iterator[_Run]:
    for run in runs:
        if run.phonemes is not None:
            yield run
        else:
            for word in re.finditer(r"\S+", run.text):
                yield _Run(word.group(), run.start + word.start())


def _bounded(text: str) -> str:
    """``text`` in a form whose reading takes bounded time: no word beyond 30 characters, no number without a name, no
    control or format characters. The G2P's own markup is not an issue: the reader never uses the entry that knows it.
    """
    clean = "".join(map(_harmless, text))
    clean = _DIGITS.sub(lambda digits: " ".join(digits.group()), clean)
    return _LONG_WORD.sub(lambda word: _LONG_PIECE.sub(r"\g<0> ", _INNER_BREAK.sub(" ", word.group())), clean)


def _harmless(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Cf":  # joiners and direction marks lie within words
        return ""
    if category in ("Cc", "Cs"):
        return " "
    if category in ("Nd", "No") and not char.isascii() and char not in _READ_NUMERALS:
        # The G2P takes every digit of Unicode for a number, but counts in ASCII only.
        return str(unicodedata.digit(char, " "))
    if len(char.lower()) != 1:  # "İ": the G2P looks at lower-case letters one by one
        return unicodedata.normalize("NFKD", char)[0]
    return char
