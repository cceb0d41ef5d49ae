"""Spoken forms of English text: codes and phone numbers digit by digit, units, days, addresses of web pages.

Rules are patterns over whole segments, so the result does not depend on how the stream was split. Each rewrites an
exact range, which keeps word times and playback reports right. Plain numbers are left to the engine or to the
normalizer that follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tts_worker.text.english_rules import MAY_APPLY, RULES, features
from tts_worker.text.language import LanguageDetector, primary_tag
from tts_worker.text.span_rewriting import Rewrite, rewrite_plain
from tts_worker.types import Segment

_CONTEXT_CHARS = 60
"""Text of earlier segments that a rule may look at: "Your code is:" may be a segment of its own."""


_SPELLED_DASH = re.compile(r"[-–]\d")
"""Text between two characters that a tag spells: no range."""
_RULES_OF = {
    need: [number for number, rule in enumerate(RULES) if need in rule[2]] for rule in RULES for need in rule[2]
}
"""Numbers of the rules that apply to texts with a feature."""
_BEFORE_WORDS = re.compile(r"[\w$€£¥¢%#°.,;:!?)\]]\Z")
_AFTER_WORDS = re.compile(r"[\w$€£¥¢%#°]")


def rewrites(text: str, first: int = 0) -> list[Rewrite]:
    """Return the disjoint rewrites of ``text`` from ``first`` on, in order; the text before it is only looked at."""
    if not MAY_APPLY.search(text, first):
        return []
    found: list[Rewrite] = []
    for number in sorted({number for feature in features(text) for number in _RULES_OF.get(feature, ())}):
        pattern, speak, _ = RULES[number]
        for match in pattern.finditer(text):
            for rewrite in speak(match):
                start, end, _ = rewrite
                if first <= start and not any(start < last and begin < end for begin, last, _ in found):
                    found.append(rewrite)
    return _set_apart(text, sorted(found))


def _set_apart(text: str, found: list[Rewrite]) -> list[Rewrite]:
    """Put spaces between what is spoken and the letters, digits and signs next to it."""
    result: list[Rewrite] = []
    for start, end, spoken in found:
        follows = result[-1][2] if result and result[-1][1] == start else text[max(0, start - 1) : start]
        space_before = " " if spoken[:1].isalnum() and _BEFORE_WORDS.search(follows) else ""
        space_after = " " if spoken[-1:].isalnum() and _AFTER_WORDS.match(text, end) else ""
        result.append((start, end, space_before + spoken + space_after))
    return result


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
        if (self._is_english is not None and not self._is_english(text)) or not MAY_APPLY.search(text):
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
