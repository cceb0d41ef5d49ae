"""A training runs where only PyTorch is installed, with the libraries of the engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NEEDLESS = ("anyio", "fastapi", "hibari", "msgspec", "onnx", "onnxruntime", "pydantic", "soundfile", "soxr", "tests")


def test_command_line_needs_only_a_pytorch_machine() -> None:
    pytest.importorskip("torch", reason="needs the extra 'cosyvoice'")
    program = f"import sys; sys.modules.update(dict.fromkeys({NEEDLESS})); import tools.train.__main__"
    path = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'src')]}; "
    done = subprocess.run([sys.executable, "-c", path + program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
