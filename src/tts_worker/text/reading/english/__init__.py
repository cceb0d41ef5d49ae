"""American English: a file of rules for each class of token, and functions where words and tables do not suffice.

``reading.rules`` explains the rules, ``tables/en.tsv`` has the tables. Classes are tried in the order of ``_CLASSES``:
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
    *(
        "electronic",
        "accounts",
        "telephone",
        "digits",
        "version",
        "score",
        "date",
        "wholes",
        "powers",
        "rates",
        "clock",
    ),
    *("money", "fraction", "measure", "span", "place", "roman", "abbreviation", "operator", "cardinal", "sign"),
)
"""Files of rules."""
_READINGS = {name: read for module in (words, amounts, numbers, signs, times) for name, read in vars(module).items()}
"""Functions that the rules name, for what is not a matter of words and tables."""
_ACROSS = frozenset(("@month day", "@day month", "month={month}; y={year}", "@short numbers"))
"""What is spoken for tokens that may begin in the segment before."""


def _rules_of(name: str) -> str:
    return Path(__file__).with_name(f"{name}.rules").read_text("utf-8")


_GRAMMAR = Grammar(TABLES, f"ROMAN_NUMERAL = {roman.PATTERN}\n{_rules_of('definitions')}", _READINGS)
RULES = RuleSet([rule for name in _CLASSES for rule in _GRAMMAR.rules(_rules_of(name), _ACROSS)])
_SIGNS = re.compile(
    r"[^A-Za-z\u00c0-\u024f\s.,;:!?'\"’“”()-]|[×÷]|(?<!\w)-|-(?!\w)|[A-Za-z]\.[A-Za-z]|(?<![\w.!?…])\.[A-Za-z]"
)
_WORD = re.compile("[A-Za-z]+")
_NUMERALS = frozenset("IVXLC")
_BEFORE_NUMERAL = ("NUMBERED_IN_ROMAN", "SHORT_NUMBERED_IN_ROMAN", "RULERS", "SUBJECTS")
_NUMBERED = {"Mark", "Mk", *(word for table in _BEFORE_NUMERAL for name in TABLES[table] for word in name.split())}
_ONES = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
_ROMAN = [f"{ten}{one}" for ten in ("", "X", "XX", "XXX", "XL", "L") for one in _ONES if len(ten + one) > 1]
"""Roman numerals that are no letters."""
_CAPITALIZED = (TABLES["DAYS"], TABLES["MONTHS"], TABLES["TITLES"], TABLES["STREETS"], TABLES["PLACES"])
_SHORTENED = (TABLES["SPOONS"], TABLES["PLACES"], TABLES["SHORT_WORDS"], TABLES["BEFORE_WORD"])
_TRIGGERS = frozenset(
    (
        *(form for table in _CAPITALIZED for name in table for form in (name.capitalize(), name.upper())),
        *(form for table in _SHORTENED for name in table for form in (name, name.capitalize(), name.upper())),
        "st",
        *(name for name in (*TABLES["WORDS"], *TABLES["STATES"], *_ROMAN) if name.isalpha()),
    )
)
"""Words that a rule may apply to though the text has no digit or sign."""
_SWISS_MARK = re.compile(r"(?<=\d)['’](?=\d{3}(?!\d))")  # 1'200
_FOLD = Fold({**WIDE, ord("\u2126"): "\u03a9"})  # ohm, omega


def rewrites(text: str, first: int) -> list[Rewrite]:
    """Return the disjoint rewrites of ``text`` from ``first`` on, in order; the text before it is only looked at."""
    if not _SIGNS.search(text, first) and not _has_trigger(text):
        return []
    text = _SWISS_MARK.sub(",", text)
    return RULES.find_rewrites(text if text.isascii() else text.translate(_FOLD), first)


def _has_trigger(text: str) -> bool:
    words = set(_WORD.findall(text))
    return not words.isdisjoint(_TRIGGERS) or not (words.isdisjoint(_NUMERALS) or words.isdisjoint(_NUMBERED))
