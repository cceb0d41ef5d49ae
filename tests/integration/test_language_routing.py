"""Utterances in a language that the default voice does not speak go to a voice that does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.conftest import until
from tests.fakes.scrape import scraped
from tests.integration import test_models
from tests.integration.test_models import ManyWorker, fast, many
from tests.integration.test_session import to_end
from tts_worker.errors import IllegalCommand, InvalidRequest
from tts_worker.session.session import LocalSession
from tts_worker.types import Ended, Outcome, PcmFrame, SessionOptions, Started

CHINESE = "您好，请问 WiFi 有什么可以帮您？"
"""A word of it is spoken by every voice."""
SPEAKERS = (("a", "a-one"), ("c", "c-one"), ("a", "c-one"))


@pytest_asyncio.fixture
async def worker() -> AsyncIterator[ManyWorker]:
    """Engines a (English), b (English and German) and c (Chinese), all loaded."""
    async with many(preload=["a", "b", "c"], resident_cap=3) as opened:
        for name in ("b", "c"):
            await opened.load(name)
        yield opened


async def voices_of(session: LocalSession, count: int) -> list[str]:
    """The voices of the next utterances; fails if one of them does not end with audio."""
    voices: list[str] = []
    ended = 0
    async for item in session:
        if isinstance(item, Started):
            voices.append(item.params.voice)
        elif isinstance(item, Ended):
            assert (item.outcome, item.receipt.samples_sent > 0) == (Outcome.DONE, True)
            ended += 1
            if ended == count:
                break
    return voices


async def spoken_by(worker: ManyWorker, options: SessionOptions, *texts: str) -> list[str]:
    session = await worker.hub.admit(options)
    for text in texts:
        session.speak(text)
        session.end_text()
    voices = await voices_of(session, len(texts))
    session.close()
    return voices


async def test_each_utterance_goes_to_a_voice_that_speaks_it(worker: ManyWorker) -> None:
    texts = ["Hello there.", CHINESE, "And 12 more.", "12:30", "我用 WiFi。"]
    assert await spoken_by(worker, fast(), *texts) == ["a-one", "c-one", "a-one", "a-one", "c-one"]


@pytest.mark.parametrize("text", [CHINESE, "“" + CHINESE, "3 个苹果。", "**我用 WiFi**"])
@pytest.mark.parametrize("in_bytes", [False, True], ids=["characters", "bytes"])
async def test_the_voice_does_not_depend_on_the_deltas(worker: ManyWorker, text: str, *, in_bytes: bool) -> None:
    whole = await spoken_by(worker, fast(), text)
    session = await worker.hub.admit(fast())
    session.speak("")  # as language models begin
    for delta in [bytes([byte]) for byte in text.encode()] if in_bytes else text:
        session.speak(delta)
        await asyncio.sleep(0)
    session.end_text()
    assert await voices_of(session, 1) == whole
    session.close()


async def test_text_without_letters_is_spoken_when_it_pauses(worker: ManyWorker) -> None:
    session = await worker.hub.admit(fast(flush_after_ms=10))
    session.speak("12:30 ")
    while not isinstance(item := await session.next(), PcmFrame):
        assert not isinstance(item, Started) or item.params.voice == "a-one"
    session.speak(CHINESE)
    session.end_text()
    assert await voices_of(session, 1) == []  # it keeps its voice
    session.close()


async def test_long_text_without_letters_waits_for_none(worker: ManyWorker) -> None:
    session = await worker.hub.admit(fast())
    session.speak("12:30. " * 60)
    assert next(item.params.voice for item in iter(session.poll, None) if isinstance(item, Started)) == "a-one"
    session.close()


async def test_stop_before_the_voice_is_chosen(worker: ManyWorker) -> None:
    session = await worker.hub.admit(fast())
    session.speak("(")
    session.speak(" ")
    (ended,) = session.stop().ended
    assert await session.next() == ended
    assert (ended.outcome, ended.receipt.text_remaining) == (Outcome.STOPPED, "( ")
    session.speak("(")
    session.pause()
    session.speak(CHINESE)
    session.end_text()
    session.resume()
    assert await voices_of(session, 1) == ["c-one"]
    session.close()


@pytest.mark.parametrize(
    ("options", "text", "voice"),
    [
        (fast(voice="a-one"), CHINESE, "a-one"),
        (fast(language="en"), CHINESE, "a-one"),
        (fast(model="b"), CHINESE, "b-one"),
        (fast(), "Guten Tag, wie geht es Ihnen?", "a-one"),
        (fast(language="de"), "Guten Tag, wie geht es Ihnen?", "b-one"),
        (fast(), "안녕하세요. WiFi.", "a-one"),
        (fast(voice="c-one"), "Hello.", "c-one"),
        (fast(), "**" + CHINESE + "**", "c-one"),
    ],
    ids=[
        "voice",
        "language",
        "model",
        "same script",
        "same script, named",
        "no voice speaks it",
        "other voice",
        "markup",
    ],
)
async def test_what_the_client_names_is_kept(
    worker: ManyWorker, options: SessionOptions, text: str, voice: str
) -> None:
    assert await spoken_by(worker, options, text) == [voice]


async def test_accents_of_one_language_need_no_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_models, "LANGUAGES", {"a": ("en",), "b": ("en-GB", "en-US")})
    async with many(preload=["a", "b"]) as worker:
        session = await worker.hub.admit(fast())
        session.speak("12:30. ")
        assert isinstance(session.poll(), Started), "the voice does not wait for letters"
        session.close()


async def test_language_that_no_voice_speaks_is_refused(worker: ManyWorker) -> None:
    with pytest.raises(InvalidRequest, match="does not speak 'fr'"):
        await worker.hub.admit(fast(language="fr"))


async def test_routing_follows_a_configured_session(worker: ManyWorker) -> None:
    session = await worker.hub.admit(fast())
    used = []
    for options in (fast(), fast(voice="a-two"), fast()):
        worker.hub.configure(session, options)
        session.speak(CHINESE)
        session.end_text()
        used += await voices_of(session, 1)
    assert used == ["c-one", "a-two", "c-one"]
    session.close()


async def test_stop_ends_a_routed_utterance(worker: ManyWorker) -> None:
    session = await worker.hub.admit(fast())
    session.speak(CHINESE * 50)
    async for item in session:
        if isinstance(item, Started):
            break
    session.stop()
    session.speak("Hello.")
    session.end_text()
    async for item in session:
        if isinstance(item, Ended):
            break
    assert item.outcome is Outcome.STOPPED
    assert await voices_of(session, 1) == ["a-one"]
    session.close()


async def test_engine_of_a_routed_utterance_is_in_use(worker: ManyWorker) -> None:
    session = await worker.hub.admit(fast())
    session.speak(CHINESE)
    with pytest.raises(IllegalCommand, match="in use by 1 sessions"):
        await worker.unload("c")
    session.end_text()
    assert await voices_of(session, 1) == ["c-one"]
    session.close()
    await worker.unload("c")
    assert await spoken_by(worker, fast(), CHINESE) == ["a-one"], "it is not loaded"


async def test_routed_utterance_counts_for_its_engine(worker: ManyWorker) -> None:
    await spoken_by(worker, fast(), "Hello there.", CHINESE)
    text = worker.metrics.render()
    for name in ("tts_utterances_total", "tts_first_audio_seconds_count", "tts_queue_wait_seconds_count"):
        by_engine = {(engine, voice): scraped(text, name, engine=engine, voice=voice) for engine, voice in SPEAKERS}
        assert by_engine == {("a", "a-one"): 1, ("c", "c-one"): 1, ("a", "c-one"): 0}, name


async def test_routed_utterance_is_logged_with_its_engine(worker: ManyWorker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tts_worker")
    await spoken_by(worker, fast(), "Hello there.", CHINESE)
    events = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "utterance ended"]
    assert [(event["engine"], event["voice"]) for event in events] == [("a", "a-one"), ("c", "c-one")]


async def speak_after_a_quote(worker: ManyWorker) -> None:
    """Speak Chinese whose first delta does not tell its voice."""
    session = await worker.hub.admit(fast())
    for delta in ("“", CHINESE):
        session.speak(delta)
    session.end_text()
    await voices_of(session, 1)
    session.close()


async def test_voice_chosen_later_is_logged(worker: ManyWorker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tts_worker")
    await speak_after_a_quote(worker)
    (event,) = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "utterance ended"]
    assert (event["engine"], event["voice"], event["text_chars"]) == ("c", "c-one", 1 + len(CHINESE))


async def test_voice_chosen_later_is_counted(worker: ManyWorker) -> None:
    await speak_after_a_quote(worker)
    text = worker.metrics.render()
    for name in ("tts_utterances_total", "tts_first_audio_seconds_count", "tts_queue_wait_seconds_count"):
        assert [scraped(text, name, engine=engine, voice=voice) for engine, voice in SPEAKERS] == [0, 1, 0], name


@pytest.mark.parametrize("free_first", [False, True])
async def test_routed_utterance_outlasts_a_reload(worker: ManyWorker, free_first: bool) -> None:
    session = await worker.hub.admit(fast())
    session.speak(CHINESE)
    await until(lambda: worker.engines["c"].stats.audio_s > 0)
    reloading = asyncio.create_task(worker.models.reload("c", free_first=free_first))
    await until(lambda: worker.models.describe_state("c") == "reloading")
    session.speak(CHINESE)
    session.end_text()
    _, ended = await to_end(session)
    assert (ended.outcome, ended.receipt.text_spoken) == (Outcome.DONE, 2 * CHINESE)
    await reloading


async def test_routing_can_be_turned_off() -> None:
    async with many(voices={"route_by_language": False}) as worker:
        await worker.load("c")
        assert await spoken_by(worker, fast(), CHINESE) == ["a-one"]
