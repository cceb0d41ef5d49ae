"""What a fault was, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tts_worker.engine.streaming.stage import StageFault
from tts_worker.errors import ErrorInfo, OutOfMemory, SynthesisFailed, TTSWorkerError


def fault_of(work: Callable[[], object]) -> StageFault | None:
    """How ``work`` failed. What is raised because of it then does not drag it along, nor what its frames hold."""
    try:
        work()
    except StageFault as fault:
        return fault
    return None


def explain(cause: BaseException) -> ErrorInfo:
    """What a caller is told. No text of his is in it."""
    if isinstance(cause, TTSWorkerError):
        return cause.info
    if isinstance(cause, MemoryError | torch.OutOfMemoryError):
        return OutOfMemory("the device has no memory left for this utterance").info
    return SynthesisFailed(f"the model could not say a part of the text ({type(cause).__name__})").info


def answers(device: torch.device) -> bool:
    """Whether a device still computes."""
    try:
        return float(torch.ones(1, device=device).sum()) == 1.0
    except RuntimeError:
        return False
