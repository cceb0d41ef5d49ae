"""Cuts filtered text into segments while it arrives.

The first clause is emitted early, later segments are longer. Sentences always end a segment; numbers, abbreviations and
words are never cut unless they are too long. The segmenter is an automaton over single characters, so the segments do
not depend on how the stream is split.

Delay: a sentence is emitted with the space after its stop; with the next letter after a stop that may belong to an
abbreviation, an ellipsis or a quote; in scripts without spaces with the next character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from tts_worker.errors import InvalidRequest
from tts_worker.text.abbreviations import Period, PeriodRules
from tts_worker.text.character_filter import BREAK
from tts_worker.text.characters import FIRST_IDEOGRAPH, extends, is_closer, is_spoken, is_unspaced, spoken_weight
from tts_worker.text.rewrite_alignment import breaks_before
from tts_worker.types import Boundary, Segment, Span

_SENTENCE = frozenset(".!?…。！？｡．।॥؟۔።။։")
_CLAUSE = frozenset(",;:—–-，、；：،؛፣၊")
# These need no space after them.
_WIDE = frozenset("。！？｡।॥؟۔።။։，、；：،؛፣၊—")
_UNIT = "\ufffc"  # never in filtered text
_AUDIBLE = re.compile(f"[^\\W_]|{_UNIT}")
_MARKS = re.compile(f"[\n{BREAK}" + re.escape("".join(sorted(_SENTENCE | _CLAUSE))) + "]")
_WORD_STOPS = re.compile("[ \n]|[^\x00-\x7f]")
_HEAVY = re.compile(r"[0-9$%&@+=*#<>|~^/\\]")  # of size 3
_MAX_SIZE = 3  # of a character
_WORD_LIMIT = 24  # longest abbreviation


@dataclass(frozen=True, slots=True)
class SegmenterOptions:
    """Segment sizes, in spoken size: a Latin letter, space or mark counts 1 (about 1/15 s), a digit or Han character 3.

    Attributes:
        first_clause_chars: Minimum size of the first segment for a cut at a comma. The minimum doubles with every
            segment, up to ``clause_chars``.
        clause_chars: Largest minimum size for a cut at a comma.
        first_max_chars: Maximum size of the first segment; text without punctuation is cut at a space.
        max_chars: Maximum size of the other segments.
        by_word: Make every word a segment; only the maxima apply. A flush after the last word is an empty segment.

    Raises:
        InvalidRequest: The sizes do not increase from 1, or ``first_max_chars`` is below 20.
    """

    first_clause_chars: int = 12
    clause_chars: int = 60
    first_max_chars: int = 90
    max_chars: int = 180
    by_word: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.first_clause_chars <= self.clause_chars <= self.max_chars:
            raise InvalidRequest("segment sizes: 1 <= first_clause_chars <= clause_chars <= max_chars must hold")
        if not max(20, self.first_clause_chars) <= self.first_max_chars <= self.max_chars:
            raise InvalidRequest("segment sizes: 20, first_clause_chars <= first_max_chars <= max_chars must hold")


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Text inserted by the lexicon for the original characters ``[start, end)``; one unit, never split."""

    text: str
    start: int
    end: int
    size: int
    phonemes: str | None


@dataclass(slots=True)
class _Cut:
    """A possible end of the segment after ``length`` characters, to be confirmed by the text that follows."""

    first: int  # place of the mark
    length: int
    boundary: Boundary
    mark: str  # without closing quotes and brackets
    has_space: bool = False  # a space follows; only the next letter is missing

    @property
    def is_dash(self) -> bool:
        return self.mark[0] in "-–"

    @property
    def is_closed(self) -> bool:
        """Whether a quote or bracket is closed after the mark."""
        return self.length - self.first > len(self.mark)

    @property
    def is_ellipsis(self) -> bool:
        return self.mark[0] == "…" or self.mark.startswith("..")


class Segmenter:
    """Takes filtered text (see ``TextSink``) and collects finished segments in ``ready``.

    The ranges tile the original text: a segment begins where the last one ended, so filtered text belongs to the
    segment after it. Text without speech makes no segment and joins the next one. After the last segment it joins that
    segment if it is not emitted yet; otherwise it belongs to none.

    Pending text is one string, in which ``_UNIT`` stands for each replacement of the lexicon. Plain text is appended in
    runs; marks, and the text after them that decides whether they end the segment, are read one character at a time.
    """

    def __init__(
        self,
        options: SegmenterOptions | None = None,
        language: str | None = None,
        pauses: dict[int, int] | None = None,
    ) -> None:
        self._pauses_ms = {} if pauses is None else pauses  # by the offset of the break
        self._options = options or SegmenterOptions()
        self._rules = PeriodRules(language)
        self.ready: list[Segment] = []
        self.count = 0
        self._text = ""
        self._runs: list[tuple[int, int]] = []  # place in the text, and from there the shift to original offsets
        self._replacements: dict[int, _Replacement] = {}  # by place in the text
        self._size = 0  # of the first ``_sized`` characters
        self._sized = 0
        self._start = 0  # of the current segment, in the original text
        self._last_boundary: Boundary | None = None
        self._cut: _Cut | None = None
        self._last_clause = 0  # characters up to and including the last clause mark
        self._space_pending = False  # a space precedes the next letter but is not pushed yet
        self._limit = self._options.first_max_chars  # of the current segment
        self._add = self._add_to_word if self._options.by_word else self._add_to_clause
        self._stops = _WORD_STOPS if self._options.by_word else _MARKS

    # -- input ------------------------------------------------------------------------------------------------------

    def push(self, text: str, start: int) -> None:
        self._space_pending = False
        unsized = len(self._text) - self._sized + len(text)
        if (
            self._cut is None
            and self._size + _MAX_SIZE * unsized <= self._limit
            and self._takes_runs
            and not self._stops.search(text)
        ):
            self._append(text, start)
        else:
            self._take(text, start)

    def _take(self, text: str, start: int) -> None:
        at = 0
        length = len(text)
        while at < length:
            if self._cut is None and self._takes_runs:
                stop = self._stops.search(text, at)
                at = self._append_run(text, at, stop.start() if stop else length, start)
                if at == length:
                    return
            self._add(text[at], start + at, None)
            at += 1

    def push_replacement(self, text: str, start: int, end: int, phonemes: str | None) -> None:
        self._space_pending = False
        size = min(_size(text), self._options.first_max_chars // 2)
        self._add(_UNIT, start, _Replacement(text, start, end, size, phonemes))

    def space_follows(self) -> None:
        self._space_pending = True
        if self._options.by_word:
            self._end_word()
        elif self._cut is not None and not self._cut.has_space:
            self._space_after_cut(self._cut)

    def finish(self, boundary: Boundary, end: int) -> None:
        """Emit all pending text (FLUSH or END). The segment ranges to ``end``, the length of the original text."""
        self._emit(len(self._text), boundary, end)
        if boundary is Boundary.FLUSH:
            self._mark_flush()

    def finish_words(self) -> None:
        """Emit the complete words. A word that may still grow stays, with the text that carries no speech."""
        length = self._complete_length()
        if not self._has_speech_before(length):
            self._mark_flush()
            return
        cut = self._cut
        ends_sentence = cut is not None and cut.length <= length and cut.boundary is Boundary.SENTENCE
        self._emit(length, Boundary.SENTENCE if ends_sentence else Boundary.FLUSH, self._end_of(length - 1))

    def _complete_length(self) -> int:
        """Return the number of characters up to the end of the last complete word."""
        text = self._text
        length = len(text)
        if length == 0 or self._space_pending or self._is_complete():
            return length
        for place in range(length - 1, 0, -1):
            before = text[place - 1]
            after = text[place]
            if after == " " or _UNIT in (before, after):
                return place
            ideographs = max(before, after) >= FIRST_IDEOGRAPH
            if ideographs and breaks_before(before, after):
                return place
        return 0

    def _is_complete(self) -> bool:
        """Return whether the last word cannot grow: a mark follows it, or its script has no spaces."""
        last = self._text[-1]
        if last in (_UNIT, " "):
            return True
        if self._cut is None or self._cut.length != len(self._text) or self._cut.first == 0:
            return last >= FIRST_IDEOGRAPH and is_unspaced(last)
        cut = self._cut
        before = self._last_char(cut.first - 1)
        if cut.is_dash:
            return len(cut.mark) > 1  # "well-" may become "well-known"
        if len(cut.mark) > 1 or cut.mark not in ".,:":
            return True
        if cut.mark != ".":
            return not before.isdigit()  # "1," may become "1,000", "10:" may become "10:30"
        word, _ = self._word_before(cut.first)
        return word is None or (before.isalpha() and len(word) > 1 and "." not in word)

    # -- pending text -------------------------------------------------------------------------------------------------

    @property
    def _takes_runs(self) -> bool:
        """Return whether plain text may be appended without regard to the character before it."""
        return not self._options.by_word or not self._text or self._text[-1] < "\x80"

    def _append_run(self, text: str, first: int, last: int, start: int) -> int:
        """Append as much of ``text[first:last]`` as surely fits the segment; return where the rest begins."""
        limit = self._limit
        room = (limit - self._size) // _MAX_SIZE - (len(self._text) - self._sized)
        if room < last - first:
            self._measure()
            room = (limit - self._size) // _MAX_SIZE
            if room < last - first <= limit - self._size and _size(text[first:last]) <= limit - self._size:
                room = last - first
        last = min(last, first + max(0, room))
        if last > first:
            self._append(text[first:last], start + first)
        return last

    def _append(self, text: str, start: int, replacement: _Replacement | None = None) -> None:
        place = len(self._text)
        shift = start - place
        if not self._runs or self._runs[-1][1] != shift:
            self._begin_run(place, shift)
        if replacement is not None:
            self._replacements[place] = replacement
            self._begin_run(place, shift)
            self._begin_run(place + 1, replacement.end - place - 1)
        self._text += text

    def _begin_run(self, place: int, shift: int) -> None:
        if self._runs and self._runs[-1][0] == place:
            self._runs.pop()
        self._runs.append((place, shift))

    def _measure(self) -> None:
        if self._sized < len(self._text):
            self._size += self._size_of(self._sized, len(self._text))
            self._sized = len(self._text)

    def _size_of(self, first: int, last: int) -> int:
        size = _size(self._text[first:last])
        if self._replacements:
            size += sum(r.size - _char_size(_UNIT) for place, r in self._replacements.items() if first <= place < last)
        return size

    def _offset(self, place: int) -> int:
        for first, shift in reversed(self._runs):
            if first <= place:
                return place + shift
        return place

    def _end_of(self, place: int) -> int:
        replacement = self._replacements.get(place)
        return self._offset(place) + 1 if replacement is None else replacement.end

    def _last_char(self, place: int) -> str:
        replacement = self._replacements.get(place)
        return self._text[place] if replacement is None else replacement.text[-1]

    def _has_speech_before(self, length: int) -> bool:
        return _AUDIBLE.search(self._text, 0, length) is not None

    # -- by clause --------------------------------------------------------------------------------------------------

    def _add_to_clause(self, char: str, start: int, replacement: _Replacement | None) -> None:
        following = char if replacement is None else replacement.text[0]
        if self._cut is not None and self._resolve_cut(self._cut, char, following, start):
            return
        if char == "\n":
            self._append(char, start)
            self._emit(len(self._text), Boundary.PARAGRAPH, start + 1)
            return
        if char == BREAK:
            self._break(start)
            return
        if self._text and not self._fits(char, replacement):
            self._force_cut(char)
            self._add_to_clause(char, start, replacement)
            return
        self._append(char, start, replacement)
        if self._cut is None:
            self._record_mark(char)

    def _fits(self, char: str, replacement: _Replacement | None) -> bool:
        size = _size(char) if replacement is None else replacement.size
        self._measure()
        return self._size + size <= self._limit

    def _clause_minimum(self) -> int:
        return min(self._options.clause_chars, self._options.first_clause_chars << min(self.count, 16))

    def _record_mark(self, char: str) -> None:
        """Record a possible cut if the last character is a mark that ends a segment."""
        length = len(self._text)
        if char in _SENTENCE:
            self._cut = _Cut(length - 1, length, Boundary.SENTENCE, char)
        elif char in _CLAUSE:
            self._cut = _Cut(length - 1, length, Boundary.CLAUSE, char)

    def _resolve_cut(self, cut: _Cut, char: str, following: str, start: int) -> bool:
        """Decide a possible cut from the character after it; return True if the character became part of the mark."""
        if char in ("\n", BREAK):
            self._cut = None
        elif char == " ":
            if not cut.has_space:
                self._space_after_cut(cut)
        elif cut.has_space:
            self._cut = None
            if self._ends_before(cut, following):
                self._end_segment_at(cut)
        elif char != _UNIT and self._extends_mark(cut, char) and self._fits(char, None):
            self._append(char, start)
            cut.length = len(self._text)
            if not is_closer(char):
                cut.mark += char
                if char in _SENTENCE:
                    cut.boundary = Boundary.SENTENCE
            return True
        else:
            self._cut = None
            if self._needs_no_space(cut, following):
                self._end_segment_at(cut)
        return False

    def _extends_mark(self, cut: _Cut, char: str) -> bool:
        """Return whether ``char`` belongs to the mark: "?!", "...", ".)", '."', "--"."""
        if cut.is_dash:
            return char == cut.mark[-1]
        return is_closer(char) or char in _SENTENCE or (char in _CLAUSE and char == cut.mark[-1])

    def _needs_no_space(self, cut: _Cut, following: str) -> bool:
        if cut.is_dash:  # word--word, but not --option
            return len(cut.mark) > 1 and not self._space_before(cut)
        return cut.mark[-1] in _WIDE or (is_unspaced(following) and not self._is_ambiguous(cut))

    def _space_before(self, cut: _Cut) -> bool:
        return cut.first == 0 or self._text[cut.first - 1] == " "

    def _space_after_cut(self, cut: _Cut) -> None:
        """Confirm the cut, since a space follows the mark, unless the next word matters."""
        if cut.is_dash and not self._space_before(cut) and len(cut.mark) == 1:
            self._cut = None  # "pre- and post-war"
        elif cut.is_ellipsis or cut.is_dash or cut.is_closed or self._is_ambiguous(cut):
            cut.has_space = True
        else:
            self._cut = None
            self._end_segment_at(cut)

    def _is_ambiguous(self, cut: _Cut) -> bool:
        """Return whether the mark is a period that may belong to an abbreviation or a number."""
        if cut.mark != ".":
            return False
        word, _ = self._word_before(cut.first)
        return word is not None and self._rules.classify(word) is Period.AMBIGUOUS

    def _ends_before(self, cut: _Cut, following: str) -> bool:
        """Return whether a mark that waited for the next word ends the segment before that word."""
        if cut.is_ellipsis:
            if following.islower():
                cut.boundary = Boundary.CLAUSE
            return True
        if cut.is_dash:
            return not following.isdigit()  # "15 - 3"
        if self._is_ambiguous(cut):
            word, at_start = self._word_before(cut.first)
            return not self._rules.sentence_continues(word or "", following, at_start=at_start)
        return cut.boundary is Boundary.CLAUSE or not following.islower()  # "Yes!" he said.

    def _word_before(self, length: int) -> tuple[str | None, bool]:
        """Return the last word of the first ``length`` characters, and whether it begins the segment.

        Opening marks do not belong to it. The word is None for a lexicon replacement and for a long word: neither is
        an abbreviation.
        """
        first = self._text.rfind(" ", 0, length) + 1
        word = self._text[first:length]
        if _UNIT in word or len(word) > _WORD_LIMIT:
            return None, False
        letters = _AUDIBLE.search(word)
        return word[letters.start() :] if letters else "", not self._has_speech_before(first)

    def _end_segment_at(self, cut: _Cut) -> None:
        if cut.boundary is Boundary.CLAUSE:
            self._last_clause = cut.length
            if self._size_of(0, cut.length) < self._clause_minimum():
                return
        self._emit(cut.length, cut.boundary, self._end_of(cut.length - 1))

    def _force_cut(self, char: str) -> None:
        """Cut a segment that would grow too long: at the last mark, else at the last space, else here."""
        enough = self._limit // 3
        self._cut = None
        last_space = max(0, self._text.rfind(" "))
        for place, boundary in ((self._last_clause, Boundary.CLAUSE), (last_space, Boundary.FORCED)):
            if place and self._size_of(0, place) >= enough and self._has_speech_before(place):
                self._emit(place, boundary, self._end_of(place - 1))
                return
        place = last_space if self._has_speech_before(last_space) else len(self._text)
        if place == len(self._text) and char != _UNIT and extends(char):
            base = place - 1  # keep combining marks with their letter
            while base > 0 and extends(self._text[base]):
                base -= 1
            place = base or place
        self._emit(place, Boundary.FORCED, self._end_of(place - 1))

    # -- word by word -----------------------------------------------------------------------------------------------

    def _add_to_word(self, char: str, start: int, replacement: _Replacement | None) -> None:
        following = char if replacement is None else replacement.text[0]
        if char == BREAK:
            self._break(start)
            return
        if char in " \n":
            self._end_word(Boundary.WORD if char == " " else Boundary.PARAGRAPH)
            char = " "
        elif self._text and breaks_before(self._last_char(len(self._text) - 1), following):
            self._end_word()
        if self._text and not self._fits(char, replacement):
            self._emit(len(self._text), Boundary.FORCED, self._end_of(len(self._text) - 1))
        self._append(char, start, replacement)

    def _mark_flush(self) -> None:
        """Emit an empty segment if the words so far were emitted before it was known that a pause follows."""
        if self._options.by_word and self._last_boundary in (Boundary.WORD, Boundary.FORCED):
            self._push_segment((), self._start, Boundary.FLUSH)

    def _end_word(self, boundary: Boundary = Boundary.WORD) -> None:
        length = len(self._text)
        if self._has_speech_before(length):
            self._emit(length, boundary, self._end_of(length - 1))

    # -- output -----------------------------------------------------------------------------------------------------

    def _emit(self, length: int, boundary: Boundary, end: int) -> None:
        """Emit the first ``length`` characters as a segment up to ``end`` and process the rest again.

        Text without speech is dropped; its range belongs to the next segment.
        """
        if self._has_speech_before(length):
            spans = self._spans(length)
            rest = self._pieces(length, len(self._text))
            self._reset()
            self._push_segment(spans, end, boundary)
        else:
            rest = self._pieces(length, len(self._text))
            self._reset()
        for text, start, replacement in rest:
            if replacement is None:
                self._take(text, start)
            else:
                self._add(_UNIT, start, replacement)

    def _reset(self) -> None:
        self._text = ""
        self._runs = []
        if self._replacements:
            self._replacements = {}
        self._size = self._sized = self._last_clause = 0
        self._cut = None

    def _break(self, start: int) -> None:
        """End the segment with a silence; the segment has no spans if no text precedes the break."""
        if self._has_speech_before(len(self._text)):
            self._emit(len(self._text), Boundary.BREAK, start + 1)
        else:
            self._reset()
            self._push_segment((), start + 1, Boundary.BREAK)

    def _push_segment(self, spans: tuple[Span, ...], end: int, boundary: Boundary) -> None:
        pause_ms = self._pauses_ms.pop(end - 1, 0) if boundary is Boundary.BREAK else 0
        self.ready.append(Segment(self.count, spans, self._start, end, boundary, pause_ms))
        self.count += 1
        self._limit = self._options.max_chars
        self._start = end
        self._last_boundary = boundary

    def _pieces(self, first: int, last: int) -> list[tuple[str, int, _Replacement | None]]:
        """Divide pending text into runs of adjacent original characters, and replacements."""
        pieces: list[tuple[str, int, _Replacement | None]] = []
        edges = [place for place, _ in self._runs if first < place < last]
        for begin, end in pairwise([first, *edges, last]) if last > first else ():
            replacement = self._replacements.get(begin)
            if replacement is not None:
                pieces.append((_UNIT, replacement.start, replacement))
                begin += 1
            if begin < end:
                pieces.append((self._text[begin:end], self._offset(begin), None))
        return pieces

    def _spans(self, length: int) -> tuple[Span, ...]:
        """Return the first ``length`` characters as spans: original text in runs, and the replacements."""
        first = 0
        if not self._options.by_word:
            first = _first_word(self._text[:length])
            length = len(self._text[:length].rstrip())
        spans = [
            Span(text, start, start + len(text)) if r is None else Span(r.text, r.start, r.end, r.phonemes)
            for text, start, r in self._pieces(first, length)
        ]
        if not self._options.by_word and spans[0].text[0] == " ":  # a spelled letter
            spans[0] = replace(spans[0], text=spans[0].text.lstrip())
        return tuple(spans)


def _first_word(text: str) -> int:
    """Return where the first word begins that is more than punctuation: "... ok", "— and"."""
    first = 0
    for place, char in enumerate(text):
        if char.isspace():
            first = place + 1
        elif char == _UNIT or is_spoken(char):
            break
    return first


@lru_cache(maxsize=4096)
def _char_size(char: str) -> int:
    return max(1, spoken_weight(char))


def _size(text: str) -> int:
    """Return the spoken size of ``text``."""
    if text.isascii():
        return len(text) + 2 * len(_HEAVY.findall(text))
    return sum(map(_char_size, text))
