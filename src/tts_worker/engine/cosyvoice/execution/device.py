"""The device of an engine: facts for metrics and benchmarks, and whether it still works."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from enum import Enum

import torch

from tts_worker.engine.cosyvoice.networks.linear import products_library
from tts_worker.errors import DeviceLost, TTSWorkerError
from tts_worker.gpus import visible_uuid


class FaultKind(Enum):
    """What a fault says about the device."""

    REFUSED = "refused"  # a typed error of our own: the device is all right
    OUT_OF_MEMORY = "out_of_memory"
    UNKNOWN = "unknown"  # the device may be lost


def device_facts(device: torch.device) -> tuple[tuple[str, str], ...]:
    """Return the UUID of a CUDA device as ``gpu``, if PyTorch tells it; of a CPU, what computes its ``products``."""
    if device.type == "cpu":
        return (("products", products_library()),)
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError, AssertionError, AttributeError):  # metrics never prevent a start
            index = torch.cuda.current_device() if device.index is None else device.index
            return (("gpu", visible_uuid(index, str(torch.cuda.get_device_properties(index).uuid))),)
    return ()


def fault_kind(error: BaseException) -> FaultKind:
    """Classify ``error``."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return FaultKind.OUT_OF_MEMORY
    return FaultKind.REFUSED if isinstance(error, TTSWorkerError) else FaultKind.UNKNOWN


def device_responds(device: torch.device) -> bool:
    """Whether ``device`` still computes."""
    try:
        return float(torch.ones(1, device=device).sum()) == 1.0
    except torch.OutOfMemoryError:  # a lost device answers even this with the error that it was lost by
        return True
    except RuntimeError:
        return False


@contextlib.contextmanager
def device_checked(responds: Callable[[], bool], advice: str = "") -> Iterator[None]:
    """Raise ``DeviceLost``, with ``advice``, for an unknown error in the block after which the device is lost."""
    try:
        yield
    except Exception as error:
        if fault_kind(error) is FaultKind.UNKNOWN and not responds():
            raise DeviceLost(f"the device failed ({_device_error(error)}) and no longer responds{advice}") from error
        raise


def _device_error(error: Exception) -> str:
    """Return ``error`` without user data: its type, or the first line of an error of CUDA; the rest is advice."""
    text = str(error)
    return text.splitlines()[0] if text.startswith("CUDA error") else type(error).__name__
