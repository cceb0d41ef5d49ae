"""The HTTP server's connections over plain sockets: deadlines, bounds, a full worker, floods."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import tts_worker
from tests.conftest import serving, until
from tests.fakes.clock import measure_stalls
from tests.fakes.scrape import scraped
from tests.integration.test_http import serving_stalled_engine
from tests.integration.test_websocket import LONG_TIMEOUTS, dial, metric
from tts_worker.errors import TextTooLong
from tts_worker.server import connections, security
from tts_worker.server.application import Application
from tts_worker.server.http_protocol import HttpProtocol
from tts_worker.server.limits import ApiLimits
from tts_worker.server.responses import LiveStream, Upload

HEALTH = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
SPEECH = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"


class TcpClient:
    """A TCP connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read_all(self) -> bytes:
        """Read until the server closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    async def send(self, data: bytes) -> None:
        """Send, ignoring a connection that the server has closed."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            pass


@asynccontextmanager
async def open_tcp(address: str, data: bytes = b"") -> AsyncIterator[TcpClient]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    client = TcpClient(reader, writer)
    try:
        if data:
            await client.send(data)
        yield client
    finally:
        writer.transport.abort()


def upgrade(path: str = "/v1/stream") -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def frame(opcode: int, payload: bytes = b"", *, final: bool = True) -> bytes:
    """A WebSocket frame of a client, with a mask of zeros."""
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return bytes([(final << 7) | opcode]) + size + bytes(4) + payload


def status_of(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


def code_of(response: bytes) -> str:
    code: str = json.loads(response.partition(b"\r\n\r\n")[2])["error"]["code"]
    return code


async def closed(address: str, reason: str) -> float:
    return await metric(address, f'tts_connections_closed_total{{reason="{reason}"}}')


# -- heads ------------------------------------------------------------------------------------------------------------


async def test_pipelined_requests_get_one_response() -> None:
    async with serving() as address, open_tcp(address, HEALTH * 50) as client:
        assert (await client.read_all()).count(b"HTTP/1.1 200") == 1


async def test_request_sent_before_response_is_dropped() -> None:
    body = json.dumps({"input": "Hello there, my friend.", "response_format": "pcm"}).encode()
    speech = SPEECH.replace(b"1000", str(len(body)).encode()) + body
    async with serving_stalled_engine(chunks=1) as (address, resume), open_tcp(address, speech) as client:
        await client.reader.readuntil(b"\r\n\r\n")
        await client.send(HEALTH)
        await until_connections(address, "active", 2)  # the metrics request is answered after the data sent before
        resume.set()
        rest = await client.read_all()
        assert b"HTTP/1.1" not in rest
        assert rest.endswith(b"0\r\n\r\n")


async def test_sequential_requests_share_a_connection() -> None:
    async with serving() as address, open_tcp(address) as client:
        for _ in range(3):
            await client.send(b"\r\n" + HEALTH)
            assert b" 200 " in await client.reader.readuntil(b"\r\n\r\n")
            await client.reader.readexactly(len('{"status":"live"}'))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000, 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 20_000, 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (upgrade("/v1/stream?voice=" + "a" * 9_000), 414),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    ],
    ids=["long", "many", "many-complete", "path", "handshake", "noise"],
)
async def test_oversized_request_head_is_rejected(data: bytes, status: int) -> None:
    async with serving() as address, open_tcp(address) as client:
        sending = asyncio.create_task(client.send(data))
        response = await client.read_all()
        await sending
        assert status_of(response) == status
        assert code_of(response) == "invalid_request"
        reason = "invalid" if status == 400 else "header_too_large"
        assert await closed(address, reason) == 1


async def test_request_head_in_single_bytes_is_parsed() -> None:
    async with serving() as address, open_tcp(address) as client:
        for byte in HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"):
            await client.send(bytes([byte]))
        assert status_of(await client.read_all()) == 200


# -- deadlines --------------------------------------------------------------------------------------------------------


async def test_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.2)
    async with serving() as address, open_tcp(address) as client:
        assert await client.read_all() == b""
        assert await closed(address, "header_timeout") == 1


async def test_slow_head_is_answered_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.2)
    async with serving() as address, open_tcp(address, HEALTH[:-2]) as client:
        response = await client.read_all()
        assert (status_of(response), code_of(response)) == (408, "deadline_exceeded")


async def test_slow_body_is_answered_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_TIMEOUT_S", 0.2)
    async with serving() as address, open_tcp(address, SPEECH + b"{") as client:
        response = await client.read_all()
        assert (status_of(response), code_of(response)) == (408, "deadline_exceeded")
        assert await closed(address, "body_timeout") == 1


async def test_answered_body_may_go_on_while_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_echo(application: Application, *_: object) -> None:
        @application.routes.post("/echo")
        async def echo(request: Request) -> Response:
            upload = Upload()
            return LiveStream(upload.parts(), "audio/pcm", {}, upload=upload)

    timers: list[Callable[[], None]] = []
    arm = HttpProtocol.arm

    def keep(protocol: HttpProtocol, delay_s: float, callback: Callable[[], None]) -> None:
        if callback == protocol.on_body_timeout:
            timers.append(callback)
        else:
            arm(protocol, delay_s, callback)

    monkeypatch.setattr(HttpProtocol, "arm", keep)
    head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n"
    async with serving(extension=add_echo) as address, open_tcp(address, head + b"x") as client:
        assert await client.reader.readuntil(b"\r\nx\r\n")
        timers.pop()()
        await client.send(b"y")
        assert await client.reader.readuntil(b"\r\ny\r\n")
        timers.pop()()
        timers.pop()()
        assert await client.read_all() == b""
        assert (await closed(address, "body_timeout"), timers) == (1, [])


async def test_answer_that_fails_while_the_body_arrives_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    def add_failing(application: Application, *_: object) -> None:
        @application.routes.post("/fail")
        async def fail(request: Request) -> Response:
            async def once() -> AsyncGenerator[bytes, None]:
                yield b"x"
                raise TextTooLong("too long")

            return LiveStream(once(), "audio/pcm", {})

    head = b"POST /fail HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n"
    async with serving(extension=add_failing) as address, open_tcp(address, head) as client:
        answer = await client.read_all()
    assert answer.endswith(b"\r\nx\r\n"), "without the last chunk, which would make it complete"
    assert not [record for record in caplog.records if record.exc_info], "any client could fill the log"
    assert "cut off: too long" in caplog.text


async def test_client_that_waits_for_100_continue_is_told_to_send() -> None:
    body = b'{"input": "Hi.", "voice": "tone"}'
    head = SPEECH.replace(b"1000", b"%d\r\nExpect: 100-continue" % len(body))
    async with serving() as address, open_tcp(address, head) as client:
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await client.send(body)
        assert (await client.reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_client_gets_the_reason_for_a_refused_upload() -> None:
    limits = {"max_request_bytes": 20_000, "max_upload_bytes": 20_000}
    async with serving(server=limits) as address, tts_worker.connect(f"ws://{address}") as client:
        with pytest.raises(TextTooLong):  # although its body, which nothing reads, fills all buffers
            await client.voices.add("ann", bytes(20_000_000), consent=True)


async def test_websocket_has_no_body_timeout(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(connections, "BODY_TIMEOUT_S", 0.1)
    async with serving() as address, dial(address) as client:
        await client.send(type="text", text="Hello there.", end=True)  # paced: longer than the timeout
        await client.until("done")
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            assert "body_timeout" not in (await http.get("/metrics")).text
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_rejected_body_does_not_destroy_the_response() -> None:
    size = 20_000_000
    head = SPEECH.replace(b"1000", str(size).encode())
    async with serving() as address, open_tcp(address, head) as client:
        sending = asyncio.create_task(client.send(b"a" * 2_000_000))
        assert status_of(await client.read_all()) == 413
        await sending


async def test_upload_that_outlasts_a_drain_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tts_worker.serving.GOODBYE_S", 0.0)
    monkeypatch.setattr("tts_worker.serving.CLOSE_S", 0)
    async with AsyncExitStack() as stack:
        async with serving() as address:
            client = await stack.enter_async_context(open_tcp(address, SPEECH + b"{"))
            await until_connections(address, "active", 2)  # this upload, and the request for the metrics
        response = await client.read_all()
    assert (status_of(response), code_of(response)) == (503, "draining")
    assert "Traceback" not in caplog.text


async def test_disconnect_mid_body_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as address:
        async with open_tcp(address, SPEECH + b"{"):
            await until_connections(address, "active", 2)  # this one and that of the metrics request
        await until_connections(address, "active", 1)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


async def until_connections(address: str, state: str, count: int) -> None:
    async def reached() -> bool:
        return await metric(address, f'tts_connections{{state="{state}"}}') == count

    while not await reached():  # noqa: ASYNC110  (the server's counters can only be polled)
        await asyncio.sleep(0.01)


# -- a full worker ----------------------------------------------------------------------------------------------------


@pytest.fixture
def long_header_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 600.0)


FULL: dict[str, Any] = {
    **LONG_TIMEOUTS,
    "server": {**LONG_TIMEOUTS["server"], "max_connections": 8},
}


@pytest.mark.usefixtures("long_header_timeout")
async def test_new_connection_evicts_longest_waiting() -> None:
    async with serving(**FULL) as address, AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(open_tcp(address)) for _ in range(8)]
        await until_connections(address, "waiting", 7)  # the metrics connection has evicted the first one
        assert await silent[0].read_all() == b""
        assert await closed(address, "evicted") >= 1


@pytest.mark.usefixtures("long_header_timeout")
async def test_full_worker_answers_health_probes(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(**FULL) as address, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(dial(address)) for _ in range(8)]
        for client in clients:
            await client.until("ready")
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            for _ in range(3):
                assert (await http.get("/health/live", headers={"Connection": "close"})).status_code == 200
                rejection = await http.get("/v1/voices", headers={"Connection": "close"})
                assert rejection.status_code == 503
                assert rejection.json()["error"]["code"] == "over_capacity"
            metrics = await http.get("/metrics", headers={"Connection": "close"})
            assert scraped(metrics.text, "tts_connections", state="active") >= 8, "it must tell that the worker is full"
        silent = [await stack.enter_async_context(open_tcp(address)) for _ in range(20)]
        async with open_tcp(address, HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) as probe:
            assert status_of(await probe.read_all()) == 200
        assert await silent[0].read_all() == b""
        await clients[0].send(type="ping", id=1)
        await clients[0].until("pong")
    full = [record for record in caplog.records if "connections are taken" in record.getMessage()]
    assert len(full) == 1


async def test_answered_request_yields_its_place() -> None:
    endless = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx"
    async with serving(**FULL) as address, AsyncExitStack() as stack:
        for _ in range(8):
            client = await stack.enter_async_context(open_tcp(address, endless))
            assert b" 404 " in await client.reader.readuntil(b"\r\n\r\n")
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            assert (await http.get("/v1/voices")).status_code == 200


# -- WebSocket floods -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flood", "reason"),
    [(frame(1, b"{", final=False) + frame(0, final=False) * 50_000, "fragments"), (frame(9, b"x") * 20_000, "pings")],
    ids=["fragments", "pings"],
)
async def test_frame_flood_closes_the_connection(flood: bytes, reason: str) -> None:
    async with serving() as address, open_tcp(address, upgrade()) as client:
        await client.reader.readuntil(b"\r\n\r\n")
        sending = asyncio.create_task(client.send(flood))
        received = await client.read_all()
        await sending
        assert re.search(b"\x88.\x03\xf0too many|\x88.\x03\xf0a message may have", received, re.DOTALL)
        assert await closed(address, reason) == 1


async def test_burst_does_not_delay_other_clients() -> None:
    """A ping received during a burst is answered before the burst is handled completely."""
    burst = frame(1, b'{"type":"flush"}') * 4_000 + frame(1, b'{"type":"ping","id":"last"}')
    order: list[str] = []
    async with serving() as address, dial(address) as other, open_tcp(address, upgrade()) as flooding:
        await other.until("ready")
        await flooding.reader.readuntil(b"\r\n\r\n")

        async def flood() -> None:
            await flooding.send(burst)
            await flooding.reader.readuntil(b'"last"')
            order.append("burst")

        task = asyncio.create_task(flood())
        await asyncio.sleep(0)
        for number in range(3):
            await other.send(type="ping", id=number)
            await other.until("pong")
            order.append("ping")
        await task
        assert order == ["ping", "ping", "ping", "burst"]


async def until_closed(client: ClientConnection) -> AsyncIterator[str | bytes]:
    """Yield all messages until the server closes the connection, gracefully or not."""
    try:
        while True:
            yield await client.recv()
    except ConnectionClosed:
        pass


@pytest.mark.parametrize("path", ["/v1/stream", "/tts/websocket", "/v1/text-to-speech/tone/multi-stream-input"])
async def test_too_many_messages_end_the_connection(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(ApiLimits, "of", lambda settings: ApiLimits(max_messages_per_s=10))
    async with serving() as address, connect(f"ws://{address}{path}") as client:
        for _ in range(60):
            await client.send('{"type":"flush"}')
        texts = [text async for text in until_closed(client)]
        assert "rate_limited" in texts[-1]
        assert client.close_code == 1008
        assert "more than 10 messages" in (client.close_reason or "")


@pytest.mark.parametrize("reads", [True, False])
async def test_rate_limited_client_cannot_keep_the_socket(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    """It does not answer the close frame, or reads nothing, while the other time limits are far away."""
    limits = ApiLimits(max_messages_per_s=100, send_timeout_s=600)
    monkeypatch.setattr(ApiLimits, "of", lambda settings: limits)
    async with serving(**LONG_TIMEOUTS) as address, open_tcp(address, upgrade("/v1/stream?realtime=false")) as client:
        await client.reader.readuntil(b"\r\n\r\n")
        if not reads:
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(frame(1, json.dumps({"type": "text", "text": "many words " * 5_000}).encode()))
            while await metric(address, "tts_buffered_seconds") < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await client.send(frame(1, b'{"type":"flush"}') * 5_000)
        async with measure_stalls() as stalled_s:
            begun_s = asyncio.get_running_loop().time()
            if reads:
                assert b"\x03\xf0" in await client.read_all()
            await until_connections(address, "active", 1)  # that of the metrics
            took_s = asyncio.get_running_loop().time() - begun_s - stalled_s()
        assert took_s < 9, "the WebSocket library waits for 10 s"
        assert await metric(address, "tts_sessions") == 0


async def test_long_messages_count_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ApiLimits(max_messages_per_s=10, send_timeout_s=0.5)
    monkeypatch.setattr(ApiLimits, "of", lambda settings: limits)
    async with (
        serving(server={"send_timeout_s": 0.5}) as address,
        connect(f"ws://{address}/v1/stream") as client,
    ):
        for _ in range(4):
            await client.send(json.dumps({"type": "ping", "id": "x" * 100_000}))
        async for _ in until_closed(client):
            pass
        assert client.close_code == 1008


# -- bodies -----------------------------------------------------------------------------------------------------------


async def test_bodies_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MAX_BUFFERED_BYTES", 2_000)
    async with serving() as address, AsyncExitStack() as stack:
        holding = await stack.enter_async_context(open_tcp(address, SPEECH + b"a" * 999))
        other = await stack.enter_async_context(open_tcp(address, SPEECH + b"a" * 999))
        await until_connections(address, "active", 3)
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            rejection = await http.post("/v1/audio/speech", content=b"b" * 500)
            assert rejection.status_code == 503
            assert rejection.json()["error"]["code"] == "over_capacity"
            for client in (holding, other):
                await client.send(b"a")
                assert b" 400 " in await client.reader.readuntil(b"\r\n")
            await until_connections(address, "active", 1)
            assert (await http.post("/v1/audio/speech", json={"input": "Hello."})).status_code == 200


async def test_handshake_rejection_is_an_http_response() -> None:
    async with serving() as address:
        with pytest.raises(InvalidStatus) as exc_info:
            async with connect(f"ws://{address}/v1/stream?voice=none"):
                pass
        assert exc_info.value.response.status_code == 404


async def test_pipelined_flood_is_discarded() -> None:
    """All requests of a pipelined flood except the first are discarded."""
    async with serving() as address, open_tcp(address) as client:
        sending = asyncio.create_task(client.send(HEALTH * 20_000))
        await until(sending.done)
        assert (await client.read_all()).count(b"HTTP/1.1 200") <= 1


# -- names and disks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["\ud83d", "a\udc00b"])
async def test_lone_surrogates_in_ids_are_rejected(name: str) -> None:
    async with serving() as address, dial(address) as client:
        await client.send(type="ping", id=name)
        assert (await client.until("rejected"))["code"] == "invalid_request"
        await client.send(type="text", text="Hello.", context=name, end=True)
        assert (await client.until("rejected"))["code"] == "invalid_request"
        await client.send(type="ping", id=1)
        assert (await client.until("pong"))["id"] == 1


@pytest.mark.parametrize("route", ["/v1/audio/speech", "/tts/bytes", "/v1/text-to-speech/tone", "/inference_sft"])
async def test_lone_surrogates_in_requests_are_answered(route: str, caplog: pytest.LogCaptureFixture) -> None:
    body = b'{"input": "Hi", "voice": "\\ud83d", "model_id": "m", "transcript": "Hi", "text": "Hi"}'
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        answer = await http.post(route, content=body, headers={"content-type": "application/json"})
        assert answer.status_code < 500
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("identity", ["x" * 129, 2**63], ids=["long", "large"])
async def test_ping_id_is_bounded(identity: str | int) -> None:
    async with serving() as address, dial(address) as client:
        await client.send(type="ping", id=identity)
        assert (await client.until("rejected"))["code"] == "invalid_request"


async def test_long_context_name_is_not_repeated() -> None:
    async with serving() as address, connect(f"ws://{address}/tts/websocket") as client:
        await client.send(json.dumps({"context_id": "x" * 100_000, "transcript": 5}))
        assert len(await client.recv()) < 1_000


@pytest.mark.parametrize(
    ("path", "size", "status"),
    [("/v1/absent", 500_000, 404), ("/v1/audio/speech", 40_000_000, 413)],
    ids=["unknown", "too_large"],
)
async def test_answer_before_the_end_of_a_body_says_that_the_connection_ends(path: str, size: int, status: int) -> None:
    """A client that keeps connections, as all do, would otherwise lose its next request."""
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        early = await http.post(path, content=bytes(size), headers={"content-type": "application/json"})
        assert (early.status_code, early.headers["connection"]) == (status, "close")
        whole = await http.post("/v1/absent", content=b"{}")
        assert (whole.status_code, "connection" in whole.headers) == (404, False)
        assert (await http.get("/health")).status_code == 200


async def test_full_disk_rejects_uploads(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", full)
        answer = await http.post(
            "/inference_zero_shot", data={"tts_text": "Hi"}, files={"prompt_wav": bytes(3_000_000)}
        )
    assert answer.status_code == 503
    assert not [record for record in caplog.records if record.exc_info]
