"""The text pipeline of one utterance: decode, filter, apply the lexicon, segment.

Sans-IO: takes deltas, returns segments. All offsets refer to the canonical original text. The segments depend only on
the text and on where it was flushed, never on how the stream was split; time and memory are linear in the text.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import NoReturn

from tts_worker.errors import IllegalCommand, InvalidRequest
from tts_worker.text.character_filter import LINE_BREAKS
from tts_worker.text.control_tags import ControlTags
from tts_worker.text.decoding import TextDecoder
from tts_worker.text.filter import TextFilter
from tts_worker.text.lexicon import Lexicon, LexiconStage
from tts_worker.text.markup import BRACKET_LIMIT
from tts_worker.text.readable import ReadableText
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.text.segmenter import MAX_SIZE, Segmenter, SegmenterOptions, spoken_size
from tts_worker.text.skipping import skip_foreign
from tts_worker.types import Boundary, DropReasoning, Segment, UrlMode

log = logging.getLogger(__name__)

_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*")
_BLOCK_CHARS = 1024
"""Longer text is read in blocks: the stages copy what is left of a block with every segment."""

# What may complete a segment: a mark with the space or ideograph after it, a line break, a tag, unusual characters.
# Other text only does so if it grows too long. A clause mark completes no segment that is too short.
_CLAUSE_MARKS = ",;:|-"
_LETTERS = "A-EGI-LN-VX-Za-egi-ln-vx-z0-9"  # A mark before them is part of a word; the others may begin a URL.
_STOPS = rf".!?&{re.escape(_CLAUSE_MARKS)}"
_INSIDE = r"A-Za-z0-9#*_`~()\['\"/%@=+{}^<\u00c0-\u024f"
_WIDE = "\u4e00-\u9fff"
_PLAIN = f" {_INSIDE}{_WIDE}"
_ENDING = re.compile(
    f"[^{_PLAIN}](?:(?<=[^{_PLAIN}{_STOPS}])|(?<=-).*-|(?<=&)[A-Za-z0-9#]{{1,10}};"
    f"|(?<=[{_STOPS}])(?:(?<=&)|(?![{_LETTERS}]))[^ {_WIDE}]*[ {_WIDE}])"
)
_ENDING_START = re.compile(f"[^{_PLAIN}](?:(?<=[^{_PLAIN}.!?,;:|])|(?![{_LETTERS}]))")
_ENDING_REST = re.compile(f"[^{_INSIDE}.!?&,:|]")  # the last characters of ``_ENDING``
_FORMULA_MARKS = "$\\"
_MARK = re.compile(r"[^A-Za-z0-9 #*_`~()\[]|\*[A-Za-z]")
_WORD_END = re.compile("[^A-Za-z0-9]")
_SPEECH = re.compile(r"[^\W_]")
_LINK_TEXT_END = re.compile(rf"[{LINE_BREAKS}\]]")
_LINK_TARGET_END = re.compile(rf"[{LINE_BREAKS} <\[\])]")
_OPEN_TARGET = re.compile(r"\]\([^ ]*\Z")
_TABLE_MARKS = re.compile("[-|: ]+")


@dataclass(frozen=True, slots=True)
class TextOptions(SegmenterOptions):
    """How text is read, and the sizes of its segments.

    Attributes:
        markdown: Whether Markdown and tags are removed.
        urls: How bare URLs are read.
        drop_reasoning: Whether reasoning and tool text of language models is removed; "from_start": also what precedes
            the first closing tag of reasoning, of a model whose template has the opening one.
        language: BCP-47 tag, for abbreviations and formulas; None means English rules.
        languages: What the voice reads: letters of another script are skipped. "mul" or none means any.
        control_tags: Tags that the engine acts on.
        alphabets: Alphabets of ``<phoneme>`` tags that the engine knows; the content of others is read.

    Raises:
        InvalidRequest: A value is out of range.
    """

    markdown: bool = True
    urls: UrlMode = UrlMode.DROP
    drop_reasoning: DropReasoning = True
    language: str | None = None
    languages: tuple[str, ...] = ()
    control_tags: ControlTags | None = None
    alphabets: tuple[str, ...] = ("ipa",)

    def __post_init__(self) -> None:
        if self.urls not in tuple(UrlMode):
            raise InvalidRequest(f"urls must be one of {', '.join(mode.value for mode in UrlMode)}")
        if self.language is not None and not _LANGUAGE.fullmatch(self.language):
            raise InvalidRequest('language must be a BCP-47 tag such as "en" or "zh-CN"')
        SegmenterOptions.__post_init__(self)


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
        self._segmenter = Segmenter(options, options.language, pauses, None if lexicon else readable)
        self._lexicon = LexiconStage(lexicon, readable, self._segmenter) if lexicon else None
        readable.space_follows = (self._lexicon or self._segmenter).space_follows
        self._filter = TextFilter(
            readable,
            markdown=options.markdown,
            urls=UrlMode(options.urls),
            pauses=pauses,
            control_tags=options.control_tags,
            alphabets=options.alphabets,
            drop_reasoning=options.drop_reasoning,
            language=options.language,
        )
        self._verbalizer = verbalizer
        self._languages = options.languages
        self._by_word = readable.after_letters = options.by_word or bool(lexicon)
        # An entry that the text completes may replace a word by a longer one.
        self._margin = options.first_max_chars // 2 if lexicon else 0
        self._unread = ""
        # What the unread text may be without completing a segment, see ``_find_limits``.
        self._fitting = 0  # length up to which it surely fits the segment
        self._max_fitting = 0  # largest such length
        self._size_left = self._clause_size_left = 0  # spoken size that fits; that before a clause mark completes it
        self._has_speech = False  # whether the segment has text to speak
        self._ending = _WORD_END  # what may complete it
        self._watched = _WORD_END  # new text without these characters needs no search for an ending
        self._searched = 0  # length of the unread text without an ending
        self._parts: list[str] = []  # of the text that is read
        self._length = 0
        self._ended = False

    @property
    def source(self) -> str:
        """The original text so far, which offsets index and playback reports split."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return "".join([*self._parts, self._unread])

    @property
    def has_speech(self) -> bool:
        """Whether a segment has been emitted."""
        return self._segmenter.count > 0

    def feed(self, delta: str | bytes) -> list[Segment]:
        """Take more text, ``str`` or UTF-8 split anywhere; return the segments it completes.

        Raises:
            IllegalCommand: Called after ``end``.
        """
        if self._decoder.may_wait or not isinstance(delta, str) or not delta.isascii():
            delta = self._decoder.feed(delta)
        unread = self._unread + delta
        length = len(unread)
        if length <= self._fitting and self._watched.search(delta) is None:  # as for most deltas
            self._unread = unread
            return []
        if self._ended:
            self._reject()
        self._unread = unread
        if self._may_complete(unread, length):
            self._read()
            if self._segmenter.ready:
                return self._pop_ready()
        return []

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
        self._fitting = -1
        self._filter.settle()
        if (start := self._filter.unclosed_at) is not None and start < self._length:
            log.warning(
                "the text ends in reasoning or a tool call that is not closed; %d characters are not spoken",
                self._length - start,
            )
        return self._finish(Boundary.END)

    def skip(self, delta: str | bytes) -> None:
        """Take text that is not spoken and only counts in ``source``.

        Raises:
            IllegalCommand: Called after ``end``.
        """
        self._read()
        text = self._decoder.feed(delta)
        self._parts.append(text)
        self._length += len(text)

    def _reject(self) -> NoReturn:
        raise IllegalCommand("the text of this utterance has ended; begin another utterance")

    def _read(self) -> None:
        """Run the text that has not been read through the stages."""
        if self._ended:
            self._reject()
        text = self._unread
        self._unread = ""
        self._parts.append(text)
        for place in range(0, len(text), _BLOCK_CHARS):
            self._filter.push(text[place : place + _BLOCK_CHARS], self._length + place)
            self._run_stages()
        self._length += len(text)
        self._find_limits()

    def _run_stages(self) -> None:
        if self._lexicon is not None:
            self._lexicon.run()
        self._segmenter.run()

    def _may_complete(self, unread: str, length: int) -> bool:
        """Return whether the text that has not been read may complete a segment."""
        if length > self._fitting:
            if length <= self._max_fitting:
                size_left = self._size_left - _largest_size(unread)
                self._fitting = min(self._max_fitting, length + size_left // MAX_SIZE)
            if length > self._fitting:
                return True
        search = self._ending.search
        place = self._searched
        while ending := search(unread, place):
            place, end = ending.span()
            if unread[place] in _FORMULA_MARKS:  # its words may be longer
                return True
            if unread[place] not in _CLAUSE_MARKS or self._ends_clause(unread[:end]):
                self._has_speech = self._has_speech or _SPEECH.search(unread, 0, end) is not None
                if self._has_speech:
                    return True
            place += 1
        if self._ending is _ENDING:
            start = _ENDING_START.search(unread, place)
            place = start.start() if start else length
            self._watched = _ENDING_REST if start else _ENDING_START
        self._searched = place
        return False

    def _ends_clause(self, text: str) -> bool:
        """Return whether a clause that ends with ``text`` is long enough for a segment."""
        size_left = self._clause_size_left
        return MAX_SIZE * len(text) >= size_left and _largest_size(text) >= size_left

    def _find_limits(self) -> None:
        """Find which text may be added without completing a segment."""
        self._fitting = self._max_fitting = self._searched = 0
        undecided = self._filter.undecided
        if undecided is None or (self._lexicon is not None and self._lexicon.is_matching):
            if (marks := self._filter.skips_to) is not None:
                self._fitting = self._max_fitting = _BLOCK_CHARS
                self._has_speech = True
                self._ending = self._watched = marks
            return
        self._has_speech, self._size_left, self._clause_size_left = self._segmenter.size_left()
        self._max_fitting = _BLOCK_CHARS
        if self._by_word:
            self._ending = self._watched = _WORD_END
            self._size_left -= self._margin
            self._clause_size_left = 0
        else:
            self._ending = _ENDING
            self._watched = _ENDING_START
        if undecided == " ":
            self._size_left -= 1
            self._clause_size_left -= 1
        elif undecided:
            self._hold(undecided)
        self._fitting = min(self._max_fitting, self._size_left // MAX_SIZE)

    def _hold(self, undecided: str) -> None:
        """Take into account the text that the filter has not passed on."""
        self._size_left -= MAX_SIZE * len(undecided)
        self._clause_size_left -= MAX_SIZE * len(undecided)
        self._has_speech = self._has_speech or _SPEECH.search(undecided) is not None
        if not _MARK.search(undecided):
            return
        if self._by_word:
            self._max_fitting = 0
        elif _TABLE_MARKS.fullmatch(undecided):
            if "|" in undecided:
                self._size_left = self._clause_size_left
        elif undecided.lstrip()[0] == "[" and ("]" not in undecided or _OPEN_TARGET.search(undecided)):
            self._ending = self._watched = _LINK_TARGET_END if "]" in undecided else _LINK_TEXT_END
            self._max_fitting = BRACKET_LIMIT - 1 - len(undecided)
            self._has_speech = True  # other text follows the link
        else:
            self._max_fitting = 0

    def _finish(self, boundary: Boundary) -> list[Segment]:
        if self._lexicon is not None:
            self._lexicon.run(is_final=True)
        self._segmenter.run()
        self._segmenter.finish(boundary, self._length)
        return self._pop_ready()

    def _pop_ready(self) -> list[Segment]:
        ready = self._segmenter.ready
        self._segmenter.ready = []
        if self._verbalizer is not None:
            ready = [self._verbalizer.apply(segment) for segment in ready]
        return [skip_foreign(segment, self._languages) for segment in ready] if self._languages else ready


def _largest_size(text: str) -> int:
    """Return the spoken size of ``text``, or the largest it can have: a tag may have characters spelled."""
    return MAX_SIZE * len(text) if "<" in text else spoken_size(text)
