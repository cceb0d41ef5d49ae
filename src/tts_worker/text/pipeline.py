"""From text as it arrives to segments that may be spoken: decode, filter, lexicon, segmenter, normaliser.

Owns the order of the stages and the canonical original text of one utterance, in which every offset counts. Sans-IO:
it is fed deltas and returns segments. The segments depend only on the text and on where ``flush`` was called, never on
how the text was cut; time and memory are linear in it. It knows nothing of sessions, engines or time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tts_worker.errors import IllegalCommand
from tts_worker.text.decoding import TextDecoder
from tts_worker.text.filter import TextFilter, UrlMode
from tts_worker.text.lexicon import Lexicon, LexiconStage
from tts_worker.text.normaliser import Normalise, normalise_segment
from tts_worker.text.segmenter import Segmenter, SegmenterOptions
from tts_worker.types import Boundary, Segment


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How text is read. ``language``: a BCP-47 tag, for abbreviations and normalisation; None: English habits, no
    normalisation. ``normalise``: write numbers and dates out in words before the engine sees them."""

    markdown: bool = True
    urls: UrlMode = UrlMode.DROP
    language: str | None = None
    normalise: bool = False
    segmenter: SegmenterOptions = field(default_factory=SegmenterOptions)


class TextPipeline:
    """One per utterance. ``normalise`` is used only if the options ask for it (see ``load_normaliser``)."""

    def __init__(
        self,
        options: TextOptions | None = None,
        lexicon: Lexicon | None = None,
        normalise: Normalise | None = None,
    ) -> None:
        options = options or TextOptions()
        self._language = options.language
        self._normalise = normalise if options.normalise else None
        self._decoder = TextDecoder()
        self._segmenter = Segmenter(options.segmenter, options.language)
        self._lexicon = LexiconStage(lexicon, self._segmenter) if lexicon else None
        self._filter = TextFilter(self._lexicon or self._segmenter, markdown=options.markdown, urls=options.urls)
        self._parts: list[str] = []
        self._length = 0
        self._ended = False

    @property
    def source(self) -> str:
        """The original text so far. Offsets index it; receipts are cut from it."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
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
        self._read(self._decoder.feed(delta))
        return self._take_ready()

    def flush(self) -> list[Segment]:
        """Speak what is there without ending; half a character waits for its other half. Raises IllegalCommand after
        ``end``."""
        self._check_open()
        self._filter.flush()
        return self._finish(Boundary.FLUSH)

    def end(self) -> list[Segment]:
        """No more text: the last segments. The last one ranges to the end of the text if it was not out before.
        Raises IllegalCommand if called twice."""
        self._check_open()
        self._ended = True
        self._read(self._decoder.end())
        self._filter.settle()
        return self._finish(Boundary.END)

    def _check_open(self) -> None:
        if self._ended:
            raise IllegalCommand("the text has ended: begin another utterance")

    def _read(self, text: str) -> None:
        if not text:
            return
        push = self._filter.push
        for index, char in enumerate(text, self._length):
            push(char, index)
        self._parts.append(text)
        self._length += len(text)

    def _finish(self, boundary: Boundary) -> list[Segment]:
        if self._lexicon:
            self._lexicon.settle()
        self._segmenter.finish(boundary, self._length)
        return self._take_ready()

    def _take_ready(self) -> list[Segment]:
        ready = self._segmenter.ready
        if not ready:
            return []
        self._segmenter.ready = []
        if self._normalise is None:
            return ready
        return [normalise_segment(segment, self._normalise, self._language) for segment in ready]
