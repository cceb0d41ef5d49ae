"""The turns of one connection, without a socket."""

from __future__ import annotations

from typing import Any

from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.errors import ErrorInfo
from tts_worker.features.compat.context_socket import ContextEncoder, Message, SpeechContext
from tts_worker.features.compat.turns import Turn, TurnProtocol
from tts_worker.server.rendering import synthesize
from tts_worker.session.session import LocalSession
from tts_worker.settings import load_settings
from tts_worker.types import PcmFrame, SessionOptions
from tts_worker.worker import running_worker


class OneSession:
    """Stands for the ``ContextSocket``: every context has the given session."""

    def __init__(self, session: LocalSession) -> None:
        self.contexts: dict[str, SpeechContext] = {}
        self._session = session

    def open(self, name: str, options: SessionOptions, encoder: ContextEncoder) -> SpeechContext:
        context = self.contexts[name] = SpeechContext(name, encoder)
        context.attach(self._session)
        return context

    def drop(self, name: str, reason: str) -> None:
        self.contexts.pop(name).close(reason)

    def check_text(self, text: str) -> None:
        pass


class Silent(TurnProtocol):
    """Sends nothing but audio."""

    def ended(self, turn: Turn) -> tuple[()]:
        return ()

    def handle_message(self, data: Message) -> None:
        raise NotImplementedError

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        raise NotImplementedError


async def test_stop_reports_a_turn_whose_last_frame_is_being_sent() -> None:
    texts = ("Hello.", "Goodbye.")
    async with running_worker(load_settings(flags={"engines": {"tone": {"kind": "tone"}}})) as worker:
        options = SessionOptions(realtime=False, raw_chunks=True)
        frames = [item async for item in synthesize(worker.hub, options, texts[0]) if isinstance(item, PcmFrame)]
        session = await worker.hub.admit(options)
        socket: Any = OneSession(session)
        protocol = Silent(socket, SessionOptions(), lambda: open_encoder(AudioFormat.PCM))
        for text in texts:
            protocol.speak(text)
            protocol.flush()
        while protocol.turns[0].samples < sum(frame.samples for frame in frames):
            item = await session.next()
            assert item is not None
            [*socket.contexts[""].encoder.messages(item)]
        turns = protocol.stop()
    assert [turn.text for turn in turns] == [*texts]
    assert [[report.text_spoken + report.text_remaining for report in turn.reports] for turn in turns] == [
        [text] for text in texts
    ]
