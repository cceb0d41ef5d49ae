"""Wide characters and the digits of other scripts as ASCII, one character for one."""

from __future__ import annotations

import unicodedata

_WIDE_SHIFT = 0xFEE0
WIDE = {_WIDE_SHIFT + code: chr(code) for code in range(ord("!"), ord("~") + 1)}
"""ASCII characters by the code of their wide form."""


class Fold(dict[int, str]):
    """A table for ``str.translate`` that also knows every digit."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        digit = unicodedata.decimal(char, None)
        return char if digit is None else str(digit)
