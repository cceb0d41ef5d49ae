"""``HttpApi.exchange``: a body and its response at the same time, and responses of servers that are no worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.client import http_api
from tts_worker.client.http_api import HttpApi
from tts_worker.client.settings import ClientSettings
from tts_worker.errors import ConnectionLost, InvalidRequest, TTSWorkerError
from tts_worker.timeouts import fail_after

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


async def two_parts() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[HttpApi]:
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener, fail_after(30):
        yield HttpApi(f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}", "/v1/x", ClientSettings())


async def received(api: HttpApi, body: AsyncIterator[bytes] | None = None) -> bytes:
    parts = api.exchange("", two_parts() if body is None else body, "audio/pcm", 20)
    return b"".join([part async for part in parts])


async def answered(response: bytes) -> bytes:
    """What the client makes of ``response``, after which the server closes the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(response)
        writer.close()

    async with server(answer) as api:
        return await received(api)


@pytest.mark.parametrize(
    "response",
    [
        CHUNKED + b"3\r\nabc\r\n2;name=value\r\nde\r\n0\r\n\r\n",
        CHUNKED + b"0003 \r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 5\r\n\r\nabcde",
        HEAD + b"Content-Length: 5\r\n\r\nabcdefg",
        b"HTTP/1.0 200 OK\r\n\r\nabcde",
    ],
)
async def test_every_framing_of_a_body_is_read(response: bytes) -> None:
    assert await answered(response) == b"abcde"


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 2\xb20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK",
        HEAD + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        HEAD + b"X: a\r\n" * 200 + b"\r\n",
        HEAD + b"Content-Length: \xb2\r\n\r\nab",
        HEAD + b"Content-Length: -1\r\n\r\nabc",
        HEAD + b"Content-Length: 999999999999\r\n\r\nabc",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"-2\r\n\r\n",
        CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"1_0\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"f" * 16 + b"\r\nabc",
        CHUNKED + b"fffffffff\r\nabc",
        CHUNKED + b"2\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3\r\nabc\r\n",
        CHUNKED + b"0\r\n",
        CHUNKED + b"0\r\n" + b"a" * 100_000,
    ],
)
async def test_malformed_response_is_a_lost_connection(response: bytes) -> None:
    with pytest.raises(ConnectionLost):
        await answered(response)


@settings(max_examples=20, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([b"", HEAD, HEAD + b"\r\n", CHUNKED, CHUNKED + b"3\r\nabc\r\n"]))
def test_any_response_is_audio_or_a_typed_error(tail: bytes, head: bytes) -> None:
    try:
        asyncio.run(answered(head + tail))
    except TTSWorkerError:
        pass


async def test_part_of_a_chunk_is_heard_before_the_rest() -> None:
    is_heard = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"6\r\nabc")
        await is_heard.wait()
        writer.write(b"def\r\n0\r\n\r\n")
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()

    async def source() -> AsyncIterator[bytes]:
        yield b"one"
        await is_heard.wait()

    async with server(answer) as api:
        parts = []
        async for part in api.exchange("", source(), "audio/pcm", 20):
            parts.append(part)
            is_heard.set()
    assert parts == [b"abc", b"def"]


async def test_error_of_the_source_ends_an_open_response() -> None:
    is_answered = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"one")
        writer.write(HEAD + b"\r\nabc")
        await reader.read()
        writer.close()

    async def source() -> AsyncIterator[bytes]:
        yield b"one"
        await is_answered.wait()
        raise OSError("the microphone is gone")

    async with server(answer) as api:
        parts = api.exchange("", source(), "audio/pcm", 20)
        assert await anext(parts) == b"abc"
        is_answered.set()
        with pytest.raises(OSError, match="microphone"):
            await anext(parts)


async def test_endless_refusal_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "MAX_BODY_BYTES", 100_000)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 Error\r\n\r\n")
        try:
            while True:
                writer.write(bytes(10_000))
                await writer.drain()
        except OSError:
            writer.close()

    async with server(answer) as api:
        with pytest.raises(ConnectionLost, match="no tts-worker"):
            await received(api)


@pytest.mark.parametrize("body", [b'{"detail": "Not Found"}', b'{"error": "not found"}', b"[]", b"<html>"])
async def test_refusal_without_an_error_is_no_workers(body: bytes) -> None:
    with pytest.raises(ConnectionLost, match="no tts-worker"):
        await answered(b"HTTP/1.1 404 Not Found\r\n\r\n" + body)


@pytest.mark.parametrize("key", ["secret\n", "secret\r\nX-Admin: 1", "sécret"])
def test_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match="api_key"):
        ClientSettings(api_key=key)
