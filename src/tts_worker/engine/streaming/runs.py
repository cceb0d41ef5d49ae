"""One sequence of the language model, from text to its end of speech: what is fed, what may come, when it is over.

A ``Run`` is asked and told by the engine and touches no tensor: ``unfed`` goes into the network, then up to
``budget`` ids may be drawn without asking again, among them one special id. ``ClauseRun`` speaks text that is known in
full, ``InterleavedRun`` text that is still being written. Both depend on text and ids alone, never on time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from tts_worker.engine.cosyvoice.chunks import Draw, Interleave, Item, Kind
from tts_worker.engine.cosyvoice.dims import LmDims

# speech tokens per text token
MIN_RATIO = 2
MAX_RATIO = 20


class Run(Protocol):
    """``unfed``: inputs that the network has not seen, the last drawn id among them. ``special`` may be drawn from
    draw number ``special_from`` on. ``fills``: ids that count as drawn although nobody drew them."""

    unfed: list[Item]
    fills: list[int]
    done: bool
    truncated: bool

    @property
    def special(self) -> int: ...
    @property
    def special_from(self) -> int: ...
    @property
    def budget(self) -> int: ...

    @property
    def waits_for_text(self) -> bool: ...

    def take(self, token: int) -> bool:
        """The next drawn id. True if it is sound. Raises SynthesisFailed for a special id that has no place."""
        ...


class ClauseRun:
    """``text`` after everything in ``before`` (prompt and earlier clauses), then the ``speech`` of all that; at most
    ``most`` ids are drawn."""

    def __init__(
        self, dims: LmDims, before: Sequence[int], text: Sequence[int], speech: Sequence[int], most: int
    ) -> None:
        self._dims = dims
        self.unfed: list[Item] = [(Kind.SOS, 0), *((Kind.TEXT, i) for i in before), *((Kind.TEXT, i) for i in text)]
        self.unfed += [(Kind.TASK, 0), *((Kind.SPEECH, i) for i in speech)]
        self.fills: list[int] = []
        self._least = MIN_RATIO * len(text)
        self._most = most
        self._drawn = 0
        self.done = self.truncated = False

    @property
    def special(self) -> int:
        return self._dims.eos_id

    @property
    def special_from(self) -> int:
        return self._least

    @property
    def budget(self) -> int:
        return self._most - self._drawn

    @property
    def waits_for_text(self) -> bool:
        return False

    def take(self, token: int) -> bool:
        self._drawn += 1
        if token >= self._dims.speech_tokens:
            self.done = True
            return False
        self.unfed = [(Kind.SPEECH, token)]
        if self._drawn >= self._most:
            self.done = self.truncated = True
        return True


class InterleavedRun:
    """Text token by token between the speech, in the order that ``machine`` decides."""

    def __init__(self, dims: LmDims, machine: Interleave) -> None:
        self._dims = dims
        self._machine = machine
        self.unfed: list[Item] = []
        self.fills: list[int] = []
        self._text: deque[int] = deque()
        self._text_ended = False
        self.read = 0  # text ids that the machine took
        self._how: Draw | None = None
        self.done = self.truncated = False
        self._turn()

    def push(self, ids: Iterable[int]) -> None:
        """More text."""
        self._text.extend(ids)
        self._turn()

    def end(self) -> None:
        """No more text."""
        self._text_ended = True
        self._turn()

    @property
    def special(self) -> int:
        return self._dims.eos_id if self._how is Draw.FINAL else self._dims.fill_id

    @property
    def special_from(self) -> int:
        # The reference has no least length here; an end before that is not speech but a mistake.
        return MIN_RATIO * self.read if self._how is Draw.FINAL else 0

    @property
    def budget(self) -> int:
        return self._machine.draws_left

    @property
    def waits_for_text(self) -> bool:
        return not self.done and self._how is None

    def take(self, token: int) -> bool:
        # what an id is drawn from was fed
        self.unfed = []
        self._how = None
        sound = self._machine.take(token)
        self._turn()
        return sound

    def _turn(self) -> None:
        """Go on until an id must be drawn or text is missing."""
        machine = self._machine
        while not machine.done and self._how is None:
            if machine.wants_text:
                if self._text:
                    machine.push(self._text.popleft())
                    self.read += 1
                elif self._text_ended:
                    machine.end()
                else:
                    return
                continue
            items, how = machine.feed()
            self.unfed += items
            if how is Draw.FORCED_FILL:
                self.fills.append(self._dims.fill_id)
                machine.take(self._dims.fill_id)
            else:
                self._how = how
        self.done = machine.done
        self.truncated = machine.truncated
