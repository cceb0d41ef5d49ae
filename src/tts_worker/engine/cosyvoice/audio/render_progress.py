"""Which chunks of an audio segment are rendered, and which one is due: of the engine, and of the simulated one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

from tts_worker.engine.cosyvoice.audio.chunks import Chunk, GridPlan
from tts_worker.engine.phases import change_phase
from tts_worker.types import Boundary


class SegmentPhase(Enum):
    """How far an audio segment is: OPEN -> CLOSING -> COMPLETE -> RENDERED. Without a run, OPEN -> COMPLETE."""

    OPEN = "more text may follow in it"
    CLOSING = "it ends with the current run of the language model"
    COMPLETE = "it has all its tokens"
    RENDERED = "its final chunk is rendered"


CLOSING_BOUNDARIES = frozenset({Boundary.SENTENCE, Boundary.PARAGRAPH, Boundary.FLUSH, Boundary.END})
"""Boundaries of the text after which an audio segment is CLOSING."""

SEGMENT_TRANSITIONS: dict[SegmentPhase, frozenset[SegmentPhase]] = {
    SegmentPhase.OPEN: frozenset({SegmentPhase.CLOSING, SegmentPhase.COMPLETE}),
    SegmentPhase.CLOSING: frozenset({SegmentPhase.COMPLETE}),
    SegmentPhase.COMPLETE: frozenset({SegmentPhase.RENDERED}),
    SegmentPhase.RENDERED: frozenset(),
}


class RenderProgress(ABC):
    """How far the speech tokens of an audio segment are rendered.

    Args:
        plan: Its chunks.

    Attributes:
        phase: How far it is.
        rendered_tokens: Tokens that are rendered.
    """

    def __init__(self, plan: GridPlan) -> None:
        self.phase = SegmentPhase.OPEN
        self.rendered_tokens = 0
        self._plan = plan

    @property
    @abstractmethod
    def token_count(self) -> int:
        """Speech tokens so far."""

    def enter(self, phase: SegmentPhase) -> None:
        """Change the phase.

        Raises:
            ValueError: The change is illegal.
        """
        self.phase = change_phase(self.phase, phase, SEGMENT_TRANSITIONS)

    @property
    def is_complete(self) -> bool:
        """Whether no further token follows."""
        return self.phase is SegmentPhase.COMPLETE or self.phase is SegmentPhase.RENDERED

    @property
    def unrendered_tokens(self) -> int:
        """Tokens that are not rendered yet."""
        return self.token_count - self.rendered_tokens

    @property
    def first_chunk(self) -> Chunk:
        """The first chunk, unless the speech ends in it."""
        return self._plan.first_chunk

    @property
    def tokens_until_due(self) -> int:
        """How many more tokens make the first chunk due."""
        return self._plan.first_chunk.known - self.token_count

    @property
    def due_chunk(self) -> Chunk | None:
        """The chunk that can be rendered now."""
        if self.phase is SegmentPhase.RENDERED:
            return None
        return self._plan.next(self.rendered_tokens, self.token_count, self.phase is SegmentPhase.COMPLETE)

    @property
    def tokens_for_next_chunk(self) -> int:
        """Unrendered tokens from which the chunk after the due one is due, too."""
        due = self.due_chunk
        end = self.rendered_tokens if due is None else due.end
        return self._plan.known(end) - self.rendered_tokens

    def mark_rendered(self, chunk: Chunk) -> None:
        """Record that ``chunk`` is rendered, or empty."""
        self.rendered_tokens = chunk.end
        if chunk.final:
            self.enter(SegmentPhase.RENDERED)
