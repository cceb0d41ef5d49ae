"""The dialogue: context rules, replies and sessions, over the real session machine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.dialogue import DialogueWorker
from tts_worker.errors import SendTimeout
from tts_worker.protocol.json_codec import parse_client_message
from tts_worker.protocol.messages import (
    CloseMessage,
    ConfigureMessage,
    DoneMessage,
    EndMessage,
    NothingStoppedMessage,
    PingMessage,
    PlayedMessage,
    PongMessage,
    ReadyMessage,
    RejectedMessage,
    ReportMessage,
    StartedMessage,
    StartMessage,
    StopMessage,
    StoppedMessage,
    TextMessage,
    WordsMessage,
)
from tts_worker.types import State


def reports(sent: list[Any]) -> list[tuple[str | None, str]]:
    return [(m.context, m.text_spoken + m.text_remaining) for m in sent if isinstance(m, ReportMessage)]


def test_another_context_completes_the_utterance() -> None:
    worker = DialogueWorker()
    worker.receive(TextMessage(text="one ", context="a"))
    worker.receive(TextMessage(text="two ", context="b", end=True))
    worker.receive(TextMessage(text="three ", end=True))
    assert reports(worker.settle()) == [("a", "one "), ("b", "two "), (None, "three ")]


def test_text_of_a_rejected_context_ends_no_other() -> None:
    worker = DialogueWorker()
    for number in range(16):
        worker.receive(TextMessage(text="queued ", context=str(number), end=True))
    worker.receive(TextMessage(text="one ", context="a"))
    worker.receive(TextMessage(text="two ", context="b"))
    worker.receive(TextMessage(text="three ", context="a", end=True))
    sent = worker.settle()
    assert [(m.context, m.code) for m in sent if isinstance(m, RejectedMessage)] == [("b", "illegal_command")]
    assert reports(sent)[-1] == ("a", "one three ")


def test_text_of_a_stopped_context_is_dropped() -> None:
    worker = DialogueWorker()
    worker.receive(TextMessage(text="one ", context="a"))
    worker.receive(StopMessage())
    worker.receive(TextMessage(text="late ", context="a"))
    worker.receive(EndMessage(context="a"))
    worker.receive(TextMessage(text="two ", context="b", end=True))
    assert reports(worker.settle()) == [("a", "one "), ("b", "two ")]


def test_stop_before_the_first_text_of_a_context_drops_it() -> None:
    """The client stops a turn whose text is still on its way through another part of it."""
    worker = DialogueWorker()
    worker.receive(TextMessage(text="one ", context="a"))
    worker.receive(StopMessage(context="b"))
    for context in ("a", "b"):
        worker.receive(TextMessage(text="late ", context=context))
    worker.receive(TextMessage(text="three ", context="c", end=True))
    assert reports(worker.settle()) == [("a", "one "), ("c", "three ")]


def test_text_after_an_unnoticed_end_is_dropped() -> None:
    worker = DialogueWorker()
    worker.receive(TextMessage(text="one ", context="a"))
    worker.machine.end_text()  # the idle timeout; the client does not know of it yet
    worker.receive(TextMessage(text="late ", context="a"))
    worker.receive(TextMessage(text="later ", context="a"))
    assert reports(worker.settle()) == [("a", "one ")]


def test_commands_after_an_unnoticed_end_are_ignored() -> None:
    worker = DialogueWorker()
    worker.receive(TextMessage(text="one ", context="a"))
    worker.machine.end_text()
    worker.receive(EndMessage(context="a"))
    assert not [m for m in worker.settle() if isinstance(m, RejectedMessage)]


def test_stop_without_utterance_is_acknowledged() -> None:
    worker = DialogueWorker()
    worker.receive(StopMessage())
    assert worker.settle() == [NothingStoppedMessage(applied=False)]


def test_stop_reports_the_played_position() -> None:
    worker = DialogueWorker()
    worker.receive(TextMessage(text="one two three four ", context="a"))
    worker.work(1_000)
    sent = [worker.poll() for _ in range(6)]
    assert any(isinstance(item, bytes) for item in sent)
    worker.receive(StopMessage(played_samples=50, reason="barge-in"))
    (report,) = [m for m in worker.settle() if isinstance(m, StoppedMessage)]
    assert (report.reason, report.samples_played, report.context) == ("barge-in", 50, "a")


@pytest.mark.parametrize("utterance", [1, 3, 99, -1], ids=["ended", "coming", "unknown", "negative"])
@pytest.mark.parametrize("by_stop", [True, False])
def test_position_of_another_utterance_is_ignored(utterance: int, by_stop: bool) -> None:
    worker = DialogueWorker()
    for context in "abc":
        worker.receive(TextMessage(text="one two three four ", context=context, end=True))
    while not (isinstance(item := worker.poll(), StartedMessage) and item.utterance == 2):
        worker.work(100)
    worker.work(1_000)
    assert isinstance(worker.poll(), WordsMessage)
    assert isinstance(worker.poll(), bytes)
    if by_stop:
        worker.receive(StopMessage(played_samples=50, utterance=utterance))
    else:
        worker.receive(PlayedMessage(samples=50, utterance=utterance))
        worker.receive(StopMessage())
    reports = [m for m in worker.settle() if isinstance(m, StoppedMessage)]
    assert [(m.utterance, m.samples_sent, m.samples_played) for m in reports] == [(2, 100, None), (3, 0, None)]


def test_position_of_the_current_utterance_counts() -> None:
    worker = DialogueWorker()
    worker.receive(TextMessage(text="one two three four "))
    worker.work(1_000)
    while not isinstance(worker.poll(), bytes):
        pass
    worker.receive(PlayedMessage(samples=50, utterance=1))
    worker.receive(StopMessage(played_samples=70, utterance=1))
    (report,) = [m for m in worker.settle() if isinstance(m, StoppedMessage)]
    assert report.samples_played == 70


def test_utterances_have_other_numbers_after_a_start() -> None:
    """Else the late position of an utterance before it would count for one of the same number."""
    worker = DialogueWorker()
    worker.receive(TextMessage(text="one ", end=True))
    worker.settle()
    worker.receive(StartMessage(voice="second"))
    worker.receive(TextMessage(text="two ", end=True))
    assert [m.utterance for m in worker.settle() if isinstance(m, StartedMessage)] == [2]


def test_start_replaces_an_idle_session_only() -> None:
    worker = DialogueWorker()
    worker.receive(StartMessage(voice="second"))
    (ready,) = worker.settle()
    assert isinstance(ready, ReadyMessage)
    assert (ready.session, ready.voice) == ("far-2", "second")
    worker.receive(TextMessage(text="one ", context="a"))
    worker.receive(StartMessage(voice="third"))
    worker.receive(TextMessage(text="two ", context="b", end=True))
    sent = worker.settle()
    assert worker.opened == 2
    assert [(m.context, m.voice) for m in sent if isinstance(m, StartedMessage)] == [("a", "second"), ("b", "third")]


def test_replaced_session_sends_its_reports_first() -> None:
    worker = DialogueWorker()
    worker.receive(TextMessage(text="one ", context="a"))
    worker.receive(StopMessage())
    worker.receive(StartMessage())
    kinds = [type(item) for item in worker.settle()]
    assert kinds == [StartedMessage, StoppedMessage, ReadyMessage]


def test_rejected_start_changes_nothing() -> None:
    worker = DialogueWorker()
    worker.receive(StartMessage(voice="elsewhere"))
    (rejected,) = worker.settle()
    assert isinstance(rejected, RejectedMessage)
    assert (rejected.command, rejected.code) == ("start", "illegal_command")
    worker.receive(TextMessage(text="one ", end=True))
    assert [m for m in worker.settle() if isinstance(m, DoneMessage)]


@pytest.mark.parametrize(
    ("raw", "command", "context", "field"),
    [
        ('{"type": "stop", "played_samples": 1.5}', "stop", None, "played_samples"),
        ('{"type": "text", "text": 5, "context": "a"}', "text", "a", "text"),
        ('{"type": "end", "context": 5}', "end", None, "context"),
        ('{"type": "start", "speed": "fast", "context": "a"}', "start", None, "speed"),
        ('{"type": "sing"}', None, None, "type"),
    ],
)
def test_rejected_names_the_message_of_an_invalid_field(
    raw: str, command: str | None, context: str | None, field: str
) -> None:
    worker = DialogueWorker()
    worker.dialogue.receive(raw, parse_client_message)
    (rejected,) = worker.settle()
    assert isinstance(rejected, RejectedMessage)
    assert (rejected.command, rejected.context) == (command, context)
    assert field in rejected.message


def test_configure_keeps_the_session() -> None:
    worker = DialogueWorker()
    worker.receive(ConfigureMessage(voice="second"))
    worker.receive(TextMessage(text="one ", end=True))
    (started,) = [m for m in worker.settle() if isinstance(m, StartedMessage)]
    assert (started.voice, worker.opened) == ("second", 1)


def test_long_text_is_rejected_with_its_context() -> None:
    worker = DialogueWorker()
    worker.receive(TextMessage(text="x" * 1_001, context="a"))
    (rejected,) = worker.settle()
    assert isinstance(rejected, RejectedMessage)
    assert (rejected.command, rejected.context, rejected.code) == ("text", "a", "text_too_long")


def test_close_ends_the_session() -> None:
    worker = DialogueWorker()
    worker.receive(CloseMessage())
    assert worker.dialogue.closing
    assert worker.machine.state is State.CLOSED


def test_unread_replies_are_bounded() -> None:
    worker = DialogueWorker()
    worker.receive(PingMessage(id=1))
    assert worker.poll() == PongMessage(id=1)
    for _ in range(256):
        worker.receive(PingMessage())
    with pytest.raises(SendTimeout):
        worker.receive(PingMessage())
