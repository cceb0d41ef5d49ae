"""Stored voices are read beside the engine thread: a slow disk delays only the utterances that wait for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput
from tests.fakes.opened_files import opened_files
from tests.unit.streaming.engines import (
    KEY,
    PROMPTED,
    bundle,
    networks,
    run_until_idle,
    settings,
    synthesize,
    tokenizer,
    voice,
)
from tests.unit.streaming.test_engine import ResourceUsage
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.token_generator import EngineSpec
from tts_worker.engine.cosyvoice.voices import cache
from tts_worker.engine.loop import EngineLoop
from tts_worker.errors import BundleError, ErrorCode
from tts_worker.types import (
    Cancel,
    Done,
    EndText,
    Event,
    Failed,
    Hold,
    Open,
    Release,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
)
from tts_worker.voices.files import Voice, load_voice, save_voice

FAMILY = "cosyvoice3"
STORED = SynthesisParams("alice", seed=3)
TEXT = (Segment.whole("Hello you"),)


def engine_with_stored_voices(folder: Path) -> CosyVoiceEngine:
    config = settings()
    parts = Components.build(networks(FAMILY), tokenizer(FAMILY), {"prompted": voice(FAMILY)}, config, stored=folder)
    return CosyVoiceEngine(parts, EngineSpec(bundle(FAMILY).config, tokenizer(FAMILY), config))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_voice(tmp_path, "alice", voice(FAMILY))
    return tmp_path


class SlowDisk:
    """Blocks the reading of voices until ``ready`` is set, and records the reading threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready = threading.Event()
        self.threads: set[str] = set()

        def load(root: Path, name: str, *, deleted: bool = False) -> Voice:
            self.threads.add(threading.current_thread().name)
            assert self.ready.wait(60)
            return load_voice(root, name, deleted=deleted)

        monkeypatch.setattr(cache, "load_voice", load)


def open_utterance(subject: CosyVoiceEngine, key: UtteranceKey, params: SynthesisParams) -> None:
    subject.handle(Open(key, params, PLENTY_SAMPLES))
    subject.handle(Text(key, TEXT[0]))
    subject.handle(EndText(key))


def test_slow_disk_does_not_delay_other_calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    subject = engine_with_stored_voices(folder)
    expected = synthesize(subject, TEXT)
    woken = threading.Event()
    subject.on_work(woken.set)
    open_utterance(subject, UtteranceKey("stored", 1), STORED)
    assert not subject.has_work, "a voice that is being read needs no step"
    other = UtteranceKey("other", 1)
    open_utterance(subject, other, PROMPTED)
    outputs = {other: EngineOutput()}
    while subject.has_work:
        for event in subject.step(0.0):
            outputs[event.key].audio.append(event) if not isinstance(event, Done | Failed) else None
    assert outputs[other].pcm == expected.pcm
    assert not woken.is_set()
    disk.ready.set()
    assert woken.wait(60)
    assert subject.has_work
    outputs = {}
    run_until_idle(subject, outputs)
    assert outputs[UtteranceKey("stored", 1)].ends == [Done(UtteranceKey("stored", 1))]
    assert disk.threads == {"tts-voices"}
    subject.close()


def test_stored_voices_open_no_file_on_the_engine_thread(folder: Path) -> None:
    subject = engine_with_stored_voices(folder)
    subject.warm_up()
    with opened_files() as files:
        first = synthesize(subject, TEXT, STORED)
        again = synthesize(subject, TEXT, STORED)
        unknown = synthesize(subject, TEXT, SynthesisParams("bob"))
    assert first.ends == again.ends == [Done(KEY)]
    assert isinstance(unknown.ends[0], Failed)
    assert files == []
    subject.close()


def test_stored_voice_speaks_like_the_same_voice_in_memory(folder: Path) -> None:
    subject = engine_with_stored_voices(folder)
    assert synthesize(subject, TEXT, STORED).pcm == synthesize(subject, TEXT).pcm
    subject.close()


@pytest.mark.parametrize("name", ["bob", "", "../alice", "a" * 300])
def test_unknown_stored_voice_is_refused(folder: Path, name: str) -> None:
    subject = engine_with_stored_voices(folder)
    free = ResourceUsage.of(subject)
    output = synthesize(subject, TEXT, SynthesisParams(name))
    (end,) = output.ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.UNKNOWN_VOICE
    assert "alice" in end.error.message
    assert ResourceUsage.of(subject) == free
    subject.close()


def test_damaged_stored_voice_fails_its_utterance_only(folder: Path) -> None:
    (folder / "alice" / "voice.safetensors").write_bytes(b"damaged")
    subject = engine_with_stored_voices(folder)
    (end,) = synthesize(subject, TEXT, STORED).ends
    assert isinstance(end, Failed)
    assert end.error.code is BundleError.code
    assert synthesize(subject, TEXT).ends == [Done(KEY)]
    subject.close()


def test_cancel_while_a_voice_is_read_frees_resources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    subject = engine_with_stored_voices(folder)
    free = ResourceUsage.of(subject)
    open_utterance(subject, KEY, STORED)
    subject.handle(Cancel(KEY))
    assert ResourceUsage.of(subject) == free
    disk.ready.set()
    assert synthesize(subject, TEXT, STORED).ends == [Done(KEY)]
    subject.close()


def test_held_utterance_takes_its_voice_after_release(folder: Path) -> None:
    subject = engine_with_stored_voices(folder)
    open_utterance(subject, KEY, STORED)
    subject.handle(Hold(KEY))
    assert subject.wait_for_work()
    assert not subject.has_work
    subject.handle(Release(KEY))
    outputs = {KEY: EngineOutput()}
    run_until_idle(subject, outputs)
    assert outputs[KEY].ends == [Done(KEY)]
    subject.close()


async def test_engine_thread_is_woken_when_a_voice_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    loop = EngineLoop(lambda: engine_with_stored_voices(folder))
    events: asyncio.Queue[Event] = asyncio.Queue()
    loop.subscribe("test", events.put_nowait)
    await loop.start()
    try:
        loop.post(Open(KEY, STORED, PLENTY_SAMPLES))
        loop.post(Text(KEY, TEXT[0]))
        loop.post(EndText(KEY))
        disk.ready.set()
        while not isinstance(event := await events.get(), Done | Failed):
            pass
        assert event == Done(KEY)
    finally:
        await loop.stop()
