"""gRPC limits and failures: invalid requests, misbehaving clients, foreign sessions, drains."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import anyio
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.conftest import tone_settings, until
from tests.fakes.clock import in_virtual_time
from tests.fakes.proxy import run_proxy
from tests.fakes.redis import eventually
from tests.fakes.scrape import scraped
from tests.integration.grpc_worker import LONG, TEXT, GrpcWorker, SynthesizeStream, dial, running_grpc_worker, say
from tests.integration.test_connections import open_tcp
from tts_worker.client import ClientSettings, SessionOptions, connect
from tts_worker.errors import AddressInUse, ErrorCode, InvalidRequest, RateLimited, TTSWorkerError, Unauthenticated
from tts_worker.features.grpc.converse import ConverseCall
from tts_worker.features.grpc.frames import StreamFormat
from tts_worker.features.grpc.sessions import SessionTable
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.protocol.proto_codec import CODE_KEY, RETRY_AFTER_KEY
from tts_worker.server import connections
from tts_worker.server.limits import ApiLimits
from tts_worker.worker import running_worker

CODE = grpc.StatusCode


async def failed(call: SynthesizeStream) -> tuple[grpc.StatusCode, str]:
    """Read a failing call to its end and return its status and error code."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call.read_all()
    metadata = dict(failure.value.trailing_metadata() or ())
    assert not any(frame.is_final for frame in call.frames), "a call that failed has no final frame"
    return failure.value.code(), str(metadata.get(CODE_KEY))


# -- controls do not queue behind audio -------------------------------------------------------------------------------


async def test_connections_beyond_the_limit_are_closed() -> None:
    async with running_grpc_worker(server={"max_connections": 8}) as server, AsyncExitStack() as stack:
        await server.start()
        clients = [await stack.enter_async_context(open_tcp(server.member.address)) for _ in range(7)]
        for client in clients:
            assert await client.reader.read(9), "the server's first frame: the connection is open"
        assert await (await stack.enter_async_context(open_tcp(server.member.address))).read_all() == b""
        assert (await server.stub.GetCapabilities(pb.GetCapabilitiesRequest(), timeout=60)) is not None


async def test_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.2)
    async with (
        running_grpc_worker() as server,
        open_tcp(server.member.address) as client,
    ):
        assert len(await client.read_all()) < 200  # the server's settings


async def test_control_is_answered_while_the_client_does_not_read() -> None:
    async with running_grpc_worker(server={"send_timeout_s": 120.0}) as server:
        await server.start(realtime="false", sample_rate="48000")
        idle_ms = [await _control_ms(server, command, applied=False) for command in (pb.PAUSE, pb.RESUME) * 2]
        call = await server.speak(LONG * 20).begin()
        session = server.worker.hub
        await call.read_frames(1)
        await until(lambda: session.buffered_s > 1.0)  # the engine is ahead of a client that does not read
        took_ms = [await _control_ms(server, command) for command in (pb.PAUSE, pb.RESUME) * 10]
        assert min(took_ms) < min(idle_ms) + 50, "slower than in an idle session"
        answer = await server.control(pb.STOP)
        assert answer.applied
        emitted = answer.emitted_samples
        final = await call.end()
        assert final.receipt.outcome == "stopped"
        assert sum(frame.speech_samples for frame in call.frames) == emitted, "nothing was written after the stop"


async def _control_ms(server: GrpcWorker, command: int, *, applied: bool = True) -> float:
    """Duration of a command; checks whether it was applied."""
    began_s = time.perf_counter()
    answer = await server.control(command)
    took_ms = 1000 * (time.perf_counter() - began_s)
    assert answer.applied is applied
    return took_ms


async def test_a_client_that_stops_reading_loses_its_slot() -> None:
    # Longer than the stalls of about 1 s of a test machine.
    async with running_grpc_worker(server={"send_timeout_s": 2.0}) as server:
        await server.start(realtime="false")
        call = await server.speak(LONG * 20).begin()
        await call.read_frames(1)

        async def is_stopped() -> bool:
            await asyncio.sleep(0.1)  # gRPC buffers megabytes before a write blocks
            text = server.worker.metrics.render()
            return scraped(text, "tts_utterances_total", code="", outcome="stopped") == 1

        await eventually(is_stopped)
        assert (await say(server, "The slot is free.")).frames
        assert server.worker.hub.live_sessions == 1
        assert await failed(call) == (CODE.DEADLINE_EXCEEDED, "send_timeout")
        assert (await server.control(pb.STOP)).state == "idle"
        assert (await say(server, "Ok.")).frames


async def test_a_slow_client_gets_all_audio() -> None:
    async with running_grpc_worker() as server:
        await server.start(realtime="false")
        whole = await say(server, TEXT)
        call = await server.speak(TEXT).begin()
        await call.read_all(pause_s=0.001)
        assert call.pcm == whole.pcm


# -- unknown, foreign and too many sessions ---------------------------------------------------------------------------


async def test_unknown_and_missing_session_ids_are_rejected() -> None:
    async with running_grpc_worker() as server:
        assert await failed(await server.speak("x", session="unknown").begin()) == (CODE.NOT_FOUND, "session_closed")
        assert await failed(await server.speak("x", session="").begin()) == (CODE.INVALID_ARGUMENT, "invalid_request")
        empty = SynthesizeStream(server.stub.Synthesize(), "s")
        await empty.rpc.done_writing()
        assert await failed(empty) == (CODE.INVALID_ARGUMENT, "invalid_request")
        for command in (pb.PAUSE, pb.RESUME, pb.STOP):
            answer = await server.control(command, "unknown")
            assert (answer.success, answer.applied, answer.error.code) == (False, False, "session_closed")
        for name in ("", "x" * 129):
            assert (await server.start(name)).error.code == "invalid_request"


async def test_text_for_another_session_or_after_the_end_fails() -> None:
    async with running_grpc_worker() as server:
        await server.start("a")
        await server.start("b")
        call = await server.speak("One. ", session="a", close=False).begin()
        await call.rpc.write(pb.TextChunk(session_id="b", text="Two."))
        assert await failed(call) == (CODE.INVALID_ARGUMENT, "invalid_request")
        call = await server.speak("One. ", session="a", close=False).begin()
        await call.rpc.write(pb.TextChunk(session_id="a", text=LONG, is_final=True))
        await call.rpc.write(pb.TextChunk(session_id="a", text="Three."))
        assert await failed(call) == (CODE.FAILED_PRECONDITION, "illegal_command")
        assert (await say(server, "Ok.", session="a")).frames
        await until(lambda: server.worker.hub.live_sessions == 2)  # the status is sent before the call is released


async def test_only_the_caller_that_started_a_session_can_use_it() -> None:
    keys = ["key-of-alice", "key-of-bob!!"]
    async with running_grpc_worker(server={"api_keys": keys}) as server:

        def bearer(key: str) -> tuple[tuple[str, str]]:
            return (("authorization", f"Bearer {key}"),)

        alice = bearer(keys[0])
        bob = bearer(keys[1])
        assert (await server.stub.StartSession(pb.StartSessionRequest(session_id="s"), metadata=alice)).success
        call = SynthesizeStream(server.stub.Synthesize(metadata=alice), "s", [pb.TextChunk(session_id="s", text=LONG)])
        await (await call.begin()).read_frames(1)
        stolen = await server.stub.Control(pb.ControlRequest(session_id="s", command=pb.STOP), metadata=bob)
        assert (stolen.success, stolen.error.code) == (False, "session_closed")
        assert not (await server.stub.EndSession(pb.EndSessionRequest(session_id="s"), metadata=bob)).success
        taken = await server.stub.StartSession(pb.StartSessionRequest(session_id="s"), metadata=bob)
        assert (taken.success, taken.error.code) == (False, "illegal_command")
        foreign = SynthesizeStream(server.stub.Synthesize(metadata=bob), "s", [pb.TextChunk(session_id="s", text="x")])
        assert await failed(await foreign.begin()) == (CODE.NOT_FOUND, "session_closed")
        await call.read_frames(5)
        own = await server.stub.Control(pb.ControlRequest(session_id="s", command=pb.STOP), metadata=alice)
        assert own.applied


async def test_every_service_but_health_needs_an_api_key() -> None:
    async with running_grpc_worker(server={"api_keys": ["a-good-key"]}) as server:
        for metadata in ((), (("authorization", "Bearer wrong-key"),), (("x-api-key", ""),)):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await server.stub.GetCapabilities(pb.GetCapabilitiesRequest(), metadata=metadata)
            assert refusal.value.code() is CODE.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await server.stub.Synthesize(metadata=metadata).read()
            assert refusal.value.code() is CODE.UNAUTHENTICATED
        assert await server.stub.GetCapabilities(pb.GetCapabilitiesRequest(), metadata=(("x-api-key", "a-good-key"),))
        assert (await _health(server)) == health_pb2.HealthCheckResponse.SERVING
        async with connect(f"grpc://{server.member.address}") as client:
            with pytest.raises(Unauthenticated):
                await client.open()
        async with connect(f"grpc://{server.member.address}", ClientSettings(api_key="a-good-key")) as client:
            assert (await client.open()).session


async def test_over_capacity_is_an_immediate_typed_error() -> None:
    async with running_grpc_worker(session={"max_sessions": 2, "slot_idle_s": 600}) as server:
        await server.start("a")
        await server.start("b")
        took_s = []
        for _ in range(20):
            began_s = time.perf_counter()
            refused = await server.start("c")
            took_s.append(time.perf_counter() - began_s)
            assert (refused.success, refused.error.code, refused.error.retryable) == (False, "over_capacity", True)
            assert refused.message
        assert min(took_s) < 0.05, "the error was delayed"
        first = await server.speak(LONG, session="a").begin()
        await first.read_frames(1)
        further = await server.speak(LONG, session="a").begin()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await further.next()
        assert refusal.value.code() is CODE.RESOURCE_EXHAUSTED
        assert dict(refusal.value.trailing_metadata() or ())[RETRY_AFTER_KEY] == "1"
        assert (await server.stub.EndSession(pb.EndSessionRequest(session_id="b"))).success
        assert (await server.start("c")).success


async def test_restarting_a_session_keeps_one_slot() -> None:
    async with running_grpc_worker(session={"max_sessions": 1, "slot_idle_s": 600}) as server:
        for _ in range(3):
            assert (await server.start()).success
        assert server.worker.hub.live_sessions == 1
        call = await server.speak(LONG).begin()
        await call.read_frames(1)
        assert (await server.start()).error.code == "illegal_command"
        await call.read_frames(5)


async def test_an_unused_session_ends() -> None:
    async with running_grpc_worker(grpc={"session_idle_s": 0.2}) as server:
        await server.start()
        await until(lambda: server.worker.hub.live_sessions == 0)
        assert not (await server.control(pb.STOP)).success


@in_virtual_time
async def test_a_speaking_session_does_not_time_out() -> None:
    async with running_worker(tone_settings()) as worker:
        table = SessionTable(worker.hub, idle_s=1.5)
        session = await table.start("s", "owner", SessionOptions(sample_rate=48_000), StreamFormat())
        call = session.begin_call()
        call.write(LONG, last=True)
        clock = asyncio.get_running_loop().time
        began_s = clock()
        async for _ in call.frames():
            assert not session.closed
        assert clock() - began_s > 10 * 1.5, "the audio is paced"
        session.end_call(call, "over")
        await asyncio.sleep(1.4)
        assert worker.hub.live_sessions == 1
        await asyncio.sleep(1.2)  # the timer is set for at least 1 s
        assert worker.hub.live_sessions == 0


# -- invalid requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"voice": "unknown"}, "unknown_voice"),
        ({"sample_rate": "loud"}, "invalid_request"),
        ({"sample_rate": "1"}, "invalid_request"),
        ({"sample_rate": "48001"}, "invalid_request"),
        ({"encoding": "mulaw"}, "invalid_request"),
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
async def test_invalid_options_are_rejected(options: dict[str, str], code: str) -> None:
    async with running_grpc_worker() as server:
        refused = await server.start(**options)
        assert (refused.success, refused.error.code) == (False, code)
        assert server.worker.hub.live_sessions == 0


async def test_a_frame_that_the_sample_rate_does_not_divide_is_rejected_with_one_that_it_does() -> None:
    async with running_grpc_worker() as server:
        refused = await server.start(sample_rate="11025")
        assert "with a sample_rate of 11025, option frame_ms must be a multiple of 40" in refused.error.message
        assert (await server.start(sample_rate="11025", frame_ms="40")).success


async def test_unknown_options_are_ignored_and_reported() -> None:
    async with running_grpc_worker() as server:
        started = await server.start(speaker="x", emotion="y")
        assert started.success
        assert "emotion, speaker" in started.message


async def test_many_options_are_counted_before_they_are_parsed() -> None:
    async with running_grpc_worker() as server:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await server.start(**{f"option-{number}": "" for number in range(20_000)})
        assert refusal.value.code() is CODE.INVALID_ARGUMENT
        refused = await server.start(**{f"option-{number}": "" for number in range(65)})
        assert refused.error.code == "invalid_request"
        assert len(refused.message) < 100, "no names are repeated"


async def test_too_long_text_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ApiLimits, "of", lambda settings: ApiLimits(max_message_chars=100))
    async with running_grpc_worker(session={"max_utterance_chars": 150}) as server:
        await server.start()
        assert await failed(await server.speak("x" * 101).begin()) == (CODE.INVALID_ARGUMENT, "text_too_long")
        assert await failed(await server.speak("x" * 80, "y" * 80).begin()) == (CODE.INVALID_ARGUMENT, "text_too_long")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:  # on write or on read
            await (await server.speak("x" * 2_000_000).begin()).next()
        assert refusal.value.code() is CODE.RESOURCE_EXHAUSTED, "expected gRPC's own message limit"
        assert (await say(server, "Ok.")).frames


UNDECODABLE = (
    "/tts.TTSService/Control",
    "/tts.TTSService/StartSession",
    "/tts.TTSService/Synthesize",
    "/tts.Conversation/Converse",
    "/tts.Voices/AddVoice",
    "/tts.VoiceConversion/Convert",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
)


@pytest.mark.parametrize("keys", [(), ("a-long-key",)], ids=["open", "with key"])
async def test_bytes_that_are_no_message(keys: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    metadata = tuple(("x-api-key", key) for key in keys)
    async with running_grpc_worker(server={"api_keys": list(keys)}) as server:
        for method in UNDECODABLE:
            call = server.channel.stream_stream(method)(metadata=metadata)
            await call.write(b"\xff" * 40)
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call.read()
            assert failure.value.code() is CODE.INVALID_ARGUMENT, method
            assert dict(failure.value.trailing_metadata() or ())[CODE_KEY] == "invalid_request", method
    assert not [record for record in caplog.records if record.exc_info]


async def test_later_bytes_that_are_no_message_end_the_session(caplog: pytest.LogCaptureFixture) -> None:
    async with running_grpc_worker() as server:
        start = pb.ConverseRequest(start=pb.ConverseRequest.Start(protocol_version=1))
        call = server.channel.stream_stream("/tts.Conversation/Converse")()
        await call.write(start.SerializeToString())
        await call.read()
        await call.write(b"\xff")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call.read()
        assert failure.value.code() is CODE.INVALID_ARGUMENT
        await until(lambda: server.worker.hub.live_sessions == 0)
    assert not [record for record in caplog.records if record.exc_info]


async def test_models_that_are_unknown_and_models_in_use() -> None:
    async with running_grpc_worker(
        engines={"tone": {"kind": "tone"}}, grpc={"models": {"piper-en": {"engine": "tone", "voice": "tone-low"}}}
    ) as server:
        assert (await server.start(model="unknown")).error.code == "unknown_model"
        for call in (
            server.stub.LoadModel(pb.LoadModelRequest(model_id="unknown")),
            server.stub.UnloadModel(pb.UnloadModelRequest(model_id="")),
        ):
            assert (await call).error.code == "unknown_model"
        assert (await server.start(model="piper-en")).voice == "tone-low"
        assert (await server.start("b", model="tone-high")).voice == "tone-high", "a voice's name will do"
        listed = await server.stub.ListModels(pb.ListModelsRequest())
        assert {model.model_id: model.is_loaded for model in listed.models} == {"tone": True, "piper-en": True}
        response = await server.stub.UnloadModel(pb.UnloadModelRequest(model_id="tone"))
        assert (response.success, response.unloaded) == (True, False)
        assert (await server.stub.LoadModel(pb.LoadModelRequest(model_id="tone"))).success


# -- health, reflection, the end --------------------------------------------------------------------------------------


async def _health(server: GrpcWorker, service: str = "tts.TTSService") -> int:
    stub: Any = health_pb2_grpc.HealthStub(server.channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


async def test_health_and_reflection_list_the_services() -> None:
    async with running_grpc_worker() as server:
        for service in ("", "tts.TTSService", "tts.Conversation"):
            assert await _health(server, service) == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        async for answer in call:
            names = {service.name for service in answer.list_services_response.service}
        assert {"tts.TTSService", "tts.Conversation", "grpc.health.v1.Health"} <= names


async def test_capabilities_report_the_engine_and_the_load() -> None:
    began_s = time.perf_counter()
    async with running_grpc_worker(session={"max_sessions": 10}) as server:
        answer = await server.stub.GetCapabilities(pb.GetCapabilitiesRequest())
        capabilities = answer.capabilities
        assert (capabilities.streaming, capabilities.cpu_ok, capabilities.max_concurrent_sessions) == (True, True, 10)
        assert (capabilities.native_sample_rate, capabilities.pause_resume, capabilities.word_timestamps) == (
            24_000,
            True,
            True,
        )
        assert (48_000 in capabilities.sample_rates, capabilities.protocol_version) == (True, 1)
        assert (capabilities.zero_shot, capabilities.emotive_zero_prompt) == (False, False)
        assert answer.metrics["rtf"] == 0.0, (
            "rtf must be present before any audio: readers rank a worker without it last"
        )
        assert list(answer.resident_models) == ["tone"]
        await server.start()
        after = await server.stub.GetCapabilities(pb.GetCapabilitiesRequest())
        assert (after.metrics["queue_depth"], after.metrics["free_slots"]) == (1.0, 9.0)
        call = await say(server, "Hello there.")
        spoken = await server.stub.GetCapabilities(pb.GetCapabilitiesRequest())
        spent_s = spoken.metrics["rtf"] * len(call.pcm) / 2 / 48_000
        assert 0 < spent_s < time.perf_counter() - began_s, "the engine was busy for longer than it exists"


async def test_a_drain_finishes_utterances_and_closes_idle_sessions() -> None:
    async with running_grpc_worker() as server:
        await server.start("speaking")
        await server.start("silent")
        call = await server.speak("A turn that may end.", session="speaking").begin()
        await call.read_frames(1)
        async with connect(f"grpc://{server.member.address}") as client:
            idle = (await client.open()).session
            server.member.begin_drain()
            draining = asyncio.create_task(server.worker.hub.drain(100.0))
            assert await idle.next() is None, "the idle session must end"
            refused = await server.start("new")
            assert (refused.success, refused.error.code) == (False, "draining")
            with pytest.raises(TTSWorkerError) as error:
                await client.open()
            assert error.value.code is ErrorCode.DRAINING
        assert (await call.end()).receipt.outcome == "done"
        with anyio.fail_after(60):  # well below the drain timeout of 100 s
            await draining
        await _until_not_serving(server)


async def _until_not_serving(server: GrpcWorker) -> None:
    async def is_not_serving() -> bool:
        return await _health(server) == health_pb2.HealthCheckResponse.NOT_SERVING

    await eventually(is_not_serving)


async def test_a_drain_timeout_ends_utterances_with_a_marker() -> None:
    async with running_grpc_worker() as server:
        await server.start()
        call = await server.speak(LONG * 5).begin()
        await call.read_frames(1)
        server.member.begin_drain()
        await server.worker.hub.drain(0.05)
        assert (await call.end()).receipt.reason == "drain"


# -- other versions ---------------------------------------------------------------------------------------------------


async def test_a_client_of_another_version_is_rejected() -> None:
    async with running_grpc_worker() as server:
        stub = tts_worker_pb2_grpc.ConversationStub(server.channel)
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
        assert server.worker.hub.live_sessions == 0


async def test_invalid_messages_are_rejected_and_the_session_lives() -> None:
    async with running_grpc_worker() as server, connect(f"grpc://{server.member.address}") as client:
        stub = tts_worker_pb2_grpc.ConversationStub(server.channel)
        call = stub.Converse()
        voicing = pb.ConverseRequest.Voicing(speed=1.0)
        start = pb.ConverseRequest.Start(protocol_version=1, voicing=voicing)
        await call.write(pb.ConverseRequest(start=start))
        await call.read()
        for message, command, context in (
            (pb.ConverseRequest(), "", ""),
            (pb.ConverseRequest(start=start), "start", ""),
            (pb.ConverseRequest(say=pb.ConverseRequest.Say(text="no context")), "text", ""),
            (pb.ConverseRequest(end=pb.ConverseRequest.EndText(context="x" * 129)), "end", ""),
            (pb.ConverseRequest(configure=pb.ConverseRequest.Voicing(speed=77.0)), "configure", ""),
        ):
            await call.write(message)
            response = await call.read()
            assert response.WhichOneof("message") == "rejected"
            assert (response.rejected.command, response.rejected.context) == (command, context)
        await call.write(pb.ConverseRequest(say=pb.ConverseRequest.Say(context="a", text="Hi.")))
        assert (await call.read()).started.context == "a"
        with pytest.raises(InvalidRequest, match="seed"):
            await client.open(SessionOptions(seed=2**70))


async def test_fields_that_are_not_set_have_their_defaults() -> None:
    async with running_grpc_worker() as server:
        call = tts_worker_pb2_grpc.ConversationStub(server.channel).Converse()
        await call.write(pb.ConverseRequest(start=pb.ConverseRequest.Start(protocol_version=1)))
        assert (await call.read()).ready.voice == "tone"
        voicing = pb.ConverseRequest.Voicing(voice="tone-high")
        await call.write(pb.ConverseRequest(configure=voicing))
        await call.write(pb.ConverseRequest(say=pb.ConverseRequest.Say(context="a", text="Hi.")))
        started = (await call.read()).started
        assert (started.voice, started.speed, started.seed) == ("tone-high", 1.0, 0)
        await call.write(pb.ConverseRequest(configure=pb.ConverseRequest.Voicing(speed=0.0)))
        while (response := await call.read()).WhichOneof("message") != "rejected":
            pass
        assert "speed" in response.rejected.error.message, "a speed of 0 is none that was not set"


async def test_messages_of_a_conversation_are_limited() -> None:
    async with running_grpc_worker() as server:
        hub = server.worker.hub
        call = ConverseCall(hub, hub.open(), SessionOptions(), ApiLimits(max_messages_per_s=10))
        flush = pb.ConverseRequest(flush=pb.ConverseRequest.Flush())
        for _ in range(50):
            call.receive(flush)
        with pytest.raises(RateLimited):  # one message, of the size of eleven
            call.receive(pb.ConverseRequest(say=pb.ConverseRequest.Say(context="a", text="x" * 10_300)))
        call.session.close()


async def test_a_foreign_server_is_distinguished_from_a_dead_one() -> None:
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
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(InvalidRequest):
        connect(url)


async def test_a_port_in_use_may_become_free() -> None:
    async with running_grpc_worker() as server:
        port = int(server.member.address.rpartition(":")[2])
        with pytest.raises(AddressInUse, match=f"grpc: cannot listen on 127.0.0.1:{port}: the port is in use") as taken:
            async with running_grpc_worker(grpc={"port": port}):
                pass
        assert taken.value.retryable


async def test_connect_waits_for_a_slow_worker() -> None:
    async with running_grpc_worker() as server, run_proxy(server.member.address) as proxy:
        proxy.stall()
        async with connect(f"grpc://{proxy.address}", ClientSettings(connect_timeout_s=60.0)) as client:
            opening = asyncio.create_task(client.open())
            await asyncio.wait({opening}, timeout=0.5)
            proxy.resume()
            assert not (await opening).connection_reused
        assert proxy.connections == 1


async def test_another_channel_of_the_same_client_has_control() -> None:
    async with running_grpc_worker() as server, dial(server.member.address) as channel:
        await server.start()
        other = tts_worker_pb2_grpc.TTSServiceStub(channel)
        call = await server.speak(LONG).begin()
        await call.read_frames(1)
        answer = await other.Control(pb.ControlRequest(session_id="s", command=pb.STOP))
        assert answer.applied, "a reconnected client must keep its session"
        await call.end()


def test_a_missing_extra_is_named_with_the_install_command() -> None:
    code = (
        "import sys; sys.modules['grpc_health'] = None\n"
        "from tts_worker.errors import MissingExtra\n"
        "try: import tts_worker.grpc_serving\n"
        "except MissingExtra as missing: print(missing)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert 'pip install ".[grpc]"' in run.stdout
