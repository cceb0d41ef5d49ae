"""Facts about the device of an engine, for the metrics of the server and the benchmarks."""

from __future__ import annotations

import contextlib

import torch

from tts_worker.engine.cosyvoice.models.linear import products_library
from tts_worker.gpus import visible_uuid


def device_facts(device: torch.device) -> tuple[tuple[str, str], ...]:
    """Return the UUID of a CUDA device as ``gpu``, if PyTorch tells it; of a CPU, what computes its ``products``."""
    if device.type == "cpu":
        return (("products", products_library()),)
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError, AssertionError, AttributeError):  # metrics never prevent a start
            index = torch.cuda.current_device() if device.index is None else device.index
            return (("gpu", visible_uuid(index, str(torch.cuda.get_device_properties(index).uuid))),)
    return ()
