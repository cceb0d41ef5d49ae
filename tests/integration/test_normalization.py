"""Text normalization in a worker: its default, language and word offsets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import tone_settings, until
from tests.integration.test_session import say
from tts_worker.errors import MissingExtra
from tts_worker.front_end.normalizer import Normalize, load_normalizer
from tts_worker.metrics import Metrics
from tts_worker.session import hub as hub_module
from tts_worker.session.factory import HubConfig
from tts_worker.session.hub import SessionHub
from tts_worker.session.normalizing import SegmentNormalizer
from tts_worker.types import Alignment, Command, EndText, EngineInfo, Event, Outcome, SessionOptions, Text
from tts_worker.voices.catalog import VoiceCatalog
from tts_worker.voices.library import VoiceLibrary
from tts_worker.worker import Worker, running_worker

ASKED = SessionOptions(realtime=False, normalize=True)


async def test_missing_wetext_is_named_to_who_requests_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wetext", None)
    async with running_worker(tone_settings(text={"reading": "reference"})) as worker:
        worker.hub.open(SessionOptions(realtime=False)).close()  # starts without it
        with pytest.raises(MissingExtra, match=r"pip install .*\[normalize\]"):
            worker.hub.open(ASKED)


async def test_own_reading_needs_no_wetext(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wetext", None)
    async with running_worker(tone_settings()) as worker:
        worker.hub.open(ASKED).close()
        assert worker.hub.config.normalizer is None  # and no thread


async def test_numbers_are_expanded_and_words_keep_their_offsets(worker: Worker) -> None:
    plain, _ = await say(worker, "我有100元。", SessionOptions(realtime=False, normalize=False))
    written, _ = await say(worker, "我有一百元。")
    normalized, ended = await say(worker, "我有100元。", ASKED)
    assert len(normalized) == len(written) != len(plain)
    assert (ended.outcome, ended.receipt.text_spoken) == (Outcome.DONE, "我有100元。")
    assert [word.text for word in ended.receipt.words] == ["我", "有", "100元。"]


class RecordingEngine:
    """An engine with the languages of CosyVoice, or others, that records its text."""

    def __init__(self, *languages: str, front_end: bool = True) -> None:
        self.ready = True
        self.lost = False
        self.stats = SimpleNamespace(busy_s=0.0, audio_s=0.0)
        spoken = languages or ("zh", "en", "ja", "ko", "yue")
        self.info = EngineInfo("cosyvoice", ("v",), spoken, Alignment.ESTIMATED, 4, front_end=front_end)
        self.texts: asyncio.Queue[str] = asyncio.Queue()

    def post(self, command: Command) -> None:
        if isinstance(command, Text):
            self.texts.put_nowait(command.segment.text)
        if isinstance(command, EndText):
            self.texts.put_nowait("")

    def subscribe(self, session: str, callback: Callable[[Event], None]) -> None: ...

    def unsubscribe(self, session: str) -> None: ...


async def text_for(engine: RecordingEngine, text: str, config: HubConfig | None = None, **options: Any) -> str:
    """The text that reaches an engine, all segments together."""
    hub = SessionHub(VoiceLibrary(VoiceCatalog()), Metrics(), config or HubConfig())
    hub.add_engine("cosy", "cosyvoice", engine)
    session = hub.open(SessionOptions(**options))
    try:
        session.speak(text)
        session.end_text()
        found = ""
        while segment := await engine.texts.get():
            found += segment
        return found
    finally:
        session.close()
        if hub.config.normalizer is not None:
            hub.config.normalizer.close()


def by_reference(normalize: Normalize | None = None) -> HubConfig:
    return HubConfig(reading="reference", normalizer=None if normalize is None else SegmentNormalizer(normalize))


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        (None, "I paid $100 at 10:30.", "I paid one hundred dollars at ten thirty."),
        (None, "10:30.", "ten thirty."),
        (None, "我有100元。", "我有一百元。"),
        ("zh", "10:30。", "十点三十分。"),
    ],
)
async def test_wetext_reads_in_the_text_language(language: str | None, text: str, expected: str) -> None:
    pytest.importorskip("wetext", reason='needs the extra "normalize"')
    assert await text_for(RecordingEngine(), text, by_reference(load_normalizer()), language=language) == expected


@pytest.mark.parametrize(
    ("config", "normalize", "text", "expected"),
    [
        (HubConfig(), None, "我 喜欢（很）3m².", "我喜欢很三平方米。"),
        (HubConfig(), True, "价格是￥12.50", "价格是十二元五角。"),
        (HubConfig(), False, "我有 3 个", "我有 3 个"),
        (by_reference(), None, "I have 3 kg", "I have three kg."),
        (by_reference(), None, "我有 3m²", "我有3m平方。"),
        (by_reference(), False, "I have 3 apples", "I have 3 apples"),
        (
            by_reference(lambda text, language: text.replace("$5.50", "5 dollars 50")),
            None,
            "It is $5.50",
            "It is five dollars fifty.",
        ),
    ],
)
async def test_setting_and_option_say_who_reads(
    config: HubConfig, normalize: bool | None, text: str, expected: str
) -> None:
    assert await text_for(RecordingEngine(), text, config, normalize=normalize) == expected


SENTENCES = (
    "It costs $5.50, about 20% off on 12/25/2024 at 10:30 am.",
    "Your code is 482913. Call 555-1234 by Dec. 15th",
    "The answer is no.",
    "We need 5 kg of flour, 2 l of milk & 3 eggs; add .5 mg.",
    "World War II ended in 1945!",
    "See https://acme.io/docs, **now**: 3/4 of 60 is 45",
)


@pytest.mark.parametrize("text", SENTENCES)
async def test_cosyvoice_reads_english_as_the_cpu_voice(text: str) -> None:
    cpu = await text_for(RecordingEngine("en", front_end=False), text)
    assert await text_for(RecordingEngine(), text) == (cpu if cpu[-1] in ".!?" else f"{cpu}.")


async def test_engine_by_word_gets_words() -> None:
    engine = RecordingEngine(front_end=False)
    engine.info = replace(engine.info, text_by_word=True)
    assert await text_for(engine, "我有 3m² 和 5 apples ") == "我有 三平方米 和 五 apples"


async def test_readings_are_loaded_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: set[str | None] = set()
    monkeypatch.setattr(hub_module, "rewrites_of", loaded.add)
    hub = SessionHub(VoiceLibrary(VoiceCatalog()), Metrics(), HubConfig())
    hub.add_engine("cosyvoice", "cosyvoice", RecordingEngine("de", "fr-CA"))
    await until(lambda: loaded == {"de", "fr"})
