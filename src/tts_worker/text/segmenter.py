"""Cuts filtered text into segments while it arrives.

The first clause is emitted early, later segments are longer. Sentences always end a segment; numbers, abbreviations and
words are never cut unless they are too long. Every decision depends only on the text before a mark and a few characters
after it, so the segments do not depend on how the stream is split.

Delay: a sentence is emitted with the space after its stop; with the next letter after a stop that may belong to an
abbreviation, an ellipsis or a quote (after "a.m." with the first that shows that no day, month or time zone follows);
in scripts without spaces with the next character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from tts_worker.text.abbreviations import TIME_CHARS, Period, PeriodRules
from tts_worker.text.character_filter import BREAK
from tts_worker.text.characters import (
    FIRST_IDEOGRAPH,
    breaks_before,
    extends,
    is_closer,
    is_spoken,
    is_unspaced,
    spoken_weight,
)
from tts_worker.text.mapped_text import UNIT, MappedText
from tts_worker.text.options import TextOptions
from tts_worker.types import Boundary, Segment, Span

_SENTENCE = frozenset(".!?…。！？｡．।॥؟۔።။։")
_CLAUSE = frozenset(",;:—–-，、；：،؛፣၊")
# These need no space after them.
_WIDE = frozenset("。！？｡।॥؟۔።။։，、；：،؛፣၊—")
_LINE_ENDS = frozenset("\n" + BREAK)
_AUDIBLE = re.compile(f"[^\\W_]|{UNIT}")
_WIDE_CLASS = f"\n{BREAK}{''.join(_WIDE)}"
# Other marks before a letter or digit are inside a word or number.
_MARKS = re.compile(f"[{_WIDE_CLASS}{re.escape(''.join(_SENTENCE | _CLAUSE))}](?:(?<=[{_WIDE_CLASS}])|(?![A-Za-z0-9]))")
_UNSURE = frozenset(".…-–")
"""Marks that may not end a clause although a space follows."""
# Up to the last place where a segment may be cut by force: not beside a number, a sign or an abbreviation.
_LAST_SPACE = re.compile(r".*(?<![\d.$€£¥₹#+=×÷*/<>&@~≈–-]) (?=[^\d$€£¥₹#%°+=×÷*/<>&~≈±–-])", re.DOTALL)
_LAST_IDEOGRAPH = re.compile(".*[\u3041-\u9fff](?=[\u3041-\u3096\u309d-\u9fff])", re.DOTALL)
_WORD_STOPS = re.compile("[ \n]|[^\x00-\x7f]|(?<=[^\x00-\x7f])[\x00-\x7f]")
_HEAVY = b"0123456789$%&@+=*#<>|~^/\\"  # of size 3; other ASCII characters are of size 1
MAX_SIZE = 3
"""Largest spoken size of a character."""
_SPOKEN_SIGNS = frozenset("§¶№#&@%±≈≤≥≠√∑∫+=<>−")
"""Signs that are read although a space follows them."""
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


class Segmenter:
    """Takes filtered text in ``source`` and collects finished segments in ``ready``.

    The ranges tile the original text: a segment begins where the last one ended, so filtered text belongs to the
    segment after it. Text without speech makes no segment and joins the next one. After the last segment it joins that
    segment if it is not emitted yet; otherwise it belongs to none.

    Args:
        options: The sizes of segments, and the language.
        pauses: Length of the breaks in ms, by the offset of the break.
        source: The current segment and the text after it.
    """

    def __init__(
        self,
        options: TextOptions,
        pauses: dict[int, int],
        source: MappedText,
    ) -> None:
        self.source = source
        self.ready: list[Segment] = []
        self.count = 0
        self._pauses_ms = pauses
        self._options = options
        self._by_word = self._options.by_word
        self._rules = PeriodRules(options.language)
        self._at = 0  # the text before is decided
        self._waiting: _Mark | None = None  # the mark at ``_at``, until the text after it has arrived
        self._size = 0  # of the first ``_sized`` characters
        self._sized = 0
        self._fitting = 0  # length that surely fits the segment
        self._start = 0  # of the current segment, in the original text
        self._last_boundary: Boundary | None = None
        self._last_clause = 0  # characters up to and including the last clause mark
        self._space_follows = False  # a space precedes the next letter but is not in the source yet
        # sizes of the current segment
        self._limit = self._options.first_max_chars
        self._clause_minimum = self._options.first_clause_chars

    # -- the stream ---------------------------------------------------------------------------------------------------

    def size_left(self) -> tuple[int, int]:
        """Return the spoken size that may be added without completing a segment, and that with a clause mark."""
        text = self.source.text
        length = len(text)
        if self._waiting is not None or (self._by_word and text and not text[-1].isascii()):
            return 0, 0  # any character may complete one
        if length > self._sized:
            self._set_size(self._size + self._size_of(self._sized, length), length)
        return self._limit - self._size, self._clause_minimum - self._size

    def run(self) -> None:
        """Emit the segments that are complete."""
        text = self.source.text
        if UNIT in text:  # may be of any size
            self._fitting = self._sized
        if self._by_word:
            while self._scan_word():
                pass
        elif self._at < len(text):
            self._scan_clauses()

    def space_follows(self) -> None:
        """Emit the segments that a space or line break completes, before it is known which."""
        if not self._by_word and self.source.text[-1:].isalnum():
            return
        self._space_follows = True
        self.run()
        self._space_follows = False
        if self._by_word:
            self._end_word(len(self.source.text))

    def finish(self, boundary: Boundary, end: int) -> None:
        """Emit all pending text (FLUSH or END). The segment ranges to ``end``, the length of the original text."""
        self._emit(len(self.source.text), boundary, end)
        if boundary is Boundary.FLUSH:
            self._mark_flush()

    def finish_words(self, *, space_follows: bool) -> None:
        """Emit the complete words. A word that may still grow stays, with the text that carries no speech."""
        length = len(self.source.text) if space_follows else self._complete_length()
        if not self._has_speech_before(length):
            self._mark_flush()
            return
        mark = self._waiting
        ends_sentence = mark is not None and mark.end <= length and mark.is_sentence
        self._emit(length, Boundary.SENTENCE if ends_sentence else Boundary.FLUSH)
        self.run()

    def _complete_length(self) -> int:
        """Return the number of characters up to the end of the last complete word."""
        text = self.source.text
        length = len(text)
        if length == 0 or self._is_complete():
            return length
        for place in range(length - 1, 0, -1):
            before = text[place - 1]
            after = text[place]
            if after == " " or UNIT in (before, after):
                return place
            if max(before, after) >= FIRST_IDEOGRAPH and breaks_before(before, after):
                return place
        return 0

    def _is_complete(self) -> bool:
        """Return whether the last word cannot grow: a mark follows it, or its script has no spaces."""
        text = self.source.text
        mark = self._waiting
        if text[-1] in (UNIT, " "):
            return True
        if mark is None or mark.end != len(text) or mark.first == 0:
            return text[-1] >= FIRST_IDEOGRAPH and is_unspaced(text[-1])
        if mark.is_dash:
            return len(mark.text) > 1  # "well-" may become "well-known"
        if len(mark.text) > 1 or mark.text not in ".,:":
            return True
        before = self._last_char(mark.first - 1)
        if mark.text != ".":
            return not before.isdigit()  # "1," may become "1,000", "10:" may become "10:30"
        word = self._word_before(mark.first)
        return word is None or (before.isalpha() and len(word) > 1 and "." not in word)

    # -- pending text -------------------------------------------------------------------------------------------------

    def _first_char(self, place: int) -> str:
        char = self.source.text[place]
        return self.source.span_at(place).text[0] if char == UNIT else char

    def _text_after(self, place: int) -> str:
        """Return the text at ``place`` that decides whether a sentence continues."""
        text = self.source.text[place : place + TIME_CHARS]
        return "".join(span.text for span in self.source.spans(place, place + len(text))) if UNIT in text else text

    def _last_char(self, place: int) -> str:
        return self.source.span_at(place).text[-1]

    def _has_speech_before(self, length: int) -> bool:
        text = self.source.text
        return (length > 0 and text[0].isalnum()) or _AUDIBLE.search(text, 0, length) is not None

    def _fits(self, length: int) -> bool:
        """Return whether the first ``length`` characters fit the segment."""
        if length <= self._fitting:
            return True
        size = self._size + self._size_of(self._sized, length)
        if size > self._limit:
            return False
        self._set_size(size, length)
        return True

    def _set_size(self, size: int, length: int) -> None:
        """Note the size of the first ``length`` characters."""
        self._size = size
        self._sized = length
        self._fitting = length if UNIT in self.source.text else length + (self._limit - size) // MAX_SIZE

    def _size_of(self, first: int, last: int) -> int:
        if UNIT not in self.source.text:
            return spoken_size(self.source.text[first:last])
        text = self.source.text[first:last]
        largest = self._options.first_max_chars // 2
        units = [self.source.span_at(first + place) for place, char in enumerate(text) if char == UNIT]
        return spoken_size(text.replace(UNIT, "")) + sum(min(spoken_size(unit.text), largest) for unit in units)

    # -- by clause ----------------------------------------------------------------------------------------------------

    def _scan_clauses(self) -> None:
        """Decide the marks up to the first one that needs more text."""
        self._waiting = None
        while text := self.source.text:
            mark = _MARKS.search(text, self._at)
            place = mark.start() if mark else len(text)
            char = text[place] if mark else "\n"
            ends_line = char in _LINE_ENDS
            length = place if ends_line else place + 1
            if length > self._fitting and not self._fits(length):
                self._force_cut()
            elif mark is None:
                self._at = place
                return
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

    def _end_line(self, place: int) -> None:
        """End the segment with the line, or with the silence of a break."""
        if self.source.text[place] == "\n":
            self._emit(place + 1, Boundary.PARAGRAPH)
            return
        end = self.source.span_at(place).end
        if not self._emit(place, Boundary.BREAK, end):
            self._push_segment((), end, Boundary.BREAK)
        self.source.cut(1)

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
        if following[0] in _LINE_ENDS:
            return False
        if following[0] != " ":
            return self._needs_no_space(mark, self._first_char(mark.end))
        if mark.is_dash and len(mark.text) == 1 and not self._space_before(mark):
            return False  # "pre- and post-war"
        if not (mark.is_ellipsis or mark.is_dash or mark.is_closed or self._is_ambiguous(mark)):
            return True
        if len(following) == 1:
            return None
        return following[1] not in _LINE_ENDS and self._ends_before(mark, self._text_after(mark.end + 1))

    def _needs_no_space(self, mark: _Mark, following: str) -> bool:
        if mark.is_dash:  # word--word, but not --option
            return len(mark.text) > 1 and not self._space_before(mark)
        return mark.text[-1] in _WIDE or (is_unspaced(following) and not self._is_ambiguous(mark))

    def _space_before(self, mark: _Mark) -> bool:
        return mark.first == 0 or self.source.text[mark.first - 1] == " "

    def _is_ambiguous(self, mark: _Mark) -> bool:
        """Return whether the mark is a period that may belong to an abbreviation or a number."""
        return mark.text == "." and self._is_abbreviation(mark.first)

    def _is_abbreviation(self, period: int) -> bool:
        """Return whether the word before a period may be an abbreviation or a number."""
        word = self._word_before(period)
        return word is not None and self._rules.classify(word) is Period.AMBIGUOUS

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

    def _word_before(self, length: int) -> str | None:
        """Return the last word of the first ``length`` characters, without opening marks.

        It is None for a lexicon replacement and for a long word: neither is an abbreviation.
        """
        text = self.source.text
        word = text[text.rfind(" ", 0, length) + 1 : length]
        if UNIT in word or len(word) > _WORD_LIMIT:
            return None
        letters = _AUDIBLE.search(word)
        return word[letters.start() :] if letters else ""

    def _full_length(self) -> int:
        """Return how many characters fit a segment that is too long."""
        length = self._sized
        while self._fits(length + 1):
            length += 1
        return length

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

    # -- word by word -------------------------------------------------------------------------------------------------

    def _scan_word(self) -> bool:
        """Read up to the next possible end of a word; return False at the end of the text."""
        text = self.source.text
        stop = _WORD_STOPS.search(text, self._at)
        place = stop.start() if stop else len(text)
        if not self._fits(place):
            self._emit(self._full_length(), Boundary.FORCED)
            return True
        if stop is None:
            self._at = place
            return False
        self._at = place + 1
        char = text[place]
        if char == BREAK:
            self._end_line(place)
        elif char in " \n":
            if char == "\n":
                self.source.text = f"{text[:place]} {text[place + 1 :]}"
            self._end_word(place, Boundary.WORD if char == " " else Boundary.PARAGRAPH)
        elif place and breaks_before(self._last_char(place - 1), self._first_char(place)):
            self._end_word(place)
        return True

    def _end_word(self, length: int, boundary: Boundary = Boundary.WORD) -> None:
        at = self._at - length
        if self._has_speech_before(length):
            self._emit(length, boundary)
            self._at = max(0, at)

    def _mark_flush(self) -> None:
        """Emit an empty segment if the words so far were emitted before it was known that a pause follows."""
        if self._by_word and self._last_boundary in (Boundary.WORD, Boundary.FORCED):
            self._push_segment((), self._start, Boundary.FLUSH)

    # -- output -------------------------------------------------------------------------------------------------------

    def _emit(self, length: int, boundary: Boundary, end: int | None = None) -> bool:
        """Emit the first ``length`` characters as a segment up to ``end``; return whether they have speech.

        Text without speech is dropped; its range belongs to the next segment.
        """
        source = self.source
        has_speech = self._has_speech_before(length)
        spans = self._spans(length) if has_speech else ()
        cut_end = source.cut(length) if length else 0
        if has_speech:
            self._push_segment(spans, cut_end if end is None else end, boundary)
        self._at = self._last_clause = self._size = self._sized = 0
        self._fitting = 0 if UNIT in source.text else self._limit // MAX_SIZE
        self._waiting = None
        return has_speech

    def _push_segment(self, spans: tuple[Span, ...], end: int, boundary: Boundary) -> None:
        pause_ms = self._pauses_ms.pop(end - 1, 0) if self._pauses_ms else 0
        self.ready.append(Segment(self.count, spans, self._start, end, boundary, pause_ms))
        self.count += 1
        options = self._options
        self._limit = options.max_chars
        if self._clause_minimum < options.clause_chars:
            self._clause_minimum = min(options.clause_chars, 2 * self._clause_minimum)
        self._start = end
        self._last_boundary = boundary

    def _spans(self, length: int) -> tuple[Span, ...]:
        """Return the first ``length`` characters as spans: original text in runs, and the replacements."""
        if self._by_word:
            return tuple(self.source.spans(0, length))
        text = self.source.text[:length].rstrip()
        first = 0 if text[0].isalnum() else _first_word(text)
        spans = self.source.spans(first, len(text))
        if spans[0].text[0] == " ":  # a spelled letter
            spans[0] = spans[0]._replace(text=spans[0].text.lstrip())
        return tuple(spans)


def _first_word(text: str) -> int:
    """Return where the first word begins that is more than punctuation: "... ok", "— and"."""
    first = 0
    for place, char in enumerate(text):
        if char.isspace():
            first = place + 1
        elif char == UNIT or char in _SPOKEN_SIGNS or is_spoken(char):
            break
    return first


@lru_cache(maxsize=4096)
def _char_size(char: str) -> int:
    return max(1, spoken_weight(char))


def spoken_size(text: str) -> int:
    """Return the spoken size of ``text``, in Latin letters."""
    if text.isascii():
        return 3 * len(text) - 2 * len(text.encode().translate(None, _HEAVY))
    return sum(map(_char_size, text))
