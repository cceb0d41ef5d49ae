"""One sequence of the language model, from text to the end of speech.

A run holds no tensors. The engine feeds ``pending_items`` to the network, draws up to ``budget`` ids, and passes each
to ``take``. Runs depend on text and ids alone, never on time. A run that is drawn again is another ``LmRun``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

from tts_worker.engine.cosyvoice.networks.dims import AnyLmDims
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item, Kind
from tts_worker.engine.cosyvoice.tokens.interleave import Draw, Interleave, InterleavePhase
from tts_worker.engine.phases import change_phase

# speech tokens per text token
MIN_RATIO = 2
MAX_RATIO = 20


class RunPhase(Enum):
    """What a run does: DRAWING -> ENDED or TRUNCATED, and WAITING_TEXT <-> DRAWING while text is written."""

    WAITING_TEXT = "waits for text"
    DRAWING = "draws ids"
    ENDED = "has spoken its text"
    TRUNCATED = "reached its length limit"


RUN_TRANSITIONS: dict[RunPhase, frozenset[RunPhase]] = {
    RunPhase.WAITING_TEXT: frozenset({RunPhase.DRAWING}),
    RunPhase.DRAWING: frozenset({RunPhase.WAITING_TEXT, RunPhase.ENDED, RunPhase.TRUNCATED}),
    RunPhase.ENDED: frozenset(),
    RunPhase.TRUNCATED: frozenset(),
}

RUN_PHASES = {
    InterleavePhase.PROMPT: RunPhase.WAITING_TEXT,
    InterleavePhase.GROUP: RunPhase.WAITING_TEXT,
    InterleavePhase.FILLED: RunPhase.WAITING_TEXT,
    InterleavePhase.SPEECH: RunPhase.DRAWING,
    InterleavePhase.FINAL: RunPhase.DRAWING,
    InterleavePhase.ENDED: RunPhase.ENDED,
    InterleavePhase.TRUNCATED: RunPhase.TRUNCATED,
}
"""Phase of a run over interleaved text."""


class LmRun(ABC):
    """One sequence of the language model.

    Args:
        dims: Dimensions and special ids of the language model.
        seed: Seed of the draws.
        script: Ids to force instead of drawing; none to draw them.

    Attributes:
        pending_items: Inputs that the network has not processed, including the last drawn id.
        fills: Ids that count as drawn although they were forced, until ``take_fills``.
        drawn: Ids drawn or forced so far.
        speech_ids: Those of them that are speech.
        seed: Seed of the draws.
        script: Ids to force; empty if they are drawn.
    """

    def __init__(self, dims: AnyLmDims, seed: int, script: Sequence[int] = ()) -> None:
        self.pending_items: list[Item] = []
        self.fills: list[int] = []
        self.drawn: list[int] = []
        self.speech_ids: list[int] = []
        self.seed = seed
        self.script = tuple(script)
        self._dims = dims

    @property
    @abstractmethod
    def phase(self) -> RunPhase:
        """What it does."""

    @property
    @abstractmethod
    def special(self) -> int:
        """The special id that may be drawn."""

    @property
    @abstractmethod
    def special_from(self) -> int:
        """Number of the first draw that may give the special id."""

    @property
    @abstractmethod
    def budget(self) -> int:
        """How many ids may be drawn before the run must be consulted again."""

    @abstractmethod
    def _take(self, token: int) -> bool:
        """Advance by an id and return whether it is speech. Raises SynthesisFailed, see ``take``."""

    @property
    def needs_only_last_id(self) -> bool:
        """Whether the last drawn id, which is speech, is the only input that the network has not processed."""
        if not self.speech_ids or self.fills:
            return False
        return len(self.pending_items) == 1 and self.pending_items[0][0] is Kind.SPEECH

    def forced_ids(self, draws: int) -> tuple[int, ...]:
        """Return the scripted ids of the next ``draws``, if any."""
        place = len(self.speech_ids)
        return self.script[place : place + draws]

    def take_fills(self) -> list[int]:
        """Return the forced ids that count as drawn before the next draw, each once."""
        fills = self.fills
        self.fills = []
        self.drawn += fills
        return fills

    def take(self, token: int) -> bool:
        """Record the next drawn id.

        Returns:
            True if the id is a speech token.

        Raises:
            SynthesisFailed: A special id that is not valid at this point.
        """
        is_speech = self._take(token)
        self.drawn.append(token)
        if is_speech:
            self.speech_ids.append(token)
        return is_speech


def start_items(text: Iterable[int], *, with_speaker: bool) -> list[Item]:
    """Return the inputs up to the end of the text."""
    speaker: list[Item] = [(Kind.SPEAKER, 0)] if with_speaker else []
    return [(Kind.SOS, 0), *speaker, *((Kind.TEXT, i) for i in text)]


class ClauseRun(LmRun):
    """A run over text that is known in full.

    Args:
        dims: Dimensions and special ids of the language model.
        seed: Seed of the draws.
        script: Ids to force instead of drawing; none to draw them.
        context_text: Text ids of the prompt and of earlier clauses.
        text: Text ids to speak.
        context_speech: Speech ids of the prompt and of earlier clauses.
        with_speaker: Whether the speaker is an input.
    """

    def __init__(
        self,
        dims: AnyLmDims,
        seed: int,
        script: Sequence[int],
        context_text: Sequence[int],
        text: Sequence[int],
        context_speech: Sequence[int],
        *,
        with_speaker: bool = False,
    ) -> None:
        super().__init__(dims, seed, script)
        self.pending_items = start_items((*context_text, *text), with_speaker=with_speaker)
        self.pending_items += [(Kind.TASK, 0), *((Kind.SPEECH, i) for i in context_speech)]
        self._min_ids = MIN_RATIO * len(text)
        self._max_ids = len(self.script) or MAX_RATIO * len(text)
        self._phase = RunPhase.DRAWING

    @property
    def phase(self) -> RunPhase:
        return self._phase

    @property
    def special(self) -> int:
        return self._dims.eos_id

    @property
    def special_from(self) -> int:
        return self._min_ids

    @property
    def budget(self) -> int:
        return self._max_ids - len(self.drawn)

    def _take(self, token: int) -> bool:
        if token >= self._dims.speech_tokens:
            self._phase = change_phase(self._phase, RunPhase.ENDED, RUN_TRANSITIONS)
            return False
        self.pending_items = [(Kind.SPEECH, token)]
        if self.budget <= 1:
            self._phase = change_phase(self._phase, RunPhase.TRUNCATED, RUN_TRANSITIONS)
        return True


class InterleavedRun(LmRun):
    """A run over text that is still being written, interleaved with speech.

    Args:
        dims: Dimensions and special ids of the language model.
        seed: Seed of the draws.
        script: Ids to force instead of drawing; none to draw them.
        interleave: The order of text and speech.

    Attributes:
        read_tokens: Text ids consumed so far.
    """

    def __init__(self, dims: AnyLmDims, seed: int, script: Sequence[int], interleave: Interleave) -> None:
        super().__init__(dims, seed, script)
        self._interleave = interleave
        self._text: deque[int | None] = deque()  # None is its end
        self.read_tokens = 0

    @property
    def phase(self) -> RunPhase:
        """What it does, as its interleaving has it."""
        return RUN_PHASES[self._interleave.phase]

    def push(self, ids: Iterable[int]) -> None:
        """Add text."""
        self._text.extend(ids)
        self._read()

    def end(self) -> None:
        """End the text. Has no effect if it has ended."""
        self._text.append(None)
        self._read()

    @property
    def special(self) -> int:
        return self._dims.eos_id if self._interleave.phase is InterleavePhase.FINAL else self._dims.fill_id

    @property
    def special_from(self) -> int:
        # The reference has no minimum length here. An earlier end is an error of the model, not speech.
        return MIN_RATIO * self.read_tokens if self._interleave.phase is InterleavePhase.FINAL else 0

    @property
    def budget(self) -> int:
        return self._interleave.draws_left

    def _take(self, token: int) -> bool:
        # The inputs of this draw were fed.
        self.pending_items = []
        is_speech = self._interleave.take(token)
        self._advance()
        return is_speech

    def _read(self) -> None:
        """Advance if text was missing."""
        if self.phase is RunPhase.WAITING_TEXT:
            self._advance()

    def _advance(self) -> None:
        """Advance until an id must be drawn, text is missing or the speech is over."""
        interleave = self._interleave
        while not interleave.is_over:
            if interleave.wants_text:
                if not self._text:
                    break
                token = self._text.popleft()
                if token is None:
                    interleave.end()
                else:
                    interleave.push(token)
                    self.read_tokens += 1
                continue
            items, draw = interleave.feed()
            self.pending_items += items
            if draw is not Draw.FORCED_FILL:
                break
            self.fills.append(self._dims.fill_id)
            interleave.take(self._dims.fill_id)
