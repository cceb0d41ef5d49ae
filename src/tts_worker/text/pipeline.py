"""From text as it arrives to segments that may be spoken: decode, filter, lexicon, segmenter.

Owns the order of the stages and the canonical original text of one utterance, in which every offset counts. Sans-IO:
it is fed deltas and returns segments. The segments depend only on the text and on where it was flushed, never on
how the text was cut; time and memory are linear in it. It knows nothing of sessions, engines or time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tts_worker.errors import IllegalCommand, InvalidRequest
from tts_worker.text.decoding import TextDecoder
from tts_worker.text.filter import TextFilter, UrlMode
from tts_worker.text.lexicon import Lexicon, LexiconStage
from tts_worker.text.segmenter import Segmenter, SegmenterOptions
from tts_worker.types import Boundary, Segment

_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*")
_TAIL_PARTS = 4096


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How text is read.

    ``markdown``: leave out Markdown and tags. ``urls``: what becomes of bare URLs. ``language``: a BCP-47 tag, for
    abbreviations; None means English habits. The others are those of ``SegmenterOptions``.
    Raises InvalidRequest if a value is out of range.
    """

    markdown: bool = True
    urls: UrlMode = UrlMode.DROP
    language: str | None = None
    by_word: bool = False
    first_clause_chars: int = 12
    clause_chars: int = 60
    first_max_chars: int = 90
    max_chars: int = 180

    def __post_init__(self) -> None:
        if self.urls not in tuple(UrlMode):
            raise InvalidRequest(f"urls must be one of {', '.join(mode.value for mode in UrlMode)}")
        if self.language is not None and not _LANGUAGE.fullmatch(self.language):
            raise InvalidRequest('language must be a BCP-47 tag such as "en" or "zh-CN"')
        self.segmenter_options()

    def segmenter_options(self) -> SegmenterOptions:
        return SegmenterOptions(
            self.first_clause_chars, self.clause_chars, self.first_max_chars, self.max_chars, self.by_word
        )


class TextPipeline:
    """One per utterance."""

    def __init__(self, options: TextOptions | None = None, lexicon: Lexicon | None = None) -> None:
        options = options or TextOptions()
        self._decoder = TextDecoder()
        self._segmenter = Segmenter(options.segmenter_options(), options.language)
        self._lexicon = LexiconStage(lexicon, self._segmenter) if lexicon else None
        self._filter = TextFilter(
            self._lexicon or self._segmenter, markdown=options.markdown, urls=UrlMode(options.urls)
        )
        self._parts: list[str] = []
        self._tail: list[str] = []  # the latest deltas; joined from time to time, for there may be one per character
        self._length = 0
        self._ended = False

    @property
    def source(self) -> str:
        """The original text so far. Offsets index it; receipts are cut from it."""
        if self._tail or len(self._parts) > 1:
            self._parts = ["".join([*self._parts, *self._tail])]
            self._tail.clear()
        return self._parts[0] if self._parts else ""

    @property
    def has_speech(self) -> bool:
        """Whether any segment came out yet."""
        return self._segmenter.count > 0

    def feed(self, delta: str | bytes) -> list[Segment]:
        """Take more text: characters, or UTF-8 that may be cut anywhere. Returns the segments that it completed.

        Raises IllegalCommand after ``end``.
        """
        self._check_open()
        self._process(self._decoder.feed(delta))
        return self._pop_ready()

    def flush(self) -> list[Segment]:
        """Speak what is there without ending; half a character waits for its other half. Raises IllegalCommand after
        ``end``."""
        self._check_open()
        self._filter.flush()
        return self._finish(Boundary.FLUSH)

    def flush_words(self) -> list[Segment]:
        """Speak the words that are complete without ending: the writer is silent. A word that may still be growing
        stays, and so does what a filter or the lexicon holds back. Raises IllegalCommand after ``end``."""
        self._check_open()
        self._filter.release_mark()
        self._segmenter.finish_words()
        return self._pop_ready()

    def end(self) -> list[Segment]:
        """No more text: the last segments. The last one ranges to the end of the text if it was not out before.
        Raises IllegalCommand if called twice."""
        self._check_open()
        self._ended = True
        self._process(self._decoder.end())
        self._filter.settle()
        return self._finish(Boundary.END)

    def skip(self, delta: str | bytes) -> None:
        """Take text that will not be spoken; it only counts in ``source``. Raises IllegalCommand after ``end``."""
        self._check_open()
        self._append_source(self._decoder.feed(delta))

    def _check_open(self) -> None:
        if self._ended:
            raise IllegalCommand("the text has ended: begin another utterance")

    def _process(self, text: str) -> None:
        if not text:
            return
        push = self._filter.push
        for index, char in enumerate(text, self._length):
            push(char, index)
        self._append_source(text)

    def _append_source(self, text: str) -> None:
        self._length += len(text)
        self._tail.append(text)
        if len(self._tail) == _TAIL_PARTS:
            self._parts.append("".join(self._tail))
            self._tail.clear()

    def _finish(self, boundary: Boundary) -> list[Segment]:
        if self._lexicon:
            self._lexicon.settle()
        self._segmenter.finish(boundary, self._length)
        return self._pop_ready()

    def _pop_ready(self) -> list[Segment]:
        ready = self._segmenter.ready
        if not ready:
            return []
        self._segmenter.ready = []
        return ready
