"""What executes an engine: the plain path, and what happens to it where acceleration is absent or switched off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tts_worker.engine.cosyvoice import ops
from tts_worker.engine.cosyvoice.execution import plan
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.execution.plan import (
    ABSENT,
    Accelerator,
    Backend,
    BackendOptions,
    ChunkPlan,
    Execution,
    plan_execution,
    select_backend,
)
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig
from tts_worker.errors import ConfigError

ROOT = Path(__file__).parents[3]
PLAIN_TESTS = (
    "tests/unit/cosyvoice/test_decoder.py::test_nan_of_a_broken_prefix_does_not_spread",
    "tests/unit/streaming/test_contract.py",
)
"""A test of the language model, and those of ``ENGINE`` in the contract of an engine."""
ENGINE = "v3-interleaved"


def on(device: str) -> Any:
    return SimpleNamespace(device=torch.device(device))


def is_plain(planned: Execution) -> bool:
    return all(type(runner) is EagerRunner and not runner.fixed_shapes for runner in planned.runners) and (
        planned.compiler is planned.library is None
    )


def test_cpu_takes_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "find_accelerator", lambda: pytest.fail("nothing is looked for"))
    planned = plan_execution(on("cpu"), Any, StreamingConfig(graphs=True))  # type: ignore[arg-type]
    assert is_plain(planned)
    assert planned.missing == ()


@pytest.mark.parametrize(("is_wanted", "missing"), [(True, (ABSENT,)), (False, ())])
def test_gpu_without_acceleration_takes_the_plain_path(
    is_wanted: bool, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "modules", lambda name: ())
    monkeypatch.setattr(ops.kernel_switch, "is_on", True)  # by another engine of the process
    planned = plan_execution(on("cuda"), Any, StreamingConfig(graphs=True, acceleration=is_wanted))  # type: ignore
    assert is_plain(planned)
    assert planned.missing == missing
    assert not ops.kernel_switch.is_on


def test_gpu_with_acceleration_switched_off_looks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "find_accelerator", lambda: pytest.fail("it is switched off"))
    assert is_plain(plan_execution(on("cuda"), Any, StreamingConfig(acceleration=False)))  # type: ignore[arg-type]


def test_gpu_takes_what_acceleration_has_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Execution(missing=("a kernel",))
    accelerator = Accelerator(lambda *_: pytest.fail("another hook"), lambda *_: checked)
    monkeypatch.setattr(plan, "find_accelerator", lambda: accelerator)
    assert plan_execution(on("cuda"), Any, StreamingConfig()) is checked  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", [Backend.ONNXRUNTIME, Backend.TENSORRT])
def test_other_back_ends_need_acceleration(backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plan, "modules", lambda name: ())
    options = BackendOptions(backend, tmp_path, ChunkPlan(1, 1, 4))
    with pytest.raises(ConfigError, match=f"backend: {backend.value} cannot be used .*set backend: torch"):
        select_backend(on("cpu"), options)
    assert select_backend(on("cpu"), BackendOptions(Backend.TORCH, tmp_path, options.plan)).degraded == ()


def test_engine_passes_its_tests_without_acceleration() -> None:
    plugins = "-p", "tests.fakes.without_acceleration", "-p", "no:cacheprovider", "-n", "0"
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-k", f"{ENGINE} or test_decoder", *PLAIN_TESTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    summary = done.stdout.splitlines()[-1]
    assert " passed" in summary
    assert "skipped" not in summary
