"""Device time of the passes, and running means of it for decisions about the near future."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StageTimings:
    """Device time of the passes of one engine.

    Attributes:
        prefill_ms: Total of prefill passes.
        decode_ms: Total of decode bursts.
        flow_ms: Total of flow passes.
        vocoder_ms: Total of vocoder passes.
        flow_frames: Mel frames that the flow passes computed, with those that padding added.
        vocoder_frames: Mel frames that the vocoder passes computed, with their context.
        tokens: Total of drawn ids.
        token_s: Running mean of one decode step.
        chunk_s: Running mean of one chunk, flow and vocoder.
    """

    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    flow_ms: float = 0.0
    vocoder_ms: float = 0.0
    flow_frames: int = 0
    vocoder_frames: int = 0
    tokens: int = 0
    token_s: float = 0.0
    chunk_s: float = 0.0

    def reset(self) -> None:
        """Set all totals and means to zero."""
        self.prefill_ms = self.decode_ms = self.flow_ms = self.vocoder_ms = self.token_s = self.chunk_s = 0.0
        self.tokens = self.flow_frames = self.vocoder_frames = 0

    def add_prefill(self, ms: float) -> None:
        """Add a prefill pass."""
        self.prefill_ms += ms

    def add_burst(self, ms: float, steps: int) -> None:
        """Add a decode burst of ``steps`` steps."""
        self.decode_ms += ms
        self.token_s = running_mean(self.token_s, ms / 1000 / max(1, steps))

    def add_chunks(self, flow_ms: float, flow_frames: int, vocoder_ms: float, vocoder_frames: int) -> None:
        """Add a flow pass and the vocoder pass after it."""
        self.flow_ms += flow_ms
        self.flow_frames += flow_frames
        self.vocoder_ms += vocoder_ms
        self.vocoder_frames += vocoder_frames
        self.chunk_s = running_mean(self.chunk_s, (flow_ms + vocoder_ms) / 1000)


def running_mean(mean: float, value: float) -> float:
    """Update an exponential running mean. A mean of 0 has no values yet."""
    return value if mean == 0.0 else 0.9 * mean + 0.1 * value
