"""Idle sessions hold no capacity, over WebSocket and gRPC."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import grpc
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import serving, tone_settings, until
from tests.fakes.clock import in_virtual_time
from tests.integration.grpc_worker import LONG, GrpcWorker, running_grpc_worker, say
from tests.integration.test_session import to_end
from tests.integration.test_websocket import LONG_TIMEOUTS
from tests.integration.test_websocket import dial as dial_socket
from tts_worker.client import ClientSettings, SessionOptions, connect
from tts_worker.errors import ErrorCode, OverCapacity
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.session.factory import HubConfig
from tts_worker.types import Outcome, State
from tts_worker.worker import running_worker

TEXT = "Hello there."
AT_ONCE = {"slot_idle_s": 0.000001}
"""An idle session loses its slot as soon as another caller needs it."""
NEVER = {"slot_idle_s": 600}

CRASHING_CLIENT = """
import sys, grpc
from tts_worker.protocol import tts_worker_pb2 as pb, tts_worker_pb2_grpc
stub = tts_worker_pb2_grpc.TTSServiceStub(grpc.insecure_channel(sys.argv[1]))
calls = []
for number in range(int(sys.argv[2])):
    assert stub.StartSession(pb.StartSessionRequest(session_id=f"crash-{number}")).success
    if sys.argv[3] == "speaking":
        text = pb.TextChunk(session_id=f"crash-{number}", text="A long story that goes on and on. " * 50)
        calls.append(stub.Synthesize(iter([text])))
        next(calls[-1])
print("started", flush=True)
sys.stdin.read()
"""


async def crash(server: GrpcWorker, sessions: int, mode: str) -> None:
    """A client process that opens sessions and is killed."""
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CRASHING_CLIENT, server.member.address, str(sessions), mode),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"started\n"
    client.send_signal(signal.SIGKILL)
    await client.wait()


async def test_idle_sessions_of_a_killed_grpc_client_free_slots() -> None:
    async with running_grpc_worker(session={"max_sessions": 3, **AT_ONCE}) as server:
        await crash(server, 3, "silent")
        for number in range(3):
            assert (await server.start(f"new-{number}")).success
        calls = [await server.speak(LONG, session=f"new-{number}").begin() for number in range(3)]
        for call in calls:
            await call.read_frames(1)
        assert server.worker.hub.live_sessions == 6, "the silent sessions stay open"


async def test_speaking_sessions_of_a_killed_grpc_client_free_slots() -> None:
    async with running_grpc_worker(session={"max_sessions": 2, **AT_ONCE}) as server:
        await crash(server, 2, "speaking")
        await until(lambda: server.worker.hub.speaking_sessions == 0)
        for number in range(2):
            assert (await server.start(f"new-{number}")).success
            assert (await say(server, TEXT, session=f"new-{number}")).frames


async def test_session_keeps_its_slot_between_utterances() -> None:
    async with running_grpc_worker(session={"max_sessions": 1, **NEVER}) as server:
        await server.start("first")
        await say(server, TEXT, session="first")
        assert (await server.start("second")).error.code == "over_capacity"


async def test_grpc_utterance_without_a_slot_is_retryable() -> None:
    async with running_grpc_worker(session={"max_sessions": 1, **AT_ONCE}) as server:
        await server.start("silent")
        await server.start("speaking")
        speaking = await server.speak(LONG * 4, session="speaking").begin()
        await speaking.read_frames(1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await say(server, TEXT, session="silent")
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.value.trailing_metadata() or ())["tts-retryable"] == "true"
        await server.control(pb.STOP, "speaking")
        await speaking.end()
        assert (await say(server, TEXT, session="silent")).frames, "the session takes a slot again"


HELD: dict[str, Any] = {"text_idle_timeout_s": 3_600.0, "pause_timeout_s": 3_600.0}
"""What a client asks for that wants to keep its slot."""


async def wait_s(seconds: float) -> None:
    """Let time pass: the timeouts are the subject."""
    await asyncio.sleep(seconds)


@in_virtual_time
@pytest.mark.parametrize("text", ["Hel", "", "Hello there."])
async def test_utterance_that_waits_for_text_gives_way(text: str) -> None:
    async with running_worker(tone_settings(session={"max_sessions": 3})) as worker:
        hub = worker.hub
        holding = [hub.open(SessionOptions(**HELD, flush_after_ms=0)) for _ in range(3)]
        for session in holding:
            session.speak(text)
        with pytest.raises(OverCapacity):
            hub.open()
        readers = [asyncio.create_task(to_end(session)) for session in holding]
        await wait_s(5.0)
        assert hub.free_slots == 3
        for _ in range(3):
            other = hub.open()
            other.speak("Hi.")
            other.end_text()
            assert (await to_end(other))[1].outcome is Outcome.DONE
            other.speak("And more text that is not ended")
        ended = [end for _, end in await asyncio.gather(*readers)]
        assert {each.receipt.reason for each in ended} == {"slot_idle"}
        assert all(each.receipt.text_spoken + each.receipt.text_remaining == text for each in ended)
        with pytest.raises(OverCapacity):
            hub.open()


@in_virtual_time
async def test_stopped_session_takes_a_slot_again() -> None:
    async with running_worker(tone_settings(session={"max_sessions": 1})) as worker:
        first = worker.hub.open(SessionOptions(**HELD))
        first.speak("Hello")
        reading = asyncio.create_task(to_end(first))
        await wait_s(8.0)
        other = worker.hub.open()
        assert (await reading)[1].receipt.reason == "slot_idle"
        first.speak("On it goes.")
        first.end_text()
        assert (await to_end(first))[1].outcome is Outcome.DONE
        assert other.state is State.IDLE


@in_virtual_time
async def test_download_that_waits_for_text_gives_way() -> None:
    async with running_worker(tone_settings(session={"max_sessions": 4})) as worker:
        downloads = [worker.hub.open(SessionOptions(**HELD, realtime=False, flush_after_ms=0)) for _ in range(3)]
        for session in downloads:
            session.speak("Hel")
        with pytest.raises(OverCapacity):
            worker.hub.open(SessionOptions(realtime=False))
        await wait_s(3.0)
        for _ in range(3):
            worker.hub.open(SessionOptions(realtime=False)).speak("Other text.")
        assert [session.state for session in downloads] == [State.IDLE] * 3


@in_virtual_time
async def test_utterance_with_text_to_say_keeps_its_slot() -> None:
    async with running_worker(tone_settings(session={"max_sessions": 1})) as worker:
        first = worker.hub.open()
        first.speak("This sentence takes a while to be said, longer than two seconds. ")
        await wait_s(0.5)
        for _ in range(6):
            while first.poll() is not None:
                pass
            with pytest.raises(OverCapacity):
                worker.hub.open()
            await wait_s(0.3)


@in_virtual_time
async def test_clients_may_only_shorten_timeouts() -> None:
    limits = {"max_sessions": 2, "pause_timeout_s": 10.0, "text_idle_timeout_s": 20.0}
    async with running_worker(tone_settings(session=limits)) as worker:
        paused = worker.hub.open(SessionOptions(**HELD))
        waiting = worker.hub.open(SessionOptions(**HELD))
        paused.speak(LONG)
        paused.pause()
        waiting.speak("Hello.")
        began_s = asyncio.get_running_loop().time()
        assert (await to_end(paused))[1].receipt.reason == "pause_timeout"
        assert asyncio.get_running_loop().time() - began_s < 11
        assert (await to_end(waiting))[1].outcome is Outcome.DONE
        assert asyncio.get_running_loop().time() - began_s < 21


async def test_free_slots_include_idle_sessions() -> None:
    async with running_grpc_worker(session={"max_sessions": 4, **AT_ONCE}) as server:
        await server.start("silent")
        await server.start("speaking")
        await (await server.speak(LONG, session="speaking").begin()).read_frames(1)
        metrics = (await server.stub.GetCapabilities(pb.GetCapabilitiesRequest())).metrics
        assert (metrics["free_slots"], metrics["queue_depth"], metrics["live_sessions"]) == (3.0, 1.0, 2.0)


async def test_worker_offers_no_more_slots_than_its_engines_take() -> None:
    async with running_grpc_worker(engines={"tone": {"kind": "tone", "max_utterances": 2}}) as server:
        offered = await server.stub.GetCapabilities(pb.GetCapabilitiesRequest())
        assert offered.capabilities.max_concurrent_sessions == 2
        assert offered.metrics["free_slots"] == 2.0
        for number in range(2):
            assert (await server.start(f"new-{number}")).success
        refused = await server.start("one-more")
        assert (refused.success, refused.error.code) == (False, "over_capacity")


async def test_engine_that_a_session_may_load_adds_slots() -> None:
    few = {"kind": "tone", "max_utterances": 2}
    async with running_grpc_worker(
        engines={"few": few, "more": {"kind": "hibari"}},
        models={"preload": ["few"], "on_demand": True},
        session={"max_sessions": 5},
    ) as server:
        offered = await server.stub.GetCapabilities(pb.GetCapabilitiesRequest())
        assert offered.capabilities.max_concurrent_sessions == 5


async def test_idle_sockets_do_not_block_a_caller() -> None:
    async with serving(session={"max_sessions": 2, **AT_ONCE}) as address, AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(dial_socket(address)) for _ in range(10)]
        for client in idle:
            await client.until("ready")
        async with dial_socket(address) as other:
            await other.send(type="text", text=TEXT, end=True)
            assert (await other.until("done"))["text_spoken"] == TEXT
        for client in idle:
            await client.send(type="text", text="Hi.", end=True)
            assert (await client.until("done"))["text_spoken"] == "Hi."


async def test_utterance_without_a_slot_reports_its_text() -> None:
    settings = {**LONG_TIMEOUTS, "session": {**LONG_TIMEOUTS["session"], "max_sessions": 1, **AT_ONCE}}
    async with serving(**settings) as address, dial_socket(address) as silent:
        await silent.until("ready")
        async with dial_socket(address) as speaking:
            await speaking.send(type="text", text=LONG)
            await speaking.until_audio()
            await silent.send(type="text", text="I have something ", context="a")
            refused = await silent.until("error")
            assert (refused["code"], refused["retryable"], refused["retry_after_s"]) == ("over_capacity", True, 1.0)
            assert (refused["text_spoken"], refused["text_remaining"]) == ("", "I have something ")
            assert refused["context"] == "a"
            await speaking.send(type="stop")
            await speaking.until("stopped")
        await silent.send(type="text", text=TEXT, end=True, context="b")
        assert (await silent.until("done"))["text_spoken"] == TEXT


async def test_text_and_end_at_once_are_reported_whole() -> None:
    async with running_worker(tone_settings(session={"max_sessions": 1, **AT_ONCE})) as worker:
        silent = worker.hub.open()
        speaking = worker.hub.open(SessionOptions(realtime=True))
        speaking.speak(LONG)
        key = silent.speak("One, ")
        silent.speak("two.")
        silent.end_text()
        later = silent.speak("Three.")
        silent.end_text()
        _, first = await to_end(silent)
        _, second = await to_end(silent)
        for ended, expected, text in ((first, key, "One, two."), (second, later, "Three.")):
            assert (ended.key, ended.outcome) == (expected, Outcome.ERROR)
            assert ended.error is not None
            assert (ended.error.code, ended.error.retryable) == (ErrorCode.OVER_CAPACITY, True)
            assert (ended.receipt.text_spoken, ended.receipt.text_remaining) == ("", text)
        assert silent.state is State.IDLE
        assert worker.hub.speaking_sessions == 1
        speaking.stop()
        silent.speak("Now.")
        silent.end_text()
        assert (await to_end(silent))[1].outcome is Outcome.DONE


async def test_stop_before_the_refusal_ends_the_utterance_once() -> None:
    async with running_worker(tone_settings(session={"max_sessions": 1, **AT_ONCE})) as worker:
        silent = worker.hub.open()
        speaking = worker.hub.open()
        speaking.speak(LONG)
        silent.speak("Never mind.")
        silent.stop()
        speaking.stop()
        silent.speak("Now.")
        silent.end_text()
        outcomes = [(await to_end(silent))[1].outcome for _ in range(2)]
        assert outcomes == [Outcome.STOPPED, Outcome.DONE]


async def test_sixty_six_prewarmed_clients_do_not_block() -> None:
    client = ClientSettings(idle_connections=1)
    async with (
        serving(session={"max_sessions": 4, "max_open_sessions": 100, **AT_ONCE}) as address,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(connect(f"ws://{address}", client)) for _ in range(66)]
        opened = [await one.open(SessionOptions(realtime=False)) for one in clients]
        session = opened[0].session
        session.speak(TEXT)
        session.end_text()
        assert (await to_end(session))[1].outcome is Outcome.DONE


async def test_longest_idle_session_ends_at_the_open_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_worker.worker.HubConfig", partial(HubConfig, end_idle_s=0.000001))
    limits = {"max_sessions": 1, "max_open_sessions": 2, **AT_ONCE}
    async with serving(session=limits) as address, dial_socket(address) as oldest:
        await oldest.until("ready")
        async with dial_socket(address) as second, dial_socket(address) as third:
            await second.until("ready")
            await third.until("ready")
            with pytest.raises(ConnectionClosed) as closed:
                await oldest.until_closed()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013
            await second.send(type="text", text=TEXT, end=True)
            assert (await second.until("done"))["text_spoken"] == TEXT


async def test_open_sessions_are_bounded() -> None:
    limits = {"max_sessions": 1, "max_open_sessions": 2, **AT_ONCE}
    async with serving(session=limits) as address, dial_socket(address), dial_socket(address):
        with pytest.raises(InvalidStatus) as refused:
            async with dial_socket(address):
                pass
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["Retry-After"]


async def test_failed_utterance_frees_the_slot() -> None:
    async with running_worker(tone_settings(session={"max_sessions": 1, "max_utterance_chars": 10, **NEVER})) as worker:
        session = worker.hub.open()
        with pytest.raises(Exception, match="at most 10 characters"):
            session.speak("far too long for this")
        assert worker.hub.speaking_sessions == 0
        session.close()
        with pytest.raises(OverCapacity):
            [worker.hub.open() for _ in range(2)]
