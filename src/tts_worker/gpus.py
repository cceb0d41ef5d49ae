"""The state of the NVIDIA GPUs in use, for the metrics, through NVML.

NVML needs the extra ``nvml`` and the driver. A slice of a GPU (MIG) has a UUID like a GPU.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuState:
    """Load of a GPU or a slice; ``utilization`` is None where it is unknown, as for slices."""

    memory_used_bytes: int
    memory_total_bytes: int
    utilization: float | None


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


class GpusUnavailable(Exception):
    """A way to find GPUs does not exist here; the message says why."""


def load_nvml() -> Any:
    """Return the initialized NVML module. Raises GpusUnavailable."""
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        raise GpusUnavailable('not installed, see the extra "nvml"') from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise GpusUnavailable(str(error)) from None
    return nvml


class NvmlReader:
    """Reads the state of GPUs, and logs once of each that NVML does not know."""

    def __init__(self) -> None:
        self._unknown: set[str] = set()

    def __call__(self, uuids: Sequence[str]) -> dict[str, GpuState]:
        """Return the state of the given GPUs by NVML's UUID, without those it cannot read. Blocks; never fails."""
        try:
            nvml = load_nvml()
        except GpusUnavailable:
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
                utilization = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            except nvml.NVMLError:  # a slice
                utilization = None
            states[name] = GpuState(int(memory.used), int(memory.total), utilization)
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
