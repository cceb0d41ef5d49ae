"""``FailoverLink``: what a session reports when its worker is lost."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tts_worker.client.failover import FailoverLink
from tts_worker.client.link import RemoteConfig
from tts_worker.client.remote import RemoteSession
from tts_worker.errors import ConnectionLost
from tts_worker.protocol.messages import ClientMessage, StartedMessage, TextMessage, WordsMessage
from tts_worker.types import Encoding, Ended, SynthesisParams, Word

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


@pytest.mark.parametrize(
    ("encoding", "audio"),
    [(Encoding.PCM, bytes(2 * 160)), (Encoding.MULAW, bytes(160)), (Encoding.OPUS, b"\x08" + bytes(30))],
)
async def test_a_stop_before_the_loss_reports_what_was_delivered(encoding: Encoding, audio: bytes) -> None:
    stream: Any = RecordingStream(encoding)
    link = FailoverLink(stream, lambda: pytest.fail("nothing is left to say"))
    config = RemoteConfig("near", "", PARAMS, 60.0, read_ahead_s=1.0, sample_rate_hz=8_000, encoding=encoding)
    session = RemoteSession(link, config)
    link.attach(session, SimpleNamespace)
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
