"""Tests that run in copies of a process: what is reported, and how a run ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CONFTEST = """
import os
import pytest

@pytest.fixture(scope="session")
def process():
    return os.getpid()

def pytest_portion(item):
    return "together" if "together" in item.nodeid else None
"""

ALL_OUTCOMES = """
import os, signal, time
import pytest

def test_passes(process, tmp_path):
    assert process == os.getpid() != os.getppid()
    assert tmp_path.is_dir()

def test_fails():
    print("its output")
    assert 1 == 2

@pytest.fixture
def broken():
    raise ValueError("no fixture")

def test_lacks_a_fixture(broken):
    pass

def test_ends_its_process():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after_it(process):
    assert process == os.getpid()

@pytest.mark.skip(reason="not here")
def test_is_skipped():
    pass

@pytest.mark.timeout(0.2)
def test_hangs():
    time.sleep(50)
"""

LAST = """
import os

def test_ends_it_last():
    os._exit(7)
"""

HALF = """
def test_is_in_the_same_process(process):
    with open("processes", "a") as file:
        print(process, file=file)
"""


def run(folder: Path, *arguments: str, **modules: str) -> subprocess.CompletedProcess[str]:
    """Run modules of tests in two copies."""
    for name, source in {"conftest": CONFTEST, **modules}.items():
        (folder / f"{name}.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(folder), "-p", "tests.copies", "-q"]
    return subprocess.run(
        [*command, "--copies", "2", *arguments, "."],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder)},
        text=True,
        capture_output=True,
        timeout=100,
    )


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("all")
    modules = {"test_all": ALL_OUTCOMES, "test_last": LAST, "test_together_a": HALF, "test_together_b": HALF}
    ended = run(folder, "-ra", **modules)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    first, second = (folder / "processes").read_text().split()
    assert first == second, "a portion of two modules ran in two processes"
    return ended.stdout


def test_every_outcome_is_reported(output: str) -> None:
    assert "4 failed, 4 passed, 1 skipped, 1 error" in output
    assert "assert 1 == 2" in output
    assert "its output" in output
    assert "ValueError: no fixture" in output
    assert "Timeout (>0.2s)" in output
    assert "not here" in output


def test_test_that_ends_its_process_is_named(output: str) -> None:
    assert "test_ends_its_process - its process ended: SIGKILL" in output
    assert "test_ends_it_last - its process ended: 7" in output


def test_run_ends_at_the_failures_that_were_asked_for(tmp_path: Path) -> None:
    """And the copy that runs another test ends, with its fixtures."""
    waiting = """
import pytest, time

@pytest.fixture
def opened():
    open("opened", "x").close()
    yield
    open("closed", "x").close()

def test_waits(opened):
    time.sleep(50)
"""
    failing = """
import os, time

def test_fails():
    while not os.path.exists("opened"):
        time.sleep(0.01)
    assert False

def test_not_reached():
    open("reached", "x").close()
"""
    ended = run(tmp_path, "-x", test_a=waiting, test_b=failing)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "stopping after 1 failures" in ended.stdout
    assert (tmp_path / "closed").exists()
    assert not (tmp_path / "reached").exists()
