"""Turns the segments of an utterance into words, in the language of each segment.

Readings are found in whole segments, so the result does not depend on how the stream was split. Each rewrites an exact
range, which keeps word times and playback reports right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache

from tts_worker.text.language import LanguageDetector, contains_chinese, primary_tag
from tts_worker.text.reading import english
from tts_worker.text.reading.further import Rewrites, further_languages
from tts_worker.text.span_rewriting import Rewrite, is_plain, rewrite_plain
from tts_worker.types import Segment

_CONTEXT_CHARS = 60
"""Text of earlier segments that decides how a token is read: "Your code is:" may be a segment of its own."""

_SPELLED_DASH = re.compile(r"[-–]\d")
"""Text between two characters that a tag spells: no range."""


@cache
def rewrites_of(language: str | None) -> Rewrites | None:
    """Return what reads a language (a primary tag); None if nothing does."""
    if language == "en":
        return english.rewrites
    if language is None or language == "mul":
        return None
    further = further_languages()
    return further.rewrites_in(language) if further else None


class Verbalizer:
    """Rewrites the segments of one utterance, in order.

    Args:
        languages: Languages of the voice; empty or "mul" means any.
        explicit: Language requested by the caller.
        others: Languages that other voices of its engine say for it.
        shape: Applied to each segment after its readings, with the language; None applies nothing.
        unread: Languages whose readings are left to what follows.
    """

    def __init__(
        self,
        languages: Sequence[str] = ("en",),
        explicit: str | None = None,
        *,
        others: Sequence[str] = (),
        shape: Callable[[Segment, str | None], Segment] | None = None,
        unread: Collection[str] = (),
    ) -> None:
        tags = set(map(primary_tag, languages))
        self._speaks_chinese = not tags.isdisjoint(("zh", "yue", "mul")) or not tags
        tags.discard("mul")
        further = [tag for tag in map(primary_tag, others) if tag not in {*tags, "mul"}] if tags else []
        self._only = tags.pop() if len(languages) == 1 and tags and explicit is None and not further else None
        self._detector = LanguageDetector((*languages, *further), explicit)
        self._shape = shape
        self._unread = frozenset(unread)
        self._before = ""

    def apply(self, segment: Segment) -> Segment:
        """Return ``segment`` in words. Replacements, as of the lexicon, stay whole; given phonemes stay as they are."""
        language = self._language(segment.text)
        segment = self._read(segment, language)
        return segment if self._shape is None else self._shape(segment, language)

    def _language(self, text: str) -> str | None:
        """Return the language of a segment; English and Chinese words, or "5kg" after the latter, are Chinese."""
        language = self._only or self._detector.detect(text)
        if language != "en" or not self._speaks_chinese:
            return language
        follows_chinese = contains_chinese(self._before[-2:]) and not text.lstrip()[:1].isalpha()
        return "zh" if follows_chinese or contains_chinese(text) else language

    def _read(self, segment: Segment, language: str | None) -> Segment:
        text = segment.text
        before = self._before
        self._before = (before + text)[-_CONTEXT_CHARS:] + " "
        rewrites = None if language in self._unread else rewrites_of(language)
        if rewrites is None:
            return segment
        shift = len(before)

        def find(source: str) -> list[Rewrite]:
            if len(segment.spans) > 1 and _SPELLED_DASH.fullmatch(source):
                return [(0, 1, ", "), (1, 2, _rewritten(source[1], rewrites))]
            return [(start - shift, end - shift, spoken) for start, end, spoken in rewrites(before + source, shift)]

        spans = [
            span if span.phonemes is not None or is_plain(span) else span._replace(text=_rewritten(span.text, rewrites))
            for span in segment.spans
        ]
        return replace(segment, spans=rewrite_plain(spans, find))


def _rewritten(text: str, rewrites: Rewrites) -> str:
    """Return all of ``text`` in words."""
    parts: list[str] = []
    done = 0
    for start, end, spoken in rewrites(text, 0):
        parts += [text[done:start], spoken]
        done = end
    return "".join([*parts, text[done:]])
