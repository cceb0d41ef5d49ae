"""A real ``AgentSession``, offline, that speaks through the plugin and a real worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("livekit.agents", reason="needs the extra 'livekit'")

from livekit.agents import Agent, APIConnectOptions, function_tool, tokenize, tts
from livekit.agents.voice.agent_session import SessionConnectOptions

from tests.behaviour.recording_client import RecordingClient
from tests.behaviour.transports import faulty_worker, serve_setup
from tests.conftest import until
from tests.fakes.clock import standing_still
from tests.fakes.livekit_agent import on_stage
from tests.fakes.proxy import proxied
from tests.integrations.test_livekit import BRISK, handed_out, plugin, speaking
from tts_worker.client import Client, SessionOptions
from tts_worker.client.local import LocalConnector

REPLY = "One two three four five six seven."
STORY = "This is the longest story that I know, and it goes on and on for quite a while."
LONG = f"{STORY} " * 4
"""Still going on when a busy machine gets round to interrupting it."""


async def reference(text: str) -> tuple[bytes, list[float]]:
    """How the worker speaks ``text``: its sound, and when its words begin (s)."""
    async with Client(LocalConnector(lambda: faulty_worker(BRISK))) as client:
        recorder = RecordingClient((await client.open(SessionOptions(realtime=False))).session)
        ended = await recorder.synthesize(text)
        return recorder.pcm[ended.key], [word.start_sample / 24_000 for word in ended.receipt.words]


async def test_a_spoken_turn() -> None:
    async with plugin() as (voice, watch):
        alone, _ = await reference(REPLY)
        async with on_stage(voice, [REPLY]) as stage:
            await stage.session.generate_reply(user_input="Count!")
        assert stage.said == [(REPLY, False)]
        assert stage.page.text == REPLY
        assert stage.speaker.interrupted == [False]
        assert stage.speaker.heard[0][: len(alone)] == alone
        assert watch.errors == []


async def test_an_interruption_cuts_the_transcript_at_the_word_that_was_heard() -> None:
    async with plugin(max_ahead_s=0.5) as (voice, watch), on_stage(voice, [LONG, "Yes?"], can_pause=False) as stage:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        reply = stage.session.generate_reply(user_input="Count!")
        await stage.speaker.until(0.8)
        await until(lambda: len(stage.page.text.split()) >= 3)
        shown = stage.page.text
        heard_before_s = stage.speaker.position_s
        async with standing_still() as stood_still:
            stage.ears.voice()
            await reply
        heard_s = len(stage.speaker.heard[0]) / 48_000
        assert stage.speaker.interrupted == [True]
        assert heard_s - heard_before_s < 0.5 + stood_still(), "it went on talking"
        text, interrupted = stage.said[0]
        assert interrupted
        assert LONG.startswith(text.rstrip())
        # LiveKit shows a word first and counts it as heard half a word later: an interruption may fall between.
        counted, _, _ = shown.rstrip().rpartition(" ")
        assert text.startswith(counted), "what was shown was heard"
        # Never a word that was not heard. (LiveKit's own clock of the transcript does not know of a loudspeaker that
        # has run dry on a busy machine.)
        _, starts_s = await reference(LONG)
        by_its_clock_s = heard_s + stage.speaker.dry_s
        assert len(text.split()) <= sum(start_s <= by_its_clock_s for start_s in starts_s) + 1
        # The worker was told, and what it made in vain is bounded.
        receipt = watch.receipts[0]
        assert receipt.reason == "interrupted"
        assert receipt.samples_sent / 24_000 <= clock() - began_s + 0.5
        stage.ears.silence()
        stage.scribe.writes("Stop.")
        await stage.until_said(2)
        assert stage.said[1] == ("Yes?", False)


async def test_a_false_interruption_pauses_the_worker_and_goes_on_with_the_next_sample() -> None:
    text = STORY
    async with plugin(max_ahead_s=0.3) as (voice, watch):
        async with on_stage(voice, [text]) as stage:
            voice.attach(stage.session)
            reply = stage.session.generate_reply(user_input="Count!")
            await stage.speaker.until(0.5)
            stage.ears.voice()
            await stage.speaker.paused.wait()
            assert voice.counters.paused == 1
            held_at = handed_out(voice)
            await asyncio.sleep(0.6)
            assert handed_out(voice) == held_at, "a paused worker makes nothing"
            assert stage.speaker.captured_s <= held_at / 24_000
            stage.ears.silence()
            await reply
            assert stage.false_interruptions == [True]
            assert stage.said == [(text, False)]
            [heard] = stage.speaker.heard
        alone, _ = await reference(text)
        assert heard[: len(alone)] == alone
        assert [receipt.reason for receipt in watch.receipts] == ["finished"]


async def test_a_pause_that_becomes_an_interruption() -> None:
    async with plugin(max_ahead_s=0.3) as (voice, watch), on_stage(voice, [LONG, "Sorry."]) as stage:
        voice.attach(stage.session)
        first = stage.session.generate_reply(user_input="Count!")
        await stage.speaker.until(0.5)
        stage.ears.voice()
        await stage.speaker.paused.wait()
        stage.scribe.writes("No, wait.")
        stage.ears.silence()
        await first
        await stage.until_said(2)
        assert [interrupted for _, interrupted in stage.said] == [True, False]
        assert stage.said[1][0] == "Sorry."
        assert [receipt.reason for receipt in watch.receipts] == ["interrupted", "finished"]
        assert watch.errors == []


async def test_two_turns_back_to_back_and_one_that_only_calls_a_tool() -> None:
    called = []

    @function_tool
    async def ring() -> None:
        """Ring the bell."""
        called.append(True)

    agent = Agent(instructions="Recite.", tools=[ring])
    async with plugin() as (voice, watch):
        async with on_stage(voice, ["First.", "Second.", "tool:ring"], agent=agent) as stage:
            assert voice._warming is not None
            await voice._warming  # the agent asked for it; people take longer to say something
            await stage.session.generate_reply(user_input="one")
            await stage.session.generate_reply(user_input="two")
            await stage.session.generate_reply(user_input="three")
        assert stage.said == [("First.", False), ("Second.", False)]
        assert called == [True]
        assert voice.counters.streams == 2, "a turn that only calls a tool says nothing"
        assert [metrics.connection_reused for metrics in watch.metrics] == [True, True]
        assert watch.errors == []


async def test_a_worker_killed_in_the_middle_of_a_turn() -> None:
    async with (
        serve_setup(BRISK) as address,
        proxied(address) as proxy,
        speaking(proxy.address, max_ahead_s=0.3) as (voice, _),
        on_stage(voice, [LONG, "Back again."]) as stage,
    ):
        turn = stage.session.generate_reply(user_input="Count!")
        await stage.speaker.until(0.5)
        proxy.cut()
        await turn
        assert [(type(event.error.error).__name__, event.error.recoverable) for event in stage.errors] == [
            ("APIConnectionError", False)
        ]
        assert stage.speaker.heard[0], "what was made is still heard"
        await stage.session.generate_reply(user_input="Still there?")
        assert stage.said[-1] == ("Back again.", False)


async def test_a_connection_that_died_while_nobody_spoke_is_not_noticed() -> None:
    async with (
        serve_setup(BRISK) as address,
        proxied(address) as proxy,
        speaking(proxy.address) as (voice, _),
        on_stage(voice, ["First.", "Second."]) as stage,
    ):
        await stage.session.generate_reply(user_input="one")
        pool: Any = voice._client._connector
        await until(lambda: pool._idle)
        proxy.cut()  # minutes of silence: something on the way forgot the connection
        await until(lambda: not pool._idle)
        await stage.session.generate_reply(user_input="two")
        assert stage.said == [("First.", False), ("Second.", False)]
        assert stage.errors == []


async def test_a_stall_ends_in_a_retry_and_the_turn_is_spoken() -> None:
    # Long enough for a worker that is there, whatever else the machine does.
    options = SessionConnectOptions(tts_conn_options=APIConnectOptions(max_retry=2, retry_interval=0.01, timeout=1.5))
    async with (
        serve_setup(BRISK) as address,
        proxied(address) as proxy,
        speaking(proxy.address) as (voice, _),
        on_stage(voice, ["First.", REPLY], conn_options=options) as stage,
    ):
        await stage.session.generate_reply(user_input="one")
        proxy.swallow()
        voice.on("error", lambda error: proxy.heal())
        await stage.session.generate_reply(user_input="two")
        assert stage.said[1] == (REPLY, False)
        assert [event.error.recoverable for event in stage.errors] == [True]


@pytest.mark.parametrize("kind", ["fallback", "sentences"])
async def test_inside_the_adapters(kind: str) -> None:
    text = "This is the first sentence. And here is the second."
    async with plugin() as (voice, _), speaking("127.0.0.1:1") as (dead, _):
        if kind == "fallback":
            adapter: tts.TTS[Any] = tts.FallbackAdapter([dead, voice], max_retry_per_tts=0)
        else:
            adapter = tts.StreamAdapter(tts=voice, sentence_tokenizer=tokenize.basic.SentenceTokenizer())
        async with on_stage(adapter, [text]) as stage:
            await stage.session.generate_reply(user_input="Speak.")
        [(said, cut)] = stage.said
        assert (said.replace(" ", ""), cut) == (text.replace(" ", ""), False)  # the tokenizer eats spaces
        assert len(stage.speaker.heard[0]) > 48_000
        await adapter.aclose()
