"""What an engine tells of its device, which the metrics of the GPU need."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tts_worker.engine.cosyvoice.execution.device import device_facts


@pytest.fixture(autouse=True)
def cuda_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices 0 and 1, as PyTorch describes them; 1 is the current one."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"aaaa-{index}"))


def test_cuda_device_is_told_by_its_uuid() -> None:
    assert device_facts(torch.device("cuda", 0)) == (("gpu", "GPU-aaaa-0"),)
    assert device_facts(torch.device("cuda")) == (("gpu", "GPU-aaaa-1"),)


def test_slice_is_told_as_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa-0,MIG-y")
    assert device_facts(torch.device("cuda", 1)) == (("gpu", "MIG-y"),)


def test_uuid_that_pytorch_does_not_tell_prevents_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise RuntimeError("no CUDA driver")

    for properties in (fail, lambda index: SimpleNamespace()):  # the latter: a build that tells no UUID
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        assert device_facts(torch.device("cuda", 0)) == ()


def test_cpu_has_no_gpu() -> None:
    assert dict(device_facts(torch.device("cpu"))).keys() == {"products"}
