"""The text pipeline of one utterance: decode, filter, apply the lexicon, segment.

Sans-IO: takes deltas, returns segments. All offsets refer to the canonical original text. The segments depend only on
the text and on where it was flushed, never on how the stream was split; time and memory are linear in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tts_worker.errors import IllegalCommand, InvalidRequest
from tts_worker.text.decoding import TextDecoder
from tts_worker.text.filter import TextFilter
from tts_worker.text.lexicon import Lexicon, LexiconStage
from tts_worker.text.segmenter import Segmenter, SegmenterOptions
from tts_worker.text.spoken_forms import SpokenForms
from tts_worker.types import Boundary, Segment, UrlMode

_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*")
_TAIL_PARTS = 4096


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How text is read.

    Attributes:
        markdown: Whether Markdown and tags are removed.
        urls: How bare URLs are read.
        language: BCP-47 tag, for abbreviations; None means English rules.
        by_word: See ``SegmenterOptions``, as for the sizes that follow.

    Raises:
        InvalidRequest: A value is out of range.
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
    """Turns the text of one utterance into segments.

    Args:
        options: How text is read.
        lexicon: Words with a given pronunciation.
        spoken_forms: Rewrites English codes, units, addresses; None leaves them to the engine.
    """

    def __init__(
        self,
        options: TextOptions | None = None,
        lexicon: Lexicon | None = None,
        spoken_forms: SpokenForms | None = None,
    ) -> None:
        options = options or TextOptions()
        self._decoder = TextDecoder()
        pauses: dict[int, int] = {}  # length of the breaks in ms, by offset
        self._segmenter = Segmenter(options.segmenter_options(), options.language, pauses)
        self._lexicon = LexiconStage(lexicon, self._segmenter) if lexicon else None
        self._filter = TextFilter(
            self._lexicon or self._segmenter, markdown=options.markdown, urls=UrlMode(options.urls), pauses=pauses
        )
        self._spoken_forms = spoken_forms
        self._parts: list[str] = []
        self._tail: list[str] = []  # latest deltas, joined periodically since a delta may be one character
        self._length = 0
        self._ended = False

    @property
    def source(self) -> str:
        """The original text so far, which offsets index and playback reports split."""
        if self._tail or len(self._parts) > 1:
            self._parts = ["".join([*self._parts, *self._tail])]
            self._tail.clear()
        return self._parts[0] if self._parts else ""

    @property
    def has_speech(self) -> bool:
        """Whether a segment has been emitted."""
        return self._segmenter.count > 0

    def feed(self, delta: str | bytes) -> list[Segment]:
        """Take more text, ``str`` or UTF-8 split anywhere; return the segments it completes.

        Raises:
            IllegalCommand: Called after ``end``.
        """
        self._check_open()
        text = self._decoder.feed(delta)
        if text:
            self._filter.push(text, self._length)
            self._append_source(text)
        return self._pop_ready() if self._segmenter.ready else []

    def flush(self) -> list[Segment]:
        """Emit pending text without ending; half a character still waits for its other half.

        Raises:
            IllegalCommand: Called after ``end``.
        """
        self._check_open()
        self._filter.flush()
        return self._finish(Boundary.FLUSH)

    def flush_words(self) -> list[Segment]:
        """Emit the complete words without ending, while the text pauses.

        A word that may still grow stays pending, like the text that a filter or the lexicon buffers.

        Raises:
            IllegalCommand: Called after ``end``.
        """
        self._check_open()
        self._filter.release_mark()
        self._segmenter.finish_words()
        return self._pop_ready()

    def end(self) -> list[Segment]:
        """End the text and return the last segments.

        The last segment ranges to the end of the text unless it was emitted before.

        Raises:
            IllegalCommand: Called twice.
        """
        self._check_open()
        self._ended = True
        text = self._decoder.end()
        if text:
            self._filter.push(text, self._length)
            self._append_source(text)
        self._filter.settle()
        return self._finish(Boundary.END)

    def skip(self, delta: str | bytes) -> None:
        """Take text that is not spoken and only counts in ``source``.

        Raises:
            IllegalCommand: Called after ``end``.
        """
        self._check_open()
        self._append_source(self._decoder.feed(delta))

    def _check_open(self) -> None:
        if self._ended:
            raise IllegalCommand("the text of this utterance has ended; begin another utterance")

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
        self._segmenter.ready = []
        return ready if self._spoken_forms is None else [self._spoken_forms.apply(segment) for segment in ready]
