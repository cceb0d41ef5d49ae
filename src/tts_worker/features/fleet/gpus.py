"""Lists and selects the NVIDIA GPUs of this machine: through NVML, or ``nvidia-smi`` where that is not installed.

A GPU that is divided into MIG slices is listed as its slices, which CUDA addresses like GPUs, by UUID.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tts_worker.errors import ConfigError
from tts_worker.gpus import GpusUnavailable, load_nvml

_SMI_TIMEOUT_S = 30.0
"""The first call loads the driver, which takes seconds without a running persistence daemon."""

_SMI_GPU = re.compile(r"GPU (\d+): (.+?) \(UUID: (GPU-[0-9A-Za-z-]+)\)")
_SMI_SLICE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[0-9A-Za-z/-]+)\)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU or a MIG slice.

    Attributes:
        uuid: ``GPU-...`` or ``MIG-...``, for CUDA_VISIBLE_DEVICES.
        name: Product name, and the profile of a slice.
        index: Number of the GPU; slices have that of their GPU.
    """

    uuid: str
    name: str
    index: int


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs and slices of this machine.

    Raises:
        ConfigError: There is none; the message says what was looked for.
    """
    reasons = []
    for name, look in (("NVML", _list_with_nvml), ("nvidia-smi", _list_with_smi)):
        try:
            found = look()
        except GpusUnavailable as unavailable:
            reasons.append(f"{name}: {unavailable}")
            continue
        if found:
            return found
        reasons.append(f"{name}: it lists no GPU that CUDA can use")
    raise ConfigError(f"no NVIDIA GPU was found ({'; '.join(reasons)})")


def select_gpus(wanted: str, found: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Return the GPUs that ``wanted`` names.

    Args:
        wanted: ``all``, or indices and UUIDs (or their unique beginnings) separated by commas. The index of a divided
            GPU selects all of its slices.
        found: The GPUs of the machine.
        environment: CUDA_VISIBLE_DEVICES in it limits ``all``.

    Raises:
        ConfigError: A name matches no GPU, or several.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted.strip() == "all":
        if visible is None:
            return tuple(found)
        wanted = visible
    selected: dict[str, Gpu] = {}
    for word in filter(None, (word.strip() for word in wanted.split(","))):
        for gpu in _match(word, found):
            selected[gpu.uuid] = gpu
    if not selected:
        raise ConfigError(f"no GPU is selected by {wanted!r}; there are {_describe(found)}")
    return tuple(selected.values())


def _match(word: str, found: Sequence[Gpu]) -> list[Gpu]:
    if word.isdecimal():
        matches = [gpu for gpu in found if gpu.index == int(word)]
        is_clear = bool(matches)
    else:
        matches = [gpu for gpu in found if gpu.uuid.startswith(word)]
        is_clear = len(matches) == 1
    if not is_clear:
        count = "several GPUs" if matches else "no GPU"
        raise ConfigError(f"{word[:64]!r} matches {count}; there are {_describe(found)}")
    return matches


def _describe(found: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.index}: {gpu.uuid}" for gpu in found)


def _list_with_nvml() -> tuple[Gpu, ...]:
    nvml = load_nvml()
    try:
        count = nvml.nvmlDeviceGetCount()
        return tuple(gpu for index in range(count) for gpu in _with_slices(nvml, index))
    except nvml.NVMLError as error:
        raise GpusUnavailable(str(error)) from None


def _with_slices(nvml: Any, index: int) -> Iterator[Gpu]:
    """Yield the GPU, or its slices if it is divided. A GPU in MIG mode without slices cannot be used."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = _text(nvml.nvmlDeviceGetName(handle))
    try:
        is_divided = bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # the GPU has no MIG mode
        is_divided = False
    if not is_divided:
        yield Gpu(_text(nvml.nvmlDeviceGetUUID(handle)), name, index)
        return
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError:  # this place is empty
            continue
        yield Gpu(_text(nvml.nvmlDeviceGetUUID(part)), _text(nvml.nvmlDeviceGetName(part)), index)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


# -- nvidia-smi -------------------------------------------------------------------------------------------------------


def _list_with_smi() -> tuple[Gpu, ...]:
    try:
        result = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise GpusUnavailable("not found in PATH") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpusUnavailable(f"it could not be run ({type(error).__name__})") from None
    if result.returncode != 0:
        raise GpusUnavailable(f"it failed: {(result.stderr or result.stdout).strip()[:200]}")
    return parse_smi(result.stdout)


def parse_smi(output: str) -> tuple[Gpu, ...]:
    """Return the GPUs and slices in the output of ``nvidia-smi -L``."""
    found: list[Gpu] = []
    whole: Gpu | None = None
    for line in output.splitlines():
        if (gpu := _SMI_GPU.match(line)) is not None:
            whole = Gpu(gpu[3], gpu[2], int(gpu[1]))
            found.append(whole)
        elif (part := _SMI_SLICE.match(line)) is not None and whole is not None:
            if whole in found:
                found.remove(whole)
            found.append(Gpu(part[2], f"{whole.name} MIG {part[1]}", whole.index))
    return tuple(found)
