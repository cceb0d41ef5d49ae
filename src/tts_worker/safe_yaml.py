"""Parses YAML as plain data, and refuses what is valid and cannot be meant."""

from __future__ import annotations

from typing import Any

import yaml


class RefusedYaml(yaml.YAMLError):
    """The YAML is valid, but cannot be what was meant; the message has the line."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, since the first value would be lost, and NUL, which no path can have."""

    def compose_scalar_node(self, anchor: dict[Any, yaml.Node]) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if "\0" in node.value:
            raise RefusedYaml(f"line {node.start_mark.line + 1}: a NUL character (\\0) is not allowed")
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if (name := (key.tag, key.value)) in lines:
                raise RefusedYaml(f'line {line}: "{key.value[:64]}" is given twice, first in line {lines[name]}')
            lines[name] = line
        return node


def parse_yaml(text: str) -> Any:
    """Parse YAML.

    Raises:
        YAMLError: It is not valid, or a value fits its form but not its type, such as 2024-13-45.
        RefusedYaml: A mapping has a key twice, or a text a NUL character.
    """
    try:
        return yaml.load(text, _Loader)
    except (ValueError, KeyError, AttributeError, RecursionError):  # RecursionError: nested too deeply
        raise yaml.YAMLError("a value does not fit its type") from None
