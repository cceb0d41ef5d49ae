"""Calls and downloads at the same time in the streaming engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.contract.engine_contract import PLENTY_SAMPLES
from tests.unit.streaming.engines import PROMPTED, engine, settings
from tts_worker.engine.cosyvoice.bundle.config import V3
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.errors import ErrorCode
from tts_worker.types import Audio, Credit, EndText, Failed, Open, Segment, Speech, Text, UtteranceKey

CALL = UtteranceKey("call", 1)
STEP_S = 0.05


def long_script(key: UtteranceKey, run: int) -> Sequence[int]:
    return [i * 97 % 6000 for i in range(75)] + [6562]


def start(subject: CosyVoiceEngine, key: UtteranceKey, *, paced: bool, converts: bool = False) -> None:
    subject.handle(Open(key, PROMPTED, 36_000, paced))
    if converts:
        subject.handle(Speech(key, tuple(i * 97 % 6_000 for i in range(400))))
        subject.handle(EndText(key))
        return
    for _ in range(1 if paced else 8):
        subject.handle(Text(key, Segment.whole("Hello world and you")))
    subject.handle(EndText(key))


class EngineDriver:
    """Steps an engine and counts the samples of each utterance. Downloads take audio at once."""

    def __init__(self, subject: CosyVoiceEngine) -> None:
        self.subject = subject
        self.now_s = 0.0
        self.samples: dict[UtteranceKey, int] = {}
        self.failed: dict[UtteranceKey, Failed] = {}

    def step(self) -> None:
        self.now_s += STEP_S
        for event in self.subject.step(self.now_s):
            if isinstance(event, Audio):
                self.samples[event.key] = self.samples.get(event.key, 0) + event.samples
                if event.key != CALL:
                    self.subject.handle(Credit(event.key, event.samples))
            elif isinstance(event, Failed):
                self.failed[event.key] = event

    def steps_to_first_audio(self) -> int:
        for steps in range(1, 2_000):
            self.step()
            if CALL in self.samples:
                return steps
        raise AssertionError("the call emitted no audio")


def downloads(count: int) -> list[UtteranceKey]:
    return [UtteranceKey(f"download{i}", 1) for i in range(count)]


@pytest.mark.parametrize(("render_batch", "pages", "converts"), [(1, 60, False), (4, 24, False), (4, 24, True)])
def test_downloads_do_not_delay_first_chunk_of_a_call(render_batch: int, pages: int, converts: bool) -> None:
    config = settings(render_batch=render_batch, pages=pages, smooth_start=False)  # smooth_start depends on real time
    idle = EngineDriver(engine(V3, config, script=long_script))
    start(idle.subject, CALL, paced=True)
    alone = idle.steps_to_first_audio()
    busy = EngineDriver(engine(V3, config, script=long_script))
    for key in downloads(6):
        start(busy.subject, key, paced=False, converts=converts)
    for _ in range(30):
        busy.step()
    assert busy.samples
    start(busy.subject, CALL, paced=True)
    # Emitting finished audio may take every other step.
    assert busy.steps_to_first_audio() <= 2 * alone + 2


def test_every_download_makes_progress() -> None:
    driver = EngineDriver(engine(V3, settings(), script=long_script))
    for key in downloads(6):
        start(driver.subject, key, paced=False)
    for _ in range(400):
        driver.step()
        if len(driver.samples) == 6:
            break
    assert len(driver.samples) == 6
    assert max(driver.samples.values()) <= 6 * 24_000


def test_downloads_leave_slots_to_calls() -> None:
    driver = EngineDriver(engine(V3, settings(max_utterances=8), script=long_script))
    for key in downloads(8):
        start(driver.subject, key, paced=False)
    start(driver.subject, CALL, paced=True)
    driver.step()
    refused = {key: failed.error.code for key, failed in driver.failed.items()}
    assert refused == dict.fromkeys(downloads(8)[6:], ErrorCode.OVER_CAPACITY)


def test_downloads_finish_with_memory_for_one() -> None:
    driver = EngineDriver(engine(V3, settings(pages=12, max_segment_s=8), script=long_script))
    for key in downloads(3):
        driver.subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES, paced=False))
        driver.subject.handle(Text(key, Segment.whole("Hello world and you")))
        driver.subject.handle(EndText(key))
    for _ in range(3_000):
        if not driver.subject.has_work:
            break
        driver.step()
    assert not driver.subject.has_work
    assert sorted(driver.samples) == downloads(3)


def test_calls_start_in_order_of_arrival() -> None:
    """All arrive between two steps. The names of the sessions would give another order."""
    subject = engine("cosyvoice3", settings(smooth_start=False), script=long_script)
    keys = [UtteranceKey(f"s-{number}", 1) for number in (3, 20, 1, 100)]
    for key in keys:
        start(subject, key, paced=True)
    started: list[UtteranceKey] = []
    while len(started) < len(keys):
        for event in subject.step(0.0):
            if isinstance(event, Audio) and event.key not in started:
                started.append(event.key)
    assert started == keys
