"""Triton kernels of the language model: equal to PyTorch's operators (interpreted), and they compile for GPUs.

Needs the package triton, which CUDA builds of PyTorch bring along, and no GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tts_worker.engine.cosyvoice.backends import kernels
from tts_worker.engine.cosyvoice.backends.kernels import language_model

pytestmark = pytest.mark.skipif(not kernels.has_triton(), reason="triton is not installed: pip install triton")

ROOT = Path(__file__).parents[3]
NAMES = {name for name, op in kernels.OPERATORS.items() if op.module == f"{language_model.__name__}_triton"}


def check(arguments: list[str], **environment: str) -> list[set[str]]:
    """Return the names that ``check_kernels`` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.cosyvoice.check_kernels", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_kernels_equal_the_compositions() -> None:
    assert check(["interpret", "cosyvoice3"], TRITON_INTERPRET="1") == [NAMES]


def test_kernels_compile_for_gpus(tmp_path: Path) -> None:
    assert check(["compile", "cosyvoice3", "80", "90"], TRITON_CACHE_DIR=str(tmp_path)) == [NAMES, NAMES]
