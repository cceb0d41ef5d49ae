"""Long or costly text is read in portions that yield to the event loop."""

from __future__ import annotations

import asyncio
import time

from tests.unit.session.test_flush_after import OBSERVER, RecordingEngine
from tts_worker.session.machine import MachineConfig, SessionMachine
from tts_worker.session.session import LocalSession
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import EndText, Segment, SynthesisParams

PORTION_S = 0.004


class SlowText(TextPipeline):
    """Every portion exceeds the time limit."""

    def feed(self, delta: str | bytes) -> list[Segment]:
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < PORTION_S:
            pass
        return super().feed(delta)


async def test_reading_yields_after_each_costly_portion() -> None:
    config = MachineConfig(read_chars=10)
    machine = SessionMachine("s", SynthesisParams("v"), lambda params: SlowText(), config)
    engine = RecordingEngine()
    session = LocalSession(machine, engine, lead_s=0.04, observer=OBSERVER)
    session.speak("Some words. " * 20)
    session.end_text()
    turns = 0
    while machine.has_unread_text:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 20  # 24 portions, the first of them before the loop continued
    assert isinstance(engine.commands[-1], EndText)
    session.close()
