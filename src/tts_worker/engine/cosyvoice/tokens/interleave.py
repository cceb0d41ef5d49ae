"""Interleaving of text and speech tokens while text is being written, as pure decisions over ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tts_worker.engine.cosyvoice.networks.lm_inputs import Item, Kind
from tts_worker.engine.phases import change_phase
from tts_worker.errors import SynthesisFailed


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


class InterleavePhase(Enum):
    """What an ``Interleave`` is due.

    PROMPT or GROUP -> SPEECH -> FILLED -> SPEECH ..., and with the end of the text FINAL -> ENDED or TRUNCATED.
    """

    PROMPT = "text for the speech of the prompt"
    GROUP = "a group of text"
    FILLED = "a group of text in place of the last input"
    SPEECH = "an id"
    FINAL = "an id, and no more text"
    ENDED = "nothing: the speech has ended"
    TRUNCATED = "nothing: the length limit is reached"


TRANSITIONS: dict[InterleavePhase, frozenset[InterleavePhase]] = {
    InterleavePhase.PROMPT: frozenset({InterleavePhase.SPEECH, InterleavePhase.FINAL}),
    InterleavePhase.GROUP: frozenset({InterleavePhase.SPEECH, InterleavePhase.FINAL}),
    InterleavePhase.FILLED: frozenset({InterleavePhase.SPEECH, InterleavePhase.FINAL}),
    InterleavePhase.SPEECH: frozenset({InterleavePhase.FILLED}),
    InterleavePhase.FINAL: frozenset({InterleavePhase.ENDED, InterleavePhase.TRUNCATED}),
    InterleavePhase.ENDED: frozenset(),
    InterleavePhase.TRUNCATED: frozenset(),
}
_READING = frozenset({InterleavePhase.PROMPT, InterleavePhase.GROUP, InterleavePhase.FILLED})


class Interleave:
    """Decides what to feed to the language model while text arrives token by token.

    While ``wants_text``, call ``push`` or ``end``; otherwise feed the items of ``feed()`` and pass the next id to
    ``take``, until ``is_over``. The result depends on the text and the ids, never on how they were split or timed.

    Args:
        rule: Lengths of the groups, and special ids.
        prefix: Text ids that are fed first (CosyVoice3: the instruction up to its end tag).
        prompt_text: Text ids of the prompt.
        prompt_speech: Speech ids of the prompt.

    Attributes:
        phase: What is due.
    """

    def __init__(
        self,
        rule: InterleaveRule,
        prefix: Sequence[int],
        prompt_text: Sequence[int],
        prompt_speech: Sequence[int],
    ) -> None:
        self._rule = rule
        self._pending: list[Item] = [(Kind.SOS, 0), *((Kind.TEXT, i) for i in prefix)]
        self._text = list(prompt_text)
        self._prompt = list(prompt_speech)
        self._next_fill = (len(prompt_speech) // rule.speech + 1) * rule.speech - len(prompt_speech)
        self._drawn = self._pushed = 0
        self.phase = InterleavePhase.PROMPT if self._prompt else InterleavePhase.GROUP

    @property
    def wants_text(self) -> bool:
        return self.phase in _READING

    @property
    def is_over(self) -> bool:
        return self.phase is InterleavePhase.ENDED or self.phase is InterleavePhase.TRUNCATED

    def _enter(self, phase: InterleavePhase) -> None:
        self.phase = change_phase(self.phase, phase, TRANSITIONS)

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
        if self._prompt:
            return
        if self.phase is not InterleavePhase.PROMPT:
            if len(self._text) < self._rule.text:
                return
            if self.phase is InterleavePhase.FILLED:
                self._pending = []
            self._pending += self._group()
        self._enter(InterleavePhase.SPEECH)

    def end(self) -> None:
        """End the text: feeds the rest at once and lets speech run to its end."""
        if self.phase is InterleavePhase.FILLED:
            self._pending = []
        self._pending += [*((Kind.TEXT, i) for i in self._text), (Kind.TASK, 0)]
        self._pending += [(Kind.SPEECH, i) for i in self._prompt]
        self._text = []
        self._enter(InterleavePhase.FINAL)

    @property
    def draws_left(self) -> int:
        """Number of speech ids that may follow before a fill id is forced or the length limit is reached."""
        last = self._rule.max_ratio * self._pushed if self.phase is InterleavePhase.FINAL else self._next_fill
        return max(1, last - self._drawn)

    @property
    def _is_at_limit(self) -> bool:
        return self._drawn >= self._rule.max_ratio * self._pushed

    def feed(self) -> tuple[tuple[Item, ...], Draw]:
        """Items to feed now, and how to choose the next id."""
        if self.phase is InterleavePhase.FINAL:
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
        is_final = self.phase is InterleavePhase.FINAL
        if token == rule.fill_id and not is_final:
            self._next_fill = self._drawn + rule.speech + 1
            self._enter(InterleavePhase.FILLED)
        elif token == rule.eos_id and is_final:
            self._enter(InterleavePhase.ENDED)
        elif token >= rule.speech_tokens:
            raise SynthesisFailed(f"the language model generated the unexpected id {token}; try another seed")
        else:
            self._pending = [(Kind.SPEECH, token)]
        self._drawn += 1
        if self.phase is InterleavePhase.FINAL and self._is_at_limit:
            self._enter(InterleavePhase.TRUNCATED)
        return token < rule.speech_tokens
