"""Calls beside downloads in the streaming engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.contract.engine_contract import PLENTY_SAMPLES
from tests.unit.streaming.engines import PROMPTED, engine, settings
from tts_worker.engine.cosyvoice.config import V3
from tts_worker.engine.streaming.engine import CosyVoiceEngine
from tts_worker.engine.streaming.utterance import plain_segment
from tts_worker.errors import ErrorCode
from tts_worker.types import Audio, Credit, EndText, Failed, Open, Text, UtteranceKey

CALL = UtteranceKey("call", 1)
STEP_S = 0.05


def long_script(key: UtteranceKey, run: int) -> Sequence[int]:
    return [i * 97 % 6000 for i in range(150)] + [6562]


def begin(subject: CosyVoiceEngine, key: UtteranceKey, *, paced: bool) -> None:
    subject.handle(Open(key, PROMPTED, 36_000, paced))
    for _ in range(1 if paced else 20):
        subject.handle(Text(key, plain_segment("Hello world and you")))
    subject.handle(EndText(key))


class Clock:
    """Steps an engine; downloads take audio at once. Counts each utterance's samples."""

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
        raise AssertionError("the call was never heard")


def downloads(count: int) -> list[UtteranceKey]:
    return [UtteranceKey(f"download{i}", 1) for i in range(count)]


@pytest.mark.parametrize(("render_batch", "pages"), [(1, 60), (4, 24)])
def test_a_first_chunk_beside_downloads_comes_in_time(render_batch: int, pages: int) -> None:
    config = settings(render_batch=render_batch, pages=pages, smooth_start=False)  # which depends on real time
    idle = Clock(engine(V3, config, script=long_script))
    begin(idle.subject, CALL, paced=True)
    alone = idle.steps_to_first_audio()
    is_busy = Clock(engine(V3, config, script=long_script))
    for key in downloads(6):
        begin(is_busy.subject, key, paced=False)
    for _ in range(60):
        is_busy.step()
    assert is_busy.samples
    begin(is_busy.subject, CALL, paced=True)
    # Sending what is ready may take every other step.
    assert is_busy.steps_to_first_audio() <= 2 * alone + 2


def test_every_download_is_heard_soon() -> None:
    clock = Clock(engine(V3, settings(), script=long_script))
    for key in downloads(6):
        begin(clock.subject, key, paced=False)
    for _ in range(400):
        clock.step()
        if len(clock.samples) == 6:
            break
    assert len(clock.samples) == 6
    assert max(clock.samples.values()) <= 6 * 24_000


def test_downloads_leave_slots_to_calls() -> None:
    clock = Clock(engine(V3, settings(max_utterances=8), script=long_script))
    for key in downloads(8):
        begin(clock.subject, key, paced=False)
    begin(clock.subject, CALL, paced=True)
    clock.step()
    refused = {key: failed.error.code for key, failed in clock.failed.items()}
    assert refused == dict.fromkeys(downloads(8)[6:], ErrorCode.OVER_CAPACITY)


def test_downloads_end_where_memory_is_for_one_at_a_time() -> None:
    clock = Clock(engine(V3, settings(pages=12, max_passage_s=8), script=long_script))
    for key in downloads(3):
        clock.subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES, paced=False))
        clock.subject.handle(Text(key, plain_segment("Hello world and you")))
        clock.subject.handle(EndText(key))
    for _ in range(3_000):
        if not clock.subject.has_work:
            break
        clock.step()
    assert not clock.subject.has_work
    assert sorted(clock.samples) == downloads(3)
