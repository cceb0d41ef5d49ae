"""Chunk boundaries, as pure arithmetic over counts of tokens.

They are counted from the start of the prompt, as in the chunk mask the networks were trained with; audio up to a
boundary never changes afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

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
