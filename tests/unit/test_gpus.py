"""The state of GPUs for the metrics, through NVML."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import pytest

from tests.fakes.nvml import FakeNvml
from tts_worker.gpus import GpuMonitor, GpuState, NvmlReader, visible_uuid


def use_nvml(patch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> None:
    patch.setitem(sys.modules, "pynvml", nvml)  # None: an import raises ModuleNotFoundError


def test_state_leaves_out_what_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    use_nvml(monkeypatch, FakeNvml())
    states = NvmlReader()(["GPU-plain", "MIG-slice", "GPU-gone"])
    assert states == {"GPU-plain": GpuState(3, 8, 0.4), "MIG-slice": GpuState(3, 8, None)}


def test_slice_is_found_by_the_uuid_that_cuda_tells(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_nvml(monkeypatch, FakeNvml())
    assert NvmlReader()([visible_uuid(0, "slice", {})]) == {"MIG-slice": GpuState(3, 8, None)}
    assert not caplog.messages


def test_gpu_that_nvml_does_not_know_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_nvml(monkeypatch, FakeNvml())
    read = NvmlReader()
    for uuids in (["GPU-gone"], ["GPU-gone", "GPU-plain"], ["MIG-gone", "GPU-gone"]):
        read(uuids)
    assert caplog.messages == [
        "GPU metrics: NVML knows neither GPU-gone nor MIG-gone (Not Found)",
        "GPU metrics: NVML does not know MIG-gone (Not Found)",
    ]


def test_missing_nvml_is_not_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is an extra."""
    use_nvml(monkeypatch, None)
    assert NvmlReader()(["GPU-plain"]) == {}
    assert not caplog.messages


def test_device_is_named_as_the_environment_names_it() -> None:
    assert visible_uuid(0, "aaaa", {}) == "GPU-aaaa"
    assert visible_uuid(1, "aaaa", {"CUDA_VISIBLE_DEVICES": "GPU-x, MIG-y"}) == "MIG-y"
    assert visible_uuid(0, "GPU-aaaa", {"CUDA_VISIBLE_DEVICES": "3"}) == "GPU-aaaa"
    assert visible_uuid(0, "aaaa-bbbb", {"CUDA_VISIBLE_DEVICES": "GPU-aa"}) == "GPU-aaaa-bbbb", "NVML takes it whole"
    assert visible_uuid(0, "aaaa-bbbb", {"CUDA_VISIBLE_DEVICES": "MIG-aa"}) == "MIG-aaaa-bbbb"


def test_monitor_exports_a_slice_under_its_own_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    use_nvml(monkeypatch, FakeNvml())
    monitor = GpuMonitor()
    monitor.add("a", "GPU-slice")
    try:
        while not (states := monitor.states):  # bounded by pytest-timeout
            pass
        assert states == {"MIG-slice": GpuState(3, 8, None)}
        monitor.remove("a")
        assert monitor.states == {}
    finally:
        monitor.stop()


def test_monitor_exports_readings_of_gpus_in_use_until_they_are_old() -> None:
    now_s = 100.0
    asked: list[list[str]] = []
    was_read = threading.Event()

    def read(uuids: Sequence[str]) -> dict[str, GpuState]:
        asked.append(list(uuids))
        was_read.set()
        return {uuid: GpuState(3, 8, 0.4) for uuid in uuids}

    monitor = GpuMonitor(5.0, read, lambda: now_s)
    monitor.add("a", "GPU-plain")
    try:
        assert was_read.wait(30)
        while not (states := monitor.states):  # bounded by pytest-timeout
            pass
        assert states == {"GPU-plain": GpuState(3, 8, 0.4)}
        now_s += 16.0
        assert monitor.states == {}
        now_s -= 16.0
        monitor.remove("a")
        assert monitor.states == {}
        assert asked == [["GPU-plain"]]
    finally:
        monitor.stop()
