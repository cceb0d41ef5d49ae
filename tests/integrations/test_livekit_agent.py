"""A real offline ``AgentSession`` with the plugin and a real worker."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

pytest.importorskip("livekit.agents", reason="needs the extra 'livekit'")

from livekit.agents import Agent, APIConnectOptions, function_tool, tokenize, tts
from livekit.agents.voice.agent_session import SessionConnectOptions
from livekit.agents.voice.io import _CaptureCancelledEvent

from livekit import rtc
from livekit.plugins.tts_worker import TTS
from tests.behavior.recording_client import RecordingClient
from tests.behavior.transports import faulty_worker, serve_setup
from tests.conftest import until
from tests.fakes.clock import measure_stalls
from tests.fakes.connections import client_tasks
from tests.fakes.livekit_agent import FakeSpeaker, run_agent
from tests.fakes.proxy import run_proxy
from tests.integrations.test_livekit import BRISK, connect_plugin, delivered_samples, serve_plugin, stream_text
from tts_worker.client import Client, SessionOptions, connect
from tts_worker.local import LocalConnector

REPLY = "One two three four five six seven."
STORY = "This is the longest story that I know, and it goes on and on for quite a while."
LONG = f"{STORY} " * 4
"""Long enough to be interrupted on a busy machine."""


async def reference(text: str) -> tuple[bytes, list[float]]:
    """PCM of ``text`` as the worker synthesizes it, and the start times of its words (s)."""
    async with Client(LocalConnector(lambda: faulty_worker(BRISK))) as client:
        recorder = RecordingClient((await client.open(SessionOptions(realtime=False))).session)
        ended = await recorder.synthesize(text)
        return recorder.pcm[ended.key], [word.start_sample / 24_000 for word in ended.receipt.words]


async def test_agent_turn_plays_to_the_end() -> None:
    async with serve_plugin() as (voice, recorded):
        expected_pcm, _ = await reference(REPLY)
        async with run_agent(voice, [REPLY]) as harness:
            await harness.session.generate_reply(user_input="Count!")
        assert harness.turns == [(REPLY, False)]
        assert harness.transcript.text == REPLY
        assert harness.speaker.interrupted == [False]
        assert harness.speaker.played[0][: len(expected_pcm)] == expected_pcm
        assert recorded.errors == []


async def test_interruption_cuts_the_transcript_at_playback() -> None:
    async with (
        serve_plugin(max_ahead_s=0.5) as (voice, recorded),
        run_agent(voice, [LONG, "Yes?"], can_pause=False) as harness,
    ):
        clock = asyncio.get_running_loop().time
        began_s = clock()
        reply = harness.session.generate_reply(user_input="Count!")
        await harness.speaker.wait_position(0.8)
        await until(lambda: len(harness.transcript.text.split()) >= 3)
        shown = harness.transcript.text
        played_before_s = harness.speaker.position_s
        async with measure_stalls() as stalled_s:
            harness.vad.start_speech()
            await reply
        played_s = len(harness.speaker.played[0]) / 48_000
        assert harness.speaker.interrupted == [True]
        assert played_s - played_before_s < 0.5 + stalled_s(), "playback continued after the interruption"
        text, interrupted = harness.turns[0]
        assert interrupted
        assert LONG.startswith(text.rstrip())
        # LiveKit shows a word first and counts it as played half a word later: an interruption may fall in between.
        counted, _, _ = shown.rstrip().rpartition(" ")
        assert text.startswith(counted), "the history contains the words shown"
        # Never a word that was not played. (LiveKit's transcript clock does not stop during an underrun of the speaker
        # on a busy machine.)
        _, starts_s = await reference(LONG)
        transcript_clock_s = played_s + harness.speaker.underrun_s
        assert len(text.split()) <= sum(start_s <= transcript_clock_s for start_s in starts_s) + 1
        # The worker was stopped, and the audio generated in vain is bounded.
        receipt = recorded.receipts[0]
        assert receipt.reason == "interrupted"
        assert receipt.samples_sent / 24_000 <= clock() - began_s + 0.5
        harness.vad.end_speech()
        harness.stt.transcribe("Stop.")
        await harness.wait_turns(2)
        assert harness.turns[1] == ("Yes?", False)


async def test_false_interruption_resumes_at_the_next_sample() -> None:
    text = STORY
    async with serve_plugin(max_ahead_s=0.3) as (voice, recorded):
        async with run_agent(voice, [text]) as harness:
            voice.attach(harness.session)
            reply = harness.session.generate_reply(user_input="Count!")
            await harness.speaker.wait_position(0.5)
            harness.vad.start_speech()
            await harness.speaker.paused.wait()
            assert voice.counters.paused == 1
            held_at = delivered_samples(voice)
            await asyncio.sleep(0.6)
            assert delivered_samples(voice) == held_at, "a paused worker sends nothing"
            assert harness.speaker.captured_s <= held_at / 24_000
            harness.vad.end_speech()
            await reply
            assert harness.false_interruptions == [True]
            assert harness.turns == [(text, False)]
            [played] = harness.speaker.played
        expected_pcm, _ = await reference(text)
        assert played[: len(expected_pcm)] == expected_pcm
        assert [receipt.reason for receipt in recorded.receipts] == ["finished"]


async def test_receipt_of_an_attached_agent_tells_what_was_played() -> None:
    """Also that of a stream which was sent whole before it was interrupted: the worker is 2 s ahead."""
    async with (
        serve_plugin(max_ahead_s=2.0) as (voice, recorded),
        run_agent(voice, [REPLY, "Yes?"], can_pause=False) as harness,
    ):
        voice.attach(harness.session)
        reply = harness.session.generate_reply(user_input="Count!")
        await harness.speaker.wait_position(0.4)
        harness.vad.start_speech()
        await reply
        harness.vad.end_speech()
        harness.stt.transcribe("Stop.")
        await harness.wait_turns(2)
        heard, whole = recorded.receipts
        played = len(harness.speaker.played[0]) // 2
        assert heard.samples_played == pytest.approx(played, abs=1)
        assert played < heard.samples_sent
        _, starts_s = await reference(REPLY)
        assert len(heard.text_spoken.split()) <= sum(start_s <= played / 24_000 for start_s in starts_s)
        assert heard.text_spoken + heard.text_remaining == REPLY
        assert whole.text_spoken == "Yes?"


class DiscardsFirstReply(Agent):
    """Drops the audio of its first reply before the speaker has any."""

    def __init__(self) -> None:
        super().__init__(instructions="Answer.")
        self._replies = 0

    async def tts_node(self, text: Any, model_settings: Any) -> Any:
        self._replies += 1
        is_discarded = self._replies == 1
        async for frame in Agent.default.tts_node(self, text, model_settings):
            if not is_discarded:
                yield frame


async def test_receipt_of_an_unplayed_reply_says_so() -> None:
    async with (
        serve_plugin() as (voice, recorded),
        run_agent(voice, [REPLY, "Yes?"], agent=DiscardsFirstReply()) as harness,
    ):
        voice.attach(harness.session)
        await harness.session.generate_reply(user_input="Count!")
        await until(lambda: recorded.receipts)
        await harness.session.generate_reply(user_input="And?")
        await until(lambda: len(recorded.receipts) == 2)
        unplayed, whole = recorded.receipts
        assert (unplayed.samples_played, unplayed.text_spoken, unplayed.text_remaining) == (0, "", REPLY)
        assert whole.text_spoken == "Yes?"


class BusySpeaker(FakeSpeaker):
    """Accepts no audio of the first speech, as LiveKit's output for avatars does while an older one is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = asyncio.Event()

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        if not self.waits.is_set():
            self.waits.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = _CaptureCancelledEvent(playback_position=0, interrupted=True)
                asyncio.get_running_loop().call_soon(self._dispatch_playback_finished, cancelled)
                raise
        await super().capture_frame(frame)


async def test_receipt_of_a_reply_that_the_sink_did_not_accept_says_so() -> None:
    async with serve_plugin() as (voice, recorded):
        speaker = BusySpeaker()
        async with run_agent(voice, [LONG, "Yes?"], sink=speaker) as harness:
            voice.attach(harness.session)
            reply = harness.session.generate_reply(user_input="Count!")
            await speaker.waits.wait()
            reply.interrupt()
            await reply
            await harness.session.generate_reply(user_input="And?")
            await until(lambda: len(recorded.receipts) == 2)
        unplayed, whole = recorded.receipts
        assert (unplayed.samples_played, unplayed.text_spoken) == (0, "")
        assert whole.text_spoken == "Yes?"
        assert len(speaker.played[0]) // 2 == whole.samples_sent


async def test_receipt_of_a_stream_outside_the_agent_is_not_held() -> None:
    async with serve_plugin() as (voice, recorded), run_agent(voice, [REPLY]) as harness:
        voice.attach(harness.session)
        await stream_text(voice, "A clip.")
        assert [receipt.text_spoken for receipt in recorded.receipts] == ["A clip."]
        await harness.session.generate_reply(user_input="Count!")
        await until(lambda: len(recorded.receipts) == 2)
        assert recorded.receipts[1].text_spoken == REPLY


async def test_agents_that_share_a_voice_have_their_own_receipts() -> None:
    async with (
        serve_plugin() as (voice, recorded),
        run_agent(voice, [LONG]) as one,
        run_agent(voice, ["Yes?"]) as other,
    ):
        voice.attach(one.session)
        voice.attach(other.session)
        reply = one.session.generate_reply(user_input="Count!")
        await one.speaker.wait_position(0.3)
        await other.session.generate_reply(user_input="Are you there?")
        await until(lambda: recorded.receipts)
        assert recorded.receipts[0].text_spoken == "Yes?"
        reply.interrupt()
        await reply
        await until(lambda: len(recorded.receipts) == 2)
        played = len(one.speaker.played[0]) // 2
        assert recorded.receipts[1].samples_played == pytest.approx(played, abs=1)


async def test_pause_that_becomes_an_interruption() -> None:
    async with serve_plugin(max_ahead_s=0.3) as (voice, recorded), run_agent(voice, [LONG, "Sorry."]) as harness:
        voice.attach(harness.session)
        first = harness.session.generate_reply(user_input="Count!")
        await harness.speaker.wait_position(0.5)
        harness.vad.start_speech()
        await harness.speaker.paused.wait()
        harness.stt.transcribe("No, wait.")
        harness.vad.end_speech()
        await first
        await harness.wait_turns(2)
        assert [interrupted for _, interrupted in harness.turns] == [True, False]
        assert harness.turns[1][0] == "Sorry."
        assert [receipt.reason for receipt in recorded.receipts] == ["interrupted", "finished"]
        assert recorded.errors == []


async def test_consecutive_turns_and_a_tool_only_turn() -> None:
    called = []

    @function_tool
    async def ring() -> None:
        """Ring the bell."""
        called.append(True)

    agent = Agent(instructions="Recite.", tools=[ring])
    async with serve_plugin() as (voice, recorded):
        async with run_agent(voice, ["First.", "Second.", "tool:ring"], agent=agent) as harness:
            assert voice.prewarming is not None
            await voice.prewarming  # started by the agent; a real user takes longer to speak
            await harness.session.generate_reply(user_input="one")
            await harness.session.generate_reply(user_input="two")
            await harness.session.generate_reply(user_input="three")
        assert harness.turns == [("First.", False), ("Second.", False)]
        assert called == [True]
        assert voice.counters.streams == 2, "a tool-only turn opens no stream"
        assert [metrics.connection_reused for metrics in recorded.metrics] == [True, True]
        assert recorded.errors == []


async def test_worker_lost_mid_turn_is_reported() -> None:
    async with (
        serve_setup(BRISK) as address,
        run_proxy(address) as proxy,
        connect_plugin(proxy.address, max_ahead_s=0.3) as (voice, _),
        run_agent(voice, [LONG, "Back again."]) as harness,
    ):
        turn = harness.session.generate_reply(user_input="Count!")
        await harness.speaker.wait_position(0.5)
        proxy.reset()
        await turn
        assert [(type(event.error.error).__name__, event.error.recoverable) for event in harness.errors] == [
            ("APIConnectionError", False)
        ]
        assert harness.speaker.played[0], "received audio is still played"
        await harness.session.generate_reply(user_input="Still there?")
        assert harness.turns[-1] == ("Back again.", False)


async def test_idle_connection_loss_is_recovered() -> None:
    async with (
        serve_setup(BRISK) as address,
        run_proxy(address) as proxy,
        aclosing(connect(f"ws://{proxy.address}")) as client,
        aclosing(TTS(client=client)) as voice,
        run_agent(voice, ["First.", "Second."]) as harness,
    ):
        await harness.session.generate_reply(user_input="one")
        assert client_tasks().count("reader") == 1
        proxy.reset()  # as after minutes of silence, when a middlebox drops the connection
        await until(lambda: not client_tasks())
        await harness.session.generate_reply(user_input="two")
        assert harness.turns == [("First.", False), ("Second.", False)]
        assert harness.errors == []


async def test_stalled_turn_is_retried() -> None:
    # Long enough for a live worker on a busy machine.
    options = SessionConnectOptions(tts_conn_options=APIConnectOptions(max_retry=2, retry_interval=0.01, timeout=1.5))
    async with (
        serve_setup(BRISK) as address,
        run_proxy(address) as proxy,
        connect_plugin(proxy.address) as (voice, _),
        run_agent(voice, ["First.", REPLY], conn_options=options) as harness,
    ):
        await harness.session.generate_reply(user_input="one")
        proxy.stall()
        voice.on("error", lambda error: proxy.resume())
        await harness.session.generate_reply(user_input="two")
        assert harness.turns[1] == (REPLY, False)
        assert [event.error.recoverable for event in harness.errors] == [True]


@pytest.mark.parametrize("kind", ["fallback", "sentences"])
async def test_agent_runs_inside_adapters(kind: str) -> None:
    text = "This is the first sentence. And here is the second."
    async with serve_plugin() as (voice, _), connect_plugin("127.0.0.1:1") as (dead, _):
        if kind == "fallback":
            adapter: tts.TTS[Any] = tts.FallbackAdapter([dead, voice], max_retry_per_tts=0)
        else:
            adapter = tts.StreamAdapter(tts=voice, sentence_tokenizer=tokenize.basic.SentenceTokenizer())
        async with run_agent(adapter, [text]) as harness:
            await harness.session.generate_reply(user_input="Speak.")
        [(content, interrupted)] = harness.turns
        assert (content.replace(" ", ""), interrupted) == (text.replace(" ", ""), False)  # the tokenizer drops spaces
        assert len(harness.speaker.played[0]) > 48_000
        await adapter.aclose()
