"""Common parts of the token stage and the audio stage.

A stage submits one batch at a time and collects its results. Faults leave it as ``StageFault`` with the utterances
concerned; the engine decides what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tts_worker.engine.cosyvoice.sequence import Utterance


class StageFault(Exception):
    """A failed pass.

    Attributes:
        members: The utterances of the batch.
        cause: What was raised.
        recover: Restores the state of one member before it is retried.
    """

    def __init__(
        self, members: Sequence[Utterance], cause: BaseException, recover: Callable[[Utterance], None] | None = None
    ) -> None:
        super().__init__(type(cause).__name__)
        self.members = list(members)
        self.cause = cause
        self.recover = recover


@dataclass
class StageTimings:
    """Device time of the stages.

    Attributes:
        prefill_ms: Total of prefill passes.
        decode_ms: Total of decode bursts.
        flow_ms: Total of flow passes.
        vocoder_ms: Total of vocoder passes.
        tokens: Total of drawn ids.
        token_s: Running mean of one decode step.
        chunk_s: Running mean of one chunk, flow and vocoder.
    """

    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    flow_ms: float = 0.0
    vocoder_ms: float = 0.0
    tokens: int = 0
    token_s: float = 0.0
    chunk_s: float = 0.0

    def reset(self) -> None:
        """Set all totals and means to zero."""
        self.prefill_ms = self.decode_ms = self.flow_ms = self.vocoder_ms = self.token_s = self.chunk_s = 0.0
        self.tokens = 0


def running_mean(mean: float, value: float) -> float:
    """Update an exponential running mean. A mean of 0 has no values yet."""
    return value if mean == 0.0 else 0.9 * mean + 0.1 * value
