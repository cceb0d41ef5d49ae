"""Roman numerals up to 399."""

from __future__ import annotations

import re

PATTERN = "(?=[IVXLC])C{0,3}(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_DIGITS = {"C": 100, "XC": 90, "L": 50, "XL": 40, "X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1}
_DIGIT = re.compile("XC|XL|IX|IV|[CLXVI]")


def value(written: str) -> int:
    """Return the value of a Roman numeral; 0 if it is none."""
    return sum(_DIGITS[digit] for digit in _DIGIT.findall(written)) if re.fullmatch(PATTERN, written) else 0
