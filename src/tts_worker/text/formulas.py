r"""Where formulas in LaTeX begin and end in a text; a feature reads them, in its module ``formula_reader``.

A formula is delimited by ``$``, ``$$``, ``\(`` or ``\[``, or is a known command with its arguments. Between delimiters
only what looks like mathematics is a formula: commands, signs, digits, and words of at most three letters that are no
common English words. So a price is told from a formula at the next word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Protocol, cast

from tts_worker.feature_names import modules
from tts_worker.text.patience import UndecidedError
from tts_worker.text.tables import PATTERNS, rows

_LIMIT = 400
"""A formula without an end within this many characters is text."""
MAX_DEPTH = 20


class FormulaReader(Protocol):
    """Reads formulas, which are given without their delimiters."""

    def spoken(self, formula: str) -> str:
        """Return a formula in English words; it may have none."""

    def symbols(self, formula: str) -> Iterable[tuple[str, int]]:
        """Return the letters, digits and signs of a formula, each with its place: ``x²``, ``7/10``, ``a ≤ b``."""


@cache
def formula_reader() -> FormulaReader | None:
    """Return what reads formulas; None without the feature: they are dropped."""
    return cast("FormulaReader | None", next(modules("formula_reader"), None))


def _names(*kinds: str) -> frozenset[str]:
    """Return the names of commands and signs of some kinds of ``data/latex.tsv``."""
    return frozenset(name for kind, names, _ in rows("latex") if kind in kinds for name in names.split())


_WORD = re.compile("[A-Za-z0-9]")
_RELATIONS = _names("sign")
_KNOWN = _RELATIONS | _names("greek", "function", "fraction") | {"sqrt", "binom"}
_GROUP = r"\{[^{}\n]*\}"
for _ in range(MAX_DEPTH):
    _GROUP = rf"\{{(?:[^{{}}\n]|{_GROUP})*\}}"
_ARGUMENTS = re.compile(
    rf"(?:{_GROUP}|(?<=\\sqrt)\[[^\]\n]{{0,9}}\]|[\^_](?:{_GROUP}|\\[A-Za-z]{{1,24}}(?![A-Za-z])|[^{{\\\n]))*"
)


def extent(text: str, at: int) -> tuple[int, int]:
    """Return the end of the formula that begins at ``at``, and the length of its delimiters; the end is 0 for none.

    The character at the end decides, too: it must have arrived, or the text end there.

    Raises:
        UndecidedError: Its rest may follow.
    """
    _decide(len(text) > at + 1)
    if text[at + 1].isalpha() and text[at] == "\\":
        return _command_end(text, at), 0
    if text[at] == "\\":
        closing = {"(": "\\)", "[": "\\]"}.get(text[at + 1])
        return (_closed(text, at, closing, PATTERNS["DISPLAY"]) if closing else 0), 2
    if text[at + 1] == "$":
        return _closed(text, at, "$$", PATTERNS["DISPLAY"]), 2
    return _dollar_end(text, at), 1


def _dollar_end(text: str, at: int) -> int:
    """Return the end of ``$...$``: no space within the delimiters, no letter or digit outside, no price."""
    if _WORD.match(text, at - 1) or text[at + 1] in " \n":
        return 0
    if text[at + 1].isdigit() and not PATTERNS["NUMBER_FIRST"].match(text, at + 1):
        _decide(not PATTERNS["CUT_PRICE"].match(text, at + 1))
        return 0
    end = _closed(text, at, "$", PATTERNS["INLINE"])
    return 0 if end and (text[end - 2] == " " or _WORD.match(text, end)) else end


def _decide(is_decided: object) -> None:
    if not is_decided:
        raise UndecidedError


def _closed(text: str, at: int, closing: str, content: re.Pattern[str]) -> int:
    """Return the end of a formula that ``closing`` ends."""
    match = content.match(text, at + len(closing), at + _LIMIT)
    end = match.end() if match else at
    if text.startswith(closing, end):
        return end + len(closing) if end > at + len(closing) else 0
    _decide(len(text) >= at + _LIMIT or not closing.startswith(text[end:]))
    return 0


def _command_end(text: str, at: int) -> int:
    r"""Return the end of a command and its arguments: ``\frac{7}{10}``, ``\sum_{i=1}^n``."""
    command = PATTERNS["TEX_COMMAND"].match(text, at)
    if command is None:
        return 0
    end, name = command.end(), command[1]
    _decide(end < len(text) or name in _KNOWN)
    if text[at - 1] in ":\\._" or (_WORD.match(text, at - 1) and text[at - 1].isalpha() and name not in _RELATIONS):
        return 0  # a path
    if name not in _KNOWN and text[end : end + 1] != "{":
        return 0
    arguments = _ARGUMENTS.match(text, end, at + _LIMIT)
    end = arguments.end() if arguments else end
    if text[end : end + 1] in ("{", "^", "_", "[" if name == "sqrt" else "{"):  # one that is not closed
        _decide(len(text) >= at + _LIMIT or "\n" in text[end:])
        return 0
    return end
