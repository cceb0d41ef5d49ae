"""A worker whose tone engine learns voices: a recording becomes one of its tones, chosen by how loud it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import uvicorn

from tests.conftest import tone_settings
from tts_worker.app import Worker, create_application
from tts_worker.audio.decode import Recording
from tts_worker.engine.loop import EngineLoop
from tts_worker.engine.tone import ToneEngine
from tts_worker.errors import InvalidRequest
from tts_worker.models.enrolment import Enrolment
from tts_worker.types import Command, Open, SynthesisParams


@dataclass
class ToneLearner:
    """Voice name -> tone. ``learned`` and ``forgotten`` remember in which order; ``heard`` the transcripts."""

    tones: dict[str, str] = field(default_factory=dict)
    learned: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def learn(self, name: str, recording: Recording, transcript: str) -> None:
        if recording.seconds < 1:
            raise InvalidRequest(f"the audio has {recording.seconds:.1f} s of speech; use 1 to 30 s")
        self.tones[name] = "tone-high" if float(np.abs(recording.samples).max()) > 0.5 else "tone-low"
        self.learned.append(name)
        self.heard.append(transcript)

    def forget(self, name: str) -> None:
        del self.tones[name]
        self.forgotten.append(name)


class LearningToneEngine(ToneEngine):
    """Speaks with the voices of a learner too, and takes instructions: "low" is one that it follows."""

    def __init__(self, learner: ToneLearner) -> None:
        super().__init__()
        self._learner = learner
        self.asked: list[SynthesisParams] = []
        self.info = replace(self.info, capabilities=("instruct",))

    def handle(self, command: Command) -> None:
        if isinstance(command, Open):
            self.asked.append(command.params)
            voice = self._learner.tones.get(command.params.voice, command.params.voice)
            if command.params.instruct == "low":
                voice = "tone-low"
            command = replace(command, params=replace(command.params, voice=voice))
        super().handle(command)


class LearningWorker(Worker):
    def __init__(self, **sections: Any) -> None:
        super().__init__(tone_settings(**sections))
        self.learner = ToneLearner()

    async def _load(self, name: str) -> None:
        engine = EngineLoop(lambda: LearningToneEngine(self.learner), name=name)
        await engine.start()
        self.hub.add_engine(name, "tone", engine, Enrolment(self.learner, kept=3))
        self.engines[name] = engine


@asynccontextmanager
async def serving_worker(worker: Worker) -> AsyncIterator[str]:
    """Start ``worker`` and serve it on a free port of loopback; yields ``host:port``."""
    # A test that fails may leave a connection open: the server does not wait for its end for ever.
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
