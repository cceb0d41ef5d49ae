"""Cuts text into clauses and sentences.

The first clause is emitted early, later segments are longer. Sentences always end a segment; numbers, abbreviations and
words are never cut unless they are too long.

Delay: a sentence is emitted with the space after its stop; with the next letter after a stop that may belong to an
abbreviation, an ellipsis or a quote (after "a.m." with the first that shows that no day, month or time zone follows);
in scripts without spaces with the next character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tts_worker.text.abbreviations import TIME_CHARS, period_rules
from tts_worker.text.character_filter import BREAK
from tts_worker.text.characters import extends, is_closer, is_unspaced
from tts_worker.text.mapped_text import UNIT, MappedText
from tts_worker.text.options import TextOptions
from tts_worker.text.segmenter import AUDIBLE, LINE_ENDS, Segmenter
from tts_worker.types import Boundary

_SENTENCE = frozenset(".!?…。！？｡．।॥؟۔።။։")
_CLAUSE = frozenset(",;:—–-，、；：،؛፣၊")
# These need no space after them.
_WIDE = frozenset("。！？｡।॥؟۔።။։，、；：،؛፣၊—")
_WIDE_CLASS = f"\n{BREAK}{''.join(_WIDE)}"
# Other marks before a letter or digit are inside a word or number.
_MARKS = re.compile(f"[{_WIDE_CLASS}{re.escape(''.join(_SENTENCE | _CLAUSE))}](?:(?<=[{_WIDE_CLASS}])|(?![A-Za-z0-9]))")
_UNSURE = frozenset(".…-–")
"""Marks that may not end a clause although a space follows."""
# Up to the last place where a segment may be cut by force: not beside a number, a sign or an abbreviation.
_LAST_SPACE = re.compile(r".*(?<![\d.$€£¥₹#+=×÷*/<>&@~≈–-]) (?=[^\d$€£¥₹#%°+=×÷*/<>&~≈±–-])", re.DOTALL)
_LAST_IDEOGRAPH = re.compile(".*[\u3041-\u9fff](?=[\u3041-\u3096\u309d-\u9fff])", re.DOTALL)
_WORD_LIMIT = 24  # longest abbreviation


@dataclass(slots=True)
class _Mark:
    """A mark that may end the segment before ``end``."""

    first: int
    end: int
    is_sentence: bool
    text: str  # without closing quotes and brackets

    @property
    def is_dash(self) -> bool:
        return self.text[0] in "-–"

    @property
    def is_closed(self) -> bool:
        """Whether a quote or bracket is closed after the mark."""
        return self.end - self.first > len(self.text)

    @property
    def is_ellipsis(self) -> bool:
        return self.text[0] == "…" or self.text.startswith("..")


class ClauseSegmenter(Segmenter):
    """Cuts at the ends of sentences, and at other marks once a segment has its minimum size."""

    def __init__(self, options: TextOptions, pauses: dict[int, int], source: MappedText) -> None:
        super().__init__(options, pauses, source)
        self._rules = period_rules(options.language)
        self._waiting: _Mark | None = None  # the mark at ``_at``, until the text after it has arrived
        self._last_clause = 0  # characters up to and including the last clause mark
        self._clause_minimum = options.first_clause_chars  # of the size of the current segment
        self._space_follows = False  # a space precedes the next letter but is not in the source yet

    # -- the stream ---------------------------------------------------------------------------------------------------

    def size_left(self) -> tuple[int, int]:
        """Return the spoken size that may be added without completing a segment, and that with a clause mark."""
        if self._waiting is not None:
            return 0, 0  # any character may complete one
        size = self._full_size()
        return self._limit - size, self._clause_minimum - size

    def space_follows(self) -> None:
        """Emit the segments that a space or line break completes, before it is known which."""
        if not self.source.text[-1:].isalnum():
            self._space_follows = True
            self.run()
            self._space_follows = False

    def _boundary_at(self, length: int) -> Boundary:
        mark = self._waiting
        ends_sentence = mark is not None and mark.end <= length and mark.is_sentence
        return Boundary.SENTENCE if ends_sentence else Boundary.FLUSH

    def _is_complete(self) -> bool:
        """Return whether the last word cannot grow: a mark follows it."""
        mark = self._waiting
        if mark is None or mark.end != len(self.source.text) or mark.first == 0:
            return super()._is_complete()
        if mark.is_dash:
            return len(mark.text) > 1  # "well-" may become "well-known"
        if len(mark.text) > 1 or mark.text not in ".,:":
            return True
        before = self._last_char(mark.first - 1)
        if mark.text != ".":
            return not before.isdigit()  # "1," may become "1,000", "10:" may become "10:30"
        word = self._word_before(mark.first)
        return word is None or (before.isalpha() and len(word) > 1 and "." not in word)

    def _emit(self, length: int, boundary: Boundary, end: int | None = None) -> bool:
        has_speech = super()._emit(length, boundary, end)
        self._last_clause = 0
        if self._clause_minimum < self._options.clause_chars:
            self._clause_minimum = min(self._options.clause_chars, self._options.first_clause_chars << self.count)
        return has_speech

    # -- marks --------------------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Decide the marks up to the first one that needs more text."""
        self._waiting = None
        while self._at < len(text := self.source.text):
            mark = _MARKS.search(text, self._at)
            place = mark.start() if mark else len(text)
            char = text[place] if mark else "\n"
            ends_line = char in LINE_ENDS
            length = place if ends_line else place + 1
            if length > self._fitting and not self._fits(length):
                self._force_cut()
            elif mark is None:
                self._at = place
            elif ends_line:
                self._end_line(place)
            elif not self._decide(place):
                self._at = place
                return

    def _decide(self, place: int) -> bool:
        """Decide whether the mark at ``place`` ends the segment; return False if more text must arrive first."""
        text = self.source.text
        char = text[place]
        following = text[place + 1 : place + 2] or " " * self._space_follows
        if following == " " and (char not in _UNSURE or (char == "." and not self._is_abbreviation(place))):
            self._end_clause(place + 1, is_sentence=char in _SENTENCE)
            return True
        mark = self._read_mark(place)
        ends = self._ends_segment(mark)
        if ends is None:
            self._waiting = mark
            return False
        if ends:
            self._end_clause(mark.end, is_sentence=mark.is_sentence)
        else:
            self._at = mark.end
        return True

    def _end_clause(self, length: int, *, is_sentence: bool) -> None:
        """Emit the clause, unless it is too short to be a segment."""
        if not is_sentence:
            minimum = self._clause_minimum
            if length < minimum and self._size_of(0, length) < minimum:
                self._last_clause = self._at = length
                return
        self._emit(length, Boundary.SENTENCE if is_sentence else Boundary.CLAUSE)

    def _read_mark(self, place: int) -> _Mark:
        """Read a mark with what belongs to it: "?!", "...", ".)", '."', "--"."""
        text = self.source.text
        mark = text[place]
        end = place + 1
        while end < len(text) and self._extends_mark(mark, text[end]) and self._fits(end + 1):
            if not is_closer(text[end]):
                mark += text[end]
            end += 1
        return _Mark(place, end, not _SENTENCE.isdisjoint(mark), mark)

    def _extends_mark(self, mark: str, char: str) -> bool:
        if mark[0] in "-–":
            return char == mark[-1]
        return is_closer(char) or char in _SENTENCE or (char in _CLAUSE and char == mark[-1])

    def _ends_segment(self, mark: _Mark) -> bool | None:
        """Return whether the mark ends the segment, by the text after it; None if that must arrive first."""
        text = self.source.text
        following = text[mark.end : mark.end + 2] or " " * self._space_follows
        if not following:
            return None
        if following[0] in LINE_ENDS:
            return False
        if following[0] != " ":
            return self._needs_no_space(mark, self._first_char(mark.end))
        if mark.is_dash and len(mark.text) == 1 and not self._space_before(mark):
            return False  # "pre- and post-war"
        if not (mark.is_ellipsis or mark.is_dash or mark.is_closed or self._is_ambiguous(mark)):
            return True
        if len(following) == 1:
            return None
        return following[1] not in LINE_ENDS and self._ends_before(mark, self._text_after(mark.end + 1))

    def _needs_no_space(self, mark: _Mark, following: str) -> bool:
        if mark.is_dash:  # word--word, but not --option
            return len(mark.text) > 1 and not self._space_before(mark)
        return mark.text[-1] in _WIDE or (is_unspaced(following) and not self._is_ambiguous(mark))

    def _space_before(self, mark: _Mark) -> bool:
        return mark.first == 0 or self.source.text[mark.first - 1] == " "

    # -- abbreviations ------------------------------------------------------------------------------------------------

    def _is_ambiguous(self, mark: _Mark) -> bool:
        """Return whether the mark is a period that may belong to an abbreviation or a number."""
        return mark.text == "." and self._is_abbreviation(mark.first)

    def _is_abbreviation(self, period: int) -> bool:
        """Return whether the word before a period may be an abbreviation or a number."""
        word = self._word_before(period)
        return word is not None and self._rules.is_ambiguous(word)

    def _ends_before(self, mark: _Mark, following: str) -> bool | None:
        """Return whether a mark that depends on the next word ends the segment; None if more of it must arrive."""
        if mark.is_ellipsis:
            if following[0].islower():
                mark.is_sentence = False
            return True
        if mark.is_dash:
            return not following[0].isdigit()  # "15 - 3"
        if self._is_ambiguous(mark):
            first = self.source.text.rfind(" ", 0, mark.first) + 1
            before = (self._word_before(max(0, first - 1)) or "") if self._has_speech_before(first) else None
            continues = self._rules.sentence_continues(self._word_before(mark.first) or "", following, before)
            return None if continues is None else not continues
        return not (mark.is_sentence and following[0].islower())  # "Yes!" he said.

    def _text_after(self, place: int) -> str:
        """Return the text at ``place`` that decides whether a sentence continues."""
        text = self.source.text[place : place + TIME_CHARS]
        return "".join(span.text for span in self.source.spans(place, place + len(text))) if UNIT in text else text

    def _word_before(self, length: int) -> str | None:
        """Return the last word of the first ``length`` characters, without opening marks.

        It is None for a lexicon replacement and for a long word: neither is an abbreviation.
        """
        text = self.source.text
        word = text[text.rfind(" ", 0, length) + 1 : length]
        if UNIT in word or len(word) > _WORD_LIMIT:
            return None
        letters = AUDIBLE.search(word)
        return word[letters.start() :] if letters else ""

    # -- too long -----------------------------------------------------------------------------------------------------

    def _force_cut(self) -> None:
        """Cut a segment that would grow too long: at the last mark, else between words, else where it is full.

        A number stays with the words beside it where the segment has another space.
        """
        text = self.source.text
        full = self._full_length()
        last_space = max(0, text.rfind(" ", 0, full))
        space, ideograph = (pattern.match(text, 0, full + 1) for pattern in (_LAST_SPACE, _LAST_IDEOGRAPH))
        places = [self._last_clause, space.end() - 1 if space else 0, ideograph.end() if ideograph else 0, last_space]
        for number, place in enumerate(places):
            if place and self._size_of(0, place) >= self._limit // 3 and self._has_speech_before(place):
                self._emit(place, Boundary.FORCED if number else Boundary.CLAUSE)
                return
        if self._has_speech_before(last_space):
            full = last_space
        elif extends(text[full]):
            base = full - 1  # keep combining marks with their letter
            while base > 0 and extends(text[base]):
                base -= 1
            full = base or full
        self._emit(full, Boundary.FORCED)
