"""The TTS worker protocol over a real socket: sessions, frames and controls."""

from __future__ import annotations

import asyncio

import anyio
import grpc
import numpy as np
import pytest

from tests.conftest import tone_settings, until
from tests.fakes.clock import in_virtual_time
from tests.fakes.scrape import scraped
from tests.integration.grpc_worker import LONG, SAMPLES_PER_CHAR_48K, TEXT, GrpcWorker, running_grpc_worker, say
from tts_worker.features.grpc.frames import StreamFormat
from tts_worker.features.grpc.options import add_shaper_lead
from tts_worker.features.grpc.synthesize import SynthesizeCall
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.types import SessionOptions
from tts_worker.worker import running_worker

FAST = {"realtime": "false"}


async def test_an_utterance_is_sent_in_48_khz_frames() -> None:
    async with running_grpc_worker() as server:
        started = await server.start(**FAST)
        assert started.success
        assert (started.sample_rate, started.voice) == (48_000, "tone")
        call = await say(server, TEXT)
        final = call.frames[-1]
        assert {len(frame.audio_data) for frame in call.frames} == {1920}
        assert {(f.session_id, f.sample_rate, f.frame_duration_ms) for f in call.frames} == {("s", 48_000, 20)}
        assert [f.pts_samples for f in call.frames] == [960 * i for i in range(len(call.frames))]
        assert final.receipt.outcome == "done"
        assert final.receipt.text_spoken == TEXT
        assert final.receipt.samples_sent == len(call.pcm) // 2 >= 30 * SAMPLES_PER_CHAR_48K
        words = [word for frame in call.frames for word in frame.words]
        assert [word.text for word in words] == TEXT.split()
        assert all(TEXT[w.char_start : w.char_end] == w.text for w in words)
        for frame in call.frames:
            assert all(word.start_sample >= frame.pts_samples for word in frame.words), "a word arrived after its audio"


async def test_request_id_comes_back_in_metadata() -> None:
    sent = (("x-request-id", "call-45"),)
    async with running_grpc_worker() as server:
        starting = server.stub.StartSession(pb.StartSessionRequest(session_id="s", options=FAST), metadata=sent)
        await starting
        assert dict(await starting.trailing_metadata())["x-request-id"] == "call-45"
        speaking = server.stub.Synthesize(metadata=sent)
        await speaking.write(pb.TextChunk(session_id="s", text=TEXT))
        await speaking.read()
        assert dict(await speaking.initial_metadata())["x-request-id"] == "call-45"
        speaking.cancel()
        failing = server.stub.Synthesize()
        await failing.write(pb.TextChunk(session_id="none", text=TEXT))
        assert await failing.code() is grpc.StatusCode.NOT_FOUND
        assert len(dict(await failing.trailing_metadata())["x-request-id"]) == 16


async def test_48_khz_is_the_resampled_24_khz_audio() -> None:
    async with running_grpc_worker() as server:
        await server.start("a", **FAST, sample_rate="24000")
        await server.start("b", **FAST)
        await server.start("c", **FAST, sample_rate="24000", packetize="false")
        native = await say(server, TEXT, session="a")
        resampled = await say(server, TEXT, session="b")
        chunks = await say(server, TEXT, session="c")
        assert {len(frame.audio_data) for frame in native.frames} == {960}
        assert chunks.pcm == native.pcm
        assert max(len(frame.audio_data) for frame in chunks.frames) > 1920, "expected engine chunks"
        assert len(resampled.pcm) == 2 * len(native.pcm)
        one = np.frombuffer(native.pcm, "<i2").astype(float)
        two = np.frombuffer(resampled.pcm, "<i2").astype(float)[::2]
        assert np.abs(one - two).max() < 400


async def test_every_rate_has_whole_frames_and_the_same_times() -> None:
    async with running_grpc_worker() as server:
        times_ms = []
        for rate_hz in (24_000, 8_000, 22_050, 44_100, 48_000):
            name = str(rate_hz)
            await server.start(name, **FAST, sample_rate=name)
            call = await say(server, TEXT, session=name)
            assert {len(frame.audio_data) for frame in call.frames} == {2 * rate_hz // 50}
            assert {(frame.sample_rate, frame.frame_duration_ms) for frame in call.frames} == {(rate_hz, 20)}
            assert call.frames[-1].receipt.samples_sent == len(call.pcm) // 2
            words = [word for frame in call.frames for word in frame.words]
            assert [word.start_ms for word in words] == [round(1000 * word.start_sample / rate_hz) for word in words]
            times_ms.append([(word.text, word.start_ms) for word in words])
        assert len(times_ms[0]) == len(TEXT.split())
        for other in times_ms[1:]:
            assert all(abs(a[1] - b[1]) <= 1 and a[0] == b[0] for a, b in zip(times_ms[0], other, strict=True))


async def test_audio_starts_before_the_text_is_complete() -> None:
    async with running_grpc_worker() as server:
        await server.start(**FAST)
        call = await server.speak("The first sentence is here. ", close=False).begin()
        await call.read_frames(3)
        await call.rpc.write(pb.TextChunk(session_id="s", text="And the second.", is_final=True))
        final = await call.end()
        assert final.receipt.text_spoken == "The first sentence is here. And the second."


async def test_is_final_ends_the_text_without_a_half_close() -> None:
    async with running_grpc_worker() as server:
        await server.start(**FAST)
        call = await server.speak(close=False).begin()
        await call.rpc.write(pb.TextChunk(session_id="s", text="Hi there.", is_final=True))
        assert (await call.end()).receipt.text_spoken == "Hi there."


async def test_flush_synthesizes_the_buffered_text() -> None:
    async with running_grpc_worker() as server:
        await server.start()
        call = await server.speak(close=False).begin()
        await call.rpc.write(pb.TextChunk(session_id="s", text="an unfinished sent", flush=True))
        await call.read_frames(3)
        await call.rpc.write(pb.TextChunk(session_id="s", text=" ence."))
        await call.rpc.done_writing()
        assert (await call.end()).receipt.text_spoken == "an unfinished sent ence."


@pytest.mark.parametrize("texts", [[], [""], ["  ", "\n"], ["🎉"]])
async def test_text_without_speech_yields_one_empty_end_marker(texts: list[str]) -> None:
    async with running_grpc_worker() as server:
        await server.start()
        call = await server.speak(*(texts or [""])).begin()
        await call.end()
        assert [len(frame.audio_data) for frame in call.frames] == [0]


async def test_a_session_runs_several_utterances() -> None:
    async with running_grpc_worker() as server:
        await server.start(**FAST)
        calls = [await say(server, "Again.") for _ in range(4)]
        assert {call.pcm for call in calls} == {calls[0].pcm}
        assert [call.frames[0].generation for call in calls] == [1, 2, 3, 4]
        assert server.worker.hub.live_sessions == 1


async def test_utterances_of_one_session_run_concurrently() -> None:
    async with running_grpc_worker() as server:
        await server.start()
        calls = [await server.speak(LONG).begin() for _ in range(3)]
        for call in calls:
            await call.read_frames(2)
        assert server.worker.hub.live_sessions == 3
        stopped = await server.control(pb.STOP)
        assert stopped.applied
        for call in calls:
            final = await call.end()
            assert final.receipt.text_spoken + final.receipt.text_remaining == LONG
        assert server.worker.hub.live_sessions == 1
        assert (await say(server, "Ok.")).frames[-1].receipt.outcome == "done"


async def test_control_by_generation_affects_one_utterance() -> None:
    async with running_grpc_worker() as server:
        await server.start()
        first = await server.speak(LONG).begin()
        second = await server.speak(LONG).begin()
        await first.read_frames(2)
        await second.read_frames(2)
        stopped = await server.control(pb.STOP, generation=second.frames[0].generation)
        assert (stopped.applied, stopped.generation) == (True, second.frames[0].generation)
        await second.end()
        await first.read_frames(6)
        assert (await server.control(pb.PAUSE, generation=99)).applied is False


# -- control ----------------------------------------------------------------------------------------------------------


async def test_pause_and_resume_change_no_sample() -> None:
    async with running_grpc_worker() as server:
        await server.start("a")
        await server.start("b", **FAST)
        whole = await say(server, TEXT, session="b")
        call = await server.speak(TEXT, session="a").begin()
        for frame_count in (1, 9, 20):  # of 100, so audio is left even if a command is late
            await call.read_frames(frame_count)
            paused = await server.control(pb.PAUSE, "a")
            assert (paused.success, paused.applied, paused.state) == (True, True, "paused")
            sent = paused.emitted_samples // 960
            await call.read_frames(sent)
            with anyio.move_on_after(0.08) as timeout:
                await asyncio.shield(reading := asyncio.ensure_future(call.next()))
            assert timeout.cancelled_caught, "audio while paused"
            again = await server.control(pb.PAUSE, "a")
            assert (again.success, again.applied) == (True, False)
            resumed = await server.control(pb.RESUME, "a")
            assert (resumed.applied, resumed.state) == (True, "speaking")
            await reading
        await call.end()
        assert call.pcm == whole.pcm


async def test_stop_reports_spoken_text_and_ends_the_audio() -> None:
    async with running_grpc_worker() as server:
        await server.start()
        call = await server.speak(LONG).begin()
        await call.read_frames(40)
        stopped = await server.control(pb.STOP, reason="barge_in")
        assert (stopped.success, stopped.applied, stopped.state) == (True, True, "idle")
        assert stopped.spoken_text + stopped.remaining_text == LONG
        assert stopped.spoken_text.split() == [word.text for word in stopped.words]
        final = await call.end()
        assert (final.audio_data, final.receipt.outcome, final.receipt.reason) == (b"", "stopped", "barge_in")
        assert final.receipt.text_spoken == stopped.spoken_text
        assert stopped.emitted_samples == sum(f.speech_samples for f in call.frames) == final.pts_samples
        assert not stopped.HasField("played_samples")
        assert stopped.timestamp_ms > 1_700_000_000_000


async def test_stop_uses_the_reported_played_samples() -> None:
    async with running_grpc_worker() as server:
        await server.start()
        call = await server.speak(LONG).begin()
        await call.read_frames(60)
        stopped = await server.control(pb.STOP, played_ms=500)
        assert stopped.played_samples == 24_000
        assert stopped.emitted_samples > 48_000
        assert all(word.start_sample + word.end_sample <= 48_000 for word in stopped.words)
        await call.end()
        call = await server.speak(LONG).begin()
        await call.read_frames(1)
        answer = await server.control(pb.STOP, played_ms=10**12)
        assert answer.played_samples == answer.emitted_samples, "more played than sent"


async def test_a_command_without_effect_is_not_applied() -> None:
    async with running_grpc_worker() as server:
        await server.start()
        for command in (pb.PAUSE, pb.RESUME, pb.STOP):
            answer = await server.control(command)
            assert (answer.success, answer.applied, answer.state) == (True, False, "idle")
            assert answer.message
        unknown = await server.control(77)
        assert (unknown.success, unknown.error.code) == (False, "illegal_command")


async def test_reload_replaces_the_model_of_a_session() -> None:
    async with running_grpc_worker() as server:
        await server.start()
        call = await server.speak(TEXT).begin()
        await call.read_frames(1)
        before = server.worker.engines["tone"]
        answer = await server.control(pb.RELOAD)
        assert (answer.success, answer.applied) == (True, True)
        assert server.worker.engines["tone"] is not before
        assert (await call.end()).receipt.text_spoken == TEXT, "a call in progress finishes"


async def test_an_empty_control_request_is_rejected() -> None:
    async with running_grpc_worker() as server:
        await server.start()
        call = await server.speak(LONG).begin()
        await call.read_frames(1)
        answer = await server.stub.Control(pb.ControlRequest())
        assert (answer.success, answer.error.code) == (False, "invalid_request")
        await call.read_frames(10)


async def test_a_pause_becomes_a_stop_after_its_timeout() -> None:
    async with running_grpc_worker(grpc={"pause_timeout_s": 0.2}) as server:
        await server.start()
        call = await server.speak(LONG).begin()
        await call.read_frames(3)
        paused = await server.control(pb.PAUSE)
        assert paused.pause_timeout_ms == 200
        final = await call.end()
        assert (final.audio_data, final.receipt.reason) == (b"", "pause_timeout")
        assert final.receipt.text_spoken + final.receipt.text_remaining == LONG
        assert (await server.control(pb.STOP)).applied is False
        assert (await say(server, "Next.")).frames[-1].receipt.outcome == "done"


async def test_the_pause_timeout_is_a_session_option() -> None:
    async with running_grpc_worker() as server:
        await server.start(pause_timeout_ms="150")
        call = await server.speak(LONG).begin()
        await call.read_frames(1)
        assert (await server.control(pb.PAUSE)).pause_timeout_ms == 150
        assert (await call.end()).receipt.reason == "pause_timeout"


async def test_the_flush_delay_is_a_session_option() -> None:
    async with running_grpc_worker(session={"flush_after_ms": 0}) as server:
        await server.start(flush_after_ms="20")
        call = await server.speak("I would like to book a table for two ", close=False).begin()
        await call.read_frames(1)


async def test_cancelling_a_call_stops_its_utterance_only() -> None:
    async with running_grpc_worker() as server:
        await server.start()
        for turn in range(1, 4):
            call = await server.speak(LONG).begin()
            await call.read_frames(2)
            call.rpc.cancel()
            await until(lambda turn=turn: _stopped(server) == turn)
            assert server.worker.hub.buffered_s == 0
        assert server.worker.hub.live_sessions == 1
        assert (await server.control(pb.STOP)).state == "idle"
        assert (await say(server, "Ok.")).frames[-1].receipt.outcome == "done"


async def test_end_session_ends_its_utterances() -> None:
    async with running_grpc_worker() as server:
        await server.start()
        call = await server.speak(LONG).begin()
        await call.read_frames(2)
        assert (await server.stub.EndSession(pb.EndSessionRequest(session_id="s"))).success
        final = await call.end()
        assert (final.receipt.outcome, final.receipt.reason) == ("stopped", "end_session")
        assert server.worker.hub.live_sessions == 0
        assert not (await server.stub.EndSession(pb.EndSessionRequest(session_id="s"))).success
        late = await server.speak("Too late.").begin()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await late.read_all()
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


@in_virtual_time
async def test_a_text_gap_does_not_extend_the_playout_lead() -> None:
    """After an underrun, the shaper's 20 ms count toward the lead; otherwise a STOP would take effect 20 ms later."""
    stream_format = StreamFormat()
    lead_s = 0.2
    async with running_worker(tone_settings()) as worker:
        loop = asyncio.get_running_loop()
        options = add_shaper_lead(
            SessionOptions(lead_ms=1000 * lead_s, sample_rate=stream_format.sample_rate_hz), stream_format, 40.0
        )
        call = SynthesizeCall(worker.hub.open(options), "s", 1, stream_format)
        sent: list[tuple[float, float]] = []  # time of each frame and its duration

        async def record() -> None:
            async for frame in call.frames():
                sent.append((loop.time(), frame.speech_samples / stream_format.sample_rate_hz))

        recording = asyncio.create_task(record())
        ahead_s: list[float] = []
        for _ in range(4):
            sent.clear()
            call.write("Some words. ", flush=True)
            await until(lambda: sum(seconds for _, seconds in sent) > 0.4)
            await until(lambda: call.session.pacer.lead_at_s(loop.time()) == 0)  # underrun
            began_s = sent[0][0]
            sent_s = 0.0
            max_ahead_s = 0.0
            for at_s, seconds in sent:
                sent_s += seconds
                max_ahead_s = max(max_ahead_s, sent_s - (at_s - began_s))
            ahead_s.append(max_ahead_s)
        recording.cancel()
    assert min(ahead_s[1:]) < lead_s + 0.01, ahead_s


def _stopped(server: GrpcWorker) -> float:
    return scraped(server.worker.metrics.render(), "tts_utterances_total", outcome="stopped")
