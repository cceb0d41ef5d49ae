"""Which chunks of an audio segment are rendered, and which one is due: of the engine, and of the simulated one."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tts_worker.engine.cosyvoice.chunks import Chunk, GridPlan
from tts_worker.engine.cosyvoice.phases import SEGMENT_TRANSITIONS, SegmentPhase
from tts_worker.engine.phases import change_phase


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
