"""What the doctor says about kernels and TensorRT, with metadata of made-up installations."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.fakes.torch_build import fake_torch
from tests.features.acceleration.fake_tensorrt import FakeTrt, use_cpu_as_cuda
from tts_worker.engine.cosyvoice import ops
from tts_worker.engine.cosyvoice.ops.audio import paged_attention
from tts_worker.features.acceleration import checks, kernels
from tts_worker.finding import Status


@pytest.mark.parametrize("captures", [True, False])
def test_graphs_are_captured(captures: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: object())
    monkeypatch.setattr(checks, "kernel_problem", str)
    finding = checks.kernels_finding(fake_torch("13.0", device=True, captures=captures))
    expected = "CUDA graphs work" if captures else "CUDA graphs fail (operation not permitted"
    assert finding.status is Status.OK
    assert finding.detail.startswith(expected)


@pytest.mark.parametrize("is_installed", [True, False])
def test_missing_triton_is_told_on_cuda(is_installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: object() if is_installed else None)
    monkeypatch.setattr(checks, "kernel_problem", str)
    finding = checks.kernels_finding(fake_torch("13.0", device=True))
    assert ("triton is not installed" in finding.detail) is not is_installed
    assert bool(finding.advice) is not is_installed


def test_fused_attention_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: object())
    monkeypatch.setattr(torch, "device", lambda name: "cpu")
    monkeypatch.setattr(paged_attention, "fault", "")
    monkeypatch.setattr(kernels, "triton_problem", str)

    monkeypatch.setattr(ops, "import_module", lambda name: SimpleNamespace(paged_attention=paged_attention.composition))
    assert "fused attention works" in checks.kernels_finding(fake_torch("13.0", device=True)).detail
    monkeypatch.setattr(ops, "import_module", lambda name: SimpleNamespace())  # the kernel cannot be launched
    assert "fused attention is not used" in checks.kernels_finding(fake_torch("13.0", device=True)).detail
    monkeypatch.setattr(kernels, "triton_problem", lambda: "triton cannot be used (no compiler)")
    detail = checks.kernels_finding(fake_torch("13.0", device=True)).detail
    assert "fused attention is not used (triton cannot be used (no compiler))" in detail


def test_tensorrt_is_missing_or_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = checks.tensorrt_finding(fake_torch("13.0", device=True))
    assert missing.status is Status.OPTIONAL
    assert "[tensorrt]" in missing.advice
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTrt(version="11.4"))
    without_device = checks.tensorrt_finding(fake_torch("13.0"))
    assert without_device.status is Status.OPTIONAL
    assert "runs on PyTorch instead" in without_device.detail
    cache = tmp_path / "tts-worker" / "tensorrt"
    cache.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    header = b'{"key": {"graph": "flow.encoder.onnx", "gpu": "NVIDIA Test 5000", "tensorrt": "%s"}}\n'
    for name, version in (("a", b"11.4"), ("b", b"10.9")):
        (cache / f"{name}.plan").write_bytes(header % version + bytes(1_000_000))
    (cache / "c.plan").write_bytes(b"not a plan")
    use_cpu_as_cuda(monkeypatch)
    finding = checks.tensorrt_finding(fake_torch("13.0", device=True))
    assert finding.status is Status.OK
    assert finding.detail == f"11.4, builds and runs a small engine; 2 plans, 1 of this version, 2 MB in {cache}"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("Logger", "cannot start: TypeError: pybind11::init(): factory function returned nullptr"),
        ("Builder", "cannot build identity.onnx: TypeError: pybind11"),
        ("Runtime", "cannot load the plan: TypeError: pybind11"),
        ("parse", "cannot read identity.onnx: an unknown operator"),
        ("build", "cannot build identity.onnx"),
        ("execute", "cannot run identity.onnx: RuntimeError: TensorRT cannot run the engine"),
        ("values", "returns other values than its input"),
    ],
)
def test_tensorrt_is_built_and_run_and_not_only_imported(
    broken: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cpu_as_cuda(monkeypatch)
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTrt(broken))
    finding = checks.tensorrt_finding(fake_torch("13.0", device=True))
    assert finding.status is Status.OPTIONAL
    assert finding.detail.startswith("10.9.0 does not work")
    assert reason in finding.detail
    assert "\n" not in finding.detail
    assert "pip install" in finding.advice


def test_old_tensorrt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTrt(version="8.6.1"))
    finding = checks.tensorrt_finding(fake_torch("13.0", device=True))
    assert (finding.status, finding.detail) == (Status.OPTIONAL, "8.6.1 is too old, needed: 10.3 or later")


def test_tensorrt_is_replaced_by_the_build_for_the_cuda_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTrt(version="8.6.1"))
    monkeypatch.setattr(checks, "install_command", lambda extra="": f'pip install ".[{extra}]"')

    def advice(cuda: str | None) -> str:
        return checks.tensorrt_finding(fake_torch(cuda)).advice

    assert advice("12.8") == 'pip install ".[tensorrt]"', "not installed by pip"
    for name in ("tensorrt", "tensorrt_cu13_libs", "tensorrt_llm", "torch_tensorrt"):
        (site / f"{name}-8.6.1.dist-info").mkdir()
        (site / f"{name}-8.6.1.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 8.6.1\n")
    importlib.invalidate_caches()
    uninstall = "pip uninstall -y tensorrt tensorrt-cu13-libs && "
    assert advice("12.8") == f'{uninstall}pip install "tensorrt-cu12>=10.3"'
    assert advice(None) == f'{uninstall}pip install ".[tensorrt]"'


def test_tensorrt_that_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> Any:
        raise OSError("libnvinfer.so.10: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", fail)
    finding = checks.tensorrt_finding(fake_torch("13.0", device=True))
    assert finding.status is Status.OPTIONAL
    assert "cannot be imported: libnvinfer.so.10" in finding.detail
