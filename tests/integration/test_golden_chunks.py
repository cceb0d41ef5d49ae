"""The chunks of each CosyVoice family have the recorded hashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tools.golden_chunks import ENVIRONMENT, FILE, HOW_TO_RECORD, compare, made_on, why_not_comparable

RECORDED: dict[str, Any] = json.loads(FILE.read_text())


SCRIPT = """
import sys
from tools import golden_chunks

status = golden_chunks.main(["print"])
print(*(name for name in ("sympy", "torch._dynamo") if name in sys.modules))
sys.exit(status)
"""


def skip_for(reason: str | None) -> None:
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def process() -> subprocess.CompletedProcess[str]:
    """All families in one process: importing PyTorch takes longer than speaking."""
    skip_for(why_not_comparable(RECORDED, made_on()))
    environment = {**os.environ, **ENVIRONMENT}
    command = [sys.executable, "-c", SCRIPT]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_chunks_have_the_recorded_hashes(process: subprocess.CompletedProcess[str]) -> None:
    assert process.returncode == 0, process.stderr
    spoken = json.loads(process.stdout.rpartition("}")[0] + "}")
    skip_for(why_not_comparable(RECORDED, spoken["made_on"], spoken["functions"]))
    assert set(spoken["families"]) == {"cosyvoice1", "cosyvoice2", "cosyvoice3"}
    differences = compare(RECORDED["families"], spoken["families"])
    assert not differences, "\n".join([*differences, HOW_TO_RECORD])


def test_engines_start_without_the_compiler(process: subprocess.CompletedProcess[str]) -> None:
    assert process.returncode == 0, process.stderr
    assert process.stdout.rpartition("}")[2].split() == [], "importing PyTorch's compiler takes a second"


def test_difference_names_family_and_chunk() -> None:
    families = RECORDED["families"]
    assert compare(families, families) == []
    changed = deepcopy(families)
    changed["cosyvoice1"]["tokens"][5] += 1
    changed["cosyvoice2"]["chunks"][2]["sha256"] = "0"
    changed["cosyvoice3"]["chunks"].pop()
    first, second, third = compare(families, changed)
    token = families["cosyvoice1"]["tokens"][5]
    assert first == f"cosyvoice1: speech token 5 is {token + 1} instead of {token}"
    assert second == "cosyvoice2: chunk 2 (tokens 8 to 33) differs in sha256"
    assert third.startswith("cosyvoice3: 5 chunks instead of 6")
    assert compare({}, {"cosyvoice1": families["cosyvoice1"]}) == ["cosyvoice1: is not recorded"]


def test_other_torch_or_other_rounding_is_not_compared() -> None:
    here = RECORDED["made_on"]
    assert why_not_comparable(RECORDED, here) is None
    for name in ("torch", "system", "machine"):
        assert f"here it is {name} X" in (why_not_comparable(RECORDED, {**here, name: "X"}) or "")
    newer = {**here, "C library": "glibc 9.9"}
    rounded = {**RECORDED["functions"], "tanhf": "0"}
    assert why_not_comparable(RECORDED, newer, RECORDED["functions"]) is None
    assert why_not_comparable(RECORDED, newer, rounded) == f"glibc 9.9 rounds otherwise than {here['C library']}: tanhf"
    assert why_not_comparable(RECORDED, here, rounded) is None, "the environment has no effect: compared, and fails"
