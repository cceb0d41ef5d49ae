"""Reads the YAML of model directories as data; every error names the line.

PyYAML parses; tags become ``Tagged`` values instead of objects, so no tag imports or calls anything. Anchors, aliases
and merge keys are refused and size and depth are limited, so a small file cannot expand to a large value. Plain scalars
follow the YAML 1.2 core schema (``yes`` and ``1:30`` are strings, ``1e-5`` is a number), as in hyperpyyaml.
hyperyaml.py resolves references.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from tts_worker.errors import BundleError

MAX_CHARS = 1 << 18
MAX_LINE_CHARS = 1 << 14
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

_CORE_PREFIX = "tag:yaml.org,2002:"
_CORE_TAGS = frozenset(f"{_CORE_PREFIX}{name}" for name in ("str", "seq", "map", "int", "float", "bool", "null"))
_INT = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o[0-7_]+|[0-9][0-9_]*)\Z")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9][0-9_]*)\Z")
_SPECIAL_FLOAT = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def read_yaml(text: str, source: str) -> dict[str, Value]:
    """Parse the top-level mapping of ``text``. Raises BundleError that names ``source`` and the line."""
    if len(text) > MAX_CHARS:
        raise BundleError(f"{source}, line 1: the file has more than {MAX_CHARS} characters")
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_LINE_CHARS:
            raise BundleError(f"{source}, line {number}: more than {MAX_LINE_CHARS} characters in one line")
    try:
        root = _value_of(_Composer(text.removeprefix("\ufeff")).get_single_node())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line_number = 1 if mark is None else mark.line + 1
        problem = " ".join(filter(None, (error.context, error.problem)))
        raise BundleError(f"{source}, line {line_number}: {problem}") from None
    except yaml.YAMLError as error:  # of the reader: a character that YAML does not allow
        raise BundleError(f"{source}, line 1: {str(error).splitlines()[0]}") from None
    if root is None:
        raise BundleError(f"{source}, line 1: the file is empty")
    if not isinstance(root, dict):
        raise BundleError(f"{source}, line 1: the top level must be a mapping of keys")
    return root


class _Composer(yaml.SafeLoader):
    """Composes nodes and refuses what could expand."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  # scalars are interpreted by ``_plain_scalar``

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:
            raise _refused("anchors and aliases are not supported", event)
        if self._depth >= MAX_DEPTH:
            raise _refused("too deeply nested", event)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _refused(problem: str, at: Any) -> yaml.MarkedYAMLError:
    """Return the error for an event or a node."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


def _value_of(node: yaml.Node | None) -> Value:
    """Return the value of a node; the top level of an empty file is None."""
    if node is None:
        return None
    if node.tag == "!":
        raise _refused("the tag '!' is not supported", node)
    value: Value
    if isinstance(node, yaml.MappingNode):
        value = _mapping(node)
    elif isinstance(node, yaml.SequenceNode):
        value = [_value_of(item) for item in node.value]
    else:
        assert isinstance(node, yaml.ScalarNode)
        value = _plain_scalar(node.value) if node.style is None else node.value  # a quoted scalar is a string
    if node.tag in _CORE_TAGS:
        return value
    if node.tag == "!tuple" and isinstance(value, list):
        return tuple(value)
    tag = node.tag.removeprefix(_CORE_PREFIX)
    return Tagged(node.tag if tag == node.tag else f"!!{tag}", value)


def _mapping(node: yaml.MappingNode) -> dict[str, Value]:
    mapping: dict[str, Value] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise _refused("a key must be a word or a number", key_node)
        key = key_node.value
        if key == "<<":
            raise _refused("merge keys (<<) are not supported", key_node)
        if key in mapping:
            raise _refused(f"the key {key[:80]!r} occurs twice", key_node)
        mapping[key] = _value_of(value_node)
    return mapping


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
