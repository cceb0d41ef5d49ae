"""Chunk boundaries and the interleaving of text and speech tokens, as pure arithmetic.

Takes counts and ids, returns decisions: no torch, no clock, no I/O. Chunk boundaries are counted from the start of the
prompt, as in the chunk mask the networks were trained with; audio up to a boundary never changes afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tts_worker.errors import SynthesisFailed


@dataclass(frozen=True)
class Chunk:
    """Generated tokens ``[begin, end)`` to render; tokens up to ``known`` are available as look-ahead."""

    begin: int
    end: int
    known: int
    final: bool


def first_hop(prompt_tokens: int, chunk_tokens: int) -> int:
    """Number of generated tokens until the first boundary: 1..``chunk_tokens``."""
    return chunk_tokens - prompt_tokens % chunk_tokens


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
    """Chunks of one utterance on the grid the networks were trained with.

    The first boundary comes as soon as the prompt allows. After ``SHORT_CHUNKS`` full chunks, ``stride`` chunks are
    rendered at a time: the audio is the same, arrives later and costs less.
    """

    def __init__(self, prompt_tokens: int, chunk_tokens: int, ahead: int, stride: int = 1) -> None:
        self._first = first_hop(prompt_tokens, chunk_tokens)
        self._chunk = chunk_tokens
        self._ahead = ahead
        self._stride = stride
        self._done = 0

    def hop(self, done: int) -> int:
        """Number of tokens in the chunk that begins at boundary ``done``."""
        if done == 0:
            return self._first
        return self._chunk if done < self._first + SHORT_CHUNKS * self._chunk else self._stride * self._chunk

    @property
    def first_chunk(self) -> Chunk:
        """The first chunk, unless the speech ends in it."""
        return Chunk(0, self._first, self._first + self._ahead, False)

    def next(self, available: int, ended: bool) -> Chunk | None:
        chunk = next_chunk(self._done, available, ended, self.hop(self._done), self._ahead)
        if chunk is not None and not chunk.final:
            self._done = chunk.end
        return chunk

    def settled(self, available: int) -> int:
        """Number of tokens in all chunks that are due once ``available`` tokens exist."""
        done = 0
        while available >= done + self.hop(done) + self._ahead:
            done += self.hop(done)
        return done


class Kind(str, Enum):
    """Type of a language model input."""

    TEXT = "T"
    SPEECH = "S"
    SOS = "SOS"
    TASK = "TASK"
    SPEAKER = "SPK"  # the speaker's vector, in CosyVoice-300M


KINDS = {Kind.TEXT: 0, Kind.SPEECH: 1, Kind.SOS: 2, Kind.TASK: 3, Kind.SPEAKER: 4}
"""Numbers of the kinds, as they are sent to the device."""

Item = tuple[Kind, int]


class Draw(Enum):
    """How the id after a feed is chosen."""

    FORCED_FILL = "fill"  # not sampled: text is due
    MIDDLE = "middle"  # a speech id or the fill id
    FINAL = "final"  # a speech id or the end id


@dataclass(frozen=True)
class InterleaveRule:
    """Alternate ``text`` text tokens with ``speech`` speech tokens; ids from ``speech_tokens`` on are special."""

    speech_tokens: int
    fill_id: int
    eos_id: int
    text: int = 5
    speech: int = 15
    max_ratio: int = 20


class Interleave:
    """Decides what to feed to the language model while text arrives token by token.

    While ``wants_text``, call ``push`` or ``end``; otherwise feed the items of ``feed()`` and pass the next id to
    ``take``, until ``done``. The result depends on the text and the ids, never on how they were split or timed.
    """

    def __init__(
        self,
        rule: InterleaveRule,
        prefix: Sequence[int],
        prompt_text: Sequence[int],
        prompt_speech: Sequence[int],
    ) -> None:
        """``prefix``: text ids fed first (CosyVoice3: the instruction up to its end tag)."""
        self._rule = rule
        self._pending: list[Item] = [(Kind.SOS, 0), *((Kind.TEXT, i) for i in prefix)]
        self._text = list(prompt_text)
        self._prompt = list(prompt_speech)
        self._next_fill = (len(prompt_speech) // rule.speech + 1) * rule.speech - len(prompt_speech)
        self._drawn = self._pushed = 0
        self._waits_for_group = True
        self._after_fill = False
        self._final = False
        self.wants_text = True
        self.done = False
        self.truncated = False

    def _group(self) -> list[Item]:
        group = self._text[: self._rule.text]
        self._text = self._text[self._rule.text :]
        return [(Kind.TEXT, i) for i in group]

    def push(self, token: int) -> None:
        """Add one text token."""
        self._text.append(token)
        self._pushed += 1
        while self._prompt and len(self._text) >= self._rule.text:
            speech = self._prompt[: self._rule.speech]
            self._prompt = self._prompt[self._rule.speech :]
            self._pending += [*self._group(), *((Kind.SPEECH, i) for i in speech)]
            self._waits_for_group = False
        if self._prompt or ((self._after_fill or self._waits_for_group) and len(self._text) < self._rule.text):
            return
        if self._after_fill:
            self._pending = self._group()
        elif self._waits_for_group:
            self._pending += self._group()
        self._after_fill = self._waits_for_group = self.wants_text = False

    def end(self) -> None:
        """End the text: feeds the rest at once and lets speech run to its end."""
        if self._after_fill:
            self._pending = []
        self._pending += [*((Kind.TEXT, i) for i in self._text), (Kind.TASK, 0)]
        self._pending += [(Kind.SPEECH, i) for i in self._prompt]
        self._text = []
        self._final = True
        self.wants_text = False

    @property
    def draws_left(self) -> int:
        """Number of speech ids that may follow before a fill id is forced or the length limit is reached."""
        last = self._rule.max_ratio * self._pushed if self._final else self._next_fill
        return max(1, last - self._drawn)

    @property
    def _is_at_limit(self) -> bool:
        return self._drawn >= self._rule.max_ratio * self._pushed

    def feed(self) -> tuple[tuple[Item, ...], Draw]:
        """Items to feed now, and how to choose the next id."""
        if self._final:
            return tuple(self._pending), Draw.FINAL
        return tuple(self._pending), Draw.FORCED_FILL if self._drawn == self._next_fill else Draw.MIDDLE

    def take(self, token: int) -> bool:
        """Record the sampled id (or the forced fill id).

        Returns:
            True if the id is a speech token.

        Raises:
            SynthesisFailed: A special id that is not valid at this point.
        """
        rule = self._rule
        if token == rule.fill_id and not self._final:
            self._next_fill = self._drawn + rule.speech + 1
            self._after_fill = self.wants_text = True
        elif token == rule.eos_id and self._final:
            self.done = True
        elif token >= rule.speech_tokens:
            raise SynthesisFailed(f"the language model generated the unexpected id {token}; try another seed")
        else:
            self._pending = [(Kind.SPEECH, token)]
        self._drawn += 1
        if self._final and self._is_at_limit:
            self.truncated = not self.done
            self.done = True
        return token < rule.speech_tokens
