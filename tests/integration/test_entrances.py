"""Every entrance has one budget: what a client without a key can hold, and for how long."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.conftest import serving, until
from tests.fakes.media_stream import TwilioMessages, calling
from tests.fakes.scrape import scraped
from tests.integration.grpc_worker import dial as dial_grpc
from tests.integration.grpc_worker import running_grpc_worker
from tests.integration.test_connections import open_tcp
from tests.integration.test_websocket import dial
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.server.grpc.port_connections import parse_peer
from tts_worker.server.telephony.routes import MAX_UNSTARTED

KEY = "key-of-a-client"
WITH_KEY = (("authorization", f"Bearer {KEY}"),)
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The preface and empty settings: the handshake is complete, and no call follows."""


async def test_idle_grpc_connection_is_closed() -> None:
    async with (
        running_grpc_worker(grpc={"connection_idle_s": 0.3}) as server,
        open_tcp(server.member.address) as client,
    ):
        await client.send(HTTP2_PREFACE)
        assert b"connection idle" in await client.read_all()


async def test_idle_grpc_connection_gets_pings() -> None:
    async with (
        running_grpc_worker(server={"heartbeat_s": 1.0}) as server,
        open_tcp(server.member.address) as client,
    ):
        await client.send(HTTP2_PREFACE)
        received = b""
        while b"\x00\x00\x08\x06\x00" not in received:
            received += await client.reader.readexactly(1)


async def test_grpc_port_full_of_silent_clients_serves_one_with_a_key(caplog: pytest.LogCaptureFixture) -> None:
    limits = {"max_connections": 16, "connection_idle_s": 600}
    async with running_grpc_worker(grpc=limits, server={"api_keys": [KEY]}) as server, AsyncExitStack() as stack:
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


async def test_health_checks_take_no_calls_of_others() -> None:
    async with running_grpc_worker(server={"api_keys": [KEY]}) as server, AsyncExitStack() as stack:
        stub: Any = health_pb2_grpc.HealthStub(server.channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(70)]
        await asyncio.gather(*(watch.read() for watch in watches), return_exceptions=True)
        await until(lambda: sum(watch.done() for watch in watches) == 6)
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
        began_s = asyncio.get_running_loop().time()
        await silent[-1].wait_closed()
        assert asyncio.get_running_loop().time() - began_s < 6, "3 s, and the delays of a busy machine"
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
