"""``ARCHITECTURE.md``: its three walks name files that a text delta, a STOP and an uploaded voice really enter."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fakes.recordings import speech, wav

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")


def section(walk: str) -> str:
    """The text of a walk."""
    return PAGE.partition(f"## The walk of {walk}\n")[2].partition("\n## ")[0]


def named(walk: str) -> list[str]:
    """The files in the rows of a walk, in order."""
    return re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|", section(walk), re.MULTILINE)


def walked(*words: str) -> dict[str, list[str]]:
    command = [sys.executable, "-m", "tools.walks", "--json", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    files: dict[str, list[str]] = json.loads(done.stdout)
    return files


def check(walk: str, entered: list[str], extra: list[str]) -> None:
    """Every named file is entered, and the numbers of the text hold."""
    files = named(walk)
    assert [file for file in [*files, *extra] if file not in entered] == []
    assert len(set(files)) == len(files)
    most = re.search(r"a profiler sees at most (\d+)", section(walk))
    assert most is not None
    assert len(entered) <= int(most[1]), "a walk has become longer"


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """All walks in one process; without PyTorch there is no uploaded voice."""
    if find_spec("torch") is None:
        return walked()
    from tests.unit.cosyvoice.bundles import tiny

    folder = tmp_path_factory.mktemp("walks")
    bundle = Path(shutil.copytree(tiny("cosyvoice2"), folder / "bundle"))
    (folder / "a.wav").write_bytes(wav(speech(4, 16_000)))
    return walked("--bundle", str(bundle), "--recording", str(folder / "a.wav"))


def test_walks_of_a_text_delta_and_a_stop_are_those_of_a_worker(walks: dict[str, list[str]]) -> None:
    check("a text delta", walks["text delta"], [])
    assert f"in {len(named('a text delta'))} files" in section("a text delta")
    shared = named("a text delta")[:5]
    check("a STOP", walks["STOP"], shared)
    assert f"in {len(named('a STOP')) + len(shared)} files" in section("a STOP")


def test_walk_of_an_uploaded_voice_is_that_of_a_worker(walks: dict[str, list[str]]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    of_the_engine = re.findall(r"`((?:engine|audio)/[\w/]+\.py)`", section("an uploaded voice").rpartition("|\n\n")[2])
    of_no_request = {*walks["no request"]} - {*named("an uploaded voice")}
    check("an uploaded voice", [file for file in walks["uploaded voice"] if file not in of_no_request], of_the_engine)
    counts = f"in {len(named('an uploaded voice'))} files, and {len(of_the_engine)} of the engine"
    assert counts in section("an uploaded voice")
