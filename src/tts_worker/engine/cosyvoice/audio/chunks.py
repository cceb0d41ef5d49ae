"""Chunk boundaries, as pure arithmetic over counts of tokens, and how far an audio segment is rendered.

Boundaries are counted from the start of the prompt, as in the chunk mask the networks were trained with; audio up to a
boundary never changes afterwards. Used by the engine and by the simulated one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

from tts_worker.engine.phases import change_phase
from tts_worker.types import Boundary

AHEAD_CHUNKS = 2  # unrendered chunks up to which an utterance joins a decode batch


@dataclass(frozen=True)
class Chunk:
    """Generated tokens ``[begin, end)`` to render; tokens up to ``known`` are available as look-ahead."""

    begin: int
    end: int
    known: int
    final: bool


def trimmed_prompt(prompt_tokens: int, chunk_tokens: int, first_tokens: int) -> int:
    """Tokens to drop from the start of a flow prompt so that ``first_tokens`` generated tokens reach a boundary.

    Drops less than one chunk, and nothing if the prompt is shorter than that.
    """
    drop = (prompt_tokens + first_tokens) % chunk_tokens
    return drop if drop < prompt_tokens else 0


def next_chunk(done: int, available: int, ended: bool, hop: int, ahead: int) -> Chunk | None:
    """The next chunk to render, or None while more tokens are needed.

    Args:
        done: Tokens already rendered.
        available: Tokens generated so far.
        ended: Whether no more tokens will be generated; everything left then forms the final chunk.
        hop: Tokens of the chunk.
        ahead: Look-ahead tokens the chunk needs.
    """
    if available - done >= hop + ahead:
        return Chunk(done, done + hop, done + hop + ahead, False)
    return Chunk(done, available, available, True) if ended else None


SHORT_CHUNKS = 2  # full chunks rendered one at a time; they give the listener enough playout lead for larger ones


class GridPlan:
    """Chunks of one utterance on the grid the networks were trained with. Has no state.

    The first boundary comes as soon as the prompt allows. After ``SHORT_CHUNKS`` full chunks, ``stride`` chunks are
    rendered at a time: the audio is the same, arrives later and costs less.
    """

    def __init__(self, prompt_tokens: int, chunk_tokens: int, ahead: int, stride: int = 1) -> None:
        self._first = chunk_tokens - prompt_tokens % chunk_tokens  # generated tokens until the first boundary
        self._chunk = chunk_tokens
        self._ahead = ahead
        self._stride = stride

    def hop(self, done: int) -> int:
        """Number of tokens in the chunk that begins at boundary ``done``."""
        if done == 0:
            return self._first
        return self._chunk if done < self._first + SHORT_CHUNKS * self._chunk else self._stride * self._chunk

    def known(self, done: int) -> int:
        """Number of tokens from which the chunk that begins at boundary ``done`` is due."""
        return done + self.hop(done) + self._ahead

    @property
    def first_chunk(self) -> Chunk:
        """The first chunk, unless the speech ends in it."""
        return Chunk(0, self._first, self.known(0), False)

    def next(self, done: int, available: int, ended: bool) -> Chunk | None:
        """Return the chunk after ``done`` rendered tokens (``next_chunk``)."""
        return next_chunk(done, available, ended, self.hop(done), self._ahead)

    def settled(self, available: int) -> int:
        """Number of tokens in all chunks that are due once ``available`` tokens exist."""
        done = 0
        while available >= self.known(done):
            done += self.hop(done)
        return done


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
