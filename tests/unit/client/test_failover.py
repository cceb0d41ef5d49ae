"""``FailoverLink``: what a session reports, and what is sent to the next worker, when its worker is lost."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import until
from tts_worker.client.failover import FailoverLink
from tts_worker.client.link import RemoteConfig
from tts_worker.client.remote import RemoteSession
from tts_worker.errors import ConnectionLost
from tts_worker.protocol.messages import (
    ClientMessage,
    PausedMessage,
    StartedMessage,
    TextMessage,
    WordsMessage,
    report_message,
)
from tts_worker.types import Encoding, Ended, Outcome, Receipt, SynthesisParams, Word

PARAMS = SynthesisParams("voice")


class RecordingStream:
    """A stream to a worker that records what is sent."""

    sample_rate_hz = 8_000

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.sent: list[ClientMessage] = []

    def attach(self, receiver: Any, on_closed: Callable[..., None]) -> None: ...

    def send(self, message: ClientMessage) -> None:
        self.sent.append(message)


def begin(encoding: Encoding = Encoding.PCM) -> tuple[RemoteSession, FailoverLink, Any, Any]:
    """A session, its link, and the streams to its first and its next worker."""
    stream: Any = RecordingStream(encoding)
    other: Any = RecordingStream(encoding)

    async def next_worker() -> Any:
        return other

    link = FailoverLink(stream, next_worker)
    config = RemoteConfig("near", "", PARAMS, 60.0, read_ahead_s=1.0, sample_rate_hz=8_000, encoding=encoding)
    session = RemoteSession(link, config)
    link.attach(session, SimpleNamespace)
    return session, link, stream, other


def kinds(messages: list[ClientMessage]) -> list[str]:
    return [message.type_name() for message in messages]


async def lose(link: FailoverLink, other: RecordingStream) -> None:
    link.on_lost(ConnectionLost("the worker was lost").info)
    await until(lambda: other.sent)


@pytest.mark.parametrize(
    ("encoding", "audio"),
    [(Encoding.PCM, bytes(2 * 160)), (Encoding.MULAW, bytes(160)), (Encoding.OPUS, b"\x08" + bytes(30))],
)
async def test_a_stop_before_the_loss_reports_what_was_delivered(encoding: Encoding, audio: bytes) -> None:
    session, link, stream, _ = begin(encoding)
    session.speak("one two")
    context = next(message.context for message in stream.sent if isinstance(message, TextMessage))
    link.receive(StartedMessage(voice=PARAMS.voice, context=context))
    link.receive(WordsMessage(words=(Word("one", 0, 3, 0, 160), Word("two", 4, 7, 160, 320)), context=context))
    link.receive(audio)  # 160 samples
    while session.poll() is not None:
        pass
    session.stop()
    link.on_lost(ConnectionLost("the worker was lost").info)
    report = next(item for item in iter(session.poll, None) if isinstance(item, Ended)).receipt
    assert (report.samples_generated, report.samples_sent) == (160, 160)
    assert (report.text_spoken, report.text_remaining) == ("one", " two")
    session.close()


async def test_a_pause_is_repeated_on_the_next_worker() -> None:
    session, link, _, other = begin()
    session.speak("one")
    session.pause()
    link.receive(PausedMessage())
    await lose(link, other)
    assert kinds(other.sent) == ["text", "pause"]
    session.close()


async def test_a_pause_that_a_stop_ended_is_not_repeated() -> None:
    session, link, _, other = begin()
    session.speak("one")
    session.pause()
    session.stop()
    session.speak("two")
    link.receive(PausedMessage())  # answers what was sent before the STOP
    await lose(link, other)
    assert kinds(other.sent) == ["text"]
    session.close()


async def test_an_unanswered_pause_before_a_stop_holds_no_later_text() -> None:
    session, link, _, other = begin()
    session.speak("one")
    session.pause()
    session.stop()
    session.speak("two")
    await lose(link, other)
    assert kinds(other.sent) == ["pause", "text"]
    session.close()


async def test_a_pause_without_effect_is_not_repeated() -> None:
    session, link, stream, other = begin()
    session.speak("one")
    session.end_text()
    link.receive(StartedMessage(voice=PARAMS.voice, context=stream.sent[0].context))
    link.receive(bytes(320))
    receipt = Receipt("finished", 160, 160, None, "one", "")
    link.receive(report_message(Outcome.DONE, receipt, context=stream.sent[0].context))
    session.pause()  # the worker has already ended what this side still plays
    link.receive(PausedMessage(applied=False))
    session.stop()
    session.speak("two")
    await lose(link, other)
    assert kinds(other.sent) == ["text"]
    session.close()
