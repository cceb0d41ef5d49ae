"""The turns of a conversation, sans-IO: no socket, no clock, no model.

Every input returns the effects that the caller carries out, in order. The history that the model is sent holds what the
user heard: an interrupted answer is cut at the position of the playback report.

The user's voice holds the answer at once. Words end it; a cough, a word of assent ("uh-huh"), an echo of the answer or
nothing recognizable lets it continue at the next sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from tts_worker.types import Skipped, skipped_before, text_heard

MAX_TURNS = 200
MAX_HISTORY_CHARS = 100_000
"""Turns that are kept, and characters of all turns but the last; the oldest are forgotten."""

ASSENTS = frozenset(
    ("ah", "aha", "hm", "hmm", "huh", "mhm", "mm", "oh", "ok", "okay", "right", "uh", "um", "yeah", "yes")
)
"""Words of a listener. While an answer is spoken they do not end it."""

ECHO_WORDS = 3
"""So many words that were played a moment ago, in this order, are their echo: loudspeakers reach the microphone."""
ECHO_SPAN_WORDS = 12
"""The words that were played last."""

Message = dict[str, str]
"""A message of the chat API: ``role`` and ``content``."""


class Phase(str, Enum):
    LISTENING = "listening"  # the agent is silent
    THINKING = "thinking"  # the model was asked, no audio so far
    SPEAKING = "speaking"
    HELD = "held"  # the user's voice was detected, its words are not known yet
    INTERRUPTED = "interrupted"  # the answer was stopped, its playback report is on its way


@dataclass(slots=True)
class Turn:
    """One turn.

    Attributes:
        number: Counts the turns of the conversation from 1.
        role: Who speaks.
        text: What the user said, or the answer of the model so far.
        heard: The part of an answer that was played to the user.
        skipped: What the voice skipped of it.
        is_settled: ``heard`` is final. A turn of the user always is.
    """

    number: int
    role: Literal["user", "assistant"]
    text: str = ""
    heard: str = ""
    skipped: tuple[Skipped, ...] = ()
    is_settled: bool = False

    @property
    def unheard(self) -> str:
        """The part of the answer that the user did not hear."""
        return self.text[len(self.heard) :]


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the model; pass its text to ``delta`` and ``answer_ended`` with this number."""

    answer: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Speak:
    """Add text to the utterance of this answer."""

    answer: int
    text: str


@dataclass(frozen=True, slots=True)
class EndText:
    """The text of this utterance is complete."""

    answer: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Pause the audio of this answer."""

    answer: int


@dataclass(frozen=True, slots=True)
class Release:
    """Resume the audio of this answer."""

    answer: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Stop the model and the audio of this answer, then call ``reported``.

    Attributes:
        reason: For the playback report: "barge_in" or "stop".
    """

    answer: int
    reason: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The user said this."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Settled:
    """An answer has ended; ``heard + unheard`` is all of its text. Without text there was no answer.

    ``skipped`` is what the voice skipped of ``heard``.
    """

    answer: int
    heard: str
    unheard: str
    skipped: tuple[Skipped, ...] = ()


Effect = Ask | Speak | EndText | Hold | Release | Interrupt | UserTurn | Settled


class _Delivery(Enum):
    """What happens to the text and audio of an answer."""

    RUNNING = "running"  # on its way to the user
    HELD = "held"  # it waits until the user's words are known
    STOPPED = "stopped"  # it waits for its playback report


@dataclass(slots=True)
class _Answer:
    """The answer in progress.

    Attributes:
        turn: Its turn in the history.
        delivery: What happens to it.
        is_audible: Its first audio is on its way.
        text_ended: The model has written all of it.
        withheld: What the model has written while the answer was held.
    """

    turn: Turn
    delivery: _Delivery = _Delivery.RUNNING
    is_audible: bool = False
    text_ended: bool = False
    withheld: str = ""

    @property
    def number(self) -> int:
        return self.turn.number


class Conversation:
    """A conversation of one user with one model.

    At most one answer is in progress. The model is asked only after the previous answer is settled, so its history is
    exact.

    Args:
        system: Instructions for the model, sent before the turns.
    """

    def __init__(self, system: str = "") -> None:
        self.turns: list[Turn] = []
        self._system = system
        self._count = 0
        self._answer: _Answer | None = None
        self._is_user_speaking = False
        self._is_owed = False  # the user has spoken, and the model was not asked yet
        self._interim = ""  # words that interrupted the answer, as long as they are not final

    def restore(self, turns: Sequence[tuple[int, Literal["user", "assistant"], str]]) -> None:
        """Continue an earlier conversation.

        Args:
            turns: Number, role and text of its turns in order; of an answer what was heard. The next turn has a higher
                number than all of them.

        Raises:
            ValueError: This conversation has begun, or the numbers do not increase.
        """
        numbers = [0, *(number for number, _, _ in turns)]
        if self._count or numbers != sorted(set(numbers)):
            raise ValueError("turns are restored once, in order, before any other")
        for number, role, text in turns:
            self._count = number - 1
            turn = self._add_turn(role, text)
            turn.heard = text if role == "assistant" else ""
            turn.is_settled = True

    @property
    def phase(self) -> Phase:
        """What the agent is doing."""
        if self._answer is None:
            return Phase.LISTENING
        if self._answer.delivery is _Delivery.STOPPED:
            return Phase.INTERRUPTED
        if self._answer.delivery is _Delivery.HELD:
            return Phase.HELD
        return Phase.SPEAKING if self._answer.is_audible else Phase.THINKING

    @property
    def answer(self) -> int | None:
        """The number of the answer in progress."""
        return None if self._answer is None else self._answer.number

    def messages(self) -> tuple[Message, ...]:
        """Return the history for the model. Of an answer it holds what was heard, and nothing of one not heard."""
        history = [{"role": "system", "content": self._system}] if self._system else []
        for turn in self.turns:
            content = turn.text if turn.role == "user" else text_heard(turn.heard, turn.skipped).strip()
            if turn.is_settled and content:
                history.append({"role": turn.role, "content": content})
        return tuple(history)

    # -- the user -----------------------------------------------------------------------------------------------------

    def speech_began(self) -> list[Effect]:
        """The user's voice was detected. A final transcription follows its end, with or without words."""
        self._is_user_speaking = True
        answer = self._answer
        if answer is None or answer.delivery is not _Delivery.RUNNING:
            return []
        answer.delivery = _Delivery.HELD
        return [Hold(answer.number)]

    def speech_ended(self) -> None:
        """The user's voice has ended."""
        self._is_user_speaking = False

    def transcribed(self, text: str, *, is_final: bool, played: str = "") -> list[Effect]:
        """Words of the user were recognized.

        Args:
            text: All words since the last final result.
            is_final: They will not change.
            played: The text that was played up to now, if the recognizer may have heard it.
        """
        text = text.strip()
        if self._answer is None or self._answer.delivery is _Delivery.STOPPED:
            is_speech = bool(_words(text))
        else:
            is_speech = _is_interruption(_words(text), _words(played)[-ECHO_SPAN_WORDS:])
        if not is_speech:
            text = ""
        if not is_final:
            effects = self._interrupt("barge_in") if text else []
            if effects or self._interim:
                self._interim = text or self._interim
            return effects
        # A recognizer that takes back the words for which the answer was stopped would leave both sides silent.
        text, self._interim = text or self._interim, ""
        return self.say(text) if text else self._release()

    def say(self, text: str) -> list[Effect]:
        """The user has said or typed this."""
        turn = self._add_turn("user", text)
        turn.is_settled = True
        self._is_owed = True
        return [UserTurn(turn.number, text), *self._interrupt("barge_in"), *self._ask()]

    def stop(self) -> list[Effect]:
        """The user wants silence."""
        return self._interrupt("stop")

    # -- the model ----------------------------------------------------------------------------------------------------

    def delta(self, number: int, text: str) -> list[Effect]:
        """The model has written this."""
        answer = self._current(number)
        if answer is None or not text:
            return []
        answer.turn.text += text
        if answer.delivery is _Delivery.HELD:
            answer.withheld += text
            return []
        return [Speak(number, text)]

    def answer_ended(self, number: int) -> list[Effect]:
        """The model's answer is complete, or it failed and writes no more."""
        answer = self._current(number)
        if answer is None:
            return []
        if not answer.turn.text.strip():
            return self._settle(answer, "")
        answer.text_ended = True
        return [] if answer.delivery is _Delivery.HELD else [EndText(number)]

    # -- the audio ----------------------------------------------------------------------------------------------------

    def audio_started(self, number: int) -> None:
        """The first audio of the answer is on its way."""
        answer = self._current(number)
        if answer is not None:
            answer.is_audible = True

    def played(self, number: int, skipped: tuple[Skipped, ...] = ()) -> list[Effect]:
        """All audio of the answer was played. ``skipped`` is what the voice could not speak."""
        answer = self._current(number)
        return [] if answer is None else self._settle(answer, answer.turn.text, skipped)

    def reported(self, number: int, heard: str, skipped: tuple[Skipped, ...] = ()) -> list[Effect]:
        """The answer was stopped, or ended early; ``heard`` is the beginning of its text that was played."""
        answer = self._answer
        if answer is None or answer.number != number:
            return []
        return self._settle(answer, answer.turn.text[: len(heard)], skipped)

    # -- transitions --------------------------------------------------------------------------------------------------

    def _current(self, number: int) -> _Answer | None:
        """The answer in progress if it has this number and was not stopped."""
        answer = self._answer
        if answer is None or answer.number != number or answer.delivery is _Delivery.STOPPED:
            return None
        return answer

    def _add_turn(self, role: Literal["user", "assistant"], text: str = "") -> Turn:
        self._count += 1
        turn = Turn(self._count, role, text)
        self.turns.append(turn)
        excess = sum(len(each.text) for each in self.turns[:-1]) - MAX_HISTORY_CHARS
        forgotten = max(0, len(self.turns) - MAX_TURNS)
        while excess > sum(len(each.text) for each in self.turns[:forgotten]):
            forgotten += 1
        del self.turns[:forgotten]
        return turn

    def _ask(self) -> list[Effect]:
        if not self._is_owed or self._answer is not None:
            return []
        self._is_owed = False
        messages = self.messages()
        answer = self._answer = _Answer(self._add_turn("assistant"))
        ask = Ask(answer.number, messages)
        if not self._is_user_speaking:
            return [ask]
        answer.delivery = _Delivery.HELD  # the user goes on: an answer to all of it follows
        return [ask, Hold(answer.number)]

    def _interrupt(self, reason: str) -> list[Effect]:
        answer = self._answer
        if answer is None or answer.delivery is _Delivery.STOPPED:
            return []
        answer.delivery = _Delivery.STOPPED
        return [Interrupt(answer.number, reason)]

    def _release(self) -> list[Effect]:
        answer = self._answer
        if answer is None or answer.delivery is not _Delivery.HELD:
            return []
        answer.delivery = _Delivery.RUNNING
        effects: list[Effect] = [Release(answer.number)]
        if answer.withheld:
            effects.append(Speak(answer.number, answer.withheld))
            answer.withheld = ""
        if answer.text_ended:
            effects.append(EndText(answer.number))
        return effects

    def _settle(self, answer: _Answer, heard: str, skipped: tuple[Skipped, ...] = ()) -> list[Effect]:
        turn = answer.turn
        turn.heard = heard
        turn.skipped = skipped_before(len(heard), skipped)
        turn.is_settled = True
        self._answer = None
        if not turn.text:
            self.turns = [other for other in self.turns if other is not turn]
        return [Settled(turn.number, turn.heard, turn.unheard, turn.skipped), *self._ask()]


def changes(before: Sequence[Message], now: Sequence[Message]) -> tuple[int, int, Sequence[Message]]:
    """Return how ``before`` becomes ``now``, so that a long history need not be sent again.

    Returns:
        The number of first messages that stay, the number after them that are removed, and the messages to append.
    """
    kept = 0
    while kept < min(len(before), len(now)) and before[kept] == now[kept]:
        kept += 1
    removed = 0
    while before[kept + removed :] != now[kept : len(before) - removed]:
        removed += 1
    return kept, removed, now[len(before) - removed :]


def _words(text: str) -> list[str]:
    return "".join(each if each.isalnum() else " " for each in text.lower()).split()


def _is_interruption(words: list[str], played: list[str]) -> bool:
    """Whether words that were recognized while an answer is spoken end it: no mere assent, and no echo of it."""
    count = len(words)
    if count >= ECHO_WORDS and any(played[at : at + count] == words for at in range(len(played) - count + 1)):
        return False
    return any(word not in ASSENTS for word in words)
