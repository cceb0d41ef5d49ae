"""American English: a file of rules for each class of token, and functions where words and tables do not suffice.

``reading.rules`` explains the rules, ``tables.tsv`` has the tables. Classes are tried in the order of ``_CLASSES``:
a token that two of them know belongs to the first. The last ones leave neither a digit nor a sign.
"""

from __future__ import annotations

import re
from pathlib import Path

from tts_worker.text.reading import roman
from tts_worker.text.reading.english import amounts, numbers, signs, times, words
from tts_worker.text.reading.english.tables import TABLES
from tts_worker.text.reading.folding import WIDE, Fold
from tts_worker.text.reading.rules import Grammar, RuleSet
from tts_worker.text.span_rewriting import Rewrite

_CLASSES = (
    "electronic accounts telephone digits version score date wholes powers rates clock money fraction measure span "
    "place roman abbreviation operator cardinal sign"
)
"""Files of rules."""
_READINGS = {name: read for module in (words, amounts, numbers, signs, times) for name, read in vars(module).items()}
"""Functions that the rules name, for what is not a matter of words and tables."""


def _rules_of(name: str) -> str:
    return Path(__file__).with_name(f"{name}.rules").read_text("utf-8")


_GRAMMAR = Grammar(TABLES, f"ROMAN_NUMERAL = {roman.PATTERN}\n{_rules_of('definitions')}", _READINGS)
RULES = RuleSet([rule for name in _CLASSES.split() for rule in _GRAMMAR.rules(_rules_of(name))])
_SWISS_MARK = re.compile(r"['’](?<=\d.)(?=\d{3}(?!\d))")  # 1'200
_FOLD = Fold({**WIDE, ord("\u2126"): "\u03a9"})  # ohm, omega


def rewrites(text: str, first: int) -> list[Rewrite]:
    """Return the disjoint rewrites of ``text`` from ``first`` on, in order; the text before it is only looked at."""
    text = _SWISS_MARK.sub(",", text)
    return RULES.find_rewrites(text if text.isascii() else text.translate(_FOLD), first)
