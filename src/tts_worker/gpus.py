"""The NVIDIA GPUs of this machine and their state: through NVML, or ``nvidia-smi`` where that is not installed.

NVML needs the extra ``nvml`` and the driver. A GPU that is divided into MIG slices is listed as its slices, which CUDA
addresses like GPUs, by UUID.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tts_worker.errors import ConfigError

log = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class GpuState:
    """Load of a GPU or a slice; ``utilisation`` is None where it is unknown, as for slices."""

    memory_used_bytes: int
    memory_total_bytes: int
    utilisation: float | None


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs and slices of this machine.

    Raises:
        ConfigError: There is none; the message says what was looked for.
    """
    reasons = []
    for name, look in (("NVML", _list_with_nvml), ("nvidia-smi", _list_with_smi)):
        try:
            found = look()
        except _Unavailable as unavailable:
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


def visible_uuid(index: int, uuid: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the UUID of the CUDA device ``index``, for NVML; a slice may be named like a GPU.

    Args:
        index: Number of the device in this process.
        uuid: UUID that CUDA reports, without the beginning that tells slices from GPUs.
        environment: CUDA_VISIBLE_DEVICES in it may name the device by its UUID, or by the beginning of it.
    """
    bare = uuid.removeprefix("GPU-")
    visible = [word.strip() for word in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    name = visible[index] if index < len(visible) else ""
    if not name.startswith(("GPU-", "MIG-")):
        return f"GPU-{bare}"
    return name[:4] + bare if bare.startswith(name[4:]) else name


def _nvml_uuids(uuid: str) -> tuple[str, ...]:
    """Return the UUIDs under which NVML may know a device: CUDA tells that of a slice without "MIG-"."""
    return (uuid, f"MIG-{uuid.removeprefix('GPU-')}") if uuid.startswith("GPU-") else (uuid,)


class _Unavailable(Exception):
    """A way to find GPUs does not exist here; the message says why."""


# -- NVML -------------------------------------------------------------------------------------------------------------


def _load_nvml() -> Any:
    """Return the initialized NVML module. Raises _Unavailable."""
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        raise _Unavailable('not installed, see the extra "nvml"') from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise _Unavailable(str(error)) from None
    return nvml


def _list_with_nvml() -> tuple[Gpu, ...]:
    nvml = _load_nvml()
    try:
        count = nvml.nvmlDeviceGetCount()
        return tuple(gpu for index in range(count) for gpu in _with_slices(nvml, index))
    except nvml.NVMLError as error:
        raise _Unavailable(str(error)) from None


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


class NvmlReader:
    """Reads the state of GPUs, and logs once of each that NVML does not know."""

    def __init__(self) -> None:
        self._unknown: set[str] = set()

    def __call__(self, uuids: Sequence[str]) -> dict[str, GpuState]:
        """Return the state of the given GPUs by NVML's UUID, without those it cannot read. Blocks; never fails."""
        try:
            nvml = _load_nvml()
        except _Unavailable:
            return {}
        states = {}
        for uuid in uuids:
            found = self._find(nvml, uuid)
            if found is None:
                continue
            name, handle = found
            try:
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            except nvml.NVMLError:
                continue
            try:
                utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            except nvml.NVMLError:  # a slice
                utilisation = None
            states[name] = GpuState(int(memory.used), int(memory.total), utilisation)
        return states

    def _find(self, nvml: Any, uuid: str) -> tuple[str, Any] | None:
        """Return NVML's UUID and handle of a GPU or slice, or None."""
        names = _nvml_uuids(uuid)
        reason = ""
        for name in names:
            try:
                return name, nvml.nvmlDeviceGetHandleByUUID(name)
            except nvml.NVMLError as error:
                reason = str(error)
        if uuid not in self._unknown:
            self._unknown.add(uuid)
            knows = f"knows neither {' nor '.join(names)}" if len(names) > 1 else f"does not know {uuid}"
            log.warning("GPU metrics: NVML %s (%s)", knows, reason)
        return None


class GpuMonitor:
    """Reads the state of GPUs every ``interval_s`` on a daemon thread: a driver that hangs delays nothing else.

    Args:
        interval_s: Time between two readings; a state is dropped when it is older than three intervals.
        read: Reads the states of the given GPUs; None reads them through NVML.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        interval_s: float = 5.0,
        read: Callable[[Sequence[str]], dict[str, GpuState]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._read = read or NvmlReader()
        self._clock = clock
        self._uuids: dict[str, str] = {}
        self._states: dict[str, GpuState] = {}
        self._read_at_s = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def states(self) -> dict[str, GpuState]:
        """The last state of every GPU in use, by UUID."""
        is_fresh = self._clock() - self._read_at_s <= 3 * self._interval_s
        in_use = {name for uuid in self._uuids.values() for name in _nvml_uuids(uuid)}
        return {uuid: state for uuid, state in self._states.items() if is_fresh and uuid in in_use}

    def add(self, user: str, uuid: str) -> None:
        """Watch the GPU of an engine."""
        self._uuids[user] = uuid
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpu-monitor", daemon=True)
            self._thread.start()

    def remove(self, user: str) -> None:
        """Forget the GPU of an engine. Unknown names are ignored."""
        self._uuids.pop(user, None)

    def stop(self) -> None:
        """Let the thread end, without waiting for it."""
        self._stopping.set()

    def _run(self) -> None:
        while True:
            self._states = self._read(sorted(set(self._uuids.values())))
            self._read_at_s = self._clock()
            if self._stopping.wait(self._interval_s):
                return


# -- nvidia-smi -------------------------------------------------------------------------------------------------------


def _list_with_smi() -> tuple[Gpu, ...]:
    try:
        result = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise _Unavailable("not found in PATH") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unavailable(f"it could not be run ({type(error).__name__})") from None
    if result.returncode != 0:
        raise _Unavailable(f"it failed: {(result.stderr or result.stdout).strip()[:200]}")
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
