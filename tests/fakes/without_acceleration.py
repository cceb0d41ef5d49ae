"""A pytest plugin: the feature of accelerated paths is not there (``pytest -p tests.fakes.without_acceleration``).

Test modules and tests that are about it, and so import it, are skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

ACCELERATION = "tts_worker.features.acceleration"
REASON = "is about acceleration"


class _Absent(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == ACCELERATION:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


assert ACCELERATION not in sys.modules
sys.meta_path.insert(0, _Absent())


def _is_needed(error: object) -> bool:
    return isinstance(error, ModuleNotFoundError) and error.name == ACCELERATION


class _Module(pytest.Module):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            if not _is_needed(error.__cause__):
                raise
        pytest.skip(REASON, allow_module_level=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return _Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if _is_needed(error):
            pytest.skip(REASON)
        raise
