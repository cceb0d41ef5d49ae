"""Reader for the YAML subset of model directories; every error names the line.

Supported are block and flow collections, one-line scalars, tags (as ``Tagged`` values) and comments. Anchors, aliases,
merge keys and block scalars are refused, so a small file cannot expand to a large value. hyperyaml.py resolves
references.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from tts_worker.errors import BundleError

MAX_CHARS = 1 << 20
MAX_LINE_CHARS = 1 << 14  # also of a flow collection that spans lines
MAX_DEPTH = 64


@dataclass(frozen=True)
class Tagged:
    """A value with a tag, such as ``!new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec`` with its arguments."""

    tag: str
    value: Value

    @property
    def kind(self) -> str:
        """The last component of the dotted name, such as ``CausalMaskedDiffWithXvec``."""
        return self.tag.rpartition(":")[2].rpartition(".")[2]


Scalar: TypeAlias = "bool | int | float | str | None"
Value: TypeAlias = "Scalar | Tagged | list[Value] | dict[str, Value] | tuple[Value, ...]"

_TAG = re.compile(r"![^\s,\[\]{}]*")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"")
_KEY = re.compile(rf"""({_QUOTED.pattern}|[^\s\[\]{{}},"'#&*!|>%@`:-][^:#]*|-[^\s:#][^:#]*):(?=\s|$)""")
_COLON = re.compile(r":(?=[\s,\[\]{}]|$)")
# A quote opens only where a value can begin; within a word it is an apostrophe.
_PIECE = re.compile(
    rf"(?<![^\s\[{{,:])(?:{_QUOTED.pattern}|(?P<open>[\"']))|(?<!\S)(?P<comment>#)|(?P<bracket>[\[\]{{}}])"
)
_INT = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o[0-7_]+|[0-9][0-9_]*)\Z")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9][0-9_]*)\Z")
_SPECIAL_FLOAT = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "\\": "\\", "/": "/", " ": " "}


def read_yaml(text: str, source: str) -> dict[str, Value]:
    """Parse the top-level mapping of ``text``. Raises BundleError that names ``source`` and the line."""
    return _YamlParser(text, source).document()


@dataclass(frozen=True)
class _Line:
    number: int
    indent: int
    text: str

    @property
    def dashed(self) -> bool:
        return self.text == "-" or self.text.startswith("- ")


class _YamlParser:
    def __init__(self, text: str, source: str) -> None:
        self.source = source
        if len(text) > MAX_CHARS:
            self.fail(1, f"the file has more than {MAX_CHARS} characters")
        self.lines = list(self._logical_lines(text))
        self.at = 0

    def fail(self, line: int, problem: str) -> NoReturn:
        raise BundleError(f"{self.source}, line {line}: {problem}")

    def document(self) -> dict[str, Value]:
        if not self.lines:
            self.fail(1, "the file is empty")
        root = self._block(self.lines[0].indent, 0)
        if self.at < len(self.lines):
            self.fail(self.lines[self.at].number, "this line does not fit the indentation above it")
        if not isinstance(root, dict):
            self.fail(1, "the top level must be a mapping of keys")
        return root

    def _logical_lines(self, text: str) -> Iterator[_Line]:
        """Yield lines without comments and blank lines; a flow collection that spans lines is joined."""
        start = 0
        indent = 0
        joined = ""
        depth = 0
        for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
            if len(raw) + len(joined) > MAX_LINE_CHARS:
                self.fail(number, f"more than {MAX_LINE_CHARS} characters in one line or collection")
            content = raw
            for piece in _PIECE.finditer(raw):
                if piece["open"]:
                    self.fail(number, "a quote is never closed")
                if piece["comment"]:
                    content = raw[: piece.start()]
                    break
                depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(piece["bracket"], 0)
            stripped = content.strip()
            if not stripped or (stripped == "---" and not start):
                continue
            if not joined:
                lead = content[: len(content) - len(content.lstrip())]
                if "\t" in lead:
                    self.fail(number, "this line is indented with a tab; YAML needs spaces")
                start = number
                indent = len(lead)
            joined = f"{joined} {stripped}".lstrip()
            if depth <= 0:
                yield _Line(start, indent, joined)
                joined = ""
                depth = 0
        if depth:
            self.fail(start, "a bracket is never closed")

    def _block(self, indent: int, depth: int) -> Value:
        line = self.lines[self.at]
        if depth > MAX_DEPTH:
            self.fail(line.number, "too deeply nested")
        if line.dashed:
            return self._sequence(indent, depth)
        if _KEY.match(line.text):
            return self._mapping(indent, depth)
        self.at += 1
        return self._inline(line.text, line, depth)

    def _sequence(self, indent: int, depth: int) -> list[Value]:
        items: list[Value] = []
        while (line := self._here(indent)) and line.dashed:
            rest = line.text[1:].lstrip()
            inner = indent + len(line.text) - len(rest)
            if rest.startswith("- ") or (rest[:1] not in "!\"'[{" and _KEY.match(rest)):
                self.lines[self.at] = _Line(line.number, inner, rest)  # the item's block begins on the line of the dash
                items.append(self._block(inner, depth + 1))
            else:
                self.at += 1
                items.append(self._value(rest, line, depth))
        return items

    def _mapping(self, indent: int, depth: int) -> dict[str, Value]:
        mapping: dict[str, Value] = {}
        while (line := self._here(indent)) and (match := _KEY.match(line.text)):
            key = self._unquote(match[1].rstrip(), line)
            if key in mapping:
                self.fail(line.number, f"the key {key[:80]!r} occurs twice")
            if key == "<<":
                self.fail(line.number, "merge keys (<<) are not supported")
            self.at += 1
            mapping[key] = self._value(line.text[match.end() :].strip(), line, depth)
        return mapping

    def _here(self, indent: int) -> _Line | None:
        if self.at >= len(self.lines):
            return None
        line = self.lines[self.at]
        if line.indent > indent:
            self.fail(line.number, "this line is indented deeper than its parent allows")
        return line if line.indent == indent else None

    def _value(self, text: str, line: _Line, depth: int) -> Value:
        """Parse the value after ``key:`` or ``-``: on the same line, or the deeper block below."""
        tag = _TAG.match(text)
        rest = text[tag.end() :].strip() if tag else text
        value: Value = None
        if rest:
            value = self._inline(rest, line, depth)
        elif self.at < len(self.lines):
            below = self.lines[self.at]
            if below.indent > line.indent or (below.dashed and below.indent == line.indent and not line.dashed):
                value = self._block(below.indent, depth + 1)
        return self._tagged(tag[0], value, line) if tag else value

    def _tagged(self, tag: str, value: Value, line: _Line) -> Value:
        if tag == "!" or tag.startswith("!<"):
            self.fail(line.number, f"the tag {tag[:80]!r} is not supported")
        return tuple(value) if tag == "!tuple" and isinstance(value, list) else Tagged(tag, value)

    def _inline(self, text: str, line: _Line, depth: int) -> Value:
        value, end = self._flow(text, 0, line, depth, "")
        if text[end:].strip():
            self.fail(line.number, "unexpected text after the end of the value")
        return value

    def _flow(self, text: str, at: int, line: _Line, depth: int, stop: str) -> tuple[Value, int]:
        """Parse one value at ``text[at]``; a plain scalar ends at a character of ``stop``.

        Returns:
            The value and its end.
        """
        if depth > MAX_DEPTH:
            self.fail(line.number, "too deeply nested")
        at = _skip_spaces(text, at)
        if tag := _TAG.match(text, at):
            value, end = self._flow(text, tag.end(), line, depth + 1, stop)
            return self._tagged(tag[0], value, line), end
        head = text[at : at + 1]
        if head in ("[", "{"):
            return self._flow_collection(text, at, line, depth)
        if quoted := _QUOTED.match(text, at):
            return self._unquote(quoted[0], line), quoted.end()
        end = at if stop else len(text)
        while end < len(text) and text[end] not in stop and not _COLON.match(text, end):
            end += 1
        plain = text[at:end].strip()
        if head in ("&", "*", "|", ">", "%", "@", "`"):
            self.fail(line.number, f"{head!r} (anchors, aliases, block text) is not supported")
        if not stop and (_KEY.match(plain) or plain.startswith("- ")):
            self.fail(line.number, "a block mapping or list cannot begin in the middle of a line")
        return _plain_scalar(plain), end

    def _flow_collection(self, text: str, at: int, line: _Line, depth: int) -> tuple[Value, int]:
        """Parse ``[a, b]`` or ``{k: v}`` with its bracket at ``text[at]``."""
        close = {"[": "]", "{": "}"}[text[at]]
        items: list[Value] = []
        pairs: dict[str, Value] = {}
        at = _skip_spaces(text, at + 1)
        while text[at : at + 1] != close:
            value, at = self._flow(text, at, line, depth + 1, ",[]{}")
            at = _skip_spaces(text, at)
            if close == "}":
                if not isinstance(value, (str, int)) or text[at : at + 1] != ":":
                    self.fail(line.number, "expected 'key: value' inside { }")
                if str(value) in pairs:
                    self.fail(line.number, f"the key {str(value)[:80]!r} occurs twice")
                pairs[str(value)], at = self._flow(text, at + 1, line, depth + 1, ",[]{}")
                at = _skip_spaces(text, at)
            else:
                items.append(value)
            if text[at : at + 1] == ",":
                at = _skip_spaces(text, at + 1)
            elif text[at : at + 1] != close:
                self.fail(line.number, "brackets and commas do not match")
        return (pairs if close == "}" else items), at + 1

    def _unquote(self, text: str, line: _Line) -> str:
        if text.startswith("'"):
            return text[1:-1].replace("''", "'")
        if not text.startswith('"'):
            return text

        def unescape(match: re.Match[str]) -> str:
            if match[1] not in _ESCAPES:
                self.fail(line.number, f"the escape \\{match[1]} is not supported")
            return _ESCAPES[match[1]]

        return re.sub(r"\\(.)", unescape, text[1:-1])


def _skip_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _plain_scalar(text: str) -> Value:
    """Parse a scalar of the YAML 1.2 core schema, or hyperpyyaml's tuple ``(1, 2)``."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text) and len(text) < 64:
        digits = text.replace("_", "")
        return int(digits, 0) if digits.lstrip("+-")[:2] in ("0x", "0o", "0b") else int(digits)
    if _FLOAT.match(text) and len(text) < 64:
        return float(text.replace("_", ""))
    if _SPECIAL_FLOAT.match(text):
        return float(text.replace(".", "").lower())
    if text.startswith("(") and text.endswith(")"):
        return tuple(_plain_scalar(part.strip()) for part in text[1:-1].split(","))
    return text
