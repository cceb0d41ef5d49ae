"""Local sessions on a real engine thread: control, timeouts, admission, drain and faults."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.conftest import tone_settings
from tests.fakes.clock import in_virtual_time
from tests.fakes.scrape import scraped
from tts_worker.engine.loop import EngineLoop
from tts_worker.engine.tone import Fault, ToneEngine, ToneSettings
from tts_worker.errors import Draining, ErrorCode, InvalidRequest, NotReady, OverCapacity, UnknownVoice
from tts_worker.metrics import Metrics
from tts_worker.session.factory import HubConfig
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.timeouts import fail_after
from tts_worker.types import Acknowledged, Ended, Outcome, Output, PcmFrame, SessionOptions, Started, State, Words
from tts_worker.voices.catalog import VoiceCatalog
from tts_worker.voices.library import VoiceLibrary
from tts_worker.worker import Worker, running_worker

FAST = SessionOptions(realtime=False)
TEXT = "Hello there, my friend. How are you today? I am fine."


async def to_end(session: LocalSession) -> tuple[bytes, Ended]:
    pcm = b""
    async for item in session:
        if isinstance(item, PcmFrame):
            pcm += item.pcm
        elif isinstance(item, Ended):
            return pcm, item
    raise AssertionError("the session closed without an end")


async def say(worker: Worker, text: str, options: SessionOptions = FAST) -> tuple[bytes, Ended]:
    session = worker.hub.open(options)
    session.speak(text)
    session.end_text()
    try:
        return await to_end(session)
    finally:
        session.close()


async def until(session: LocalSession, kind: type[Output]) -> Output:
    while not isinstance(item := await session.next(), kind):
        assert item is not None
    return item


async def test_text_is_spoken_and_reported(worker: Worker) -> None:
    pcm, ended = await say(worker, TEXT)
    assert ended.outcome is Outcome.DONE
    assert ended.receipt.samples_sent == len(pcm) // 2 > 24_000
    assert (ended.receipt.text_spoken, ended.receipt.text_remaining) == (TEXT, "")
    assert [word.text for word in ended.receipt.words] == TEXT.split()


@pytest.mark.parametrize("text", ["", "   ", "🎉🎉", "***", "```\ncode\n```"])
async def test_unspeakable_text_ends_without_error(worker: Worker, text: str) -> None:
    pcm, ended = await say(worker, text)
    assert (pcm, ended.outcome, ended.receipt.reason) == (b"", Outcome.DONE, "nothing_to_speak")
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == text


async def test_pause_frees_the_engine_without_losing_audio(worker: Worker) -> None:
    expected, _ = await say(worker, TEXT)
    engine = worker.engines["tone"]
    session = worker.hub.open(FAST)
    session.speak(TEXT)
    session.end_text()
    got = b""
    for _ in range(10):
        while not isinstance(item := await session.next(), PcmFrame):
            pass
        got += item.pcm
        session.pause()
        ack = await until(session, Acknowledged)
        assert isinstance(ack, Acknowledged)
        assert ack.applied
        assert ack.position_samples == len(got) // 2
        assert session.poll() is None
        # Another utterance runs; the paused one takes no engine step meanwhile.
        before = engine.stats.steps
        await say(worker, "a")
        assert engine.stats.steps - before <= 3
        session.resume()
    rest, ended = await to_end(session)
    assert got + rest == expected
    assert ended.outcome is Outcome.DONE
    session.close()


async def test_no_old_frame_after_stop(worker: Worker) -> None:
    """STOP and a new utterance at every stage of the old one."""
    session = worker.hub.open(FAST)
    for turn in range(300):
        old = session.speak("Some words to be cut off at some point, at any point. ")
        for _ in range(turn % 7):
            await asyncio.sleep(0)
            session.poll()
        session.stop()
        new = session.speak("New.")
        session.end_text()
        is_stopped = False
        while True:
            item = await session.next()
            assert item is not None
            if isinstance(item, Ended) and item.key == old:
                is_stopped = True
                assert item.outcome is Outcome.STOPPED
            elif isinstance(item, Ended):
                assert (item.key, item.outcome) == (new, Outcome.DONE)
                break
            if is_stopped and isinstance(item, PcmFrame | Words):
                assert item.key == new
        assert is_stopped
    session.close()
    assert worker.engines["tone"].live_utterances == 0


@in_virtual_time
async def test_paced_audio_keeps_the_playout_lead() -> None:
    async with running_worker(tone_settings()) as worker:
        session = worker.hub.open(SessionOptions(lead_ms=40))
        session.speak("Some words. " * 10)
        session.end_text()
        clock = asyncio.get_running_loop().time
        total = 0
        first_s = None
        while total < 24_000:
            item = await session.next()
            if isinstance(item, PcmFrame):
                first_s = clock() if first_s is None else first_s
                total += item.samples
                lead_s = total / 24_000 - (clock() - first_s)
                assert 0.020 - 0.002 <= lead_s <= 0.040 + 0.002
        session.close()


async def test_pause_timeout_ends_the_utterance(worker: Worker) -> None:
    session = worker.hub.open(SessionOptions(pause_timeout_s=0.05))
    session.speak(TEXT)
    session.pause()
    ended = await until(session, Ended)
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.receipt.reason) == (Outcome.STOPPED, "pause_timeout")
    assert session.state is State.IDLE
    session.close()


@in_virtual_time
async def test_every_pause_has_its_whole_time() -> None:
    """An utterance may end while it is paused; its pause must not shorten that of the next one."""
    async with running_worker(tone_settings()) as worker:
        session = worker.hub.open(SessionOptions(reports_playback=True, pause_timeout_s=5.0))
        session.speak("One.")
        session.end_text()
        while not isinstance(await session.next(), PcmFrame) or session.buffered_samples:
            pass
        session.pause()
        session.played(24_000)
        assert session.state is State.IDLE
        await asyncio.sleep(4.0)
        session.speak(TEXT)
        session.pause()
        await asyncio.sleep(4.9)
        assert session.state is State.PAUSED
        await asyncio.sleep(0.2)
        assert session.state is State.IDLE
        session.close()


@in_virtual_time
@pytest.mark.parametrize("window_ms", [100, 250])
@pytest.mark.parametrize("rate_hz", [11_025, 24_000, 48_000])
@pytest.mark.parametrize("frame_ms", [20, 95, 200])
async def test_frames_of_any_size_fit_a_small_window(
    monkeypatch: pytest.MonkeyPatch, frame_ms: int, rate_hz: int, window_ms: int
) -> None:
    monkeypatch.setattr("tts_worker.worker.HubConfig", partial(HubConfig, window_ms=window_ms))
    async with running_worker(tone_settings()) as worker:
        options = SessionOptions(realtime=False, frame_ms=frame_ms, sample_rate=rate_hz)
        async with fail_after(60):  # of virtual time
            pcm, ended = await say(worker, TEXT * 3, options)
        assert ended.outcome is Outcome.DONE
        assert ended.receipt.samples_sent == len(pcm) // 2


async def test_text_idle_timeout_ends_the_utterance(worker: Worker) -> None:
    session = worker.hub.open(SessionOptions(realtime=False, text_idle_timeout_s=0.05))
    session.speak("Said this and then")
    _, ended = await to_end(session)
    assert ended.outcome is Outcome.DONE
    assert ended.receipt.text_spoken == "Said this and then"
    session.close()


async def test_queued_utterances_all_end(worker: Worker) -> None:
    session = worker.hub.open(FAST)
    keys = []
    for i in range(5):
        keys.append(session.speak(f"Turn number {i}. "))
        session.end_text()
    order = []
    while len(order) < 10:
        item = await session.next()
        if isinstance(item, Started | Ended):
            order.append((type(item), item.key))
    assert order == [entry for key in keys for entry in ((Started, key), (Ended, key))]
    session.close()


async def test_close_frees_the_session_and_ends_the_iteration(worker: Worker) -> None:
    session = worker.hub.open(FAST)
    session.speak(TEXT * 20)
    await until(session, PcmFrame)
    session.close()
    session.close()
    assert worker.hub.live_sessions == 0
    assert worker.engines["tone"].live_utterances == 0
    kinds = [type(item) async for item in session]
    assert kinds == [Ended]


async def test_unknown_voice_names_are_rejected(worker: Worker) -> None:
    with pytest.raises(UnknownVoice, match="tone-high"):
        worker.hub.open(SessionOptions(voice="tone-hihg"))
    with pytest.raises(InvalidRequest, match="speed"):
        worker.hub.open(SessionOptions(speed=float("nan")))
    with pytest.raises(InvalidRequest, match="seed"):
        worker.hub.open(SessionOptions(seed=-1))
    with pytest.raises(InvalidRequest, match="lexicon"):
        worker.hub.open(SessionOptions(lexicon={"a": 5}))
    assert worker.hub.live_sessions == 0


async def test_over_capacity_recovers() -> None:
    async with running_worker(tone_settings(session={"max_sessions": 2, "slot_idle_s": 600})) as worker:
        first = worker.hub.open()
        second = worker.hub.open()
        with pytest.raises(OverCapacity) as refused:
            worker.hub.open()
        assert refused.value.retry_after_s
        replacement = worker.hub.open(replaces=second)
        assert second.state is State.CLOSED
        first.close()
        worker.hub.open().close()
        replacement.close()


async def test_drain_finishes_utterances_and_opens_no_session(worker: Worker) -> None:
    session = worker.hub.open(FAST)
    session.speak(TEXT)
    session.end_text()
    draining = asyncio.create_task(worker.hub.drain(timeout_s=3_600))
    await asyncio.sleep(0)
    assert not worker.hub.ready
    with pytest.raises(Draining):
        worker.hub.open()
    _, ended = await to_end(session)
    assert ended.outcome is Outcome.DONE
    session.close()
    await draining


async def test_drain_counts_the_sessions_that_it_cuts_off(worker: Worker) -> None:
    for text in ("", TEXT, TEXT):
        session = worker.hub.open(FAST)
        if text:
            session.speak(text)
    assert await worker.hub.drain(timeout_s=0.0) == 2


async def test_drain_closes_idle_sessions(worker: Worker) -> None:
    silent = worker.hub.open(FAST)
    speaking = worker.hub.open(FAST)
    speaking.speak(TEXT)
    speaking.end_text()
    draining = asyncio.create_task(worker.hub.drain(timeout_s=3_600))
    assert await silent.next() is None
    assert not draining.done()
    _, ended = await to_end(speaking)
    assert ended.outcome is Outcome.DONE
    assert await speaking.next() is None, "its turn was the last"
    await draining


async def test_engine_fault_reaches_the_client_and_readiness() -> None:
    settings = ToneSettings(fault=lambda key, chunk: Fault.RAISE if chunk == 3 else None)
    engine = EngineLoop(lambda: ToneEngine(settings), restart_backoff_s=(600.0, 600.0))
    await engine.start()
    try:
        hub = SessionHub(VoiceLibrary(VoiceCatalog()), Metrics(), HubConfig())
        hub.add_engine("tone", "tone", engine)
        session = hub.open(FAST)
        session.speak(TEXT)
        session.end_text()
        _, ended = await to_end(session)
        assert ended.outcome is Outcome.ERROR
        assert ended.error is not None
        assert (ended.error.code, ended.error.retryable) == (ErrorCode.ENGINE_FAULT, True)
        assert not hub.ready
        with pytest.raises(NotReady):
            hub.open()
        session.close()
    finally:
        await engine.stop()


async def test_metrics_count_utterances(worker: Worker) -> None:
    await say(worker, TEXT)
    session = worker.hub.open(FAST)
    session.speak(TEXT)
    await until(session, PcmFrame)
    session.stop()
    await until(session, Ended)
    text = worker.metrics.render().decode()
    session.close()
    assert scraped(text, "tts_utterances_total", code="", outcome="done") == 1
    assert scraped(text, "tts_utterances_total", code="", outcome="stopped") == 1
    assert scraped(text, "tts_first_audio_seconds_count") == 2
    assert scraped(text, "tts_queue_wait_seconds_count") == 2
    assert 'tts_control_seconds_count{command="stop"} 1.0' in text
    assert "tts_sessions 1.0" in text
    assert "Hello" not in text


async def test_downloads_leave_a_quarter_of_the_sessions() -> None:
    async with running_worker(tone_settings(session={"max_sessions": 8})) as worker:
        for _ in range(6):
            worker.hub.open(FAST).speak("One. " * 1_000)
        with pytest.raises(OverCapacity, match="6 sessions for downloads"):
            worker.hub.open(FAST)
        assert worker.hub.open(SessionOptions(realtime=True)).paced
        assert worker.hub.open(SessionOptions(realtime=False, own_clock=True)).paced
