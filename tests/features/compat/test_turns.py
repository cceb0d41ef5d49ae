"""The turns of one connection, without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.conftest import tone_settings
from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.errors import ErrorInfo
from tts_worker.features.compat.context_socket import ContextEncoder, Message, SpeechContext
from tts_worker.features.compat.turns import Turn, TurnProtocol
from tts_worker.server.rendering import synthesize
from tts_worker.session.session import LocalSession
from tts_worker.types import Ended, PcmFrame, SessionOptions
from tts_worker.worker import Worker, running_worker


class OneSession:
    """Stands for the ``ContextSocket``: every context has the given session."""

    def __init__(self, session: LocalSession) -> None:
        self.contexts: dict[str, SpeechContext] = {}
        self.session = session

    def open(self, name: str, options: SessionOptions, encoder: ContextEncoder) -> SpeechContext:
        context = self.contexts[name] = SpeechContext(name, encoder)
        context.attach(self.session)
        return context

    def drop(self, name: str, reason: str) -> None:
        self.contexts.pop(name).close(reason)

    def check_text(self, text: str) -> None:
        pass


class Bare(TurnProtocol):
    """Sends audio, and the ends of turns."""

    def ended(self, turn: Turn) -> tuple[bytes]:
        return (b"ended",)

    def handle_message(self, data: Message) -> None:
        raise NotImplementedError

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        raise NotImplementedError


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Bare, OneSession, Worker]]:
    """Yield a protocol, its socket, and the worker."""
    async with running_worker(tone_settings()) as worker:
        socket: Any = OneSession(await worker.hub.admit(SessionOptions(realtime=False, raw_chunks=True)))
        yield Bare(socket, SessionOptions(), lambda: open_encoder(AudioFormat.PCM)), socket, worker


async def test_stop_reports_a_turn_whose_last_frame_is_being_sent() -> None:
    texts = ("Hello.", "Goodbye.")
    async with opened() as (protocol, socket, worker):
        options = SessionOptions(realtime=False, raw_chunks=True)
        frames = [item async for item in synthesize(worker.hub, options, texts[0]) if isinstance(item, PcmFrame)]
        for text in texts:
            protocol.speak(text)
            protocol.flush()
        while protocol.turns[0].samples < sum(frame.samples for frame in frames):
            item = await socket.session.next()
            assert item is not None
            [*socket.contexts[""].encoder.messages(item)]
        turns = protocol.stop()
    assert [turn.text for turn in turns] == [*texts]
    assert [[report.text_spoken + report.text_remaining for report in turn.reports] for turn in turns] == [
        [text] for text in texts
    ]


@pytest.mark.parametrize("command", ["stop", "flush", "speak"])
async def test_command_comes_while_the_silence_of_a_quiet_turn_is_sent(command: str) -> None:
    async with opened() as (protocol, socket, _):
        protocol.speak("...")
        assert protocol.flush() is not None
        while not isinstance(item := await socket.session.next(), Ended):
            assert item is not None
        messages = iter(socket.contexts[""].encoder.messages(item))
        assert next(messages) == bytes(4_800)
        if command == "stop":
            (turn,) = protocol.stop()
            assert (turn.samples, turn.text) == (2_400, "...")
        elif command == "flush":
            assert protocol.flush() is None, "the turn was flushed, and has no more messages"
        else:
            protocol.speak("Hello.")
        assert [*messages] == ([] if command == "stop" else [b"ended"])
        assert [turn.text for turn in protocol.turns] == (["Hello."] if command == "speak" else [])
