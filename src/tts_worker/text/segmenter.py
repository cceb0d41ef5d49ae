"""Cuts filtered text into segments while it arrives.

The first clause is emitted early, later segments are longer. Sentences always end a segment; numbers, abbreviations and
words are never cut unless they are too long. The segmenter is an automaton over single characters, so the segments do
not depend on how the stream is split.

Delay: a sentence is emitted with the space after its stop; with the next letter after a stop that may belong to an
abbreviation, an ellipsis or a quote; in scripts without spaces with the next character.
"""

from __future__ import annotations

from dataclasses import dataclass

from tts_worker.errors import InvalidRequest
from tts_worker.text.abbreviations import Period, PeriodRules
from tts_worker.text.characters import FIRST_IDEOGRAPH, extends, is_closer, is_spoken, is_unspaced, spoken_weight
from tts_worker.text.rewrite_alignment import breaks_before
from tts_worker.types import Boundary, Segment, Span

_SENTENCE = frozenset(".!?…。！？｡．।॥؟۔።။։")
_CLAUSE = frozenset(",;:—–-，、；：،؛፣၊")
# These need no space after them.
_WIDE = frozenset("。！？｡।॥؟۔።။։，、；：،؛፣၊—")
_WORD_LIMIT = 24  # longest abbreviation, in units


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


@dataclass(slots=True)
class _Unit:
    """One character, or one replacement by the lexicon."""

    text: str
    start: int
    end: int
    size: int
    is_replacement: bool = False  # inserted by the lexicon
    phonemes: str | None = None

    @property
    def is_audible(self) -> bool:
        return self.phonemes is not None or any(map(str.isalnum, self.text))


@dataclass(slots=True)
class _Cut:
    """A possible end of the segment after ``length`` units, to be confirmed by the text that follows."""

    first: int  # first unit of the mark
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
    """Takes filtered characters (see ``LexiconSink``) and collects finished segments in ``ready``.

    The ranges tile the original text: a segment begins where the last one ended, so filtered text belongs to the
    segment after it. Text without speech makes no segment and joins the next one. After the last segment it joins that
    segment if it is not emitted yet; otherwise it belongs to none.
    """

    def __init__(self, options: SegmenterOptions | None = None, language: str | None = None) -> None:
        self._options = options or SegmenterOptions()
        self._rules = PeriodRules(language)
        self.ready: list[Segment] = []
        self.count = 0
        self._units: list[_Unit] = []
        self._size = 0
        self._start = 0  # of the current segment, in the original text
        self._last_boundary: Boundary | None = None
        self._has_speech = False
        self._cut: _Cut | None = None
        self._last_space = 0  # units before the last space
        self._last_clause = 0  # units up to and including the last clause mark
        self._space_pending = False  # a space precedes the next letter but is not pushed yet
        self._add = self._add_to_word if self._options.by_word else self._add_to_clause

    # -- input ------------------------------------------------------------------------------------------------------

    def push(self, char: str, index: int) -> None:
        self._space_pending = False
        self._add(_Unit(char, index, index + 1, max(1, spoken_weight(char))))

    def push_replacement(self, text: str, start: int, end: int, phonemes: str | None) -> None:
        self._space_pending = False
        size = sum(max(1, spoken_weight(char)) for char in text)
        self._add(_Unit(text, start, end, min(size, self._options.first_max_chars // 2), True, phonemes))

    def space_follows(self) -> None:
        self._space_pending = True
        if self._options.by_word:
            self._end_word()
        elif self._cut is not None and not self._cut.has_space:
            self._space_after_cut(self._cut)

    def finish(self, boundary: Boundary, end: int) -> None:
        """Emit all pending text (FLUSH or END). The segment ranges to ``end``, the length of the original text."""
        self._emit(len(self._units), boundary, end)
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
        self._emit(length, Boundary.SENTENCE if ends_sentence else Boundary.FLUSH, self._units[length - 1].end)

    def _complete_length(self) -> int:
        """Return the number of units up to the end of the last complete word."""
        length = len(self._units)
        if length == 0 or self._space_pending or self._is_complete():
            return length
        for place in range(length - 1, 0, -1):
            before = self._units[place - 1]
            after = self._units[place]
            if after.text == " " or before.is_replacement or after.is_replacement:
                return place
            ideographs = max(before.text, after.text) >= FIRST_IDEOGRAPH
            if ideographs and breaks_before(before.text, after.text):
                return place
        return 0

    def _is_complete(self) -> bool:
        """Return whether the last word cannot grow: a mark follows it, or its script has no spaces."""
        last = self._units[-1]
        if last.is_replacement or last.text == " ":
            return True
        if self._cut is None or self._cut.length != len(self._units) or self._cut.first == 0:
            return last.text[0] >= FIRST_IDEOGRAPH and is_unspaced(last.text[0])
        cut = self._cut
        before = self._units[cut.first - 1].text[-1]
        if cut.is_dash:
            return len(cut.mark) > 1  # "well-" may become "well-known"
        if len(cut.mark) > 1 or cut.mark not in ".,:":
            return True
        if cut.mark != ".":
            return not before.isdigit()  # "1," may become "1,000", "10:" may become "10:30"
        word, _ = self._word_before(cut.first)
        return word is None or (before.isalpha() and len(word) > 1 and "." not in word)

    # -- by clause --------------------------------------------------------------------------------------------------

    def _add_to_clause(self, unit: _Unit) -> None:
        if self._cut is not None and self._resolve_cut(self._cut, unit):
            return
        if unit.text == "\n" and not unit.is_replacement:
            self._units.append(unit)
            self._emit(len(self._units), Boundary.PARAGRAPH, unit.end)
            return
        if self._units and self._size + unit.size > self._limit():
            self._force_cut(unit)
            self._add_to_clause(unit)
            return
        self._append(unit)
        if not unit.is_replacement and self._cut is None:
            self._record_mark(unit.text)

    def _append(self, unit: _Unit) -> None:
        if unit.text == " ":
            self._last_space = len(self._units)
        self._units.append(unit)
        self._size += unit.size
        self._has_speech = self._has_speech or unit.is_audible

    def _limit(self) -> int:
        return self._options.max_chars if self.count else self._options.first_max_chars

    def _clause_minimum(self) -> int:
        return min(self._options.clause_chars, self._options.first_clause_chars << min(self.count, 16))

    def _record_mark(self, char: str) -> None:
        """Record a possible cut if the last unit is a mark that ends a segment."""
        length = len(self._units)
        if char in _SENTENCE:
            self._cut = _Cut(length - 1, length, Boundary.SENTENCE, char)
        elif char in _CLAUSE:
            self._cut = _Cut(length - 1, length, Boundary.CLAUSE, char)

    def _resolve_cut(self, cut: _Cut, unit: _Unit) -> bool:
        """Decide a possible cut from the unit after it; return True if the unit became part of the mark."""
        char = unit.text
        if char == "\n":
            self._cut = None
        elif char == " ":
            if not cut.has_space:
                self._space_after_cut(cut)
        elif cut.has_space:
            self._cut = None
            if self._ends_before(cut, char[0]):
                self._end_segment_at(cut)
        elif not unit.is_replacement and self._extends_mark(cut, char) and self._size + unit.size <= self._limit():
            self._append(unit)
            cut.length = len(self._units)
            if not is_closer(char):
                cut.mark += char
                if char in _SENTENCE:
                    cut.boundary = Boundary.SENTENCE
            return True
        else:
            self._cut = None
            if self._needs_no_space(cut, char[0]):
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
        return cut.first == 0 or self._units[cut.first - 1].text == " "

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
        """Return the last word of the first ``length`` units without opening marks, and whether it begins the segment.

        The word is None for a lexicon replacement and for a long word: neither is an abbreviation.
        """
        first = length
        while first > 0 and self._units[first - 1].text != " ":
            if self._units[first - 1].is_replacement or length - first >= _WORD_LIMIT:
                return None, False
            first -= 1
        at_start = not any(unit.is_audible for unit in self._units[:first])
        while first < length and not self._units[first].text.isalnum():
            first += 1
        return "".join(unit.text for unit in self._units[first:length]), at_start

    def _end_segment_at(self, cut: _Cut) -> None:
        if cut.boundary is Boundary.CLAUSE:
            self._last_clause = cut.length
            size = sum(unit.size for unit in self._units[: cut.length])
            if size < self._clause_minimum():
                return
        self._emit(cut.length, cut.boundary, self._units[cut.length - 1].end)

    def _force_cut(self, unit: _Unit) -> None:
        """Cut a segment that would grow too long: at the last mark, else at the last space, else here."""
        enough = self._limit() // 3
        self._cut = None
        for place, boundary in ((self._last_clause, Boundary.CLAUSE), (self._last_space, Boundary.FORCED)):
            if place and sum(p.size for p in self._units[:place]) >= enough and self._has_speech_before(place):
                self._emit(place, boundary, self._units[place - 1].end)
                return
        place = self._last_space if self._has_speech_before(self._last_space) else len(self._units)
        if place == len(self._units) and not unit.is_replacement and extends(unit.text):
            base = place - 1  # keep combining marks with their letter
            while base > 0 and extends(self._units[base].text):
                base -= 1
            place = base or place
        self._emit(place, Boundary.FORCED, self._units[place - 1].end)

    def _has_speech_before(self, length: int) -> bool:
        return any(unit.is_audible for unit in self._units[:length])

    # -- word by word -----------------------------------------------------------------------------------------------

    def _add_to_word(self, unit: _Unit) -> None:
        if unit.text in (" ", "\n") and not unit.is_replacement:
            self._end_word(Boundary.WORD if unit.text == " " else Boundary.PARAGRAPH)
            unit.text = " "
        elif self._units and breaks_before(self._units[-1].text[-1], unit.text[0]):
            self._end_word()
        if self._units and self._size + unit.size > self._limit():
            self._emit(len(self._units), Boundary.FORCED, self._units[-1].end)
        self._append(unit)

    def _mark_flush(self) -> None:
        """Emit an empty segment if the words so far were emitted before it was known that a pause follows."""
        if self._options.by_word and self._last_boundary in (Boundary.WORD, Boundary.FORCED):
            self._push_segment((), self._start, Boundary.FLUSH)

    def _end_word(self, boundary: Boundary = Boundary.WORD) -> None:
        if self._has_speech:
            self._emit(len(self._units), boundary, self._units[-1].end)

    # -- output -----------------------------------------------------------------------------------------------------

    def _emit(self, length: int, boundary: Boundary, end: int) -> None:
        """Emit the first ``length`` units as a segment up to ``end`` and process the rest again.

        Units without speech are dropped; their range belongs to the next segment.
        """
        units = self._units[:length]
        rest = self._units[length:]
        self._units = []
        self._size = 0
        self._has_speech = False
        self._cut = None
        self._last_space = self._last_clause = 0
        if any(unit.is_audible for unit in units):
            spans = _spans(units, strip=not self._options.by_word)
            self._push_segment(spans, end, boundary)
        for unit in rest:
            self._add(unit)

    def _push_segment(self, spans: tuple[Span, ...], end: int, boundary: Boundary) -> None:
        self.ready.append(Segment(self.count, spans, self._start, end, boundary))
        self.count += 1
        self._start = end
        self._last_boundary = boundary


def _first_word(units: list[_Unit]) -> int:
    """Return where the first word begins that is more than punctuation: "... ok", "— and"."""
    first = 0
    for place, unit in enumerate(units):
        if unit.text.isspace():
            first = place + 1
        elif unit.is_replacement or is_spoken(unit.text):
            break
    return first


def _spans(units: list[_Unit], *, strip: bool) -> tuple[Span, ...]:
    """Join neighboring original characters into spans; lexicon replacements stay separate."""
    first = 0
    last = len(units)
    if strip:
        first = _first_word(units)
        while units[last - 1].text.isspace():
            last -= 1
    spans: list[Span] = []
    run: list[str] = []
    start = end = -1
    for unit in units[first:last]:
        if run and (unit.is_replacement or unit.start != end):
            spans.append(Span("".join(run), start, end))
            run = []
        if unit.is_replacement:
            spans.append(Span(unit.text, unit.start, unit.end, unit.phonemes))
            continue
        if not run:
            start = unit.start
        run.append(unit.text)
        end = unit.end
    if run:
        spans.append(Span("".join(run), start, end))
    return tuple(spans)
