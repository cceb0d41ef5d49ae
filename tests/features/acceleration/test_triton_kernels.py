"""Triton kernels: equal to PyTorch's operators (interpreted), and they compile for GPUs.

Needs the package triton, which CUDA builds of PyTorch bring along, and no GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.unit.cosyvoice.networks import ONE_FAMILY
from tts_worker.engine.cosyvoice import ops
from tts_worker.engine.cosyvoice.ops import audio, language_model

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: pip install triton")

ROOT = Path(__file__).parents[3]
UNET_ONLY = {"conv_norm_mish", "conv_norm_mish_add_norm"}
MODULES = {operator.module for operator in (audio.snake, language_model.draw_ids)}
NAMES = {name for name, operator in ops.OPERATORS.items() if operator.module in MODULES}


def names(family: str) -> set[str]:
    """Kernels that the networks of ``family`` use."""
    return NAMES if family == "cosyvoice2" else NAMES - UNET_ONLY


def check(arguments: list[str], **environment: str) -> list[set[str]]:
    """Return the names that ``check_kernels`` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.features.acceleration.check_kernels", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_kernels_equal_the_compositions(family: str) -> None:
    (checked,) = check(["interpret", family], TRITON_INTERPRET="1")
    assert checked >= names(family) - {"causal_conv"}


def test_kernels_keep_to_their_limits() -> None:
    assert check(["edges"], TRITON_INTERPRET="1") == [NAMES]


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_decoder_draws_the_same_ids_with_kernels(family: str) -> None:
    check(["decode", family], TRITON_INTERPRET="1")


@pytest.mark.parametrize("arch", ["80", "90"])
@pytest.mark.parametrize("family", ONE_FAMILY)
def test_kernels_compile_for_gpus(family: str, arch: str, tmp_path: Path) -> None:
    assert check(["compile", family, arch], TRITON_CACHE_DIR=str(tmp_path)) == [names(family)]


def test_kernel_outside_of_graphs_is_compiled_once(tmp_path: Path) -> None:
    """A binary for other sizes would be built, for a tenth of a second, while the calls wait for their tokens."""
    (binaries,) = check(["variants"], TRITON_CACHE_DIR=str(tmp_path))
    assert len(binaries) == 1
