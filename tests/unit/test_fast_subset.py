"""The tests of ``scripts/test fast``, and the first line of a run."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest

from tests.cases import each_case
from tests.conftest import COMPUTING, SAMPLES, SLOW, TESTS, TOGETHER, WEEKLY, is_named, load_above_cores

ROOT = TESTS.parent

ELSEWHERE = {
    "browser": "starts Chromium",
    "gpu": "needs a GPU",
    "features/acceleration": "imports PyTorch",
    "features/offline": "imports PyTorch",
    "parity": "imports PyTorch; integration/test_golden_chunks.py speaks with every network in another process",
    "quality": "loads a recognizer",
    "unit/cosyvoice": "imports PyTorch, as parity",
    "unit/streaming": "imports PyTorch, as parity",
    "unit/train": "imports PyTorch",
}
"""Areas without a fast test, with the reason."""


@cache
def fast_tests() -> tuple[str, ...]:
    """Return the names of the tests that ``scripts/test fast`` runs, relative to ``tests``."""
    command = (sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "-m", "not slow")
    collected = subprocess.run(
        (*command, "-p", "no:cacheprovider"), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert collected.returncode == 0, collected.stdout[-2_000:]  # tests/conftest.py says what is wrong
    return tuple(line.removeprefix("tests/") for line in collected.stdout.splitlines() if "::" in line)


def area_of(path: str) -> str:
    """Return the area of a file: its folder, or that of a feature or of a package of the unit tests."""
    folders = path.split("/")[:-1]
    return "/".join(folders[:2] if folders[0] in ("features", "unit") else folders[:1])


def test_fast_subset_imports_no_pytorch() -> None:
    assert fast_tests()


def test_every_area_has_a_fast_test() -> None:
    areas = {area_of(path.relative_to(TESTS).as_posix()) for path in TESTS.rglob("test_*.py")}
    fast = {area_of(name.partition("::")[0]) for name in fast_tests()}
    assert areas - fast == {*ELSEWHERE}
    assert not [sample for sample in SAMPLES if not any(name.startswith(sample) for name in fast_tests())]


def test_module_of_the_command_line_is_named_and_one_of_its_folder_is_not() -> None:
    module = TESTS / "unit" / "train" / "test_filters.py"
    assert is_named(module, [f"{module}"])
    assert is_named(module, [f"{module}::test_filter_stage_learns"])
    assert not is_named(module, [f"{module.parent}"])
    assert not is_named(module, [])


@each_case("name", [*SLOW, *WEEKLY, *(name.removeprefix("tests/") for name in (*TOGETHER, *COMPUTING))])
def test_listed_tests_exist(name: str) -> None:
    path = TESTS / name.partition("::")[0]
    assert path.exists()
    test = name.partition("::")[2].partition("[")[0]
    assert f"def {test}(" in path.read_text("utf-8") if test else True


def test_load_above_the_cores_is_the_first_line() -> None:
    assert load_above_cores(7.52, 2) == "machine: load 7.5 on 2 cores: tests are slower, and timing tests may fail"
    assert load_above_cores(2.0, 2) is None


def test_first_line_is_written_by_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with ``-q``, and with the processes of pytest-xdist, which have no terminal."""
    code = """
import os, sys
os.getloadavg = lambda: (9_999.0, 0.0, 0.0)
import pytest
sys.exit(pytest.main(["-q", "-n", "1", "-p", "no:cacheprovider", "tests/unit/test_descriptors.py"]))
"""
    ran = subprocess.run((sys.executable, "-c", code), cwd=ROOT, text=True, capture_output=True, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("machine: load 9999.0 on ")
    assert ran.stdout.count("machine: load") == 1
