"""Every entrance has one budget: what a client without a key can hold, and for how long."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import sys
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.conftest import serving, until
from tests.fakes.clock import measure_stalls
from tests.fakes.media_stream import TelnyxMessages, TwilioMessages, calling
from tests.fakes.redis import embedded_redis
from tests.fakes.scrape import scraped
from tests.features.fleet.test_registry import entry
from tests.integration.grpc_worker import dial as dial_grpc
from tests.integration.grpc_worker import running_grpc_worker
from tests.integration.test_connections import open_tcp
from tests.integration.test_websocket import dial
from tts_worker.client.registry.directory import WorkerDirectory
from tts_worker.client.registry.signature import sign_entry
from tts_worker.client.registry.store import RedisStore
from tts_worker.features.agent.command import agent_extension
from tts_worker.features.agent.script import ScriptedModel
from tts_worker.features.agent.service import speech_options
from tts_worker.features.batch import request as batch_request
from tts_worker.features.telephony.routes import MAX_UNSTARTED
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.server import connections
from tts_worker.server.grpc.port_connections import parse_peer
from tts_worker.server.grpc.server import PortConfig
from tts_worker.server.keys import FREE_FAILURES
from tts_worker.settings import Settings

KEY = "key-of-a-client"
WITH_KEY = (("authorization", f"Bearer {KEY}"),)
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The preface and empty settings: the handshake is complete, and no call follows."""


async def test_idle_grpc_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_worker.grpc_serving.server.PortConfig", partial(PortConfig, idle_s=0.3))
    async with (
        running_grpc_worker() as server,
        open_tcp(server.member.address) as client,
    ):
        await client.send(HTTP2_PREFACE)
        assert b"connection idle" in await client.read_all()


async def test_idle_grpc_connection_gets_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEARTBEAT_S", 1.0)
    async with (
        running_grpc_worker() as server,
        open_tcp(server.member.address) as client,
    ):
        await client.send(HTTP2_PREFACE)
        received = b""
        while b"\x00\x00\x08\x06\x00" not in received:
            received += await client.reader.readexactly(1)


async def test_grpc_port_full_of_silent_clients_serves_one_with_a_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tts_worker.grpc_serving.server.PortConfig", partial(PortConfig, idle_s=600.0))
    limits = {"max_connections": 16, "api_keys": [KEY]}
    async with running_grpc_worker(server=limits) as server, AsyncExitStack() as stack:
        metrics = server.worker.metrics
        request = pb.GetCapabilitiesRequest()
        assert await server.stub.GetCapabilities(request, metadata=WITH_KEY)
        for _ in range(20):
            silent = await stack.enter_async_context(open_tcp(server.member.address))
            await silent.send(HTTP2_PREFACE)
        with caplog.at_level(logging.WARNING, "tts_worker"):
            await until(lambda: scraped(metrics.render(), "tts_connections_closed_total", reason="evicted") > 0)
        assert "gRPC connections are taken" in caplog.text
        assert KEY not in caplog.text
        async with dial_grpc(server.member.address) as channel:
            stub = type(server.stub)(channel)
            assert await stub.GetCapabilities(request, metadata=WITH_KEY, timeout=30, wait_for_ready=True)
        assert await server.stub.GetCapabilities(request, metadata=WITH_KEY, timeout=30)
        assert scraped(metrics.render(), "tts_grpc_connections", state="active") >= 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of loopback")
async def test_one_address_holds_an_eighth_of_a_grpc_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another address stay, although they are younger and the port has room for all."""
    monkeypatch.setattr("tts_worker.grpc_serving.server.PortConfig", partial(PortConfig, idle_s=600.0))
    limits = {"max_connections": 64, "api_keys": [KEY]}
    async with running_grpc_worker(server=limits) as server, AsyncExitStack() as stack:
        metrics = server.worker.metrics
        for _ in range(12):
            client = await stack.enter_async_context(open_tcp(server.member.address))
            await client.send(HTTP2_PREFACE)
        host, _, port = server.member.address.rpartition(":")
        other = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
        stack.callback(other[1].close)
        other[1].write(HTTP2_PREFACE)
        await until(lambda: scraped(metrics.render(), "tts_connections_closed_total", reason="evicted") == 4)
        await until(lambda: scraped(metrics.render(), "tts_grpc_connections", state="waiting") == 9)
        assert not other[0].at_eof()


async def test_health_checks_take_no_calls_of_others() -> None:
    async with running_grpc_worker(server={"api_keys": [KEY]}) as server, AsyncExitStack() as stack:
        stub: Any = health_pb2_grpc.HealthStub(server.channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(70)]
        await asyncio.gather(*(watch.read() for watch in watches), return_exceptions=True)
        await until(lambda: sum(watch.done() for watch in watches) >= 6)  # more if the machine stalled: none is late
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        for watch in watches:
            stack.callback(watch.cancel)


async def test_health_check_without_a_request_ends() -> None:
    async with running_grpc_worker() as server:
        unsent = server.channel.stream_unary("/grpc.health.v1.Health/Check")()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await unsent
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_silent_telephone_streams_take_no_calls() -> None:
    limits = {"telephony": {"max_calls": 2}, "server": {"api_keys": [KEY]}}
    async with serving(**limits) as address, AsyncExitStack() as stack:
        url = f"ws://{address}/twilio"
        silent = [await stack.enter_async_context(connect(url, compression=None)) for _ in range(MAX_UNSTARTED + 2)]
        await silent[0].wait_closed()
        assert silent[0].close_code == 1013, "the oldest gives way"
        call = await stack.enter_async_context(calling(address, TwilioMessages("CA1", key=KEY)))
        headers = {"X-API-Key": KEY}
        async with dial(address, "/v1/calls/CA1", additional_headers=headers) as agent:
            assert (await agent.until("call"))["state"] == "joined"
        assert call.socket.close_code is None
        async with measure_stalls() as stalled_s:
            began_s = asyncio.get_running_loop().time()
            await silent[-1].wait_closed()
            assert asyncio.get_running_loop().time() - began_s - stalled_s() < 6, (
                "3 s, and the delays of a busy machine"
            )
        assert silent[-1].close_code == 1007


async def test_telephone_streams_beyond_the_limit_are_refused() -> None:
    limits = {"telephony": {"max_calls": 1}, "server": {"api_keys": [KEY]}}
    async with serving(**limits) as address, calling(address, TwilioMessages("CA1", key=KEY)) as call:
        async with dial(address, "/v1/calls/CA1", additional_headers={"X-API-Key": KEY}) as agent:
            assert (await agent.until("call"))["state"] == "joined"
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://{address}/twilio")
            assert refused.value.response.status_code == 503
        assert call.socket.close_code is None


def test_peer_of_a_call_is_that_of_its_socket() -> None:
    assert parse_peer("ipv4:127.0.0.1:4242") == ("127.0.0.1", 4242)
    assert parse_peer("ipv6:%5B::1%5D:4242") == ("::1", 4242)
    assert parse_peer("ipv6:%5B::ffff:10.0.0.1%5D:4242") == ("10.0.0.1", 4242)
    assert parse_peer("unix:") is None


# -- the table of docs/deployment.md: every row is attacked -----------------------------------------------------------

WITHOUT_KEY_S = 20.0
"""Far more than the limits below, for a busy machine; without them the connections would stay open."""
BEARER = {"Authorization": f"Bearer {KEY}"}
HUGE = "x" * 2_000_000


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.5)
    monkeypatch.setattr("tts_worker.grpc_serving.server.PortConfig", partial(PortConfig, idle_s=0.3))
    monkeypatch.setattr(batch_request, "MAX_ITEMS", 2)
    monkeypatch.setattr(batch_request, "MAX_CHARS", 25)


async def attack_http() -> None:
    settings = {"api_keys": [KEY], "max_connections": 8}
    async with serving(server=settings) as address, AsyncExitStack() as stack:
        held = [await stack.enter_async_context(open_tcp(address)) for _ in range(30)]
        for client in held:
            await client.send(b"POST /v1/batch HTTP/1.1\r\nHost: loc")
        async with httpx.AsyncClient(base_url=f"http://{address}", headers=BEARER, timeout=60) as caller:
            assert (await caller.get("/v1/voices")).status_code == 200
            assert (await caller.post("/v1/audio/speech", content=HUGE)).status_code == 413
        with anyio.fail_after(WITHOUT_KEY_S):
            await asyncio.gather(*(client.read_all() for client in held))


async def refuses_handshakes(address: str, path: str) -> None:
    for _ in range(FREE_FAILURES):
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{address}{path}")
        assert refused.value.response.status_code == 401


async def attack_websocket() -> None:
    for path in (
        "/v1/stream",
        "/v1/audio/speech/stream",
        "/v1/speak?model=tone",
        "/v2/speak?model=tone",
        "/jambonz",
        "/tts/websocket",
        "/v1/text-to-speech/tone/multi-stream-input",
    ):
        async with serving(server={"api_keys": [KEY]}) as address:
            await refuses_handshakes(address, path)
            async with connect(f"ws://{address}{path}", additional_headers=BEARER, max_queue=None) as socket:
                await socket.send(HUGE)
                await socket.wait_closed()
                assert socket.close_code == 1009, path


async def attack_grpc() -> None:
    async with running_grpc_worker(server={"api_keys": [KEY]}) as server, AsyncExitStack() as stack:
        held = [await stack.enter_async_context(open_tcp(server.member.address)) for _ in range(30)]
        for client in held:
            await client.send(HTTP2_PREFACE)
        with anyio.fail_after(WITHOUT_KEY_S):
            await asyncio.gather(*(client.read_all() for client in held))
        many = pb.StartSessionRequest(session_id="s", options={f"o{number}": "" for number in range(20_000)})
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.stub.StartSession(many, metadata=WITH_KEY)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await server.stub.GetCapabilities(pb.GetCapabilitiesRequest(), metadata=WITH_KEY)


async def attack_webrtc() -> None:
    offer = {"type": "offer", "sdp": "x" * 300_000}
    async with (
        serving(server={"api_keys": [KEY]}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as caller,
    ):
        for _ in range(FREE_FAILURES):
            assert (await caller.post("/webrtc/offer", json=offer)).status_code == 401
        assert (await caller.post("/webrtc/offer", json=offer, headers=BEARER)).status_code == 422
        assert (await caller.post("/webrtc/offer", content=HUGE, headers=BEARER)).status_code == 413
        metrics = (await caller.get("/metrics", headers=BEARER)).text
        assert scraped(metrics, "tts_sessions") == 0


async def attack_telephony() -> None:
    async with serving(server={"api_keys": [KEY]}, telephony={"max_calls": 1}) as address, AsyncExitStack() as stack:
        held = [await stack.enter_async_context(connect(f"ws://{address}/telnyx", compression=None)) for _ in range(8)]
        await held[0].send(HUGE)
        await held[0].wait_closed()
        assert held[0].close_code == 1009
        await stack.enter_async_context(calling(address, TelnyxMessages("1", key=KEY)))
        async with dial(address, "/v1/calls/1", additional_headers=BEARER) as agent:
            assert (await agent.until("call"))["state"] == "joined"
        with anyio.fail_after(WITHOUT_KEY_S):
            await asyncio.gather(*(socket.wait_closed() for socket in held))


async def attack_agent() -> None:
    extension = agent_extension(speech_options(), ScriptedModel(), None)
    async with serving(server={"api_keys": [KEY]}, extension=extension) as address:
        await refuses_handshakes(address, "/v1/agent")
        async with connect(f"ws://{address}/v1/agent", additional_headers=BEARER, max_queue=None) as socket:
            await socket.send(json.dumps({"type": "say", "text": "x" * 4_001}))
            for _ in range(50):
                await socket.send(json.dumps({"type": "say", "text": "Hello."}))
            codes = []
            while codes.count("rate_limited") < 30:
                message = await socket.recv()
                codes.append("" if isinstance(message, bytes) else json.loads(message).get("code", ""))
            assert "invalid_request" in codes


async def attack_batch() -> None:
    async with (
        serving(server={"api_keys": [KEY], "max_upload_bytes": 4_096}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as caller,
    ):
        for texts, headers, status in (
            (["a"], {}, 401),
            (["a"] * 3, BEARER, 400),
            (["x" * 26], BEARER, 413),
            (['<break time="1s"/>'], BEARER, 413),
            (["x" * 5_000], BEARER, 413),
            (["a"], BEARER, 202),
        ):
            body = {"items": [{"input": text} for text in texts]}
            assert (await caller.post("/v1/batch", json=body, headers=headers)).status_code == status, texts


async def attack_registry() -> None:
    prefix = f"entrances-{secrets.token_hex(4)}:"
    secret = "s" * 16
    async with aclosing(RedisStore(embedded_redis())) as store:
        for number in range(50):
            await store.put(f"{prefix}junk{number}", b"{" * 70_000, 60.0)
            await store.put(f"{prefix}forged{number}", entry(f"forged{number}").to_json(), 60.0)
        good = entry("good").to_json()
        await store.put(f"{prefix}good", sign_entry(good, secret, prefix), 60.0)
        directory = WorkerDirectory(store, prefix, secret=secret)
        assert [worker.entry.name for worker in await directory.workers()] == ["good"]


ATTACKS = {
    "HTTP": attack_http,
    "WebSocket": attack_websocket,
    "gRPC": attack_grpc,
    "WebRTC": attack_webrtc,
    "telephony": attack_telephony,
    "agent": attack_agent,
    "batch": attack_batch,
    "registry": attack_registry,
}


def documented_budgets() -> dict[str, str]:
    """The rows of the table, by entrance."""
    page = (Path(__file__).parents[2] / "docs/deployment.md").read_text("utf-8")
    table = page.partition("## Every entrance and its budget")[2].partition("## Command line")[0]
    rows = [line.strip("| ").split(" | ", 1) for line in table.splitlines() if line.startswith("| ")]
    return dict(rows[1:])  # type: ignore[arg-type]


def test_every_entrance_is_in_the_table() -> None:
    assert documented_budgets().keys() == ATTACKS.keys()


def test_budgets_of_the_table_are_settings() -> None:
    named = re.findall(r"`([a-z]+)\.([a-z_]+)`", " ".join(documented_budgets().values()))
    assert named
    for section, name in named:
        assert name in type(getattr(Settings(), section)).model_fields, f"{section}.{name}"


@pytest.mark.parametrize("entrance", ATTACKS)
@pytest.mark.usefixtures("low_limits")
async def test_entrance_keeps_its_budget(entrance: str) -> None:
    await ATTACKS[entrance]()
