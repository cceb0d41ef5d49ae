"""What the doctor says about PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.torch_build import fake_torch
from tts_worker.commands import doctor_backends
from tts_worker.finding import Status


@pytest.mark.parametrize(
    ("torch", "driver", "detail", "advice"),
    [
        (fake_torch(None), False, "2.13.0 on the CPU; this build has no CUDA", ""),
        (fake_torch(None), True, "this build has no CUDA", "pip install --force-reinstall torch"),
        (fake_torch("13.0"), True, "built for CUDA 13.0, but sees no device", ""),
        (fake_torch("13.0", device=True), True, "CUDA 13.0, NVIDIA Test 5000", ""),
    ],
)
def test_torch_is_described_as_it_runs(
    torch: Any, driver: bool, detail: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_backends, "has_nvidia_driver", lambda: driver)
    finding = doctor_backends.torch_finding(torch)
    assert (finding.status, finding.advice) == (Status.OK, advice)
    assert detail in finding.detail


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for driver, extra in ((False, "[cosyvoice]"), (True, "[gpu]")):
        monkeypatch.setattr(doctor_backends, "has_nvidia_driver", lambda driver=driver: driver)
        finding = doctor_backends.torch_finding(None)
        assert finding.status is Status.OPTIONAL
        assert extra in finding.advice
