"""One sequence of the language model, from text to the end of speech.

A run holds no tensors. The engine feeds ``pending_items`` to the network, draws up to ``budget`` ids, and passes each
to ``take``. Runs depend on text and ids alone, never on time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol

from tts_worker.engine.cosyvoice.interleave import Draw, Interleave, InterleavePhase
from tts_worker.engine.cosyvoice.lm_inputs import Item, Kind
from tts_worker.engine.cosyvoice.models.dims import AnyLmDims
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


class LmRun(Protocol):
    """One sequence of the language model.

    Attributes:
        pending_items: Inputs that the network has not processed, including the last drawn id.
        fills: Ids that count as drawn although they were forced.
    """

    pending_items: list[Item]
    fills: list[int]

    @property
    def phase(self) -> RunPhase:
        """What it does."""
        ...

    @property
    def special(self) -> int:
        """The special id that may be drawn."""
        ...

    @property
    def special_from(self) -> int:
        """Number of the first draw that may give the special id."""
        ...

    @property
    def budget(self) -> int:
        """How many ids may be drawn before the run must be consulted again."""
        ...

    def take(self, token: int) -> bool:
        """Record the next drawn id.

        Returns:
            True if the id is a speech token.

        Raises:
            SynthesisFailed: A special id that is not valid at this point.
        """
        ...


def start_items(text: Iterable[int], *, tells_speaker: bool) -> list[Item]:
    """Return the inputs up to the end of the text."""
    speaker: list[Item] = [(Kind.SPEAKER, 0)] if tells_speaker else []
    return [(Kind.SOS, 0), *speaker, *((Kind.TEXT, i) for i in text)]


class ClauseRun:
    """A run over text that is known in full.

    Args:
        dims: Dimensions and special ids of the language model.
        context_text: Text ids of the prompt and of earlier clauses.
        text: Text ids to speak.
        context_speech: Speech ids of the prompt and of earlier clauses.
        max_ids: Most ids to draw.
        tells_speaker: Whether the speaker is an input.
    """

    def __init__(
        self,
        dims: AnyLmDims,
        context_text: Sequence[int],
        text: Sequence[int],
        context_speech: Sequence[int],
        max_ids: int,
        *,
        tells_speaker: bool = False,
    ) -> None:
        self._dims = dims
        self.pending_items: list[Item] = start_items((*context_text, *text), tells_speaker=tells_speaker)
        self.pending_items += [(Kind.TASK, 0), *((Kind.SPEECH, i) for i in context_speech)]
        self.fills: list[int] = []
        self._min_ids = MIN_RATIO * len(text)
        self._max_ids = max_ids
        self._drawn = 0
        self.phase = RunPhase.DRAWING

    @property
    def special(self) -> int:
        return self._dims.eos_id

    @property
    def special_from(self) -> int:
        return self._min_ids

    @property
    def budget(self) -> int:
        return self._max_ids - self._drawn

    def take(self, token: int) -> bool:
        self._drawn += 1
        if token >= self._dims.speech_tokens:
            self.phase = change_phase(self.phase, RunPhase.ENDED, RUN_TRANSITIONS)
            return False
        self.pending_items = [(Kind.SPEECH, token)]
        if self._drawn >= self._max_ids:
            self.phase = change_phase(self.phase, RunPhase.TRUNCATED, RUN_TRANSITIONS)
        return True


class InterleavedRun:
    """A run over text that is still being written, interleaved with speech.

    Attributes:
        read_tokens: Text ids consumed so far.
    """

    def __init__(self, dims: AnyLmDims, interleave: Interleave) -> None:
        self._dims = dims
        self._interleave = interleave
        self.pending_items: list[Item] = []
        self.fills: list[int] = []
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

    def take(self, token: int) -> bool:
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
