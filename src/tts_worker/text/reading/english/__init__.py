"""American English: one module for each class of token, and its tables.

Classes are tried in the order of ``_CLASSES``: a token that two of them know belongs to the first. The last ones leave
neither a digit nor a sign.
"""

from __future__ import annotations

import re

from tts_worker.text.reading.english import (
    abbreviation,
    cardinal,
    clock,
    date,
    digits,
    electronic,
    fraction,
    measure,
    money,
    operator,
    place,
    roman,
    score,
    sign,
    span,
    telephone,
    version,
)
from tts_worker.text.reading.english.grammar import GRAMMAR
from tts_worker.text.reading.rules import Rule, find_rewrites
from tts_worker.text.span_rewriting import Rewrite

RULES: tuple[Rule, ...] = (
    *electronic.RULES,
    *digits.ACCOUNTS,
    *telephone.RULES,
    *digits.RULES,
    *version.RULES,
    *score.RULES,
    *date.RULES,
    *score.WHOLES,
    *operator.POWERS,
    *measure.RATES,
    *clock.RULES,
    *money.RULES,
    *fraction.RULES,
    *measure.RULES,
    *span.RULES,
    *place.RULES,
    *roman.RULES,
    *abbreviation.RULES,
    *operator.RULES,
    *cardinal.RULES,
    *sign.RULES,
)
_MAY_APPLY = re.compile(
    GRAMMAR.pattern(
        r"""[^A-Za-z\u00c0-\u024f\s.,;:!?'\"’“”()-]|[×÷]|(?<!\w)-|-(?!\w)|\w\.[A-Za-z]{2}
        |\b<DAY>|\b[Aa] [Tt]b?sp|\. [A-Z]\b| v\. |, [A-Z]{2}\b
        |[A-Za-z.] [IVXLC]{1,6}\b|<MONTH>\.? ?[-–]|\b(?:<WORDS>|(?:Apt|Bldg) [A-Z]\b|Ave|Blvd|[Hh]wy|Expy|Ln|Pkwy
    |Rd|St\b
        |(?:Mrs?|Ms|Dr|Prof|Mt|Ft)\b|<in since until early late mid last next this> [JFASOND][a-z]{2,3}\b)
        |\b(?:<SHORT_WORDS_ANY>|<BEFORE_WORD_ANY>|<TITLES>)\."""
    ).replace("\n        ", "")
)
"""Occurs in every text that a rule may apply to, and seldom in others."""
_SWISS_MARK = re.compile(r"(?<=\d)['’](?=\d{3}(?!\d))")  # 1'200
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}


def rewrites(text: str, first: int) -> list[Rewrite]:
    """Return the disjoint rewrites of ``text`` from ``first`` on, in order; the text before it is only looked at."""
    if not _MAY_APPLY.search(text, first):
        return []
    text = _SWISS_MARK.sub(",", text)
    return find_rewrites(RULES, text if text.isascii() else _plain(text), first)


def _plain(text: str) -> str:
    """Return ``text`` with wide characters and digits of other scripts in ASCII; no place changes."""
    return "".join(
        str(int(char)) if char.isdecimal() and not char.isascii() else char for char in text.translate(_WIDE)
    )
