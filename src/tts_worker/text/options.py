"""How the text of an utterance is read, and the sizes of its segments."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tts_worker.errors import InvalidRequest
from tts_worker.text.control_tags import ControlTags
from tts_worker.types import DropReasoning, UrlMode

_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*")


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How text is read, and the sizes of its segments.

    Sizes are spoken sizes: a Latin letter, space or mark counts 1 (about 1/15 s), a digit or Han character 3.

    Attributes:
        first_clause_chars: Minimum size of the first segment for a cut at a comma. The minimum doubles with every
            segment, up to ``clause_chars``.
        clause_chars: Largest minimum size for a cut at a comma.
        first_max_chars: Maximum size of the first segment; text without punctuation is cut at a space.
        max_chars: Maximum size of the other segments.
        by_word: Make every word a segment; only the maxima apply. A flush after the last word is an empty segment.
        markdown: Whether Markdown and tags are removed; otherwise only characters are and, depending on ``urls``, URLs.
        urls: How bare URLs are read.
        drop_reasoning: Whether reasoning and tool text of language models is removed, also without ``markdown``, but
            not in code; "from_start": also what precedes the first closing tag of reasoning, of a model whose template
            has the opening one.
        language: BCP-47 tag, for abbreviations and formulas; None means English rules.
        languages: What the voice reads: letters of another script are skipped. "mul" or none means any.
        control_tags: Tags that the engine acts on, which are passed on as units, but not in code.
        cuts_styles: Whether a segment ends where the style changes, for an engine that has one style for each.
        alphabets: Alphabets of ``<phoneme>`` tags that the engine knows; the content of others is read.

    Raises:
        InvalidRequest: The sizes do not increase from 1, ``first_max_chars`` is below 20, or another value is out of
            range.
    """

    first_clause_chars: int = 12
    clause_chars: int = 60
    first_max_chars: int = 90
    max_chars: int = 180
    by_word: bool = False
    markdown: bool = True
    urls: UrlMode = UrlMode.DROP
    drop_reasoning: DropReasoning = True
    language: str | None = None
    languages: tuple[str, ...] = ()
    control_tags: ControlTags | None = None
    cuts_styles: bool = False
    alphabets: tuple[str, ...] = ("ipa",)

    def __post_init__(self) -> None:
        if self.urls not in tuple(UrlMode):
            raise InvalidRequest(f"urls must be one of {', '.join(mode.value for mode in UrlMode)}")
        if self.language is not None and not _LANGUAGE.fullmatch(self.language):
            raise InvalidRequest('language must be a BCP-47 tag such as "en" or "zh-CN"')
        if not 1 <= self.first_clause_chars <= self.clause_chars <= self.max_chars:
            raise InvalidRequest("segment sizes: 1 <= first_clause_chars <= clause_chars <= max_chars must hold")
        if not max(20, self.first_clause_chars) <= self.first_max_chars <= self.max_chars:
            raise InvalidRequest("segment sizes: 20, first_clause_chars <= first_max_chars <= max_chars must hold")
