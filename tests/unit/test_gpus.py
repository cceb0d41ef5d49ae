"""GPUs of the machine: NVML, nvidia-smi, MIG slices, selection, and what is said where there are none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fakes.nvml import FakeNvml
from tts_worker.errors import ConfigError
from tts_worker.features.fleet.gpus import Gpu, list_gpus, parse_smi, select_gpus
from tts_worker.gpus import GpuMonitor, GpuState, NvmlReader, visible_uuid

SMI = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa1111-0000)
  MIG 3g.40gb     Device  0: (UUID: MIG-bbbb2222-0000)
  MIG 3g.40gb     Device  1: (UUID: MIG-cccc3333-0000)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-dddd4444-0000)
"""
FOUND = (
    Gpu("MIG-bbbb2222-0000", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 0),
    Gpu("MIG-cccc3333-0000", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 0),
    Gpu("GPU-dddd4444-0000", "NVIDIA H100 80GB HBM3", 1),
)


def use_nvml(patch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> None:
    patch.setitem(sys.modules, "pynvml", nvml)  # None: an import raises ModuleNotFoundError


def use_smi(patch: pytest.MonkeyPatch, folder: Path, script: str | None) -> None:
    """Put an ``nvidia-smi`` into PATH, or none."""
    if script is not None:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "nvidia-smi").chmod(0o755)
    patch.setenv("PATH", f"{folder}:/bin:/usr/bin" if script is not None else str(folder))


def test_smi_lists_slices_instead_of_their_gpu() -> None:
    assert parse_smi(SMI) == FOUND


def test_nvml_lists_slices_instead_of_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    use_nvml(monkeypatch, FakeNvml())
    assert [(gpu.uuid, gpu.index) for gpu in list_gpus()] == [("MIG-slice", 0), ("GPU-plain", 1)]


@pytest.mark.parametrize("nvml", [None, FakeNvml(has_driver=False)], ids=["not installed", "no driver"])
def test_smi_is_used_without_nvml(nvml: FakeNvml | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_nvml(monkeypatch, nvml)
    use_smi(monkeypatch, tmp_path, f"cat <<'X'\n{SMI}X")
    assert list_gpus() == FOUND


@pytest.mark.parametrize(
    ("script", "reason"),
    [(None, "nvidia-smi: not found in PATH"), ("echo no driver >&2; exit 9", "no driver"), ("true", "lists no GPU")],
)
def test_error_says_what_was_looked_for(
    script: str | None, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_nvml(monkeypatch, None)
    use_smi(monkeypatch, tmp_path, script)
    with pytest.raises(ConfigError) as caught:
        list_gpus()
    assert "no NVIDIA GPU was found" in caught.value.message
    assert 'NVML: not installed, see the extra "nvml"' in caught.value.message
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("wanted", "visible", "selected"),
    [
        ("all", None, [0, 1, 2]),
        ("all", "1", [2]),
        ("all", "MIG-cccc", [1]),
        ("1", "0", [2]),
        ("0", None, [0, 1]),
        ("1, MIG-bbbb2222-0000", None, [2, 0]),
        ("1,1,GPU-dddd", None, [2]),
    ],
)
def test_selection_by_index_uuid_and_environment(wanted: str, visible: str | None, selected: list[int]) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert select_gpus(wanted, FOUND, environment) == tuple(FOUND[index] for index in selected)


@pytest.mark.parametrize("wanted", ["2", "GPU-zzzz", "MIG-", "", ",", "-1"])
def test_selection_that_is_unclear_names_the_gpus(wanted: str) -> None:
    with pytest.raises(ConfigError, match="GPU-dddd4444-0000"):
        select_gpus(wanted, FOUND, {})


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
