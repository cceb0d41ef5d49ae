"""Typed access to parsed YAML or JSON: a wrong or missing value raises an error that names the file and the key."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from tts_worker.errors import BundleError
from tts_worker.models.bundles.yaml_reader import Tagged

MAX_INTEGER = 1 << 24  # far above any dimension, rate or id of a model


class Section:
    """The mapping at ``path`` of the file ``source``, with the class name of its tag. ``null`` counts as missing.

    Every method raises BundleError and names the key. A missing key takes the ``default``, if there is one.
    """

    def __init__(self, source: str, path: str, value: object) -> None:
        self.source = source
        self.path = path
        self._kind = value.kind if isinstance(value, Tagged) else None
        self.tag = value.tag if isinstance(value, Tagged) else ""
        inner = value.value if isinstance(value, Tagged) else value
        if not isinstance(inner, dict):
            self.fail("", "must be a mapping of keys")
        self._values: dict[str, Any] = inner

    def fail(self, key: str, problem: str) -> NoReturn:
        where = ".".join(part for part in (self.path, key) if part)
        raise BundleError(f"{self.source}: {where}: {problem}" if where else f"{self.source}: {problem}")

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def section(self, key: str) -> Section:
        if not self.has(key):
            self.fail(key, "is missing")
        return Section(self.source, f"{self.path}.{key}" if self.path else key, self._values[key])

    def kind(self, *allowed: str) -> str:
        """The class name of the tag, which must be one of ``allowed``."""
        if self._kind not in allowed:
            found = f"the class {self._kind[:80]!r}" if self._kind else "a plain mapping"
            self.fail("", f"is {found}; supported here: {', '.join(allowed)}")
        return self._kind

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        return self._whole(key, self._get(key, default), least)

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        return tuple(self._whole(key, item, 1) for item in self._row(key, self._get(key, default)))

    def integer_rows(self, key: str) -> tuple[tuple[int, ...], ...]:
        rows = self._row(key, self._get(key, None))
        return tuple(tuple(self._whole(key, item, 1) for item in self._row(key, row)) for row in rows)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self.fail(key, "must be a number")
        return float(value)

    def word(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        value = self._get(key, default)
        if value not in allowed:
            self.fail(key, f"must be one of: {', '.join(allowed)}")
        return str(value)

    def words(self, key: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """Some of ``allowed``; all of them if the key is missing."""
        values = self._get(key, allowed)
        if not isinstance(values, (list, tuple)) or not values or not set(map(str, values)) <= set(allowed):
            self.fail(key, f"must be a list of: {', '.join(allowed)}")
        return tuple(map(str, values))

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            self.fail(key, "must be True or False")
        return value

    def _get(self, key: str, default: object) -> object:
        if self.has(key):
            return self._values[key]
        if default is None:
            self.fail(key, "is missing")
        return default

    def _row(self, key: str, value: object) -> list[object] | tuple[object, ...]:
        if not isinstance(value, (list, tuple)) or not 0 < len(value) <= 64:
            self.fail(key, "must be a list of whole numbers")
        return value

    def _whole(self, key: str, value: object, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_INTEGER:
            self.fail(key, f"must be a whole number from {least} to {MAX_INTEGER}")
        return value
