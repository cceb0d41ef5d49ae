"""The text pipeline of one utterance: decode, filter, apply the lexicon, segment.

Sans-IO: takes deltas, returns segments. All offsets refer to the canonical original text. The segments depend only on
the text and on where it was flushed, never on how the stream was split; time and memory are linear in the text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from tts_worker.errors import IllegalCommand
from tts_worker.text.clause_segmenter import ClauseSegmenter
from tts_worker.text.decoding import TextDecoder
from tts_worker.text.expression import ExpressionTrack
from tts_worker.text.filter import TextFilter
from tts_worker.text.lexicon import Lexicon, LexiconStage
from tts_worker.text.mapped_text import MappedText
from tts_worker.text.options import TextOptions
from tts_worker.text.readable import ReadableText
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.text.segmenter import MAX_SIZE, Segmenter, spoken_size
from tts_worker.text.skipping import skip_foreign
from tts_worker.text.word_segmenter import WordSegmenter
from tts_worker.types import Boundary, Segment

log = logging.getLogger(__name__)

_BLOCK_CHARS = 1024
"""Longer text is read in blocks: the stages copy what is left of a block with every segment."""

_PLAIN = " A-Za-z0-9#*_`~()'\"/%@=+{}^\\[\u00c0-\u024f\u4e00-\u9fff"
_CLAUSE_MARKS = ",;:|-"


def _marks(plain: str, stops: str) -> re.Pattern[str]:
    return re.compile(
        rf"[^{plain}](?:(?<![&\]{stops}])|(?<=[{stops}])[^A-EGI-LN-VX-Za-egi-ln-vx-z0-9]|(?<=\])[^(]|(?<=&)#)"
    )


_MARKS = _marks(_PLAIN, f".!?{_CLAUSE_MARKS}")
"""What may complete a segment that is not too long. Stops before letters are in a word, unless a URL may follow. A
bracket decides nothing before it is closed and the next character is known; the target of a link never does."""
_SENTENCE_MARKS = _marks(_PLAIN + _CLAUSE_MARKS, ".!?")
"""Those that do so whatever the size of the segment."""
_WORD_END = re.compile("[^A-Za-z0-9]")
_HELD_CHARS = 2
"""A space and a digit that the stages before the segmenter may hold."""


class TextPipeline:
    """Turns the text of one utterance into segments.

    Args:
        options: How text is read.
        lexicon: Words with a given pronunciation.
        verbalizer: Writes out numbers, signs and abbreviations; None leaves them to the engine.
    """

    def __init__(
        self,
        options: TextOptions | None = None,
        lexicon: Lexicon | None = None,
        verbalizer: Verbalizer | None = None,
    ) -> None:
        options = options or TextOptions()
        self._decoder = TextDecoder()
        pauses: dict[int, int] = {}  # length of the breaks in ms, by offset
        self._readable = readable = ReadableText()
        segmenter = WordSegmenter if options.by_word else ClauseSegmenter
        self._segmenter: Segmenter = segmenter(options, pauses, MappedText() if lexicon else readable)
        self._lexicon = LexiconStage(lexicon, readable, self._segmenter) if lexicon else None
        readable.space_follows = (self._lexicon or self._segmenter).space_follows
        self._expression = ExpressionTrack()
        self._filter = TextFilter(readable, options, pauses, self._expression)
        self._verbalizer = verbalizer
        self._languages = options.languages
        readable.after_letters = options.by_word or bool(lexicon)
        # An entry that the text completes may replace a word by a longer one.
        self._margin = options.first_max_chars // 2 if lexicon else 0
        self._unread = ""
        self._quiet_chars = 0  # length up to which unread text without ``_marks`` completes no segment
        self._marks = self._segment_marks = _WORD_END if options.by_word or lexicon else _MARKS
        self._clause_size_left = 0  # size of unread text from which a clause mark may complete a segment
        self._parts: list[str] = []  # of the text that is read
        self._length = 0
        self._ended = False

    @property
    def source(self) -> str:
        """The original text so far, which offsets index and playback reports split."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return "".join([*self._parts, self._unread])

    def feed(self, delta: str | bytes) -> list[Segment]:
        """Take more text, ``str`` or UTF-8 split anywhere; return the segments it completes.

        Raises:
            IllegalCommand: Called after ``end``.
        """
        if self._decoder.may_wait or not isinstance(delta, str) or not delta.isascii():
            delta = self._decoder.feed(delta)
        place = len(self._unread) - 1  # a mark may be the last character so far
        self._unread = unread = self._unread + delta
        if len(unread) <= self._quiet_chars:  # as for most deltas
            mark = self._marks.search(unread, place)
            if mark is None or not self._may_complete(mark):
                return []
        self._read()
        return self._pop_ready() if self._segmenter.ready else []

    def flush(self) -> list[Segment]:
        """Emit pending text without ending; half a character still waits for its other half.

        Raises:
            IllegalCommand: Called after ``end``.
        """
        self._read()
        self._filter.flush()
        return self._finish(Boundary.FLUSH)

    def flush_words(self) -> list[Segment]:
        """Emit the complete words without ending, while the text pauses.

        A word that may still grow stays pending, like the text that a filter or the lexicon buffers.

        Raises:
            IllegalCommand: Called after ``end``.
        """
        self._read()
        self._filter.release_mark()
        self._run_stages()
        is_matching = self._lexicon is not None and self._lexicon.is_matching
        self._segmenter.finish_words(space_follows=self._readable.holds_space and not is_matching)
        return self._pop_ready()

    def end(self) -> list[Segment]:
        """End the text and return the last segments.

        The last segment ranges to the end of the text unless it was emitted before.

        Raises:
            IllegalCommand: Called twice.
        """
        self._unread += self._decoder.end()
        self._read()
        self._ended = True
        self._quiet_chars = -1
        self._filter.settle()
        if (start := self._filter.unclosed_at) is not None and start < self._length:
            log.warning(
                "the text ends in reasoning, a tool call or code that is not closed; %d characters are not spoken",
                self._length - start,
            )
        return self._finish(Boundary.END)

    def abandon(self, rest: Iterable[str | bytes] = ()) -> None:
        """End the text without reading what is unread; that and ``rest`` only count in ``source``."""
        self._parts += [self._unread, *map(self._decoder.feed, rest), self._decoder.end()]
        self._unread = ""
        self._quiet_chars = -1
        self._ended = True

    def _read(self) -> None:
        """Run the text that has not been read through the stages."""
        text = self._unread
        self._unread = ""
        if self._ended:
            raise IllegalCommand("the text of this utterance has ended; begin another utterance")
        self._parts.append(text)
        for place in range(0, len(text), _BLOCK_CHARS):
            self._filter.push(text[place : place + _BLOCK_CHARS], self._length + place)
            self._run_stages()
        self._length += len(text)
        self._find_quiet()

    def _run_stages(self) -> None:
        if self._lexicon is not None:
            self._lexicon.run()
        self._segmenter.run()

    def _may_complete(self, mark: re.Match[str]) -> bool:
        """Return whether the unread text from ``mark`` on may complete a segment."""
        text = mark.string
        if mark[0][0] not in _CLAUSE_MARKS or spoken_size(text) >= self._clause_size_left:
            return True
        return _SENTENCE_MARKS.search(text, mark.end() - 1) is not None

    def _find_quiet(self) -> None:
        """Find which text may follow without completing a segment."""
        if (patience := self._filter.patience) is not None:
            self._quiet_chars, self._marks = patience
            self._clause_size_left = 0
            return
        size_left, clause_left = self._segmenter.size_left()
        chars = (size_left - self._margin) // MAX_SIZE - _HELD_CHARS
        is_matching = self._lexicon is not None and self._lexicon.is_matching
        self._quiet_chars = 0 if is_matching else chars if chars < _BLOCK_CHARS else _BLOCK_CHARS
        self._marks = marks = self._segment_marks
        self._clause_size_left = clause_left - _HELD_CHARS * MAX_SIZE if marks is _MARKS else 0

    def _finish(self, boundary: Boundary) -> list[Segment]:
        if self._lexicon is not None:
            self._lexicon.run(is_final=True)
        self._segmenter.run()
        self._segmenter.finish(boundary, self._length)
        return self._pop_ready()

    def _pop_ready(self) -> list[Segment]:
        ready = self._segmenter.ready
        self._segmenter.ready = []
        if self._expression.is_used:
            ready = [self._expression.apply(segment) for segment in ready]
        if self._verbalizer is not None:
            ready = [self._verbalizer.apply(segment) for segment in ready]
        return [skip_foreign(segment, self._languages) for segment in ready] if self._languages else ready
