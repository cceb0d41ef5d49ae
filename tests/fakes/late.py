"""Late imports: the SDKs of vendors take seconds, and every run imports every test module."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


class LateModule:
    """A module that is imported, without its warnings, where a test first uses it; a test without it is skipped.

    Args:
        name: Name of the module.
        reason: Why a test is skipped if the module is not installed.
    """

    def __init__(self, name: str, reason: str | None = None) -> None:
        self._name = name
        self._reason = reason
        self._module: Any = None

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_") or attribute == "pytestmark":  # pytest looks at what a test module holds
            raise AttributeError(attribute)
        if self._module is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._module = pytest.importorskip(self._name, reason=self._reason)
        return getattr(self._module, attribute)
