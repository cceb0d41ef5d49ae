"""The answers of a script: they continue from what was heard."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.features.agent.conversation import Message
from tts_worker.features.agent.script import ScriptedModel

PARAGRAPHS = ("One two three four.", "Five six seven.")


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def agent(text: str) -> Message:
    return {"role": "assistant", "content": text}


def test_paragraphs_follow_each_other_and_begin_again() -> None:
    model = ScriptedModel(PARAGRAPHS)
    messages = [{"role": "system", "content": "Be brief."}]
    answers = []
    for said in ("...", "Go on.", "..."):
        messages.append(user(said))
        answers.append(model.answer(messages))
        messages.append(agent(answers[-1]))
    assert answers == ["One two three four.", 'You said: "Go on." Five six seven.', "One two three four."]


def test_interrupted_answer_continues_from_what_was_heard() -> None:
    model = ScriptedModel(PARAGRAPHS)
    messages = [user("..."), agent("One two"), user("Wait!")]
    answer = 'You said: "Wait!" You heard me until "One two". I go on from there: three four.'
    assert model.answer(messages) == answer
    messages += [agent(answer.removesuffix(" four.")), user("...")]
    assert model.answer(messages).endswith("I go on from there: four.")


def test_answer_that_was_not_heard_is_given_again() -> None:
    assert ScriptedModel(PARAGRAPHS).answer([user("..."), user("...")]) == "One two three four."


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(1, 12), max_size=8))
def test_every_word_is_heard_once_in_order(cuts: list[int]) -> None:
    """However often the user interrupts, the heard parts of the script are the script."""
    model = ScriptedModel(PARAGRAPHS)
    messages = [user("...")]
    heard: list[str] = []
    for cut in [*cuts, 99, 99]:
        answer = model.answer(messages)
        words = answer.split(" ")[:cut]
        opening = len(answer.partition("I go on from there: ")[0].split()) + 5 if "I go on" in answer else 0
        heard += words[opening:]
        messages += [agent(" ".join(words)), user("...")]
    script = " ".join(PARAGRAPHS).split()
    assert heard == (script * 20)[: len(heard)]
