"""The turns of the talking agent: what it does on each input, and what the model is sent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tts_worker.features.agent.conversation import (
    MAX_HISTORY_CHARS,
    Ask,
    Conversation,
    Effect,
    EndText,
    Hold,
    Interrupt,
    Phase,
    Release,
    Settled,
    Speak,
    UserTurn,
    changes,
)
from tts_worker.types import Skipped


def speaking(text: str = "One two three.") -> Conversation:
    """A conversation whose answer, number 2, is being spoken."""
    conversation = Conversation()
    conversation.say("Hello.")
    conversation.delta(2, text)
    conversation.audio_started(2)
    return conversation


def test_answer_is_spoken_while_it_is_written() -> None:
    conversation = Conversation("Be brief.")
    sent = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."})
    assert conversation.say("Hello.") == [UserTurn(1, "Hello."), Ask(2, sent)]
    assert conversation.phase is Phase.THINKING
    assert conversation.delta(2, "Hi ") == [Speak(2, "Hi ")]
    conversation.audio_started(2)
    assert conversation.phase is Phase.SPEAKING
    assert conversation.delta(2, "there.") == [Speak(2, "there.")]
    assert conversation.answer_ended(2) == [EndText(2)]
    assert conversation.played(2) == [Settled(2, "Hi there.", "")]
    assert conversation.phase is Phase.LISTENING


def test_words_cut_the_history_to_what_was_heard() -> None:
    conversation = speaking("One two three.")
    assert conversation.speech_began() == [Hold(2)]
    assert conversation.phase is Phase.HELD
    assert conversation.transcribed("wait", is_final=False) == [Interrupt(2, "barge_in")]
    assert conversation.delta(2, " Four.") == [], "text of the stopped answer is dropped"
    assert conversation.transcribed("Wait, what?", is_final=True) == [UserTurn(3, "Wait, what?")], (
        "the report is awaited"
    )
    conversation.speech_ended()
    settled, ask = conversation.reported(2, "One two")
    assert settled == Settled(2, "One two", " three.")
    assert isinstance(ask, Ask)
    assert [message["content"] for message in ask.messages] == ["Hello.", "One two", "Wait, what?"]


def test_noise_resumes_with_the_text_that_arrived_meanwhile() -> None:
    conversation = speaking("One ")
    conversation.speech_began()
    assert conversation.delta(2, "two.") == []
    assert conversation.answer_ended(2) == []
    assert conversation.transcribed("", is_final=True) == [Release(2), Speak(2, "two."), EndText(2)]
    assert conversation.phase is Phase.SPEAKING


def test_assent_resumes_but_answers_a_question() -> None:
    conversation = speaking()
    conversation.speech_began()
    assert conversation.transcribed("Uh-huh, yeah.", is_final=True) == [Release(2)]
    conversation.answer_ended(2)
    conversation.played(2)
    assert UserTurn(3, "Yes.") in conversation.transcribed("Yes.", is_final=True)


def test_echo_of_the_answer_resumes_it() -> None:
    conversation = speaking("You can stop me at any time, and I fall silent.")
    conversation.speech_began()
    played = "You can stop me at any time,"
    assert conversation.transcribed("me at any", is_final=False, played=played) == []
    assert conversation.transcribed("Me at any time.", is_final=True, played=played) == [Release(2)]
    assert conversation.transcribed("Stop.", is_final=False, played=played) == [Interrupt(2, "barge_in")], "one word"


def test_words_that_are_yet_to_be_played_are_no_echo() -> None:
    conversation = speaking("You can stop me at any time.")
    assert conversation.transcribed("at any time", is_final=False, played="You can") == [Interrupt(2, "barge_in")]


def test_user_who_goes_on_is_answered_once_to_all_of_it() -> None:
    conversation = Conversation()
    conversation.speech_began()
    _, ask, hold = conversation.transcribed("First.", is_final=True)
    assert (ask, hold) == (Ask(2, ({"role": "user", "content": "First."},)), Hold(2))
    assert conversation.delta(2, "Answer.") == [], "the user is still speaking"
    conversation.speech_ended()
    assert conversation.transcribed("Second.", is_final=True) == [UserTurn(3, "Second."), Interrupt(2, "barge_in")]
    _, asked = conversation.reported(2, "")
    assert isinstance(asked, Ask)
    assert [message["content"] for message in asked.messages] == ["First.", "Second."]


def test_withdrawn_words_that_interrupted_are_kept() -> None:
    conversation = speaking()
    conversation.transcribed("stop please", is_final=False)
    assert UserTurn(3, "stop please") in conversation.transcribed("", is_final=True)


def test_withdrawn_words_that_interrupted_nothing_are_dropped() -> None:
    conversation = Conversation()
    assert conversation.transcribed("hello", is_final=False) == []
    assert conversation.transcribed("", is_final=True) == []


def test_unheard_answer_is_not_in_the_history() -> None:
    conversation = speaking()
    conversation.stop()
    assert conversation.reported(2, "") == [Settled(2, "", "One two three.")]
    assert [message["content"] for message in conversation.messages()] == ["Hello."]


@pytest.mark.parametrize("interrupted", [False, True])
def test_skipped_text_is_not_in_the_history(interrupted: bool) -> None:
    conversation = speaking()
    skipped = (Skipped(4, 7), Skipped(8, 13))
    if interrupted:
        conversation.stop()
        assert conversation.reported(2, "One two", skipped) == [Settled(2, "One two", " three.", (Skipped(4, 7),))]
    else:
        assert conversation.played(2, skipped) == [Settled(2, "One two three.", "", skipped)]
    content = conversation.messages()[-1]["content"]
    assert content == ("One" if interrupted else "One.")


def test_answer_without_text_leaves_no_turn() -> None:
    conversation = Conversation()
    conversation.say("Hello.")
    assert conversation.answer_ended(2) == [Settled(2, "", "")]
    assert [turn.role for turn in conversation.turns] == ["user"]


class ConversationMachine(RuleBasedStateMachine):
    """Any order of inputs, also late ones: the effects fit together, and the history is what was heard."""

    def __init__(self) -> None:
        super().__init__()
        self.conversation = Conversation()
        self.texts: dict[int, str] = {}  # written by the model, as far as it was accepted
        self.spoken: dict[int, str] = {}  # passed to the speech session
        self.settled: dict[int, Settled] = {}
        self.held: int | None = None
        self.interrupted: int | None = None
        self.last = 0

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ask(answer, messages):
                    assert self.last in (0, *self.settled), "the previous answer is settled"
                    heard = [each["content"] for each in messages if each["role"] == "assistant"]
                    assert heard == [s.heard.strip() for s in self.settled.values() if s.heard.strip()]
                    self.last = answer
                    self.texts[answer] = self.spoken[answer] = ""
                case Speak(answer, text):
                    assert answer == self.last
                    assert answer not in (self.interrupted, self.held)
                    self.spoken[answer] += text
                case EndText(answer):
                    assert answer not in (self.interrupted, self.held)
                    assert self.spoken[answer] == self.texts[answer]
                case Hold(answer):
                    assert self.held is None
                    self.held = answer
                case Release(answer):
                    assert self.held == answer
                    self.held = None
                case Interrupt(answer, _):
                    assert self.interrupted != answer, "once"
                    self.interrupted, self.held = answer, None
                case Settled(answer, heard, unheard):
                    assert answer not in self.settled
                    assert heard + unheard == self.texts[answer]
                    self.settled[answer] = effect
                    self.held = None

    @rule(text=st.sampled_from(["", "yeah", "wait", "wait a moment"]), final=st.booleans())
    def transcribe(self, text: str, final: bool) -> None:
        self.apply(self.conversation.transcribed(text, is_final=final))

    @rule()
    def begin_speech(self) -> None:
        self.apply(self.conversation.speech_began())

    @rule()
    def end_speech(self) -> None:
        self.conversation.speech_ended()

    @rule()
    def type(self) -> None:
        self.apply(self.conversation.say("Hello."))

    @rule()
    def stop(self) -> None:
        self.apply(self.conversation.stop())

    @rule(late=st.booleans(), text=st.sampled_from(["one ", "two.", " "]))
    def write(self, late: bool, text: str) -> None:
        answer = self.last - 1 if late else self.last
        accepted = self.conversation.answer == answer and self.interrupted != answer
        if accepted:
            self.texts[answer] += text
        self.apply(self.conversation.delta(answer, text))

    @rule()
    def end_text(self) -> None:
        self.apply(self.conversation.answer_ended(self.last))

    @rule()
    def play(self) -> None:
        self.conversation.audio_started(self.last)

    @precondition(lambda self: self.conversation.phase in (Phase.SPEAKING, Phase.HELD))
    @rule()
    def play_all(self) -> None:
        self.apply(self.conversation.played(self.last))

    @precondition(lambda self: self.last)
    @rule(share=st.floats(0, 1))
    def report(self, share: float) -> None:
        spoken = self.spoken[self.last]
        self.apply(self.conversation.reported(self.last, spoken[: round(share * len(spoken))]))

    @invariant()
    def phase_follows_effects(self) -> None:
        conversation = self.conversation
        assert (conversation.phase is Phase.HELD) == (self.held is not None and self.held == conversation.answer)
        if conversation.phase is Phase.LISTENING:
            assert self.last in (0, *self.settled)


TestConversation = ConversationMachine.TestCase
TestConversation.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_changes_lead_from_one_history_to_the_next(before: list[str], now: list[str]) -> None:
    old, new = ([{"role": "user", "content": text} for text in each] for each in (before, now))
    kept, removed, added = changes(old, new)
    assert [*old[:kept], *old[kept + removed :], *added] == new


def test_forgotten_turns_do_not_repeat_the_history() -> None:
    old = [{"role": "system", "content": "s"}, *({"role": "user", "content": str(n)} for n in range(200))]
    new = [old[0], *old[3:], {"role": "user", "content": "new"}]
    assert changes(old, new) == (1, 2, [new[-1]])


def test_long_history_is_forgotten() -> None:
    conversation = Conversation()
    for _ in range(40):
        conversation.say("x" * 4_000)
        conversation.reported(conversation.answer or 0, "")
    assert sum(len(turn.text) for turn in conversation.turns) <= MAX_HISTORY_CHARS + 4_000
    assert conversation.messages()[-1]["content"] == "x" * 4_000


def test_restored_turns_are_history_and_count() -> None:
    conversation = Conversation("Be brief.")
    conversation.restore([(1, "user", "Hello."), (2, "assistant", "Hi, I am"), (5, "user", "Wait.")])
    user, ask = conversation.say("Go on.")
    assert isinstance(user, UserTurn)
    assert user.turn == 6
    assert isinstance(ask, Ask)
    assert ask.answer == 7
    assert [message["content"] for message in ask.messages] == ["Be brief.", "Hello.", "Hi, I am", "Wait.", "Go on."]


@pytest.mark.parametrize("numbers", [(2, 1), (1, 1), (0,), (3, 3)])
def test_turns_out_of_order_are_not_restored(numbers: tuple[int, ...]) -> None:
    conversation = Conversation()
    with pytest.raises(ValueError, match="in order"):
        conversation.restore([(number, "user", "Hi.") for number in numbers])
    assert conversation.turns == []


def test_turns_are_restored_before_any_other() -> None:
    conversation = Conversation()
    conversation.say("Hello.")
    with pytest.raises(ValueError, match="before any other"):
        conversation.restore([(9, "user", "Hi.")])
