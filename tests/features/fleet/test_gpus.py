"""GPUs of the machine: NVML, nvidia-smi, MIG slices, selection, and what is said where there are none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fakes.nvml import FakeNvml
from tts_worker.errors import ConfigError
from tts_worker.features.fleet.gpus import Gpu, list_gpus, parse_smi, select_gpus

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
