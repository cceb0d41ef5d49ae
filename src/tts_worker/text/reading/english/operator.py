"""Operators, comparisons, powers and chemical formulas."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.markup import letter_name
from tts_worker.text.reading.english.tables import TABLES
from tts_worker.text.reading.english.words import ordinal, short_number
from tts_worker.text.reading.rules import reads_part
from tts_worker.text.span_rewriting import Rewrite

_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni")


def _formula(written: str) -> str:
    """Read "H2SO4" as "H two S O four"; a long word of capitals with one number is no formula."""
    parts = re.findall(r"([A-Z][a-z]?)(\d*)", written.translate(_SUBSCRIPTS))
    if len(parts) > 3 and sum(count != "" for _, count in parts) < 2 and written.isupper():
        return ""
    words = (word for element, count in parts for word in (*map(letter_name, element), count and short_number(count)))
    return " ".join(filter(None, words)).rstrip(",")


def read_power(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "x²" as "x squared", "10⁶" and "10^6" as "ten to the sixth", "x^n" as "x to the N"."""
    power = match["power"].strip("^*{}() ").translate(_SUPERSCRIPTS)
    digits = power.lstrip("-+−")
    if power in ("2", "3"):
        words = "squared" if power == "2" else "cubed"
    elif digits.isdecimal():
        sign = "minus " if power[0] in "-−" else ""
        words = f"to the {sign}{ordinal(digits) if not sign else short_number(digits)}"
    else:
        words = f"to the {power.upper() if len(power) == 1 else power}"
    yield *match.span("power"), f" {words}"


def read_exponent(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "1e6" and "3.2E-8" as "one times ten to the sixth" and so on."""
    power = match["power"].strip("()").translate(_SUPERSCRIPTS).lstrip("+")
    digits = power.lstrip("-−").lstrip("0") or "0"
    words = f"minus {short_number(digits)}" if power[0] in "-−" else ordinal(digits)
    yield *match.span("part"), f" times ten to the {words}"


read_formula = reads_part(_formula)
read_greek = reads_part(TABLES["GREEK"].__getitem__)
