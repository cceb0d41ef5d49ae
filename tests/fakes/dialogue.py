"""The worker's side of a conversation without sockets: the real dialogue on the real session machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.fakes.engine import ManualEngine
from tests.fakes.text import WordText
from tts_worker.errors import IllegalCommand, SynthesisFailed
from tts_worker.protocol.dialogue import Dialogue
from tts_worker.protocol.messages import ClientMessage, WorkerMessage
from tts_worker.session.machine import MachineConfig, SessionMachine
from tts_worker.types import Encoding, Failed, PcmFrame, SessionOptions, SynthesisParams

PARAMS = SynthesisParams("voice")


class MachineSession:
    """A session machine with the interface that a dialogue needs."""

    sample_rate_hz = 24_000
    encoding = Encoding.PCM
    model = "tone"
    unsupported_expressions = ("pitch",)

    def __init__(self, name: str, params: SynthesisParams, generation: int = 0) -> None:
        config = MachineConfig(window_samples=1_000, credit_quantum_samples=200, frame_samples=100)
        self.id = name
        self.machine = SessionMachine(name, params, lambda params: WordText(), config, generation=generation)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def wake(self) -> None:
        pass


class DialogueWorker:
    """A worker with one client. Its engine works when the test says so.

    Args:
        name: Name of the sessions.
    """

    def __init__(self, name: str = "far") -> None:
        self.engine = ManualEngine()
        self.opened = 0
        self._name = name
        session = self.open(SessionOptions())
        self.dialogue = Dialogue(self, session, SessionOptions(), max_message_chars=1_000)
        self.dialogue.poll()  # ready

    @property
    def machine(self) -> SessionMachine:
        return self.dialogue.session.machine

    # -- SessionSource ------------------------------------------------------------------------------------------------

    def open(self, options: SessionOptions | None = None, *, replaces: MachineSession | None = None) -> MachineSession:
        voice = (options.voice if options is not None else None) or PARAMS.voice
        if voice == "elsewhere":
            raise IllegalCommand("no such voice")
        if replaces is not None:
            replaces.close("replaced")
        self.opened += 1
        generation = 0 if replaces is None else replaces.generation
        return MachineSession(f"{self._name}-{self.opened}", replace(PARAMS, voice=voice), generation)

    def configure(self, session: MachineSession, options: SessionOptions) -> None:
        session.configure(replace(session.params, voice=options.voice or PARAMS.voice, speed=options.speed))

    # -- the conversation ---------------------------------------------------------------------------------------------

    def receive(self, message: ClientMessage) -> None:
        """Handle a message of the client, and read its text."""
        self.dialogue.receive(message, lambda message: message)
        while self.machine.has_unread_text:
            self.machine.read_more()
        self.engine.take(self.machine.take_commands())

    def work(self, samples: int, *, fail: bool = False) -> None:
        """Let the engine generate audio for the oldest utterance."""
        live = self.engine.live()
        if live:
            key = live[0]
            event: Any = self.engine.emit(key, samples)
            if fail and not self.engine.utterances[key].is_done:
                self.engine.utterances[key].is_done = True
                event = Failed(key, SynthesisFailed("requested by the test").info)
            if event is not None:
                self.machine.on_engine(event)
                self.engine.take(self.machine.take_commands())

    def poll(self) -> WorkerMessage | bytes | None:
        """Return what the worker sends next."""
        item = self.dialogue.poll()
        self.engine.take(self.machine.take_commands())
        return item.pcm if isinstance(item, PcmFrame) else item

    def settle(self) -> list[WorkerMessage | bytes]:
        """Work until everything is sent; return it."""
        sent: list[WorkerMessage | bytes] = []
        quiet = 0
        while quiet < 3:
            before = len(sent)
            self.work(500)
            while (item := self.poll()) is not None:
                sent.append(item)
            quiet = quiet + 1 if len(sent) == before else 0
        return sent
