"""A worker with a tone engine that enrolls voices: the level of a recording selects one of its tones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import uvicorn

from tests.conftest import tone_settings
from tts_worker.audio.decode import Recording
from tts_worker.audio.prompt import PromptFigures
from tts_worker.audio.window import Window
from tts_worker.engine.loop import EngineLoop
from tts_worker.engine.tone import ToneEngine
from tts_worker.errors import InvalidRequest
from tts_worker.serving import create_application
from tts_worker.types import Command, Open, SynthesisParams
from tts_worker.voices.enrollment import Enrollment
from tts_worker.voices.files import Voice
from tts_worker.worker import Worker


@dataclass
class ToneEnroller:
    """Maps enrolled voices to tones.

    Attributes:
        tones: Voice name -> tone.
        enrolled: Names in the order of enrollment.
        transcripts: Their transcripts.
        forgotten: Evicted names in order.
    """

    tones: dict[str, str] = field(default_factory=dict)
    enrolled: list[str] = field(default_factory=list)
    transcripts: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def enroll(self, name: str, recording: Recording, transcript: str) -> None:
        if recording.seconds < 1:
            raise InvalidRequest(f"the audio has {recording.seconds:.1f} s of speech; use 1 to 30 s")
        self.tones[name] = "tone-high" if float(np.abs(recording.samples).max()) > 0.5 else "tone-low"
        self.enrolled.append(name)
        self.transcripts.append(transcript)

    def compute(self, recording: Recording, transcript: str) -> tuple[Voice, PromptFigures]:
        raise InvalidRequest("tones are not stored")

    def speech_tokens(self, window: Window) -> tuple[int, ...]:
        raise InvalidRequest("tones have no speech tokens")

    def forget(self, name: str) -> None:
        del self.tones[name]
        self.forgotten.append(name)


class EnrollingToneEngine(ToneEngine):
    """A tone engine with enrolled voices and the instruction "low"."""

    def __init__(self, enroller: ToneEnroller) -> None:
        super().__init__()
        self._enroller = enroller
        self.received_params: list[SynthesisParams] = []
        self.info = replace(self.info, capabilities=("instruct",))

    def handle(self, command: Command) -> None:
        if isinstance(command, Open):
            self.received_params.append(command.params)
            voice = self._enroller.tones.get(command.params.voice, command.params.voice)
            if command.params.instruct == "low":
                voice = "tone-low"
            command = replace(command, params=replace(command.params, voice=voice))
        super().handle(command)


class EnrollingWorker(Worker):
    def __init__(self, **sections: Any) -> None:
        super().__init__(tone_settings(**sections))
        self.enroller = ToneEnroller()

    async def _load(self, name: str) -> None:
        engine = EngineLoop(lambda: EnrollingToneEngine(self.enroller), name=name)
        await engine.start()
        self.hub.add_engine(name, "tone", engine, Enrollment(self.enroller, max_unused=3))
        self.engines[name] = engine


@asynccontextmanager
async def serving_worker(worker: Worker) -> AsyncIterator[str]:
    """Start ``worker`` and serve it on a free port of loopback; yield its ``host:port``."""
    # A failing test may leave a connection open, so the shutdown needs a time limit.
    config = uvicorn.Config(
        create_application(worker),
        port=0,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=30,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    try:
        await worker.start()
        await server.startup()
        try:
            host, port = server.servers[0].sockets[0].getsockname()[:2]
            yield f"{host}:{port}"
        finally:
            await server.shutdown()
    finally:
        await worker.stop()
