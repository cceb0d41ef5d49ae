"""The LiveKit plugin against a real worker: what the framework's own plugin tests demand, and the promises beyond."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest

pytest.importorskip("livekit.agents", reason="needs the extra 'livekit'")

from livekit.agents import (
    APIConnectionError,
    APIConnectOptions,
    APIError,
    APIStatusError,
    APITimeoutError,
    tokenize,
    tts,
)
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT

from tests.behaviour.faults import fault_at
from tests.behaviour.recording_client import RecordingClient
from tests.behaviour.transports import Setup, faulty_worker, serve_setup
from tests.fakes.proxy import proxied
from tts_worker.client import Client, SessionOptions
from tts_worker.client.local import LocalConnector
from tts_worker.engine.tone import Fault
from tts_worker.errors import ErrorCode, ErrorInfo, InvalidRequest
from tts_worker.integrations.livekit import TTS
from tts_worker.integrations.livekit_speech import as_api_error

TEXT = "Hello there, my friend. How are you?"
BRISK = Setup({"engines": {"tone": {"kind": "tone", "ms_per_char": 30}}})
"""A worker that talks fast, for tests that wait for its sound."""

ONCE = APIConnectOptions(max_retry=0, timeout=60.0)


class Take:
    """What came out of a stream."""

    def __init__(self) -> None:
        self.events: list[tts.SynthesizedAudio] = []

    async def listen(self, stream: Any) -> Take:
        async for event in stream:
            self.events.append(event)
        return self

    @property
    def pcm(self) -> bytes:
        return b"".join(event.frame.data.tobytes() for event in self.events)

    @property
    def pieces(self) -> list[Any]:
        return [piece for event in self.events for piece in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT) or []]


class Watch:
    """Every event of a plugin."""

    def __init__(self, plugin: tts.TTS) -> None:
        self.metrics: list[Any] = []
        self.errors: list[Any] = []
        self.receipts: list[Any] = []
        plugin.on("metrics_collected", self.metrics.append)
        plugin.on("error", self.errors.append)
        plugin.on("receipt", self.receipts.append)


@asynccontextmanager
async def speaking(address: str, **options: Any) -> AsyncIterator[tuple[TTS, Watch]]:
    voice = TTS(f"ws://{address}", **options)
    try:
        yield voice, Watch(voice)
    finally:
        await voice.aclose()


@asynccontextmanager
async def plugin(setup: Setup | None = None, **options: Any) -> AsyncIterator[tuple[TTS, Watch]]:
    async with serve_setup(setup or BRISK) as address, speaking(address, **options) as (voice, watch):
        yield voice, watch


def handed_out(voice: TTS) -> int:
    """Samples that the plugin has got of what is being said. What a pause holds back is not among them, however late
    the rest of the way is."""
    live: Any = voice._live
    return sum(ledger.taken_samples for session in live for ledger in session._live)


async def at_once(work: Coroutine[Any, Any, None]) -> None:
    """Let ``work`` have its turns of the event loop; fails if it waits for anything else, however short."""
    task = asyncio.ensure_future(work)
    for _ in range(200):
        await asyncio.sleep(0)
    if not task.done():
        task.cancel()
        raise AssertionError("it waited")
    await task


async def say(voice: tts.TTS, *tokens: str, conn_options: APIConnectOptions = ONCE) -> Take:
    async with voice.stream(conn_options=conn_options) as stream:
        for token in tokens:
            stream.push_text(token)
        stream.end_input()
        return await Take().listen(stream)


async def whole(voice: tts.TTS, text: str, conn_options: APIConnectOptions = ONCE) -> Take:
    async with voice.synthesize(text, conn_options=conn_options) as stream:
        return await Take().listen(stream)


async def test_a_stream_is_one_request_and_one_segment_and_ends_with_the_only_final_frame() -> None:
    async with plugin() as (voice, watch):
        began_s = time.perf_counter()
        take = await say(voice, "Hello there, ", "my friend. ", "How are you?")
        assert len({event.request_id for event in take.events}) == 1
        assert len({event.segment_id for event in take.events}) == 1
        assert all(event.request_id and event.segment_id for event in take.events)
        assert [event.is_final for event in take.events] == [False] * (len(take.events) - 1) + [True]
        assert 0 < take.events[-1].frame.duration <= 0.25
        assert {event.frame.sample_rate for event in take.events} == {24_000}
        [metrics] = watch.metrics
        assert metrics.characters_count == len(TEXT)
        assert metrics.audio_duration == pytest.approx(len(take.pcm) / 48_000, abs=0.011)
        assert 0 < metrics.ttfb < time.perf_counter() - began_s
        assert (metrics.streamed, metrics.cancelled) == (True, False)
        assert metrics.metadata.model_provider == "tts-worker"
        assert not watch.errors
        assert watch.receipts[0].text_spoken == TEXT


async def test_synthesize_says_the_same_and_counts_once() -> None:
    async with plugin() as (voice, watch):
        streamed = await say(voice, TEXT)
        take = await whole(voice, TEXT)
        assert take.pcm == streamed.pcm
        assert len({event.request_id for event in take.events}) == 1
        assert [event.is_final for event in take.events][-1]
        assert "".join(take.pieces) == TEXT
        assert [metrics.streamed for metrics in watch.metrics] == [True, False]
        assert [metrics.connection_reused for metrics in watch.metrics] == [False, True]
        assert watch.metrics[0].acquire_time > 0


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "  two  spaces,\n\na line break\tand a tab. ",
        'It costs $20 – "cheap", **really**, isn\'t it? `code` 🎉',
        "你好,世界。 Mixed text.",
        "x",
    ],
)
async def test_timed_pieces_are_the_original_text(text: str) -> None:
    async with plugin() as (voice, _):
        take = await say(voice, *text)
        assert "".join(take.pieces) == text
        assert take.pieces[0].start_time == 0.0
        starts = [piece.start_time for piece in take.pieces]
        assert starts == sorted(starts)
        assert all(piece.start_time <= piece.end_time <= len(take.pcm) / 48_000 + 0.001 for piece in take.pieces)


async def test_a_piece_comes_with_its_sound_at_the_latest() -> None:
    async with plugin() as (voice, _):
        take = await say(voice, TEXT)
        end_s = 0.0
        for event in take.events:
            end_s += event.frame.duration
            for piece in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT) or []:
                assert piece.start_time >= end_s - event.frame.duration - 0.02, "later than its sound"


@pytest.mark.parametrize("tokens", [(), ("",), ("  ", "\n")])
async def test_a_turn_without_text_ends_cleanly(tokens: tuple[str, ...]) -> None:
    async with plugin() as (voice, watch):
        assert (await say(voice, *tokens)).events == []
        assert (watch.errors, watch.metrics) == ([], [])
        assert voice.counters.streams == 0
        await whole(voice, " ")
        assert watch.errors == []
        assert (await say(voice, TEXT)).events, "and the next turn speaks"


async def test_a_turn_of_which_nothing_can_be_spoken_is_no_fault() -> None:
    async with plugin() as (voice, watch):
        take = await say(voice, "🎉🎉")
        assert len(take.pcm) <= 2 * 480
        assert "".join(take.pieces) == "🎉🎉"
        assert watch.errors == []


async def test_options_take_effect_with_the_next_stream() -> None:
    async with plugin(voice="tone") as (voice, _):
        running = voice.stream(conn_options=ONCE)
        voice.update_options(speed=2.0, voice="tone-low")
        assert voice.model == "tone-low"
        running.push_text(TEXT)
        running.end_input()
        old = await Take().listen(running)
        new = await say(voice, TEXT)
        await running.aclose()
        assert len(new.pcm) == pytest.approx(len(old.pcm) / 2, rel=0.02)
        voice.update_options(speed=1.0)
        assert len((await say(voice, TEXT)).pcm) == pytest.approx(len(old.pcm), rel=0.02)


async def test_prewarm_dials_once_and_tolerates_a_worker_that_is_not_there() -> None:
    async with (
        serve_setup(Setup()) as address,
        proxied(address) as proxy,
        speaking(proxy.address) as (voice, watch),
        speaking("127.0.0.1:1") as (nobody, _),
    ):
        voice.prewarm()
        voice.prewarm()
        assert voice._warming is not None
        await voice._warming
        assert proxy.connections == 1
        await say(voice, "Hi.")
        assert proxy.connections == 1
        assert watch.metrics[0].connection_reused
        nobody.prewarm()
        assert nobody._warming is not None
        await nobody._warming


def test_prewarm_and_construction_need_no_event_loop() -> None:
    TTS("ws://127.0.0.1:1").prewarm()
    with pytest.raises(InvalidRequest):
        TTS("carrier-pigeon://loft")
    with pytest.raises(InvalidRequest):
        TTS(max_ahead_s=0.0)


async def test_cancelling_never_waits_and_says_what_was_spoken() -> None:
    async with (
        serve_setup(Setup()) as address,
        proxied(address) as proxy,
        speaking(proxy.address) as (voice, watch),
    ):
        stream = voice.stream(conn_options=ONCE)
        stream.push_text("A long story that goes on and on, " * 5)
        events = aiter(stream)
        heard_s = 0.0
        while heard_s < 0.5:
            heard_s += (await anext(events)).frame.duration
        proxy.swallow()  # from here on the worker answers nothing
        await at_once(stream.aclose())
        [receipt] = watch.receipts
        assert receipt.reason == "interrupted"
        assert receipt.text_spoken + receipt.text_remaining == "A long story that goes on and on, " * 5
        assert receipt.text_spoken.startswith("A long")
        assert voice.counters.interrupted == 1
        proxy.heal()
        assert (await say(voice, "Next.")).events


async def test_the_worker_is_never_far_ahead() -> None:
    async with plugin(max_ahead_s=0.3) as (voice, _), voice.stream(conn_options=ONCE) as stream:
        began_s = time.monotonic()  # before any sound left the worker, however late the first of it is noticed
        stream.push_text("This goes on for a while. " * 20)
        stream.end_input()
        made_s = 0.0
        async for event in stream:
            made_s += event.frame.duration
            assert made_s <= time.monotonic() - began_s + 0.3 + 0.25, "further ahead than was allowed"
            if made_s > 1.0:
                break


async def test_pause_and_resume_lose_no_sample() -> None:
    text = f"{TEXT} {TEXT}"
    async with plugin(max_ahead_s=0.2) as (voice, _):
        async with Client(LocalConnector(lambda: faulty_worker(BRISK))) as client:
            recorder = RecordingClient((await client.open(SessionOptions(realtime=False))).session)
            whole = recorder.pcm[(await recorder.synthesize(text)).key]
        async with voice.stream(conn_options=ONCE) as stream:
            stream.push_text(text)
            stream.end_input()
            take = Take()
            events = aiter(stream)
            for _ in range(3):
                take.events.append(await anext(events))
            voice.pause()
            voice.pause()
            assert voice.counters.paused == 1
            held_at = handed_out(voice)
            listening = asyncio.ensure_future(take.listen(events))
            await asyncio.sleep(0.5)
            assert handed_out(voice) == held_at, "sound while paused"
            assert len(take.pcm) <= 2 * held_at < len(whole)
            voice.resume()
            await listening
        sound = np.frombuffer(take.pcm, "<i2")
        expected = np.frombuffer(whole, "<i2")
        assert len(sound) - len(expected) in (0, 240), "LiveKit marks a flushed end with 10 ms of silence"
        assert np.array_equal(sound[: len(expected)], expected)


# -- errors -----------------------------------------------------------------------------------------------------------


async def test_nobody_listens() -> None:
    async with speaking("127.0.0.1:1") as (voice, watch):
        with pytest.raises(APIConnectionError):
            await say(voice, TEXT, conn_options=APIConnectOptions(max_retry=2, retry_interval=0.01, timeout=60.0))
        assert [error.recoverable for error in watch.errors] == [True, True, False]
        assert watch.metrics == []


@pytest.mark.parametrize("how", ["stream", "synthesize"])
async def test_a_black_hole_is_a_timeout_per_attempt(how: str) -> None:
    async with (
        serve_setup(Setup()) as address,
        proxied(address) as proxy,
        speaking(proxy.address) as (voice, watch),
    ):
        proxy.swallow()
        options = APIConnectOptions(max_retry=3, retry_interval=0.01, timeout=0.3)
        began_s = time.monotonic()
        speech = say(voice, TEXT, conn_options=options) if how == "stream" else whole(voice, TEXT, options)
        with anyio.fail_after(15.0), pytest.raises(APITimeoutError):
            await speech
        assert time.monotonic() - began_s >= 4 * 0.3
        assert len(watch.errors) == 4
        assert watch.metrics == []


async def test_a_stall_before_the_first_sound_is_a_timeout_and_a_retry_that_works() -> None:
    async with (
        serve_setup(Setup()) as address,
        proxied(address) as proxy,
        speaking(proxy.address) as (voice, watch),
    ):
        await say(voice, "Warm.")
        proxy.swallow()
        # Long enough for the second attempt, whatever else the machine does.
        options = APIConnectOptions(max_retry=1, retry_interval=0.01, timeout=1.5)
        voice.on("error", lambda error: proxy.heal())
        async with voice.stream(conn_options=options) as stream:
            stream.push_text(TEXT)
            stream.end_input()
            take = await Take().listen(stream)
        assert "".join(take.pieces) == TEXT
        assert [type(error.error) for error in watch.errors] == [APITimeoutError]


async def test_a_worker_that_dies_in_the_middle_is_an_error_and_nothing_is_said_twice() -> None:
    async with (
        serve_setup(Setup()) as address,
        proxied(address) as proxy,
        speaking(proxy.address, max_ahead_s=0.2) as (voice, watch),
    ):
        options = APIConnectOptions(max_retry=3, retry_interval=0.01, timeout=60.0)
        async with voice.stream(conn_options=options) as stream:
            stream.push_text("This goes on for a while. " * 20)
            stream.end_input()
            take = Take()
            events = aiter(stream)
            while len(take.pcm) < 24_000:  # half a second: the first word and more
                take.events.append(await anext(events))
            proxy.cut()
            with pytest.raises(APIConnectionError):
                await take.listen(events)
        assert [error.recoverable for error in watch.errors] == [False]
        assert len({event.request_id for event in take.events}) == 1
        assert watch.receipts[0].text_spoken
        assert (await say(voice, "Back again.")).events, "the next turn dials anew"


async def test_a_full_worker_is_429_and_an_unknown_voice_404() -> None:
    async with (
        plugin(Setup({"session": {"max_sessions": 1, "slot_idle_s": 600}})) as (voice, _),
        voice.stream(conn_options=ONCE) as holder,
    ):
        holder.push_text("I hold the only session. ")
        await anext(aiter(holder))
        with pytest.raises(APIStatusError) as busy:
            await say(voice, TEXT)
        assert (busy.value.status_code, busy.value.retryable) == (429, True)
    async with plugin(voice="nobody") as (voice, watch):
        with pytest.raises(APIStatusError) as unknown:
            await say(voice, TEXT, conn_options=APIConnectOptions(max_retry=3, retry_interval=0.01))
        assert (unknown.value.status_code, unknown.value.retryable) == (404, False)
        assert len(watch.errors) == 1, "what cannot help is not retried"


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_has_its_livekit_form(code: ErrorCode) -> None:
    for retryable in (False, True):
        error = as_api_error(ErrorInfo(code, "message", retryable), sent=False)
        assert isinstance(error, APIError)
        assert error.message == "message"
        if isinstance(error, APIStatusError):
            assert 400 <= error.status_code < 600
        assert not as_api_error(ErrorInfo(code, "message", retryable), sent=True).retryable


async def test_an_engine_that_breaks_before_the_first_sound_is_tried_again() -> None:
    async with plugin(Setup(engine=fault_at(Fault.OUT_OF_MEMORY, chunk=0, generation=1))) as (voice, watch):
        take = await say(voice, TEXT, conn_options=APIConnectOptions(max_retry=1, retry_interval=0.01, timeout=60.0))
        assert "".join(take.pieces) == TEXT
        [error] = watch.errors
        assert (error.error.status_code, error.recoverable) == (503, True)
        assert voice.counters.failed == 1


# -- inside the framework's adapters ----------------------------------------------------------------------------------


async def test_the_fallback_adapter_takes_the_worker_that_lives() -> None:
    async with plugin() as (good, _), speaking("127.0.0.1:1") as (dead, _):
        adapter = tts.FallbackAdapter([dead, good], max_retry_per_tts=0)
        take = await say(adapter, TEXT)
        assert len(take.pcm) > 20_000
        assert adapter.capabilities.aligned_transcript
        assert "".join(take.pieces) == TEXT
        await adapter.aclose()


async def test_the_stream_adapter_speaks_sentence_by_sentence() -> None:
    async with plugin() as (voice, _):
        adapter = tts.StreamAdapter(tts=voice, sentence_tokenizer=tokenize.basic.SentenceTokenizer(min_sentence_len=1))
        take = await say(adapter, "This is the first sentence. ", "And here comes the second one.")
        assert voice.counters.streams == 2
        assert len(take.pcm) > 40_000
        await adapter.aclose()


async def test_a_worker_in_this_process_is_the_same() -> None:
    async with Client(LocalConnector(lambda: faulty_worker(BRISK))) as client, plugin() as (remote, _):
        here = TTS(client=client)
        try:
            assert (await say(here, TEXT)).pcm == (await say(remote, TEXT)).pcm
        finally:
            await here.aclose()
        assert (await client.open()).session.id, "a client that was given stays open"


async def test_the_plugin_is_where_livekit_looks_for_it_and_loads_no_engine() -> None:
    code = (
        "import livekit.plugins.tts_worker as plugin, sys; from livekit.agents import Plugin;"
        "assert [p.package for p in Plugin.registered_plugins] == ['livekit.plugins.tts_worker'];"
        "assert plugin.TTS.__module__ == 'tts_worker.integrations.livekit';"
        "assert not {'torch', 'onnxruntime', 'hibari', 'fastapi', 'uvicorn'} & set(sys.modules), 'engine or server'"
    )
    import sys

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE)
    _, error = await process.communicate()
    assert process.returncode == 0, error.decode()[-400:]
