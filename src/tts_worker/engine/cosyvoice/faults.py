"""Faults of passes as data: the runners return them, the engine decides what follows."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from tts_worker.engine.cosyvoice.execution.device import FaultKind, fault_kind
from tts_worker.engine.cosyvoice.sequence import CosyVoiceSequence
from tts_worker.errors import ErrorInfo, OutOfMemory, SynthesisFailed, TTSWorkerError

T = TypeVar("T")


class Stage(Enum):
    """What failed."""

    VOICE = "voice"  # reading a stored voice
    PREFILL = "prefill"
    DECODE = "decode"
    PROMPT = "prompt"  # the flow over the prompt of a voice
    FLOW = "flow"
    VOCODER = "vocoder"


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
