"""Text normalization with the optional package ``wetext``: numbers, dates and symbols as words.

Works on whole segments, so that the result does not depend on how the stream was split, and maps the new words to the
original text. Languages without rules pass unchanged.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tts_worker.errors import MissingExtra
from tts_worker.front_end.alignment import align_words
from tts_worker.text.language import primary_tag
from tts_worker.text.span_rewriting import Rewrite, rewrite_plain
from tts_worker.types import Segment

if TYPE_CHECKING:
    from wetext import Normalizer

Normalize = Callable[[str, str | None], str]
"""``(text, language) -> text``: writes out a run of spoken text in words."""

LANGUAGES = ("en", "zh")
"""Primary BCP-47 tags that ``wetext`` has rules for."""


def load_normalizer() -> Normalize:
    """Return the ``wetext`` rules as a function; its first call imports the package and loads them (about 1 s).

    Raises:
        MissingExtra: The package is not installed.
    """
    if find_spec("wetext") is None:
        raise MissingExtra("text normalization", "normalize")
    rules: dict[str, Normalizer] = {}

    def normalize(text: str, language: str | None) -> str:
        primary = primary_tag(language or "")
        if primary not in LANGUAGES:
            return text
        if primary not in rules:
            from wetext import Normalizer

            rules[primary] = Normalizer(lang=primary, operator="tn")
        try:
            written = str(rules[primary].normalize(text))
        except Exception:  # the grammars reject unusual text by assertions; the text is spoken unchanged
            return text
        if "\\" not in text:
            written = written.replace("\\", "")  # wetext escapes quotes
        return written or text

    return normalize


_DIGIT = re.compile(r"\d")
_NEEDS_REWRITING = re.compile(
    r"[\d_]"
    r"|[^\w\s,.!?;:'\"\u2018\u2019\u201c\u201d\u2013\u2014\u2026()\-\u3000-\u3011\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f]"
    r"|[A-Z]{2}|\.\s*\w|\b(?:Mr|Mrs|Ms|Dr|St|Mt|Jr|Sr|Prof)\b"
)


def needs_rewriting(text: str, language: str) -> bool:
    """Return whether the rules may change ``text``: it has digits, symbols, abbreviations or consecutive capitals.

    Chinese rules change only text with digits. Skipping other text saves about 0.1 ms per character.
    """
    if language == "zh":
        return _DIGIT.search(text) is not None
    if _NEEDS_REWRITING.search(text):
        return True
    return not text.isascii() and any(unicodedata.category(char) in ("No", "Nl") for char in text)


def normalize_segment(segment: Segment, normalize: Normalize, language: str | None) -> Segment:
    """Return ``segment`` with its plain text normalized; lexicon replacements stay unchanged.

    Every new span ranges over the original words it replaces; unchanged words keep one offset per character.
    """
    return replace(segment, spans=rewrite_plain(segment.spans, lambda text: _rewrites(text, normalize, language)))


def _rewrites(source: str, normalize: Normalize, language: str | None) -> list[Rewrite]:
    core = source.strip()
    if not any(map(str.isalnum, core)):
        return []
    target = " ".join(normalize(core, language).split())
    if target == core or not any(map(str.isalnum, target)):
        return []
    first = source.index(core)
    found: list[Rewrite] = []
    done = 0
    for text, start, end in _aligned_runs(core, target):
        if done < start:
            found.append((first + done, first + start, ""))
        if text != core[start:end]:
            found.append((first + start, first + end, text))
        done = end
    return found


def _aligned_runs(source: str, target: str) -> list[tuple[str, int, int]]:
    """Split ``target`` into parts that cover it, each with its non-empty range of ``source``.

    Parts from the same source words are joined. A single space between words maps to the space in the source, if there
    is one.
    """
    words: list[list[int]] = []
    for target_start, target_end, start, end in align_words(source, target):
        if words and (start == end or start < words[-1][3]):  # inserted, or from the same source words
            words[-1][1] = target_end
        elif words and words[-1][2] == words[-1][3]:  # words inserted at the start join the next run
            words[-1][1:] = [target_end, start, end]
        else:
            words.append([target_start, target_end, start, end])
    groups: list[tuple[str, int, int]] = []
    for number, (target_start, target_end, start, end) in enumerate(words):
        groups.append((target[target_start:target_end], start, end))
        following = words[number + 1] if number + 1 < len(words) else None
        if following is None or following[0] == target_end:
            continue
        space = source.find(" ", end, following[2])
        if space >= 0:
            groups.append((" ", space, space + 1))
        else:
            groups[-1] = (target[target_start : following[0]], start, end)
    return groups
