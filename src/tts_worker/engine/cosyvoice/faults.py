"""Classifies faults of the networks and of the device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tts_worker.engine.cosyvoice.stage import StageFault
from tts_worker.errors import ErrorInfo, OutOfMemory, SynthesisFailed, TTSWorkerError


def catch_fault(run: Callable[[], object]) -> StageFault | None:
    """Call ``run`` and return its fault, if any.

    An exception raised later does not get the fault as its context, so it does not keep the tensors of failed frames
    alive.
    """
    try:
        run()
    except StageFault as fault:
        return fault
    return None


def client_error(cause: BaseException) -> ErrorInfo:
    """Return the error for the client. It contains no user text."""
    if isinstance(cause, TTSWorkerError):
        return cause.info
    if isinstance(cause, MemoryError | torch.OutOfMemoryError):
        return OutOfMemory("the device has no memory left for this utterance").info
    return SynthesisFailed(f"the model could not synthesize a part of the text ({type(cause).__name__})").info


def device_responds(device: torch.device) -> bool:
    """Whether ``device`` still computes."""
    try:
        return float(torch.ones(1, device=device).sum()) == 1.0
    except RuntimeError:
        return False
