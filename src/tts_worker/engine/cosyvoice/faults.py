"""Faults of passes as data: the runners return them, the engine decides what follows."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import torch

from tts_worker.engine.cosyvoice.sequence import CosyVoiceSequence
from tts_worker.errors import DeviceLost, ErrorInfo, OutOfMemory, SynthesisFailed, TTSWorkerError

T = TypeVar("T")


class Stage(Enum):
    """What failed."""

    VOICE = "voice"  # reading a stored voice
    PREFILL = "prefill"
    DECODE = "decode"
    PROMPT = "prompt"  # the flow over the prompt of a voice
    FLOW = "flow"
    VOCODER = "vocoder"


class FaultKind(Enum):
    """What a fault says about the device."""

    REFUSED = "refused"  # a typed error of our own: the device is all right
    OUT_OF_MEMORY = "out_of_memory"
    UNKNOWN = "unknown"  # the device may be lost


@dataclass(frozen=True)
class Fault:
    """A failed pass.

    Attributes:
        members: The sequences of the batch.
        stage: What failed.
        kind: What it says about the device.
        error: The error for the clients. It contains no user text.
        cause: Name of the exception.
        trace: Where it was raised, without values and without the source, which would be read from the disk.
    """

    members: tuple[CosyVoiceSequence, ...]
    stage: Stage
    kind: FaultKind
    error: ErrorInfo
    cause: str
    trace: str


def attempt(members: Iterable[CosyVoiceSequence], stage: Stage, work: Callable[[], T]) -> T | Fault:
    """Return the result of ``work``, or its exception as a fault.

    Nothing refers to the exception afterwards: its traceback would keep the tensors of the failed pass alive.
    """
    try:
        return work()
    except Exception as error:
        kind = fault_kind(error)
        if isinstance(error, TTSWorkerError):
            info = error.info
        elif kind is FaultKind.OUT_OF_MEMORY:
            info = OutOfMemory("the device has no memory left for this utterance").info
        else:
            name = type(error).__name__
            info = SynthesisFailed(f"the model could not synthesize a part of the text ({name})").info
        return Fault(tuple(members), stage, kind, info, type(error).__name__, _trace(error))


def _trace(error: Exception) -> str:
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return "\n".join(f'  File "{code.co_filename}", line {line}, in {code.co_name}' for code, line in frames)


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


@contextmanager
def device_checked(responds: Callable[[], bool], advice: str = "") -> Iterator[None]:
    """Raise ``DeviceLost``, with ``advice``, for an unknown error in the block after which the device is lost."""
    try:
        yield
    except Exception as error:
        if fault_kind(error) is FaultKind.UNKNOWN and not responds():
            raise DeviceLost(f"the device failed ({_device_error(error)}) and no longer responds{advice}") from error
        raise


def _device_error(error: Exception) -> str:
    """Describe ``error`` without values: errors of CUDA have none, and go on with advice."""
    text = str(error)
    return text.splitlines()[0] if text.startswith("CUDA error") else type(error).__name__
