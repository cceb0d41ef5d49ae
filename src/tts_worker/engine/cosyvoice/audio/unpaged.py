"""Stands in for ``FlowPool`` where the flow computes whole sequences: there are slots of a stream, and no pages."""

from __future__ import annotations

import torch

from tts_worker.engine.cosyvoice.audio.flow_pool import FlowState

_PAGES = 1 << 30  # never taken


class UnpagedPool:
    """Gives every utterance and voice an empty state.

    Args:
        chunk_tokens: Tokens of a chunk.
        device: Device of the flow.
    """

    def __init__(self, chunk_tokens: int, device: torch.device) -> None:
        self.chunk_tokens = chunk_tokens
        self.device = device

    @property
    def free_pages(self) -> int:
        return _PAGES

    def open(self, voice: FlowState | None = None) -> FlowState:
        """Return the state of an utterance, of ``voice`` if there is one, or of a voice."""
        return FlowState(0)

    def close(self, state: FlowState) -> None:
        """Return a state."""
