"""NVIDIA's management library without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


class FakeNvml:
    """The functions of pynvml that are used; a divided GPU with a slice and an empty place, and a plain GPU."""

    NVMLError = NVMLError

    def __init__(self, *, has_driver: bool = True) -> None:
        self._has_driver = has_driver

    def nvmlInit(self) -> None:
        if not self._has_driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return ("GPU-divided", "GPU-plain")[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in ("GPU-plain", "MIG-slice"):
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"name of {handle}"

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()  # older versions return bytes

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle == "GPU-plain":
            raise NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 2

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index == 1:
            raise NVMLError("Not Found")
        return "MIG-slice"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=3, total=8)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle.startswith("MIG-"):
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=40)
