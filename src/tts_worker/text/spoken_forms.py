"""Spoken forms of English text: codes and phone numbers digit by digit, units, days, addresses of web pages.

Rules are patterns over whole segments, so the result does not depend on how the stream was split. Each rewrites an
exact range, which keeps word times and playback reports right. Plain numbers are left to the engine or to the
normalizer that follows.
"""

from __future__ import annotations

import re

from tts_worker.text.english_rules import MAY_APPLY, RULES, features
from tts_worker.text.span_rewriting import Rewrite

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
