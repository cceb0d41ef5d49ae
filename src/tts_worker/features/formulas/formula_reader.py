r"""Formulas in LaTeX in words; for other languages than English their signs, which the rules of the language read.

``data/latex.tsv`` of ``text`` has the words of commands and signs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.formulas import MAX_DEPTH
from tts_worker.text.reading.english.numbers import fraction
from tts_worker.text.reading.english.words import cardinal, number
from tts_worker.text.tables import PATTERNS, rows


def _rows(*kinds: str) -> Iterator[tuple[str, str, str]]:
    """Yield each name of some kinds of ``data/latex.tsv`` with all names of its line, and the words."""
    for kind, names, spoken in rows("latex"):
        if kind in kinds:
            yield from ((name, names, spoken) for name in names.split())


def _table(*kinds: str) -> dict[str, str]:
    return {name: spoken for name, _, spoken in _rows(*kinds)}


_FUNCTIONS, _LIMITS, _FRACTIONS, _FORMS = map(_table, ("function", "limits", "fraction", "form"))
_NUMBER_SETS, _POWERS = map(_table, ("set", "power"))
_WORDS = _table("sign", "greek")
_SYMBOLS = {
    **{name: re.sub("[ -~]", "", names)[:1] for name, names, _ in _rows("sign", "greek")},
    **{name: name for name in _FUNCTIONS},
    **_table("symbol"),
}
"""What is written for a command in other languages."""
_GROUPS = {"{": "}", "(": ")"}
_ESCAPED = {"%": "percent", "{": "the set", "\\": ",", "&": "and"}
_SUPERSCRIPTS = str.maketrans("0123456789+-n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ")

_COMMAS = re.compile(r"\s*,[\s,]*")
_TEXT = re.compile(r"[^\w\s,.'-]|_")  # not read in ``\text{...}``
_SMALL = {cardinal(str(value)): value for value in range(1, 101)}


def spoken(formula: str) -> str:
    """Return a formula, without delimiters, in English words; it may have none."""
    return _Reader(formula).sequence().strip()


class _Reader:
    """Reads the tokens of a formula, the last of ``_tokens`` first."""

    def __init__(self, formula: str) -> None:
        self._tokens = [match.group() for match in PATTERNS["TEX_TOKEN"].finditer(formula)][::-1]
        self._depth = 0

    def sequence(self, stop: str = "") -> str:
        """Read up to ``stop``, or to the end."""
        words: list[str] = []
        is_function = False  # whether parentheses are its argument
        while self._tokens and not (stop == ")" and self._tokens[-1] == "}"):
            token = self._tokens.pop()
            if token == stop:
                break
            spoken = self._read(token)
            if token == "(":
                spoken = f"of {spoken}" if is_function else f"the quantity {spoken}," if " " in spoken else spoken
            words.append(spoken)
            if token not in ("'", "^", "_", " "):
                name = token.lstrip("\\")
                is_function = token in ("f", "g", "h", "P") or (name in _FUNCTIONS and name not in _LIMITS)
        return _COMMAS.sub(", ", " ".join(filter(None, words))).replace(" .", ".").strip(" ,")

    def _peek(self) -> str:
        while self._tokens and self._tokens[-1].isspace():
            self._tokens.pop()
        return self._tokens[-1] if self._tokens else ""

    def _argument(self, *, digit: bool = False) -> str:
        """Read a group or token; a number has one digit as the argument of a command, as in TeX."""
        token = self._peek()
        if token in ("", "}", ")", "]"):
            return ""
        self._tokens.pop()
        if digit and token.isdecimal() and len(token) > 1:
            self._tokens.append(token[1:])
            token = token[0]
        return self._read(token)

    def _read(self, token: str) -> str:
        """Return the words of a token and what belongs to it."""
        self._depth += 1
        words = self._words(token) if self._depth <= MAX_DEPTH or token.isalnum() else ""
        self._depth -= 1
        return words

    def _words(self, token: str) -> str:
        if token in _GROUPS:
            return self.sequence(_GROUPS[token])
        if token == "^":
            return _power(self._argument())
        if token == "_":
            return f"sub {words}" if (words := self._argument()) else ""
        if token == "|":
            return self._bar()
        if token[0] == "\\" and len(token) > 1:
            return self._command(token)
        if PATTERNS["TEX_NUMBER"].fullmatch(token):
            return number(token)
        return _FUNCTIONS.get(token) or _WORDS.get(token, token if token.isalpha() else "")

    def _bar(self) -> str:
        for token in reversed(self._tokens):
            if token == "|":
                return f"the absolute value of {self.sequence('|')}"
            if token in (")", "}"):
                break
        return "given"

    def _command(self, token: str) -> str:
        name = token[1:]
        if not name.isalpha():
            text = _TEXT.sub(" ", token.partition("{")[2]) if len(name) > 1 and token[1] not in "bel" else ""
            words = PATTERNS["TEX_NUMBER"].sub(lambda found: number(found.group()), text).strip()
            return words or _ESCAPED.get(name, "")
        if name in _FRACTIONS:
            return self._fraction()
        if name == "sqrt":
            return self._root()
        if form := _FORMS.get(name):
            return form.format(*(self._argument(digit=True) for _ in range(form.count("{}"))))
        if name == "mathbb":
            words = self._argument()
            return f"the {_NUMBER_SETS[words]}" if words in _NUMBER_SETS else words
        return self._function(name) if name in _FUNCTIONS else _WORDS.get(name, "")

    def _function(self, name: str) -> str:
        words = _FUNCTIONS[name]
        scripts = {"_": "", "^": ""}
        while self._peek() in ("_", "\\limits") or (self._peek() == "^" and name in _LIMITS):
            mark = self._tokens.pop()
            if mark in scripts:
                scripts[mark] = self._argument()
        below, above = scripts.values()
        if name in _LIMITS:
            start = f" {'from' if above or ' equals ' in below else 'over'} {below}" if below else ""
            return f"{words}{start}{f' to {above}' if above else ''} of"
        if not below:
            return words + " of" * (name == "lim")
        if name == "lim":
            return f"{words} as {below.replace(' to ', ' approaches ')} of"
        return f"{words} {'base' if words == 'log' else 'over'} {below}{' of' * (self._peek() != '(')}"

    def _fraction(self) -> str:
        above, below = self._argument(digit=True), self._argument(digit=True)
        if above in _SMALL and below in _SMALL:
            return fraction(_SMALL[above], _SMALL[below])
        if " " in above or " " in below:
            return f"the fraction {above}, over {below},"
        return f"{above} over {below}" if above or below else ""

    def _root(self) -> str:
        degree = "two"
        if self._peek() == "[":
            self._tokens.pop()
            degree = self.sequence("]")
        words = self._argument(digit=True)
        root = {"two": "square", "three": "cube"}.get(degree, f"{degree}-th")
        return f"the {root} root of {words}" + "," * (" " in words)


def _power(words: str) -> str:
    if not words or words in _POWERS:
        return _POWERS.get(words, "")
    return f"to the power of {words}," if " " in words.removeprefix("minus ") else f"to the {words}"


def symbols(formula: str) -> Iterator[tuple[str, int]]:
    """Yield the letters, digits and signs of a formula, each with its place: ``x²``, ``7/10``, ``a ≤ b``."""
    depth = 0
    fractions: list[int] = []  # depths at which a slash follows the next group
    is_power = False
    for match in PATTERNS["TEX_TOKEN"].finditer(formula):
        token, place = match.group(), match.start()
        written = "" if token in "_&~$^" else token
        if match["text"] is not None:
            written, place = match["text"], match.start("text")
        elif token[0] == "\\":
            fractions += [depth] * (token[1:] in _FRACTIONS)
            written = _SYMBOLS.get(token[1:], "%" if token == "\\%" else "")
        elif token in "{}":
            depth += 1 if token == "{" else -1
            written = "/" * (token == "}" and fractions[-1:] == [depth] and fractions.pop() == depth)
        if is_power and written:
            written = written.translate(_SUPERSCRIPTS)
        is_power = token == "^" or (is_power and token == "{")
        for offset, char in enumerate(written):
            yield (" " if char.isspace() else char), place + min(offset, match.end() - place - 1)
