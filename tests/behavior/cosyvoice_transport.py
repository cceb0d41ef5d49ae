"""A worker with a CosyVoice engine: tiny networks with random weights, behind the real engine thread.

The faults of a behavior are raised where the engine begins the next clause, so they are handled like faults of the
networks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import torch

from tests.behavior.transports import Setup, running
from tests.unit.cosyvoice.bundles import tiny
from tests.unit.streaming.engines import bundle, networks, settings, tokenizer, voice
from tts_worker.client import Client
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.loader import bundle_voices
from tts_worker.engine.cosyvoice.token_generator import EngineSpec
from tts_worker.engine.loop import EngineLoop
from tts_worker.engine.tone import Fault
from tts_worker.errors import SynthesisFailed
from tts_worker.local import LocalConnector
from tts_worker.settings import load_settings
from tts_worker.types import UtteranceKey
from tts_worker.worker import Worker

FAMILY = "cosyvoice3"
LATER_CLAUSE = 3
"""Clause of a long text before which some audio has been sent."""
Decide = Callable[[UtteranceKey, int], Fault | None]
ENGINE = {"kind": "cosyvoice", "bundle": str(tiny(FAMILY)), "threads": 1}


def own_level(sections: dict[str, Any]) -> dict[str, Any]:
    """Leave the level of the voices: measuring it would speak a sentence before each behavior (test_loudness does)."""
    return {**sections, "session": {"loudness": "off", **sections.get("session", {})}}


class EngineWithoutWarmUp(CosyVoiceEngine):
    """Skips the warm-up, which has its own tests and takes as long as a behavior."""

    def warm_up(self) -> None:
        pass


class CosyVoiceWorker(Worker):
    """A worker with one tiny engine and injected faults.

    Its health check always fails, so every fault that is taken for a device fault breaks the engine.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(load_settings(flags={"engines": {"cosy": ENGINE}, **own_level(setup.sections)}))
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
        voices = {"prompted": voice(FAMILY), **bundle_voices(bundle(FAMILY))}
        parts = Components.build(loaded, tokenizer(FAMILY), voices, config)
        decide = self._fault
        script = None if decide is None else lambda key, run: self._inject_fault(decide, key, run)
        return EngineWithoutWarmUp(
            parts, EngineSpec(loaded.config, tokenizer(FAMILY), config, script), healthy=lambda: False
        )

    def _inject_fault(self, decide: Decide, key: UtteranceKey, run: int) -> Sequence[int]:
        """Raise the fault of this clause, if any; force no tokens."""
        fault = decide(key, 20 if run >= LATER_CLAUSE else 0)
        if fault is Fault.OUT_OF_MEMORY:
            raise torch.OutOfMemoryError("out of memory")
        elif fault is Fault.RAISE:
            raise RuntimeError("device-side assert triggered")
        elif fault is Fault.FAIL:
            raise SynthesisFailed("the model generated no audio tokens")
        return ()


@asynccontextmanager
async def cosyvoice_client(setup: Setup) -> AsyncIterator[Client]:
    async with Client(LocalConnector(lambda: running(CosyVoiceWorker(setup))), setup.client) as client:
        yield client
