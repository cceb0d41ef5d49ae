"""Cuts text into words: a segment each, for what speaks them as they come."""

from __future__ import annotations

import re

from tts_worker.text.character_filter import BREAK
from tts_worker.text.characters import breaks_before
from tts_worker.text.segmenter import Segmenter
from tts_worker.types import Boundary, Span

_WORD_STOPS = re.compile("[ \n]|[^\x00-\x7f]|(?<=[^\x00-\x7f])[\x00-\x7f]")


class WordSegmenter(Segmenter):
    """Makes every word a segment. A flush after the last word is an empty segment."""

    def size_left(self) -> tuple[int, int]:
        """Return the spoken size that may be added without completing a segment, twice."""
        text = self.source.text
        return (0, 0) if text and not text[-1].isascii() else super().size_left()  # any character may complete one

    def _scan(self) -> None:
        while self._scan_word():
            pass

    def space_follows(self) -> None:
        """Emit the word that a space or line break completes."""
        self.run()
        self._end_word(len(self.source.text))

    def finish(self, boundary: Boundary, end: int) -> None:
        """Emit all pending text, and an empty segment if a pause follows words that were emitted before."""
        super().finish(boundary, end)
        if boundary is Boundary.FLUSH:
            self._mark_flush()

    def finish_words(self, *, space_follows: bool) -> None:
        """Emit the complete words, or an empty segment if they were emitted before."""
        count = self.count
        super().finish_words(space_follows=space_follows)
        if self.count == count:
            self._mark_flush()

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
        if self._last_boundary in (Boundary.WORD, Boundary.FORCED):
            self._push_segment((), self._start, Boundary.FLUSH)

    def _spans(self, length: int) -> tuple[Span, ...]:
        return tuple(self.source.spans(0, length))
