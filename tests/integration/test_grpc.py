"""The TTS worker protocol over a real socket: sessions, frames, controls, the rules of the protocol."""

from __future__ import annotations

import asyncio

import anyio
import grpc
import numpy as np
import pytest

from tests.conftest import tone_settings, until
from tests.fakes.scrape import scraped
from tests.integration.grpc_rig import CHAR_48K, LONG, TEXT, Rig, grpc_worker, say
from tts_worker.app import running_worker
from tts_worker.session.hub import SessionOptions
from tts_worker.transports.grpc import tts_worker_pb2 as pb
from tts_worker.transports.grpc.frames import StreamFormat
from tts_worker.transports.grpc.options import add_shaper_lead
from tts_worker.transports.grpc.synthesize import SynthesizeCall

FAST = {"realtime": "false"}


async def test_one_utterance_in_frames_of_48_khz() -> None:
    async with grpc_worker() as rig:
        started = await rig.start(**FAST)
        assert started.success
        assert (started.sample_rate, started.voice) == (48_000, "tone")
        call = await say(rig, TEXT)
        final = call.frames[-1]
        assert {len(frame.audio_data) for frame in call.frames} == {1920}
        assert {(f.session_id, f.sample_rate, f.frame_duration_ms) for f in call.frames} == {("s", 48_000, 20)}
        assert [f.pts_samples for f in call.frames] == [960 * i for i in range(len(call.frames))]
        assert final.receipt.outcome == "done"
        assert final.receipt.text_spoken == TEXT
        assert final.receipt.samples_sent == len(call.pcm) // 2 >= 30 * CHAR_48K
        words = [word for frame in call.frames for word in frame.words]
        assert [word.text for word in words] == TEXT.split()
        assert all(TEXT[w.char_start : w.char_end] == w.text for w in words)
        for frame in call.frames:
            assert all(word.start_sample >= frame.pts_samples for word in frame.words), "a word came after its sound"


async def test_24_khz_is_the_engines_own_sound_and_48_khz_the_same_resampled() -> None:
    async with grpc_worker() as rig:
        await rig.start("a", **FAST, sample_rate="24000")
        await rig.start("b", **FAST)
        await rig.start("c", **FAST, sample_rate="24000", packetize="false")
        native = await say(rig, TEXT, session="a")
        double = await say(rig, TEXT, session="b")
        chunks = await say(rig, TEXT, session="c")
        assert {len(frame.audio_data) for frame in native.frames} == {960}
        assert chunks.pcm == native.pcm
        assert max(len(frame.audio_data) for frame in chunks.frames) > 1920, "the engine's own chunks"
        assert len(double.pcm) == 2 * len(native.pcm)
        one = np.frombuffer(native.pcm, "<i2").astype(float)
        two = np.frombuffer(double.pcm, "<i2").astype(float)[::2]
        assert np.abs(one - two).max() < 400


async def test_sound_comes_while_text_is_still_written() -> None:
    async with grpc_worker() as rig:
        await rig.start(**FAST)
        call = await rig.speak("The first sentence is here. ", close=False).begin()
        await call.hear(3)
        await call.rpc.write(pb.TextChunk(session_id="s", text="And the second.", is_final=True))
        final = await call.end()
        assert final.receipt.text_spoken == "The first sentence is here. And the second."


async def test_is_final_ends_the_text_without_a_half_close() -> None:
    async with grpc_worker() as rig:
        await rig.start(**FAST)
        call = await rig.speak(close=False).begin()
        await call.rpc.write(pb.TextChunk(session_id="s", text="Hi there.", is_final=True))
        assert (await call.end()).receipt.text_spoken == "Hi there."


async def test_flush_speaks_what_is_there() -> None:
    async with grpc_worker() as rig:
        await rig.start()
        call = await rig.speak(close=False).begin()
        await call.rpc.write(pb.TextChunk(session_id="s", text="an unfinished sent", flush=True))
        await call.hear(3)
        await call.rpc.write(pb.TextChunk(session_id="s", text=" ence."))
        await call.rpc.done_writing()
        assert (await call.end()).receipt.text_spoken == "an unfinished sent ence."


@pytest.mark.parametrize("texts", [[], [""], ["  ", "\n"], ["🎉"]])
async def test_nothing_to_say_is_one_empty_end_marker(texts: list[str]) -> None:
    async with grpc_worker() as rig:
        await rig.start()
        call = await rig.speak(*(texts or [""])).begin()
        await call.end()
        assert [len(frame.audio_data) for frame in call.frames] == [0]


async def test_a_session_speaks_many_times() -> None:
    async with grpc_worker() as rig:
        await rig.start(**FAST)
        calls = [await say(rig, "Again.") for _ in range(4)]
        assert {call.pcm for call in calls} == {calls[0].pcm}
        assert [call.frames[0].generation for call in calls] == [1, 2, 3, 4]
        assert rig.worker.hub.live_sessions == 1


async def test_several_utterances_of_one_session_sound_at_the_same_time() -> None:
    async with grpc_worker() as rig:
        await rig.start()
        calls = [await rig.speak(LONG).begin() for _ in range(3)]
        for call in calls:
            await call.hear(2)
        assert rig.worker.hub.live_sessions == 3
        stopped = await rig.control(pb.STOP)
        assert stopped.applied
        for call in calls:
            final = await call.end()
            assert final.receipt.text_spoken + final.receipt.text_remaining == LONG
        assert rig.worker.hub.live_sessions == 1
        assert (await say(rig, "Ok.")).frames[-1].receipt.outcome == "done"


async def test_control_may_name_one_utterance() -> None:
    async with grpc_worker() as rig:
        await rig.start()
        first = await rig.speak(LONG).begin()
        second = await rig.speak(LONG).begin()
        await first.hear(2)
        await second.hear(2)
        stopped = await rig.control(pb.STOP, generation=second.frames[0].generation)
        assert (stopped.applied, stopped.generation) == (True, second.frames[0].generation)
        await second.end()
        await first.hear(6)
        assert (await rig.control(pb.PAUSE, generation=99)).applied is False


# -- control ----------------------------------------------------------------------------------------------------------


async def test_pause_resume_change_no_sample() -> None:
    async with grpc_worker() as rig:
        await rig.start("a")
        await rig.start("b", **FAST)
        whole = await say(rig, TEXT, session="b")
        call = await rig.speak(TEXT, session="a").begin()
        for at in (1, 9, 20):  # of a hundred: however late a command is, there is sound to pause
            await call.hear(at)
            paused = await rig.control(pb.PAUSE, "a")
            assert (paused.success, paused.applied, paused.state) == (True, True, "paused")
            sent = paused.emitted_samples // 960
            await call.hear(sent)
            with anyio.move_on_after(0.08) as patience:
                await asyncio.shield(reading := asyncio.ensure_future(call.next()))
            assert patience.cancelled_caught, "sound while paused"
            again = await rig.control(pb.PAUSE, "a")
            assert (again.success, again.applied) == (True, False)
            resumed = await rig.control(pb.RESUME, "a")
            assert (resumed.applied, resumed.state) == (True, "speaking")
            await reading
        await call.end()
        assert call.pcm == whole.pcm


async def test_stop_tells_what_was_said_and_nothing_old_follows() -> None:
    async with grpc_worker() as rig:
        await rig.start()
        call = await rig.speak(LONG).begin()
        await call.hear(40)
        stopped = await rig.control(pb.STOP, reason="barge_in")
        assert (stopped.success, stopped.applied, stopped.state) == (True, True, "idle")
        assert stopped.spoken_text + stopped.remaining_text == LONG
        assert stopped.spoken_text.split() == [word.text for word in stopped.words]
        final = await call.end()
        assert (final.audio_data, final.receipt.outcome, final.receipt.reason) == (b"", "stopped", "barge_in")
        assert final.receipt.text_spoken == stopped.spoken_text
        assert stopped.emitted_samples == sum(f.speech_samples for f in call.frames) == final.pts_samples
        assert not stopped.HasField("played_samples")
        assert stopped.timestamp_ms > 1_700_000_000_000


async def test_stop_counts_what_the_listener_heard_if_told() -> None:
    async with grpc_worker() as rig:
        await rig.start()
        call = await rig.speak(LONG).begin()
        await call.hear(60)
        stopped = await rig.control(pb.STOP, played_ms=500)
        assert stopped.played_samples == 24_000
        assert stopped.emitted_samples > 48_000
        assert all(word.start_sample + word.end_sample <= 48_000 for word in stopped.words)
        await call.end()
        call = await rig.speak(LONG).begin()
        await call.hear(1)
        boasting = await rig.control(pb.STOP, played_ms=10**12)
        assert boasting.played_samples == boasting.emitted_samples, "nobody hears more than was sent"


async def test_commands_that_change_nothing_say_so() -> None:
    async with grpc_worker() as rig:
        await rig.start()
        for command in (pb.PAUSE, pb.RESUME, pb.STOP):
            answer = await rig.control(command)
            assert (answer.success, answer.applied, answer.state) == (True, False, "idle")
            assert answer.message
        reload = await rig.control(pb.RELOAD)
        assert (reload.success, reload.error.code) == (False, "illegal_command")
        unknown = await rig.control(77)
        assert (unknown.success, unknown.error.code) == (False, "illegal_command")


async def test_an_empty_control_request_pauses_nobody() -> None:
    async with grpc_worker() as rig:
        await rig.start()
        call = await rig.speak(LONG).begin()
        await call.hear(1)
        answer = await rig.stub.Control(pb.ControlRequest())
        assert (answer.success, answer.error.code) == (False, "invalid_request")
        await call.hear(10)


async def test_a_pause_that_nobody_resumes_ends() -> None:
    async with grpc_worker(grpc={"pause_timeout_s": 0.2}) as rig:
        await rig.start()
        call = await rig.speak(LONG).begin()
        await call.hear(3)
        paused = await rig.control(pb.PAUSE)
        assert paused.pause_timeout_ms == 200
        final = await call.end()
        assert (final.audio_data, final.receipt.reason) == (b"", "pause_timeout")
        assert final.receipt.text_spoken + final.receipt.text_remaining == LONG
        assert (await rig.control(pb.STOP)).applied is False
        assert (await say(rig, "Next.")).frames[-1].receipt.outcome == "done"


async def test_a_session_may_choose_how_long_a_pause_lasts() -> None:
    async with grpc_worker() as rig:
        await rig.start(pause_timeout_ms="150")
        call = await rig.speak(LONG).begin()
        await call.hear(1)
        assert (await rig.control(pb.PAUSE)).pause_timeout_ms == 150
        assert (await call.end()).receipt.reason == "pause_timeout"


async def test_a_session_chooses_when_unpunctuated_text_is_spoken() -> None:
    async with grpc_worker(session={"flush_after_ms": 0}) as rig:
        await rig.start(flush_after_ms="20")
        call = await rig.speak("I would like to book a table for two ", close=False).begin()
        await call.hear(1)


async def test_cancelling_the_call_is_stop_and_the_session_lives() -> None:
    async with grpc_worker() as rig:
        await rig.start()
        for turn in range(1, 4):
            call = await rig.speak(LONG).begin()
            await call.hear(2)
            call.rpc.cancel()
            await until(lambda turn=turn: _stopped(rig) == turn)
            assert rig.worker.hub.buffered_s == 0
        assert rig.worker.hub.live_sessions == 1
        assert (await rig.control(pb.STOP)).state == "idle"
        assert (await say(rig, "Ok.")).frames[-1].receipt.outcome == "done"


async def test_ending_the_session_ends_what_it_says() -> None:
    async with grpc_worker() as rig:
        await rig.start()
        call = await rig.speak(LONG).begin()
        await call.hear(2)
        assert (await rig.stub.EndSession(pb.EndSessionRequest(session_id="s"))).success
        final = await call.end()
        assert (final.receipt.outcome, final.receipt.reason) == ("stopped", "end_session")
        assert rig.worker.hub.live_sessions == 0
        assert not (await rig.stub.EndSession(pb.EndSessionRequest(session_id="s"))).success
        late = await rig.speak("Too late.").begin()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await late.read_all()
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_writer_who_falls_silent_does_not_make_the_lead_longer() -> None:
    """What is held back is the first that a listener gets who has run dry: else 20 ms more were ahead from then on,
    and a STOP were heard so much later."""
    stream_format = StreamFormat()
    lead_s = 0.2
    async with running_worker(tone_settings()) as worker:
        loop = asyncio.get_running_loop()
        options = add_shaper_lead(SessionOptions(lead_ms=1000 * lead_s), stream_format, 40.0)
        speaking = SynthesizeCall(worker.hub.open(options), "s", 1, stream_format)
        left: list[tuple[float, float]] = []  # when, and how many seconds of sound

        async def listen() -> None:
            async for frame in speaking.frames():
                left.append((loop.time(), frame.speech_samples / stream_format.sample_rate_hz))

        listening = asyncio.create_task(listen())
        ahead_s: list[float] = []
        for _ in range(4):
            left.clear()
            speaking.write("Some words. ", flush=True)
            await until(lambda: sum(seconds for _, seconds in left) > 0.4)
            await until(lambda: speaking.session.pacer.lead_at_s(loop.time()) == 0)  # the listener has run dry
            began_s = left[0][0]
            sent_s = 0.0
            most_s = 0.0
            for at_s, seconds in left:
                sent_s += seconds
                most_s = max(most_s, sent_s - (at_s - began_s))
            ahead_s.append(most_s)
        listening.cancel()
    assert min(ahead_s[1:]) < lead_s + 0.01, ahead_s


def _stopped(rig: Rig) -> float:
    return scraped(rig.worker.metrics.render(), "tts_utterances_total", outcome="stopped")
