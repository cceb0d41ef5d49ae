"""The LiveKit plugin against a real worker: the framework's plugin contract and the guarantees beyond it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
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

from livekit.plugins.tts_worker import TTS
from livekit.plugins.tts_worker.speech import as_api_error
from tests.behavior.faults import fault_at
from tests.behavior.recording_client import RecordingClient
from tests.behavior.transports import Setup, end_speech, faulty_worker, serve_setup, serve_worker
from tests.conftest import until
from tests.fakes.clock import measure_stalls
from tests.fakes.proxy import run_proxy
from tests.fakes.reading import read
from tts_worker.client import Client, SessionOptions, connect
from tts_worker.engine.tone import Fault
from tts_worker.errors import ErrorCode, ErrorInfo, InvalidRequest
from tts_worker.local import LocalConnector
from tts_worker.types import NEUTRAL, UrlMode

TEXT = "Hello there, my friend. How are you?"
BRISK = Setup({"engines": {"tone": {"kind": "tone", "ms_per_char": 30}}})
"""A worker with short characters, for tests that wait for its audio."""

ONCE = APIConnectOptions(max_retry=0, timeout=60.0)


class StreamOutput:
    """Collects the audio and the timed words of a stream."""

    def __init__(self) -> None:
        self.events: list[tts.SynthesizedAudio] = []

    async def collect(self, stream: Any) -> StreamOutput:
        async for event in stream:
            self.events.append(event)
        return self

    @property
    def pcm(self) -> bytes:
        return b"".join(event.frame.data.tobytes() for event in self.events)

    @property
    def timed_words(self) -> list[Any]:
        return [
            timed_word
            for event in self.events
            for timed_word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT) or []
        ]


class PluginEvents:
    """Records the metrics, errors and playback reports of a plugin."""

    def __init__(self, plugin: tts.TTS) -> None:
        self.metrics: list[Any] = []
        self.errors: list[Any] = []
        self.receipts: list[Any] = []
        plugin.on("metrics_collected", self.metrics.append)
        plugin.on("error", self.errors.append)
        plugin.on("receipt", self.receipts.append)


@asynccontextmanager
async def connect_plugin(address: str, **options: Any) -> AsyncIterator[tuple[TTS, PluginEvents]]:
    voice = TTS(f"ws://{address}", **options)
    try:
        yield voice, PluginEvents(voice)
    finally:
        await voice.aclose()


@asynccontextmanager
async def serve_plugin(setup: Setup | None = None, **options: Any) -> AsyncIterator[tuple[TTS, PluginEvents]]:
    async with serve_setup(setup or BRISK) as address, connect_plugin(address, **options) as (voice, recorded):
        yield voice, recorded


def delivered_samples(voice: TTS) -> int:
    """Samples of the live streams delivered to the plugin; audio held back by a pause is not included."""
    live: Any = voice._live
    return sum(utterance.delivered_samples for session in live for utterance in session._live)


async def run_without_waiting(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` for some turns of the event loop; fails if it waits for a timer or for I/O."""
    task = asyncio.ensure_future(work)
    for _ in range(200):
        await asyncio.sleep(0)
    if not task.done():
        task.cancel()
        raise AssertionError("it waited")
    await task


async def stream_text(voice: tts.TTS, *tokens: str, conn_options: APIConnectOptions = ONCE) -> StreamOutput:
    async with voice.stream(conn_options=conn_options) as stream:
        for token in tokens:
            stream.push_text(token)
        stream.end_input()
        return await StreamOutput().collect(stream)


async def synthesize_text(voice: tts.TTS, text: str, conn_options: APIConnectOptions = ONCE) -> StreamOutput:
    async with voice.synthesize(text, conn_options=conn_options) as stream:
        return await StreamOutput().collect(stream)


async def test_stream_is_one_request_with_one_final_frame() -> None:
    async with serve_plugin() as (voice, recorded):
        began_s = time.perf_counter()
        output = await stream_text(voice, "Hello there, ", "my friend. ", "How are you?")
        assert len({event.request_id for event in output.events}) == 1
        assert len({event.segment_id for event in output.events}) == 1
        assert all(event.request_id and event.segment_id for event in output.events)
        assert [event.is_final for event in output.events] == [False] * (len(output.events) - 1) + [True]
        assert 0 < output.events[-1].frame.duration <= 0.25
        assert {event.frame.sample_rate for event in output.events} == {24_000}
        [metrics] = recorded.metrics
        assert metrics.characters_count == len(TEXT)
        assert metrics.audio_duration == pytest.approx(len(output.pcm) / 48_000, abs=0.011)
        assert 0 < metrics.ttfb < time.perf_counter() - began_s
        assert (metrics.streamed, metrics.cancelled) == (True, False)
        assert (metrics.metadata.model_provider, metrics.metadata.model_name) == ("tts-worker", "tone")
        assert not recorded.errors
        assert recorded.receipts[0].text_spoken == TEXT


async def test_synthesize_matches_stream_and_counts_once() -> None:
    async with serve_plugin() as (voice, recorded):
        streamed = await stream_text(voice, TEXT)
        output = await synthesize_text(voice, TEXT)
        assert output.pcm == streamed.pcm
        assert len({event.request_id for event in output.events}) == 1
        assert [event.is_final for event in output.events][-1]
        assert "".join(output.timed_words) == TEXT
        assert [metrics.streamed for metrics in recorded.metrics] == [True, False]
        assert [metrics.connection_reused for metrics in recorded.metrics] == [False, True]
        assert recorded.metrics[0].acquire_time > 0


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
async def test_timed_words_join_to_the_original_text(text: str) -> None:
    async with serve_plugin() as (voice, _):
        output = await stream_text(voice, *text)
        assert "".join(output.timed_words) == text
        assert output.timed_words[0].start_time == 0.0
        starts = [timed_word.start_time for timed_word in output.timed_words]
        assert starts == sorted(starts)
        assert all(
            timed_word.start_time <= timed_word.end_time <= len(output.pcm) / 48_000 + 0.001
            for timed_word in output.timed_words
        )


async def test_transcript_of_a_truncated_stream_ends_with_its_speech() -> None:
    async with serve_plugin(Setup(engine=fault_at(Fault.TRUNCATE, chunk=5, generation=1))) as (voice, recorded):
        output = await stream_text(voice, "This goes on for a while. " * 20)
        [report] = recorded.receipts
        spoken = report.text_spoken.split()
        transcript = "".join(output.timed_words).split()
        assert spoken
        assert transcript[: len(spoken)] == spoken
        assert len(transcript) <= len(spoken) + 1, "at most the word that was cut follows"


async def test_timed_word_arrives_before_its_audio_ends() -> None:
    async with serve_plugin() as (voice, _):
        output = await stream_text(voice, TEXT)
        end_s = 0.0
        for event in output.events:
            end_s += event.frame.duration
            for timed_word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT) or []:
                assert timed_word.start_time >= end_s - event.frame.duration - 0.02, "later than its audio"


@pytest.mark.parametrize("tokens", [(), ("",), ("  ", "\n")])
async def test_turn_without_text_ends_without_error(tokens: tuple[str, ...]) -> None:
    async with serve_plugin() as (voice, recorded):
        assert (await stream_text(voice, *tokens)).events == []
        assert (recorded.errors, recorded.metrics) == ([], [])
        assert voice.counters.streams == 0
        await synthesize_text(voice, " ")
        assert recorded.errors == []
        assert (await stream_text(voice, TEXT)).events, "the next stream plays"


async def test_unspeakable_text_is_no_error() -> None:
    async with serve_plugin() as (voice, recorded):
        output = await stream_text(voice, "🎉🎉")
        assert len(output.pcm) <= 2 * 480
        assert "".join(output.timed_words) == "🎉🎉"
        assert recorded.errors == []


async def test_transcript_leaves_skipped_text_out() -> None:
    text = "Hello 你好, my friend. Привет, Anna. It ends in 世界."
    async with serve_plugin(Setup({"engines": {"hibari": {"kind": "hibari"}}})) as (voice, recorded):
        output = await stream_text(voice, *text)
        assert "".join(output.timed_words) == "Hello, my friend. Anna. It ends in."
        (receipt,) = recorded.receipts
        assert receipt.text_heard == "Hello, my friend. Anna. It ends in."
        assert [text[run.start : run.end] for run in receipt.skipped] == ["你好", "Привет", "世界"]


async def test_options_apply_to_the_next_stream() -> None:
    async with serve_plugin(voice="tone") as (voice, _):
        running = voice.stream(conn_options=ONCE)
        voice.update_options(speed=2.0, voice="tone-low")
        running.push_text(TEXT)
        running.end_input()
        old = await StreamOutput().collect(running)
        new = await stream_text(voice, TEXT)
        await running.aclose()
        assert len(new.pcm) == pytest.approx(len(old.pcm) / 2, rel=0.02)
        voice.update_options(speed=1.0)
        assert len((await stream_text(voice, TEXT)).pcm) == pytest.approx(len(old.pcm), rel=0.02)


OPTION_CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "voice": ({"voice": "tone-high"}, {"voice": "tone-high"}, "Hi there."),
    "speed": ({"speed": 2.0}, {"speed": 2.0}, "Hi there."),
    "seed": ({"seed": 7}, {"seed": 7}, "Hi there."),
    "lexicon": ({"lexicon": {"Hill": "Valley"}}, {"lexicon": {"Hill": "Valley"}}, "Dr Hill."),
    "markdown": ({"markdown": False}, {"markdown": False}, "This is <b>bold</b>."),
    "urls": ({"urls": "host"}, {"urls": UrlMode.HOST}, "See https://example.com/a/b now."),
    "normalize": ({"normalize": False}, {"normalize": False}, "It takes 2h 15m."),
    "8 kHz": ({"sample_rate": 8_000}, {"sample_rate": 8_000}, "Hi there."),
    "48 kHz": ({"sample_rate": 48_000}, {"sample_rate": 48_000}, "Hi there."),
}
"""Options of the plugin, the same options of a session, and a text on which they have an effect."""


async def test_options_change_the_audio_as_those_of_a_session_do() -> None:
    async with serve_setup(BRISK) as address, connect(f"ws://{address}") as client:

        async def expected(text: str, **options: Any) -> bytes:
            recorder = RecordingClient((await client.open(SessionOptions(realtime=False, **options))).session)
            return recorder.pcm[(await recorder.synthesize(text)).key]

        for name, (options, session_options, text) in OPTION_CASES.items():
            pcm = await expected(text, **session_options)
            assert pcm != await expected(text), f"{name} has no effect on the text"
            async with connect_plugin(address, realtime=False, **options) as (voice, recorded):
                frame = await voice.synthesize(text, conn_options=ONCE).collect()
                assert frame.sample_rate == voice.sample_rate == options.get("sample_rate", 24_000)
                assert frame.data.tobytes()[: len(pcm)] == pcm, name
                assert recorded.receipts[0].text_spoken == text
                if "sample_rate" not in options:  # LiveKit fixes it at construction
                    voice.update_options(**{key: None for key in options if key not in ("speed", "seed")})
                    voice.update_options(speed=1.0, seed=0)
                    frame = await voice.synthesize(text, conn_options=ONCE).collect()
                    assert frame.data.tobytes().startswith(await expected(text)), f"{name} is reset"


async def test_model_is_the_engine_that_speaks() -> None:
    async with serve_plugin() as (voice, _):
        assert voice.model == "unknown"
        await stream_text(voice, "Hi.")
        assert voice.model == "tone"
        voice.update_options(model="elsewhere")
        assert voice.model == "elsewhere"
        with pytest.raises(APIStatusError) as unknown:
            await stream_text(voice, "Hi.")
        assert (unknown.value.status_code, unknown.value.retryable) == (404, False)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"sample_rate": 12_345}, "sample_rate must be one of 8000, "),
        ({"urls": "shorten"}, "urls must be one of drop, host, keep"),
        ({"lexicon": {"Dr": 7}}, "lexicon must map words"),
        ({"lexicon": ["Dr"]}, "lexicon must map words"),
        ({"max_ahead_s": 11.0}, "max_ahead_s must be above 0"),
        ({"voice": 5}, "voice must be text"),
        ({"language": 7}, "language must be text"),
        ({"seed": "one"}, "seed must be a whole number"),
        ({"normalize": "yes"}, "normalize must be true or false"),
        ({"flush_after_ms": float("nan")}, "flush_after_ms must be a finite number"),
        ({"url": "carrier-pigeon://loft"}, "must begin with one of"),
    ],
)
def test_invalid_option_is_refused_at_once(option: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        TTS(**option)
    if not {"sample_rate", "url"} & option.keys():
        voice = TTS()
        before = voice.options
        with pytest.raises(InvalidRequest, match=message):
            voice.update_options(speed=2.0, **option)
        assert voice.options == before


@pytest.mark.parametrize("option", [{"seed": -1}, {"speed": 99.0}, {"lexicon": {"Dr": "//"}}, {"flush_after_ms": -1.0}])
async def test_option_that_the_worker_refuses_is_400(option: dict[str, Any]) -> None:
    async with serve_plugin(**option) as (voice, recorded):
        with pytest.raises(APIStatusError) as refused:
            await stream_text(voice, "Hi.", conn_options=APIConnectOptions(max_retry=3, retry_interval=0.01))
        assert (refused.value.status_code, refused.value.retryable) == (400, False)
        assert next(iter(option)) in refused.value.message
        assert len(recorded.errors) == 1


async def test_greeting_renders_faster_than_it_plays() -> None:
    async with serve_plugin() as (voice, _):
        async with measure_stalls() as stalled_s:
            began_s = time.monotonic()
            frame = await voice.synthesize(TEXT * 5, conn_options=ONCE, realtime=False).collect()
            took_s = time.monotonic() - began_s - stalled_s()
        assert took_s < frame.duration - 2.0, "as slow as with the lead of 2 s"
        assert voice.options.realtime, "calls stay paced"


async def test_list_voices_of_the_worker() -> None:
    async with serve_plugin() as (voice, _), connect_plugin("127.0.0.1:1") as (unreachable, _):
        voices = {found.id: found for found in await voice.list_voices()}
        assert voices["tone"].is_default
        assert voices["tone-high"].engine == "tone"
        with pytest.raises(APIConnectionError):
            await unreachable.list_voices()


async def test_flush_after_ms_can_be_updated() -> None:
    async with serve_plugin(flush_after_ms=0) as (voice, _):
        voice.update_options(flush_after_ms=20)
        stream = voice.stream(conn_options=ONCE)
        stream.push_text("I would like to book a table for two ")
        assert (await stream.__anext__()).frame.samples_per_channel > 0
        await stream.aclose()


async def test_prewarm_connects_once_and_tolerates_no_worker() -> None:
    async with (
        serve_setup(Setup()) as address,
        run_proxy(address) as proxy,
        connect_plugin(proxy.address) as (voice, recorded),
        connect_plugin("127.0.0.1:1") as (unreachable, _),
    ):
        voice.prewarm()
        voice.prewarm()
        assert voice.prewarming is not None
        await voice.prewarming
        assert proxy.connections == 1
        await stream_text(voice, "Hi.")
        assert proxy.connections == 1
        assert recorded.metrics[0].connection_reused
        unreachable.prewarm()
        assert unreachable.prewarming is not None
        await unreachable.prewarming


def test_prewarm_and_construction_need_no_event_loop() -> None:
    TTS("ws://127.0.0.1:1").prewarm()


async def test_cancel_does_not_wait_and_reports_playback() -> None:
    async with (
        serve_setup(Setup()) as address,
        run_proxy(address) as proxy,
        connect_plugin(proxy.address) as (voice, recorded),
    ):
        stream = voice.stream(conn_options=ONCE)
        stream.push_text("A long story that goes on and on, " * 5)
        events = aiter(stream)
        received_s = 0.0
        while received_s < 0.5:
            received_s += (await anext(events)).frame.duration
        proxy.stall()  # the worker does not answer any more
        await run_without_waiting(stream.aclose())
        [receipt] = recorded.receipts
        assert receipt.reason == "interrupted"
        assert receipt.text_spoken + receipt.text_remaining == "A long story that goes on and on, " * 5
        assert receipt.text_spoken.startswith("A long")
        assert voice.counters.interrupted == 1
        proxy.resume()
        assert (await stream_text(voice, "Next.")).events


async def test_worker_stays_within_max_ahead() -> None:
    async with serve_plugin(max_ahead_s=0.3) as (voice, _), voice.stream(conn_options=ONCE) as stream:
        began_s = time.monotonic()  # before the worker sent any audio
        stream.push_text("This goes on for a while. " * 20)
        stream.end_input()
        made_s = 0.0
        async for event in stream:
            made_s += event.frame.duration
            assert made_s <= time.monotonic() - began_s + 0.3 + 0.25, "further ahead than max_ahead_s"
            if made_s > 1.0:
                break


async def test_pause_and_resume_lose_no_sample() -> None:
    text = f"{TEXT} {TEXT}"
    async with serve_plugin(max_ahead_s=0.2) as (voice, _):
        async with Client(LocalConnector(lambda: faulty_worker(BRISK))) as client:
            recorder = RecordingClient((await client.open(SessionOptions(realtime=False))).session)
            whole = recorder.pcm[(await recorder.synthesize(text)).key]
        async with voice.stream(conn_options=ONCE) as stream:
            stream.push_text(text)
            stream.end_input()
            output = StreamOutput()
            events = aiter(stream)
            for _ in range(3):
                output.events.append(await anext(events))
            voice.pause()
            voice.pause()
            assert voice.counters.paused == 1
            held_at = delivered_samples(voice)
            listening = asyncio.ensure_future(output.collect(events))
            await asyncio.sleep(0.5)
            assert delivered_samples(voice) == held_at, "audio while paused"
            assert len(output.pcm) <= 2 * held_at < len(whole)
            voice.resume()
            await listening
        received = np.frombuffer(output.pcm, "<i2")
        expected = np.frombuffer(whole, "<i2")
        assert len(received) - len(expected) in (0, 240), "LiveKit marks a flushed end with 10 ms of silence"
        assert np.array_equal(received[: len(expected)], expected)


# -- errors -----------------------------------------------------------------------------------------------------------


async def test_unreachable_worker_is_a_connection_error() -> None:
    async with connect_plugin("127.0.0.1:1") as (voice, recorded):
        with pytest.raises(APIConnectionError):
            await stream_text(
                voice, TEXT, conn_options=APIConnectOptions(max_retry=2, retry_interval=0.01, timeout=60.0)
            )
        assert [error.recoverable for error in recorded.errors] == [True, True, False]
        assert recorded.metrics == []


@pytest.mark.parametrize("how", ["stream", "synthesize"])
async def test_unresponsive_worker_times_out_per_attempt(how: str) -> None:
    async with (
        serve_setup(Setup()) as address,
        run_proxy(address) as proxy,
        connect_plugin(proxy.address) as (voice, recorded),
    ):
        proxy.stall()
        options = APIConnectOptions(max_retry=3, retry_interval=0.01, timeout=0.3)
        began_s = time.monotonic()
        speech = (
            stream_text(voice, TEXT, conn_options=options) if how == "stream" else synthesize_text(voice, TEXT, options)
        )
        with anyio.fail_after(15.0), pytest.raises(APITimeoutError):
            await speech
        assert time.monotonic() - began_s >= 4 * 0.3
        assert len(recorded.errors) == 4
        assert recorded.metrics == []


async def test_stall_before_first_audio_is_retried() -> None:
    async with (
        serve_setup(Setup()) as address,
        run_proxy(address) as proxy,
        connect_plugin(proxy.address) as (voice, recorded),
    ):
        await stream_text(voice, "Warm.")
        proxy.stall()
        # Long enough for the second attempt on a busy machine.
        options = APIConnectOptions(max_retry=1, retry_interval=0.01, timeout=1.5)
        voice.on("error", lambda error: proxy.resume())
        async with voice.stream(conn_options=options) as stream:
            stream.push_text(TEXT)
            stream.end_input()
            output = await StreamOutput().collect(stream)
        assert "".join(output.timed_words) == TEXT
        assert [type(error.error) for error in recorded.errors] == [APITimeoutError]


async def test_loss_mid_stream_is_not_retried() -> None:
    async with (
        serve_setup(Setup()) as address,
        run_proxy(address) as proxy,
        connect_plugin(proxy.address, max_ahead_s=0.2) as (voice, recorded),
    ):
        options = APIConnectOptions(max_retry=3, retry_interval=0.01, timeout=60.0)
        async with voice.stream(conn_options=options) as stream:
            stream.push_text("This goes on for a while. " * 20)
            stream.end_input()
            output = StreamOutput()
            events = aiter(stream)
            while len(output.pcm) < 24_000:  # half a second: the first word and more
                output.events.append(await anext(events))
            proxy.reset()
            with pytest.raises(APIConnectionError):
                await output.collect(events)
        assert [error.recoverable for error in recorded.errors] == [False]
        assert len({event.request_id for event in output.events}) == 1
        assert recorded.receipts[0].text_spoken
        assert (await stream_text(voice, "Back again.")).events, "the next stream reconnects"


@pytest.mark.parametrize("reason", ["drain", "reload"])
async def test_worker_that_ends_the_speech_is_an_error(reason: str) -> None:
    async with (
        faulty_worker(Setup()) as worker,
        serve_worker(worker) as address,
        connect_plugin(address, max_ahead_s=0.2) as (voice, recorded),
        voice.stream(conn_options=ONCE) as stream,
    ):
        stream.push_text("This goes on for a while. " * 20)
        stream.end_input()
        output = StreamOutput()
        events = aiter(stream)
        output.events.append(await anext(events))
        await end_speech(worker, reason)
        with pytest.raises(APIStatusError) as cut:
            await output.collect(events)
        assert (cut.value.status_code, cut.value.retryable) == (503, False)
        assert recorded.receipts[0].text_remaining


async def test_model_replaced_before_the_first_audio_is_retried() -> None:
    async with faulty_worker(Setup()) as worker, serve_worker(worker) as address, connect_plugin(address) as (voice, _):
        options = APIConnectOptions(max_retry=1, retry_interval=0.01, timeout=60.0)
        async with voice.stream(conn_options=options) as stream:
            stream.push_text("Hello")  # too little to be spoken yet
            await until(lambda: bool(worker.hub.speaking_sessions))
            await end_speech(worker, "reload")
            stream.push_text(" there.")
            stream.end_input()
            output = await StreamOutput().collect(stream)
        assert "".join(output.timed_words) == "Hello there."


async def test_full_worker_is_429_and_unknown_voice_404() -> None:
    async with (
        serve_plugin(Setup({"session": {"max_sessions": 1, "slot_idle_s": 600}})) as (voice, _),
        voice.stream(conn_options=ONCE) as holder,
    ):
        holder.push_text("I hold the only session. ")
        await anext(aiter(holder))
        with pytest.raises(APIStatusError) as busy:
            await stream_text(voice, TEXT)
        assert (busy.value.status_code, busy.value.retryable) == (429, True)
    async with serve_plugin(voice="unknown") as (voice, recorded):
        with pytest.raises(APIStatusError) as unknown:
            await stream_text(voice, TEXT, conn_options=APIConnectOptions(max_retry=3, retry_interval=0.01))
        assert (unknown.value.status_code, unknown.value.retryable) == (404, False)
        assert len(recorded.errors) == 1, "a permanent error is not retried"


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_code_maps_to_an_api_error(code: ErrorCode) -> None:
    for retryable in (False, True):
        error = as_api_error(ErrorInfo(code, "message", retryable), sent=False)
        assert isinstance(error, APIError)
        assert error.message == "message"
        if isinstance(error, APIStatusError):
            assert 400 <= error.status_code < 600
        assert not as_api_error(ErrorInfo(code, "message", retryable), sent=True).retryable


async def test_engine_fault_before_first_audio_is_retried() -> None:
    async with serve_plugin(Setup(engine=fault_at(Fault.OUT_OF_MEMORY, chunk=0, generation=1))) as (voice, recorded):
        output = await stream_text(
            voice, TEXT, conn_options=APIConnectOptions(max_retry=1, retry_interval=0.01, timeout=60.0)
        )
        assert "".join(output.timed_words) == TEXT
        [error] = recorded.errors
        assert (error.error.status_code, error.recoverable) == (503, True)
        assert voice.counters.failed == 1


# -- inside the framework's adapters ----------------------------------------------------------------------------------


async def test_fallback_adapter_uses_the_live_worker() -> None:
    async with serve_plugin() as (good, _), connect_plugin("127.0.0.1:1") as (dead, _):
        adapter = tts.FallbackAdapter([dead, good], max_retry_per_tts=0)
        output = await stream_text(adapter, TEXT)
        assert len(output.pcm) > 20_000
        assert adapter.capabilities.aligned_transcript
        assert "".join(output.timed_words) == TEXT
        await adapter.aclose()


async def test_stream_adapter_synthesizes_per_sentence() -> None:
    async with serve_plugin() as (voice, _):
        adapter = tts.StreamAdapter(tts=voice, sentence_tokenizer=tokenize.basic.SentenceTokenizer(min_sentence_len=1))
        output = await stream_text(adapter, "This is the first sentence. ", "And here comes the second one.")
        assert voice.counters.streams == 2
        assert len(output.pcm) > 40_000
        await adapter.aclose()


async def test_local_worker_produces_the_same_audio() -> None:
    async with Client(LocalConnector(lambda: faulty_worker(BRISK))) as client, serve_plugin() as (remote, _):
        here = TTS(client=client)
        try:
            assert (await stream_text(here, TEXT)).pcm == (await stream_text(remote, TEXT)).pcm
        finally:
            await here.aclose()
        assert (await client.open()).session.id, "the plugin does not close the caller's client"


async def test_plugin_registers_and_loads_no_engine() -> None:
    code = (
        "import livekit.plugins.tts_worker as plugin, sys; from livekit.agents import Plugin;"
        "assert [p.package for p in Plugin.registered_plugins] == ['livekit.plugins.tts_worker'];"
        "assert plugin.TTS.__module__ == 'livekit.plugins.tts_worker.tts';"
        "assert not {'torch', 'onnxruntime', 'hibari', 'fastapi', 'uvicorn'} & set(sys.modules), 'engine or server'"
    )
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE, env={**os.environ, **path}
    )
    _, error = await process.communicate()
    assert process.returncode == 0, error.decode()[-400:]


async def test_expressive_mode_teaches_what_the_worker_reads() -> None:
    async with serve_plugin() as (voice, _):
        instructions = voice.markup.llm_instructions()
    assert instructions is not None
    markers = set(re.findall(r'<expr type="(?:expression|prosody)" label="[a-z]+"/>', instructions))
    assert {'<expr type="prosody" label="slow"/>', '<expr type="expression" label="excited"/>'} <= markers
    for marker in markers:
        (segment,) = read(f"{marker} Hello.")
        assert segment.text == "Hello."
        assert segment.expression_at(segment.spans[0].start) != NEUTRAL
