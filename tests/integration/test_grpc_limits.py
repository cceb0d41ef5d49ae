"""gRPC clients that ask for too much, misbehave, or are not who they say; and a worker that goes away."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import anyio
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.conftest import until
from tests.fakes.proxy import run_proxy
from tests.fakes.redis import eventually
from tests.fakes.scrape import scraped
from tests.integration.grpc_rig import LONG, TEXT, Call, Rig, dial, grpc_worker, say
from tts_worker.client import ClientSettings, SessionOptions, connect
from tts_worker.errors import ErrorCode, InvalidRequest, TTSWorkerError, Unauthenticated
from tts_worker.transports.grpc import tts_worker_pb2 as pb
from tts_worker.transports.grpc import tts_worker_pb2_grpc
from tts_worker.transports.grpc.calls import CODE_KEY, RETRY_AFTER_KEY

CODE = grpc.StatusCode


async def failed(call: Call) -> tuple[grpc.StatusCode, str]:
    """Read to the end of a call that fails; its status and our own code."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call.read_all()
    metadata = dict(failure.value.trailing_metadata() or ())
    assert not any(frame.is_final for frame in call.frames), "a call that failed has no final frame"
    return failure.value.code(), str(metadata.get(CODE_KEY))


# -- control does not queue behind sound ------------------------------------------------------------------------------


async def test_control_is_answered_while_nobody_reads() -> None:
    async with grpc_worker(server={"send_timeout_s": 120.0}) as rig:
        await rig.start(realtime="false", sample_rate="48000")
        silent_ms = [await _control_ms(rig, command, applied=False) for command in (pb.PAUSE, pb.RESUME) * 2]
        call = await rig.speak(LONG * 20).begin()
        session = rig.worker.hub
        await call.hear(1)
        await until(lambda: session.buffered_s > 1.0)  # the engine is ahead, the client takes nothing
        took_ms = [await _control_ms(rig, command) for command in (pb.PAUSE, pb.RESUME) * 10]
        assert min(took_ms) < min(silent_ms) + 50, "slower than where there is no sound to wait behind"
        answer = await rig.control(pb.STOP)
        assert answer.applied
        emitted = answer.emitted_samples
        final = await call.end()
        assert final.receipt.outcome == "stopped"
        assert sum(frame.speech_samples for frame in call.frames) == emitted, "nothing was written after the stop"


async def _control_ms(rig: Rig, command: int, *, applied: bool = True) -> float:
    """How long a command took that did so, or that changed nothing."""
    began_s = time.perf_counter()
    answer = await rig.control(command)
    took_ms = 1000 * (time.perf_counter() - began_s)
    assert answer.applied is applied
    return took_ms


async def test_a_reader_that_stops_reading_is_cut_off_and_frees_its_place() -> None:
    # Long enough for a machine that stands still for a second while somebody reads.
    async with grpc_worker(server={"send_timeout_s": 2.0}) as rig:
        await rig.start(realtime="false")
        call = await rig.speak(LONG * 20).begin()
        await call.hear(1)

        async def cut_off() -> bool:
            await asyncio.sleep(0.1)  # megabytes fit on the way to who does not read: leave the worker time for them
            text = rig.worker.metrics.render()
            return scraped(text, "tts_utterances_total", code="", outcome="stopped") == 1

        await eventually(cut_off)
        assert (await say(rig, "Its place is free.")).frames
        assert rig.worker.hub.live_sessions == 1
        assert await failed(call) == (CODE.DEADLINE_EXCEEDED, "send_timeout")
        assert (await rig.control(pb.STOP)).state == "idle"
        assert (await say(rig, "Ok.")).frames


async def test_a_slow_reader_gets_all_of_it() -> None:
    async with grpc_worker() as rig:
        await rig.start(realtime="false")
        whole = await say(rig, TEXT)
        call = await rig.speak(TEXT).begin()
        await call.read_all(pause_s=0.001)
        assert call.pcm == whole.pcm


# -- sessions that are not there, not yours, or too many --------------------------------------------------------------


async def test_unknown_and_missing_session_ids() -> None:
    async with grpc_worker() as rig:
        assert await failed(await rig.speak("x", session="nobody").begin()) == (CODE.NOT_FOUND, "session_closed")
        assert await failed(await rig.speak("x", session="").begin()) == (CODE.INVALID_ARGUMENT, "invalid_request")
        empty = Call(rig.stub.Synthesize(), "s")
        await empty.rpc.done_writing()
        assert await failed(empty) == (CODE.INVALID_ARGUMENT, "invalid_request")
        for command in (pb.PAUSE, pb.RESUME, pb.STOP):
            answer = await rig.control(command, "nobody")
            assert (answer.success, answer.applied, answer.error.code) == (False, False, "session_closed")
        for name in ("", "x" * 129):
            assert (await rig.start(name)).error.code == "invalid_request"


async def test_text_for_another_session_and_text_after_the_end() -> None:
    async with grpc_worker() as rig:
        await rig.start("a")
        await rig.start("b")
        call = await rig.speak("One. ", session="a", close=False).begin()
        await call.rpc.write(pb.TextChunk(session_id="b", text="Two."))
        assert await failed(call) == (CODE.INVALID_ARGUMENT, "invalid_request")
        call = await rig.speak("One. ", session="a", close=False).begin()
        await call.rpc.write(pb.TextChunk(session_id="a", text=LONG, is_final=True))
        await call.rpc.write(pb.TextChunk(session_id="a", text="Three."))
        assert await failed(call) == (CODE.FAILED_PRECONDITION, "illegal_command")
        assert (await say(rig, "Ok.", session="a")).frames
        await until(lambda: rig.worker.hub.live_sessions == 2)  # a call that failed is told so before it is put away


async def test_a_session_belongs_to_who_started_it() -> None:
    keys = ["key-of-alice", "key-of-bob!!"]
    async with grpc_worker(server={"api_keys": keys}) as rig:

        def as_(key: str) -> tuple[tuple[str, str]]:
            return (("authorization", f"Bearer {key}"),)

        alice = as_(keys[0])
        bob = as_(keys[1])
        assert (await rig.stub.StartSession(pb.StartSessionRequest(session_id="s"), metadata=alice)).success
        call = Call(rig.stub.Synthesize(metadata=alice), "s", [pb.TextChunk(session_id="s", text=LONG)])
        await (await call.begin()).hear(1)
        stolen = await rig.stub.Control(pb.ControlRequest(session_id="s", command=pb.STOP), metadata=bob)
        assert (stolen.success, stolen.error.code) == (False, "session_closed")
        assert not (await rig.stub.EndSession(pb.EndSessionRequest(session_id="s"), metadata=bob)).success
        taken = await rig.stub.StartSession(pb.StartSessionRequest(session_id="s"), metadata=bob)
        assert (taken.success, taken.error.code) == (False, "illegal_command")
        theirs = Call(rig.stub.Synthesize(metadata=bob), "s", [pb.TextChunk(session_id="s", text="x")])
        assert await failed(await theirs.begin()) == (CODE.NOT_FOUND, "session_closed")
        await call.hear(5)
        own = await rig.stub.Control(pb.ControlRequest(session_id="s", command=pb.STOP), metadata=alice)
        assert own.applied


async def test_an_api_key_is_asked_for_everywhere_but_for_health() -> None:
    async with grpc_worker(server={"api_keys": ["a-good-key"]}) as rig:
        for metadata in ((), (("authorization", "Bearer wrong-key"),), (("x-api-key", ""),)):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await rig.stub.GetCapabilities(pb.GetCapabilitiesRequest(), metadata=metadata)
            assert refusal.value.code() is CODE.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await rig.stub.Synthesize(metadata=metadata).read()
            assert refusal.value.code() is CODE.UNAUTHENTICATED
        assert await rig.stub.GetCapabilities(pb.GetCapabilitiesRequest(), metadata=(("x-api-key", "a-good-key"),))
        assert (await _health(rig)) == health_pb2.HealthCheckResponse.SERVING
        async with connect(f"grpc://{rig.member.address}") as client:
            with pytest.raises(Unauthenticated):
                await client.open()
        async with connect(f"grpc://{rig.member.address}", ClientSettings(api_key="a-good-key")) as client:
            assert (await client.open()).session


async def test_over_capacity_is_refused_at_once_and_said_in_both_ways() -> None:
    async with grpc_worker(session={"max_sessions": 2, "slot_idle_s": 600}) as rig:
        await rig.start("a")
        await rig.start("b")
        took_s = []
        for _ in range(20):
            began_s = time.perf_counter()
            refused = await rig.start("c")
            took_s.append(time.perf_counter() - began_s)
            assert (refused.success, refused.error.code, refused.error.retryable) == (False, "over_capacity", True)
            assert refused.message
        assert min(took_s) < 0.05, "it was made to wait"
        first = await rig.speak(LONG, session="a").begin()
        await first.hear(1)
        further = await rig.speak(LONG, session="a").begin()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await further.next()
        assert refusal.value.code() is CODE.RESOURCE_EXHAUSTED
        assert dict(refusal.value.trailing_metadata() or ())[RETRY_AFTER_KEY] == "1"
        assert (await rig.stub.EndSession(pb.EndSessionRequest(session_id="b"))).success
        assert (await rig.start("c")).success


async def test_starting_again_begins_anew_and_holds_one_place() -> None:
    async with grpc_worker(session={"max_sessions": 1, "slot_idle_s": 600}) as rig:
        for _ in range(3):
            assert (await rig.start()).success
        assert rig.worker.hub.live_sessions == 1
        call = await rig.speak(LONG).begin()
        await call.hear(1)
        assert (await rig.start()).error.code == "illegal_command"
        await call.hear(5)


async def test_a_session_that_nobody_uses_ends() -> None:
    async with grpc_worker(grpc={"session_idle_s": 0.2}) as rig:
        await rig.start()
        await until(lambda: rig.worker.hub.live_sessions == 0)
        assert not (await rig.control(pb.STOP)).success


async def test_a_session_that_speaks_is_used() -> None:
    async with grpc_worker(grpc={"session_idle_s": 1.5}) as rig:  # a busy machine may take a second to begin
        await rig.start()
        call = await rig.speak(LONG).begin()
        began_s = time.perf_counter()
        await call.hear(1)
        while time.perf_counter() - began_s < 2.0:
            await call.hear(len(call.frames) + 1)
        assert rig.worker.hub.live_sessions == 1


# -- what makes no sense ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"voice": "nobody"}, "unknown_voice"),
        ({"sample_rate": "loud"}, "invalid_request"),
        ({"sample_rate": "1"}, "invalid_request"),
        ({"sample_rate": "48001"}, "invalid_request"),
        ({"frame_ms": "0"}, "invalid_request"),
        ({"frame_ms": "20.5"}, "invalid_request"),
        ({"packetize": "perhaps"}, "invalid_request"),
        ({"speed": "nan"}, "invalid_request"),
        ({"speed": "99"}, "invalid_request"),
        ({"seed": "-1"}, "invalid_request"),
        ({"seed": "9" * 5_000}, "invalid_request"),
        ({"lead_ms": "-5"}, "invalid_request"),
        ({"lead_ms": "1e300"}, "invalid_request"),
        ({"pause_timeout_ms": "0"}, "invalid_request"),
        ({"lexicon": "[1]"}, "invalid_request"),
        ({"lexicon": "[" * 15_000}, "invalid_request"),
        ({"urls": "read"}, "invalid_request"),
        ({"anything": "x" * 30_000}, "invalid_request"),
    ],
)
async def test_options_that_make_no_sense_are_named(options: dict[str, str], code: str) -> None:
    async with grpc_worker() as rig:
        refused = await rig.start(**options)
        assert (refused.success, refused.error.code) == (False, code)
        assert rig.worker.hub.live_sessions == 0


async def test_options_of_others_are_left_alone_and_named() -> None:
    async with grpc_worker() as rig:
        started = await rig.start(speaker="x", emotion="y")
        assert started.success
        assert "emotion, speaker" in started.message


async def test_text_that_is_too_long() -> None:
    async with grpc_worker(session={"max_message_chars": 100, "max_utterance_chars": 150}) as rig:
        await rig.start()
        assert await failed(await rig.speak("x" * 101).begin()) == (CODE.INVALID_ARGUMENT, "text_too_long")
        assert await failed(await rig.speak("x" * 80, "y" * 80).begin()) == (CODE.INVALID_ARGUMENT, "text_too_long")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:  # while it is written, or when it is read
            await (await rig.speak("x" * 2_000_000).begin()).next()
        assert refusal.value.code() is CODE.RESOURCE_EXHAUSTED, "gRPC's own bound, before any work"
        assert (await say(rig, "Ok.")).frames


async def test_bytes_that_are_no_message() -> None:
    async with grpc_worker() as rig:
        for method in ("Control", "StartSession"):
            with pytest.raises(grpc.aio.AioRpcError):
                await rig.channel.unary_unary(f"/tts.TTSService/{method}")(b"\xff" * 40)
        assert (await rig.start()).success


async def test_models_that_are_unknown_and_models_in_use() -> None:
    async with grpc_worker(
        engines={"tone": {"kind": "tone"}}, grpc={"models": {"piper-en": {"engine": "tone", "voice": "tone-low"}}}
    ) as rig:
        assert (await rig.start(model="nobody")).error.code == "unknown_model"
        for call in (
            rig.stub.LoadModel(pb.LoadModelRequest(model_id="nobody")),
            rig.stub.UnloadModel(pb.UnloadModelRequest(model_id="")),
        ):
            assert (await call).error.code == "unknown_model"
        assert (await rig.start(model="piper-en")).voice == "tone-low"
        assert (await rig.start("b", model="tone-high")).voice == "tone-high", "a voice's name will do"
        listed = await rig.stub.ListModels(pb.ListModelsRequest())
        assert {model.model_id: model.is_loaded for model in listed.models} == {"tone": True, "piper-en": True}
        kept = await rig.stub.UnloadModel(pb.UnloadModelRequest(model_id="tone"))
        assert (kept.success, kept.unloaded) == (True, False)
        assert (await rig.stub.LoadModel(pb.LoadModelRequest(model_id="tone"))).success


# -- health, reflection, the end --------------------------------------------------------------------------------------


async def _health(rig: Rig, service: str = "tts.TTSService") -> int:
    stub = health_pb2_grpc.HealthStub(rig.channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status  # type: ignore[no-any-return]


async def test_health_and_reflection() -> None:
    async with grpc_worker() as rig:
        for service in ("", "tts.TTSService", "tts.Conversation"):
            assert await _health(rig, service) == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(rig.channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        async for answer in call:
            names = {service.name for service in answer.list_services_response.service}
        assert {"tts.TTSService", "tts.Conversation", "grpc.health.v1.Health"} <= names


async def test_capabilities_say_what_is_there() -> None:
    began_s = time.perf_counter()
    async with grpc_worker(session={"max_sessions": 10}) as rig:
        answer = await rig.stub.GetCapabilities(pb.GetCapabilitiesRequest())
        able = answer.capabilities
        assert (able.streaming, able.cpu_ok, able.max_concurrent_sessions) == (True, True, 10)
        assert (able.native_sample_rate, able.pause_resume, able.word_timestamps) == (24_000, True, True)
        assert (48_000 in able.sample_rates, able.protocol_version) == (True, 1)
        assert (able.zero_shot, able.emotive_zero_prompt) == (False, False)
        assert answer.metrics["rtf"] == 0.0, "no sound yet, and never absent: readers take that for the slowest"
        assert list(answer.resident_models) == ["tone"]
        await rig.start()
        after = await rig.stub.GetCapabilities(pb.GetCapabilitiesRequest())
        assert (after.metrics["queue_depth"], after.metrics["free_slots"]) == (1.0, 9.0)
        call = await say(rig, "Hello there.")
        spoken = await rig.stub.GetCapabilities(pb.GetCapabilitiesRequest())
        spent_s = spoken.metrics["rtf"] * len(call.pcm) / 2 / 48_000
        assert 0 < spent_s < time.perf_counter() - began_s, "an engine is never busy for longer than it is there"


async def test_a_drain_lets_turns_end_and_waits_for_no_silent_session() -> None:
    async with grpc_worker() as rig:
        await rig.start("speaking")
        await rig.start("silent")
        call = await rig.speak("A turn that may end.", session="speaking").begin()
        await call.hear(1)
        async with connect(f"grpc://{rig.member.address}") as client:
            idle = (await client.open()).session
            rig.member.begin_drain()
            draining = asyncio.create_task(rig.worker.hub.drain(100.0))
            assert await idle.next() is None, "our client's session said nothing"
            refused = await rig.start("new")
            assert (refused.success, refused.error.code) == (False, "draining")
            with pytest.raises(TTSWorkerError) as no:
                await client.open()
            assert no.value.code is ErrorCode.DRAINING
        assert (await call.end()).receipt.outcome == "done"
        with anyio.fail_after(60):  # long before its time is up
            await draining
        await _until_not_serving(rig)


async def _until_not_serving(rig: Rig) -> None:
    async def so() -> bool:
        return await _health(rig) == health_pb2.HealthCheckResponse.NOT_SERVING

    await eventually(so)


async def test_a_drain_that_takes_too_long_ends_turns_with_a_marker() -> None:
    async with grpc_worker() as rig:
        await rig.start()
        call = await rig.speak(LONG * 5).begin()
        await call.hear(1)
        rig.member.begin_drain()
        await rig.worker.hub.drain(0.05)
        assert (await call.end()).receipt.reason == "drain"


# -- other versions ---------------------------------------------------------------------------------------------------


async def test_a_client_of_another_version_is_told_so() -> None:
    async with grpc_worker() as rig:
        stub = tts_worker_pb2_grpc.ConversationStub(rig.channel)
        for first in (
            pb.ConverseRequest(start=pb.ConverseRequest.Start(protocol_version=99)),
            pb.ConverseRequest(pause=pb.ConverseRequest.Pause()),
            pb.ConverseRequest(),
        ):
            call = stub.Converse()
            await call.write(first)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call.read()
            assert refusal.value.code() is CODE.INVALID_ARGUMENT
        assert rig.worker.hub.live_sessions == 0


async def test_messages_of_a_newer_client_are_rejected_and_the_session_lives() -> None:
    async with grpc_worker() as rig, connect(f"grpc://{rig.member.address}") as client:
        stub = tts_worker_pb2_grpc.ConversationStub(rig.channel)
        call = stub.Converse()
        voicing = pb.ConverseRequest.Voicing(speed=1.0)
        start = pb.ConverseRequest.Start(protocol_version=1, voicing=voicing)
        await call.write(pb.ConverseRequest(start=start))
        await call.read()
        for odd in (
            pb.ConverseRequest(),
            pb.ConverseRequest(start=start),
            pb.ConverseRequest(say=pb.ConverseRequest.Say(text="no context")),
            pb.ConverseRequest(configure=pb.ConverseRequest.Voicing(speed=77.0)),
        ):
            await call.write(odd)
            assert (await call.read()).WhichOneof("message") == "rejected"
        await call.write(pb.ConverseRequest(say=pb.ConverseRequest.Say(context="a", text="Hi.")))
        assert (await call.read()).started.context == "a"
        with pytest.raises(InvalidRequest):
            await client.open(SessionOptions(seed=2**70))


async def test_a_server_of_another_kind_is_told_from_a_dead_one() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with connect(f"grpc://127.0.0.1:{port}") as client:
            with pytest.raises(TTSWorkerError, match="protocol") as other:
                await client.open()
            assert other.value.code is ErrorCode.CONFIG
    finally:
        await server.stop(None)
    async with connect(f"grpc://127.0.0.1:{port}") as client:
        with pytest.raises(TTSWorkerError) as dead:
            await client.open()
        assert dead.value.code is ErrorCode.CONNECTION_LOST


@pytest.mark.parametrize(
    "url", ["grpc://", "grpc://:7002", "grpc://host:port", "grpc://h/path", "grpc://u@h", "grpc:x"]
)
def test_urls_that_make_no_sense(url: str) -> None:
    with pytest.raises(InvalidRequest):
        connect(url)


async def test_a_port_that_is_taken_is_a_config_error() -> None:
    async with grpc_worker() as rig:
        port = int(rig.member.address.rpartition(":")[2])
        with pytest.raises(TTSWorkerError, match="port") as taken:
            async with grpc_worker(grpc={"port": port}):
                pass
        assert taken.value.code is ErrorCode.CONFIG


async def test_a_worker_that_is_slow_to_answer_the_dial_is_waited_for() -> None:
    """As one is that is far away, or busy."""
    async with grpc_worker() as rig, run_proxy(rig.member.address) as proxy:
        proxy.stall()
        async with connect(f"grpc://{proxy.address}", ClientSettings(connect_timeout_s=60.0)) as client:
            opening = asyncio.create_task(client.open())
            await asyncio.wait({opening}, timeout=0.5)
            proxy.resume()
            assert not (await opening).connection_reused
        assert proxy.connections == 1


async def test_two_clients_on_two_channels() -> None:
    async with grpc_worker() as rig, dial(rig.member.address) as channel:
        await rig.start()
        other = tts_worker_pb2_grpc.TTSServiceStub(channel)
        call = await rig.speak(LONG).begin()
        await call.hear(1)
        answer = await other.Control(pb.ControlRequest(session_id="s", command=pb.STOP))
        assert answer.applied, "a client that reconnects still owns its session"
        await call.end()


@pytest.mark.parametrize("module", ["tts_worker.client.grpc", "tts_worker.client.fleet", "tts_worker.fleet"])
def test_without_the_extra_the_message_says_what_to_install(module: str) -> None:
    code = (
        "import sys; sys.modules['grpc'] = None\n"
        "from tts_worker.errors import MissingExtra\n"
        f"try: import {module}\n"
        "except MissingExtra as missing: print(missing)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert 'pip install ".[grpc]"' in run.stdout
