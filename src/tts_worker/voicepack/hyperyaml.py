"""hyperpyyaml's dialect read as data: whatever a tag names, nothing is imported, called, opened or seeded.

Owns ``!ref`` and ``!copy`` with their arithmetic, by an own parser over numbers. ``!new: !name: !apply: !module:
!include:`` stay what they are: a ``Tagged`` value. It must not know what any key means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from tts_worker.errors import BundleError
from tts_worker.voicepack.yaml_reader import MAX_DEPTH, Tagged, Value, read_yaml

MAX_STRING_CHARS = 4096  # of a text that references build
MAX_NUMBER = 1 << 63
MAX_TERMS = 256
MAX_EXPONENT = 64

_REFERENCE = re.compile(r"<([^<>]*)>")
_TOKEN = re.compile(r"\s*(\*\*|//|[-+*/%()]|[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+)")


def load_hyperyaml(text: str, source: str) -> dict[str, Value]:
    """The top-level mapping of ``text``, references resolved, keys that begin with ``__`` left out.

    Raises BundleError naming ``source`` and the line or key for everything that is not plain data or not supported.
    """
    root = read_yaml(text, source)
    resolver = _Resolver(root, source)
    try:
        return {key: resolver.resolve(value, (key,)) for key, value in root.items() if not key.startswith("__")}
    except RecursionError:
        raise BundleError(f"{source}: references and collections are nested too deeply") from None


class _Resolver:
    """Replaces references. What is referred to is resolved once and shared, so nothing can blow up."""

    def __init__(self, root: Mapping[str, Value], source: str) -> None:
        self.root = dict(root)
        self.source = source
        self.known: dict[str, Value] = {}

    def resolve(self, value: Value, trail: tuple[str, ...]) -> Value:
        """``trail``: the top-level key that is being read, then the references followed to get here."""
        if isinstance(value, Tagged):
            if value.tag in ("!ref", "!copy"):
                return self._reference(value.value, trail)
            return Tagged(value.tag, self.resolve(value.value, trail))
        if isinstance(value, dict):
            return {key: self.resolve(item, trail) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item, trail) for item in value]
        if isinstance(value, tuple):
            return tuple(self.resolve(item, trail) for item in value)
        return value

    def _fail(self, trail: tuple[str, ...], problem: str) -> NoReturn:
        raise BundleError(f"{self.source}: {trail[0][:80]}: {problem}")

    def _reference(self, expression: Value, trail: tuple[str, ...]) -> Value:
        if not isinstance(expression, str) or not _REFERENCE.search(expression):
            return expression
        if whole := _REFERENCE.fullmatch(expression):
            return self._lookup(whole[1], trail)
        text = ""
        at = 0
        for match in _REFERENCE.finditer(expression):
            part = self._lookup(match[1], trail)
            if isinstance(part, (Tagged, dict, list, tuple)):
                self._fail(trail, f"<{match[1][:80]}> is not a number or a text and cannot be part of one")
            text = f"{text}{expression[at : match.start()]}{part}"
            at = match.end()
            if len(text) > MAX_STRING_CHARS:
                self._fail(trail, f"references make a text of more than {MAX_STRING_CHARS} characters")
        text += expression[at:]
        try:
            return _Arithmetic(text).value()
        except ArithmeticError as error:
            self._fail(trail, f"the arithmetic fails: {error}")
        except ValueError:
            return text

    def _lookup(self, name: str, trail: tuple[str, ...]) -> Value:
        if name in self.known:
            return self.known[name]
        if name in trail[1:]:
            self._fail(trail, f"the reference <{name[:80]}> goes round in a circle")
        if len(trail) > MAX_DEPTH:
            self._fail(trail, "references are chained too deeply")
        inner = (*trail, name)
        found: Value = self.root
        for part in name.replace("]", "").split("["):
            if isinstance(found, Tagged):
                found = self._reference(found.value, inner) if found.tag in ("!ref", "!copy") else found.value
            if isinstance(found, Tagged):
                found = found.value
            if not isinstance(found, dict) or part not in found:
                self._fail(trail, f"the reference <{name[:80]}> names a key that is not there")
            found = found[part]
        self.known[name] = self.resolve(found, inner)
        return self.known[name]


class _Arithmetic:
    """``+ - * / // % **`` and brackets over numbers. Raises ValueError where the text is not arithmetic, and
    ArithmeticError where the result is no number one could use."""

    def __init__(self, text: str) -> None:
        text = text.rstrip()
        self.tokens: list[str] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if not match:
                raise ValueError("not arithmetic")
            self.tokens.append(match[1])
            at = match.end()
        if len(self.tokens) > MAX_TERMS:
            raise ValueError("too long for arithmetic")
        self.at = 0

    def value(self) -> int | float:
        result = self._chain(0)
        if self.at != len(self.tokens):
            raise ValueError("not arithmetic")
        return result

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        if not token:
            raise ValueError("not arithmetic")
        self.at += 1
        return token

    def _chain(self, level: int) -> int | float:
        """Left-associative operators: sums (level 0) of products (level 1)."""
        if level == len(_LEVELS):
            return self._power()
        left = self._chain(level + 1)
        while self._peek() in _LEVELS[level]:
            operation = _LEVELS[level][self._take()]
            left = _bounded(operation(left, self._chain(level + 1)))
        return left

    def _power(self) -> int | float:
        base = self._atom()
        if self._peek() != "**":
            return base
        self._take()
        exponent = self._power()
        if abs(exponent) > MAX_EXPONENT:
            raise OverflowError("the exponent is too large")
        return _bounded(base**exponent)

    def _atom(self) -> int | float:
        token = self._take()
        if token == "-":
            return -self._power()
        if token == "(":
            inner = self._chain(0)
            if self._take() != ")":
                raise ValueError("not arithmetic")
            return inner
        return int(token) if token.isdigit() else float(token)


_LEVELS: tuple[Mapping[str, Callable[[int | float, int | float], int | float]], ...] = (
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": lambda a, b: a / b, "//": lambda a, b: a // b, "%": lambda a, b: a % b},
)


def _bounded(value: int | float | complex) -> int | float:
    if isinstance(value, complex) or not abs(value) < MAX_NUMBER:
        raise OverflowError("the result is too large")
    return value
