"""Reader for hyperpyyaml files as data: no tag imports, calls, opens or seeds anything.

``!ref`` and ``!copy`` are resolved, including their arithmetic. ``!new:``, ``!name:``, ``!apply:``, ``!module:`` and
``!include:`` remain ``Tagged`` values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from tts_worker.errors import BundleError
from tts_worker.models.bundles.yaml_reader import MAX_DEPTH, Tagged, Value, read_yaml

MAX_STRING_CHARS = 4096  # of a string built from references
MAX_NUMBER = 1 << 63
MAX_TERMS = 256
MAX_EXPONENT = 64

_REFERENCE = re.compile(r"<([^<>]*)>")
_TOKEN = re.compile(r"\s*(\*\*|//|[-+*/%()]|[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+)")


def load_hyperyaml(text: str, source: str) -> dict[str, Value]:
    """Parse the top-level mapping of ``text`` and resolve references; keys that begin with ``__`` are left out.

    Args:
        text: File content.
        source: File name for error messages.

    Raises:
        BundleError: The text is malformed or uses unsupported YAML; names ``source`` and the line or key.
    """
    root = read_yaml(text, source)
    resolver = _Resolver(root, source)
    try:
        return {key: resolver.resolve(value, (key,)) for key, value in root.items() if not key.startswith("__")}
    except RecursionError:
        raise BundleError(f"{source}: references and collections are nested too deeply") from None


class _Resolver:
    """Replaces references. Each target is resolved once and shared, so the result cannot grow exponentially."""

    def __init__(self, root: Mapping[str, Value], source: str) -> None:
        self.root = dict(root)
        self.source = source
        self.resolved: dict[str, Value] = {}

    def resolve(self, value: Value, trail: tuple[str, ...]) -> Value:
        """Resolve all references in ``value``.

        Args:
            value: Parsed value.
            trail: The current top-level key, then the references followed so far.
        """
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
                self._fail(trail, f"<{match[1][:80]}> is not a number or a string and cannot be part of one")
            text = f"{text}{expression[at : match.start()]}{part}"
            at = match.end()
            if len(text) > MAX_STRING_CHARS:
                self._fail(trail, f"references build a string of more than {MAX_STRING_CHARS} characters")
        text += expression[at:]
        try:
            return _Arithmetic(text).value()
        except ArithmeticError as error:
            self._fail(trail, f"the arithmetic fails: {error}")
        except ValueError:
            return text

    def _lookup(self, name: str, trail: tuple[str, ...]) -> Value:
        if name in self.resolved:
            return self.resolved[name]
        if name in trail[1:]:
            self._fail(trail, f"the reference <{name[:80]}> is circular")
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
                self._fail(trail, f"the reference <{name[:80]}> names a missing key")
            found = found[part]
        self.resolved[name] = self.resolve(found, inner)
        return self.resolved[name]


class _Arithmetic:
    """Evaluates ``+ - * / // % **`` and parentheses over numbers.

    Raises:
        ValueError: The text is not arithmetic.
        ArithmeticError: The result is undefined or out of range.
    """

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
