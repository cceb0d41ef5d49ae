"""Cuts filtered text into segments while it arrives: what cutting by clauses and word by word have in common.

Every decision depends only on the text before a mark and a few characters after it, so the segments do not depend on
how the stream is split.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import lru_cache

from tts_worker.text.character_filter import BREAK, NO_PAUSE
from tts_worker.text.characters import FIRST_IDEOGRAPH, breaks_before, is_spoken, is_unspaced, spoken_weight
from tts_worker.text.mapped_text import UNIT, MappedText
from tts_worker.text.options import TextOptions
from tts_worker.types import Boundary, Segment, Span

LINE_ENDS = frozenset("\n" + BREAK)
AUDIBLE = re.compile(f"[^\\W_]|{UNIT}")
_HEAVY = b"0123456789$%&@+=*#<>|~^/\\"  # of size 3; other ASCII characters are of size 1
MAX_SIZE = 3
"""Largest spoken size of a character."""
_SPOKEN_SIGNS = frozenset("§¶№#&@%±≈≤≥≠√∑∫+=<>−")
"""Signs that are read although a space follows them."""


class Segmenter(ABC):
    """Takes filtered text in ``source`` and collects finished segments in ``ready``.

    The ranges tile the original text: a segment begins where the last one ended, so filtered text belongs to the
    segment after it. Text without speech makes no segment and joins the next one. After the last segment it joins that
    segment if it is not emitted yet; otherwise it belongs to none.

    Args:
        options: The sizes of segments, and the language.
        pauses: Length of the breaks in ms, by the offset of the break.
        source: The current segment and the text after it.
    """

    def __init__(self, options: TextOptions, pauses: dict[int, int], source: MappedText) -> None:
        self.source = source
        self.ready: list[Segment] = []
        self.count = 0
        self._pauses_ms = pauses
        self._options = options
        self._at = 0  # the text before is decided
        self._size = 0  # of the first ``_sized`` characters
        self._sized = 0
        self._fitting = 0  # length that surely fits the segment
        self._start = 0  # of the current segment, in the original text
        self._last_boundary: Boundary | None = None
        self._limit = options.first_max_chars  # of the size of the current segment

    # -- the stream ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Emit the segments that are complete."""
        if UNIT in self.source.text:  # may be of any size
            self._fitting = self._sized
        self._scan()

    @abstractmethod
    def _scan(self) -> None:
        """Find the ends of segments."""

    @abstractmethod
    def space_follows(self) -> None:
        """Emit the segments that a space or line break completes, before it is known which."""

    def size_left(self) -> tuple[int, int]:
        """Return the spoken size that may be added without completing a segment, and that with a clause mark."""
        left = self._limit - self._full_size()
        return left, left

    def _full_size(self) -> int:
        """Return the size of all pending text."""
        length = len(self.source.text)
        if length > self._sized:
            self._set_size(self._size + self._size_of(self._sized, length), length)
        return self._size

    def finish(self, boundary: Boundary, end: int) -> None:
        """Emit all pending text (FLUSH or END). The segment ranges to ``end``, the length of the original text."""
        self._emit(len(self.source.text), boundary, end)

    def finish_words(self, *, space_follows: bool) -> None:
        """Emit the complete words. A word that may still grow stays, with the text that carries no speech."""
        length = len(self.source.text) if space_follows else self._complete_length()
        if self._has_speech_before(length):
            self._emit(length, self._boundary_at(length))
            self.run()

    def _boundary_at(self, length: int) -> Boundary:
        """Return what ends the complete words."""
        return Boundary.FLUSH

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
        """Return whether the last word cannot grow."""
        last = self.source.text[-1]
        return last in (UNIT, " ") or (last >= FIRST_IDEOGRAPH and is_unspaced(last))

    # -- pending text -------------------------------------------------------------------------------------------------

    def _first_char(self, place: int) -> str:
        char = self.source.text[place]
        return self.source.span_at(place).text[0] if char == UNIT else char

    def _last_char(self, place: int) -> str:
        return self.source.span_at(place).text[-1]

    def _has_speech_before(self, length: int) -> bool:
        text = self.source.text
        return (length > 0 and text[0].isalnum()) or AUDIBLE.search(text, 0, length) is not None

    def _fits(self, length: int) -> bool:
        """Return whether the first ``length`` characters fit the segment."""
        if length <= self._fitting:
            return True
        size = self._size + self._size_of(self._sized, length)
        if size > self._limit:
            return False
        self._set_size(size, length)
        return True

    def _full_length(self) -> int:
        """Return how many characters fit a segment that is too long."""
        length = self._sized
        while self._fits(length + 1):
            length += 1
        return length

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

    # -- output -------------------------------------------------------------------------------------------------------

    def _end_line(self, place: int) -> None:
        """End the segment with the line, or with the silence of a break."""
        if self.source.text[place] == "\n":
            self._emit(place + 1, Boundary.PARAGRAPH)
            return
        end = self.source.span_at(place).end
        if self._pauses_ms.get(end - 1) == NO_PAUSE:
            del self._pauses_ms[end - 1]
            self._emit(place, Boundary.FORCED, end)
        elif not self._emit(place, Boundary.BREAK, end):
            self._push_segment((), end, Boundary.BREAK)
        self.source.cut(1)

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
        self._at = self._size = self._sized = 0
        self._fitting = 0 if UNIT in source.text else self._limit // MAX_SIZE
        return has_speech

    def _push_segment(self, spans: tuple[Span, ...], end: int, boundary: Boundary) -> None:
        pause_ms = self._pauses_ms.pop(end - 1, 0) if self._pauses_ms else 0
        self.ready.append(Segment(self.count, spans, self._start, end, boundary, pause_ms))
        self.count += 1
        self._limit = self._options.max_chars
        self._start = end
        self._last_boundary = boundary

    def _spans(self, length: int) -> tuple[Span, ...]:
        """Return the first ``length`` characters as spans: original text in runs, and the replacements."""
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
