"""A worker that speaks with CosyVoice: real networks with tiny random weights, behind the real engine thread.

The faults that a behaviour asks for happen where a call's next clause begins, on the device as it were: they go the
way of any fault of the networks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import torch

from tests.behaviour.transports import Setup, running
from tests.unit.cosyvoice.bundles import tiny
from tests.unit.streaming.engines import bundle, networks, settings, tokenizer, voice
from tts_worker.app import Worker
from tts_worker.client import Client
from tts_worker.client.local import LocalConnector
from tts_worker.engine.loop import EngineLoop
from tts_worker.engine.streaming.engine import CosyVoiceEngine
from tts_worker.engine.streaming.load import voices_of
from tts_worker.engine.streaming.parts import Parts
from tts_worker.engine.streaming.talk import Model
from tts_worker.engine.tone import Fault
from tts_worker.errors import SynthesisFailed
from tts_worker.settings import load_settings
from tts_worker.types import UtteranceKey

FAMILY = "cosyvoice3"
LATER_CLAUSE = 3  # of a long text: something was heard by then
Decide = Callable[[UtteranceKey, int], Fault | None]
ENGINE = {"kind": "cosyvoice", "bundle": str(tiny(FAMILY)), "threads": 1}


class Warm(CosyVoiceEngine):
    """Warming up is tested elsewhere and takes as long as a behaviour."""

    def warm_up(self) -> None:
        pass


class CosyVoiceWorker(Worker):
    """A worker with one tiny engine, which fails where a test wants it to. Its device never answers after a fault, so
    that whatever is taken for one breaks the engine."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(load_settings(flags={"engines": {"cosy": ENGINE}, **setup.sections}))
        self._fault = None if setup.engine is None else setup.engine.fault

    async def _load(self, name: str) -> None:
        engine = EngineLoop(self._build, name=name, hang_timeout_s=20.0)
        await engine.start()
        self.hub.add_engine(name, "cosyvoice", engine)
        self.engines[name] = engine

    def _build(self) -> CosyVoiceEngine:
        torch.set_num_threads(1)
        config = settings(max_utterances=8, overlap=True, checked=False)
        loaded = networks(FAMILY)
        voices = {"prompted": voice(FAMILY), **voices_of(bundle(FAMILY))}
        parts = Parts.build(loaded, tokenizer(FAMILY), voices, config)
        decide = self._fault
        script = None if decide is None else lambda key, run: self._bent(decide, key, run)
        return Warm(parts, Model(loaded.config, tokenizer(FAMILY), config, script), healthy=lambda: False)

    def _bent(self, decide: Decide, key: UtteranceKey, run: int) -> Sequence[int]:
        """Nothing is forced; a fault comes with the first clause, or a later one."""
        fault = decide(key, 20 if run >= LATER_CLAUSE else 0)
        if fault is Fault.OUT_OF_MEMORY:
            raise torch.OutOfMemoryError("out of memory")
        elif fault is Fault.RAISE:
            raise RuntimeError("device-side assert triggered")
        elif fault is Fault.FAIL:
            raise SynthesisFailed("the model said nothing sensible")
        return ()


@asynccontextmanager
async def cosyvoice_client(setup: Setup) -> AsyncIterator[Client]:
    async with Client(LocalConnector(lambda: running(CosyVoiceWorker(setup))), setup.client) as client:
        yield client
