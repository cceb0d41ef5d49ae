"""What the two kinds of work on the device, tokens (token_stage.py) and sound (sound_stage.py), have in common.

A stage launches one pass at a time and lands what came of it: it chooses who shares a pass with the most urgent
utterance, keeps the book of what is in flight, and hands results to the utterances. Faults leave it as ``StageFault``
with the members it concerns; what they cost is the engine's decision. It must not know credit, clocks or commands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tts_worker.engine.streaming.utterance import Utterance


class StageFault(Exception):
    """A pass failed; ``members`` took part in it. ``recover``: what one of them needs before it can go on."""

    def __init__(
        self, members: Sequence[Utterance], cause: BaseException, recover: Callable[[Utterance], None] | None = None
    ) -> None:
        super().__init__(type(cause).__name__)
        self.members = list(members)
        self.cause = cause
        self.recover = recover


@dataclass
class Spent:
    """Running totals, and what a unit of work takes at present (a running mean): for the benchmark and for deciding
    how much sound a first chunk should hold."""

    feed_ms: float = 0.0
    decode_ms: float = 0.0
    flow_ms: float = 0.0
    vocoder_ms: float = 0.0
    tokens: int = 0
    token_s: float = 0.0
    chunk_s: float = 0.0

    def reset(self) -> None:
        """Begin to count again."""
        self.feed_ms = self.decode_ms = self.flow_ms = self.vocoder_ms = self.token_s = self.chunk_s = 0.0
        self.tokens = 0


def running_mean(before: float, value: float) -> float:
    """A running mean."""
    return value if before == 0.0 else 0.9 * before + 0.1 * value
