"""Text normalization in a worker: its default, language and word offsets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.conftest import tone_settings
from tests.integration.test_session import say
from tts_worker.errors import InvalidRequest, MissingExtra
from tts_worker.metrics import Metrics
from tts_worker.session.factory import HubConfig
from tts_worker.session.hub import SessionHub
from tts_worker.session.normalizing import SegmentNormalizer
from tts_worker.text.normalizer import load_normalizer
from tts_worker.types import Alignment, Command, EngineInfo, Event, Outcome, SessionOptions, Text
from tts_worker.voices import VoiceCatalog
from tts_worker.worker import Worker, running_worker

ASKED = SessionOptions(realtime=False, normalise=True)


async def test_disabled_normalization_cannot_be_requested() -> None:
    async with running_worker(tone_settings(text={"normalise": False})) as worker:
        with pytest.raises(InvalidRequest, match="normalization is disabled"):
            worker.hub.open(ASKED)
        assert worker.hub.live_sessions == 0


async def test_missing_wetext_is_named_to_who_requests_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wetext", None)
    async with running_worker(tone_settings()) as worker:
        with pytest.raises(MissingExtra, match=r"pip install .*\[normalise\]"):
            worker.hub.open(ASKED)


async def test_numbers_are_expanded_and_words_keep_their_offsets(worker: Worker) -> None:
    pytest.importorskip("wetext", reason='needs the extra "normalise"')
    plain, _ = await say(worker, "I paid $100.")
    written, _ = await say(worker, "I paid one hundred dollars.")
    normalized, ended = await say(worker, "I paid $100.", ASKED)
    assert len(normalized) == len(written) > len(plain)
    assert (ended.outcome, ended.receipt.text_spoken) == (Outcome.DONE, "I paid $100.")
    assert {word.text for word in ended.receipt.words} == {"I", "paid", "$100."}


class RecordingEngine:
    """An engine with the languages of CosyVoice that records its text."""

    def __init__(self, *, reads_numbers: bool = False, front_end: bool = False) -> None:
        self.ready = True
        self.lost = False
        self.stats = SimpleNamespace(busy_s=0.0, audio_s=0.0)
        languages = ("zh", "en", "ja", "ko", "yue")
        self.info = EngineInfo(
            "cosyvoice", ("v",), languages, Alignment.ESTIMATED, 4, reads_numbers=reads_numbers, front_end=front_end
        )
        self.texts: asyncio.Queue[str] = asyncio.Queue()

    def post(self, command: Command) -> None:
        if isinstance(command, Text):
            self.texts.put_nowait(command.segment.text)

    def subscribe(self, session: str, callback: Callable[[Event], None]) -> None: ...

    def unsubscribe(self, session: str) -> None: ...


async def first_text_of(
    engine: RecordingEngine,
    normalizer: SegmentNormalizer | None,
    text: str,
    language: str | None = None,
    normalise: bool | None = None,
) -> str:
    hub = SessionHub(VoiceCatalog(), Metrics(), HubConfig(normalizer=normalizer))
    hub.add_engine("cosy", "cosyvoice", engine)
    session = hub.open(SessionOptions(language=language, normalise=normalise))
    try:
        session.speak(text)
        session.end_text()
        return await engine.texts.get()
    finally:
        session.close()
        if normalizer is not None:
            normalizer.close()


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        (None, "I paid $100 at 10:30.", "I paid one hundred dollars at ten thirty."),
        (None, "10:30.", "ten thirty."),
        (None, "我有100元。", "我有一百元。"),
        ("zh", "10:30。", "十点三十分。"),
    ],
)
async def test_numbers_are_expanded_in_the_text_language(language: str | None, text: str, expected: str) -> None:
    pytest.importorskip("wetext", reason='needs the extra "normalise"')
    assert await first_text_of(RecordingEngine(), SegmentNormalizer(load_normalizer()), text, language) == expected


async def test_engine_that_reads_numbers_gets_unnormalized_text() -> None:
    normalizer = SegmentNormalizer(lambda text, language: "rewritten")
    assert await first_text_of(RecordingEngine(reads_numbers=True), normalizer, "I paid $100.") == "I paid $100."


@pytest.mark.parametrize(
    ("normalise", "text", "expected"),
    [
        (None, "I have 3 apples", "I have three apples."),
        (None, "我 喜欢（很）m².", "我喜欢很m平方。"),
        (False, "I have 3 apples", "I have 3 apples"),
    ],
)
async def test_front_end_rules_need_no_wetext(normalise: bool | None, text: str, expected: str) -> None:
    engine = RecordingEngine(front_end=True)
    assert await first_text_of(engine, None, text, normalise=normalise) == expected


async def test_front_end_rules_follow_normalization() -> None:
    normalizer = SegmentNormalizer(lambda text, language: text.replace("$5.50", "5 dollars 50"))
    engine = RecordingEngine(front_end=True)
    assert await first_text_of(engine, normalizer, "It is $5.50", "en") == "It is five dollars fifty."
