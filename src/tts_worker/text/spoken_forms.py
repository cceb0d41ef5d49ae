"""Spoken forms of English text: codes and phone numbers digit by digit, units, days, addresses of web pages.

Rules are patterns over whole segments, so the result does not depend on how the stream was split. Each rewrites an
exact range, which keeps word times and playback reports right. Plain numbers are left to the engine or to the
normalizer that follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tts_worker.text import english_tables as tables
from tts_worker.text.english_amounts import AMOUNT_RULES
from tts_worker.text.english_codes import CODE_RULES
from tts_worker.text.english_names import DAY, MONTH, NAME_RULES
from tts_worker.text.english_rules import alternatives
from tts_worker.text.language import LanguageDetector, primary_tag
from tts_worker.text.span_rewriting import Rewrite, rewrite_plain
from tts_worker.types import Segment

_CONTEXT_CHARS = 60
"""Text of earlier segments that a rule may look at: "Your code is:" may be a segment of its own."""


def _requirements(needs: str) -> frozenset[str | int]:
    """Return words, signs and numbers of digits."""
    found: set[str | int] = set()
    for need in needs.split():
        if need[-1] == "+" and len(need) > 1:
            found.add(int(need[:-1]))
        else:
            found.update(_FEATURE.findall(need))
    return frozenset(found)


_SPELLED_DASH = re.compile(r"[-–]\d")
"""Text between two characters that a tag spells: no range."""
_DIGIT = re.compile(r"\d")
_FEATURE = re.compile(r"[a-z]+|[^a-z\s]")
RULES = tuple(
    (re.compile(pattern), speak, _requirements(needs))
    for pattern, speak, needs in CODE_RULES + AMOUNT_RULES + NAME_RULES  # of two that overlap, the first applies
)
_MAY_APPLY = re.compile(
    rf"[\d½⅓⅔¼¾⅛⅜⅝⅞@₀-₉]|\w\.[A-Za-z]{{2}}|\b{DAY}|\b[Aa] [Tt]b?sp|\. [A-Z]\b| v\. |, [A-Z]{{2}}\b"
    rf"|[a-z] [IVX]{{1,6}}\b|[a-z] [#*]|{MONTH}\.? ?[-–]"
    rf"|\b(?:{alternatives(tables.WORDS)}|(?:Apt|Bldg) [A-Z]\b|Ave|Blvd|Hwy|Pkwy|Rd|St\b"
    r"|(?:[Ii]n|[Ss]ince|[Uu]ntil|[Ee]arly|[Ll]ate|[Mm]id) [JFASOND][a-z]{2,3}\b)"
)


def features(text: str) -> set[str | int]:
    """Return the words and signs of ``text``, and every number of digits up to what it has."""
    return {*_FEATURE.findall(text.lower()), *range(1, len(_DIGIT.findall(text)) + 1)}


def rewrites(text: str, first: int = 0) -> list[Rewrite]:
    """Return the disjoint rewrites of ``text`` from ``first`` on, in order; the text before it is only looked at."""
    if not _MAY_APPLY.search(text, first):
        return []
    found: list[Rewrite] = []
    present = features(text)
    for pattern, speak, needs in RULES:
        if needs.isdisjoint(present):
            continue
        for match in pattern.finditer(text):
            for start, end, spoken in speak(match):
                if first <= start and not any(start < last and begin < end for begin, last, _ in found):
                    found.append((start, end, spoken))
    return sorted(found)


class SpokenForms:
    """Rewrites the English segments of one utterance, in order.

    Args:
        is_english: Whether a text, the next segment, is English; None if all text is.
    """

    def __init__(self, is_english: Callable[[str], bool] | None = None) -> None:
        self._is_english = is_english
        self._before = ""

    def apply(self, segment: Segment) -> Segment:
        """Return ``segment`` with its plain text rewritten; replacements of the lexicon stay unchanged."""
        text = segment.text
        before = self._before
        self._before = (before + text)[-_CONTEXT_CHARS:] + " "
        if (self._is_english is not None and not self._is_english(text)) or not _MAY_APPLY.search(text):
            return segment
        shift = len(before)

        def find(source: str) -> list[Rewrite]:
            if _SPELLED_DASH.fullmatch(source):
                return [(0, 1, ", ")]
            return [(start - shift, end - shift, spoken) for start, end, spoken in rewrites(before + source, shift)]

        return rewrite_plain(segment, find)


def spoken_forms(languages: Sequence[str], explicit: str | None) -> SpokenForms | None:
    """Return the spoken forms for one utterance; None if its text cannot be English.

    Args:
        languages: Languages of the voice; empty or "mul" means any.
        explicit: Language requested by the caller.
    """
    tags = {primary_tag(explicit)} if explicit else set(map(primary_tag, languages)) or {"mul"}
    if tags == {"en"}:
        return SpokenForms()
    if not tags & {"en", "mul"}:
        return None
    detector = LanguageDetector(languages, explicit)
    return SpokenForms(lambda text: detector.detect(text) == "en")
