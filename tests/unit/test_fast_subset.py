"""The tests of ``just test-fast``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_fast_subset_imports_no_pytorch() -> None:
    command = (sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "-m", "not slow")
    collected = subprocess.run(
        (*command, "-p", "no:cacheprovider"), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert collected.returncode == 0, collected.stdout[-2_000:]  # tests/conftest.py says what is wrong
