"""jambonz's API for custom speech, with the messages of its guide, against the real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.behavior.table import LONG
from tests.conftest import serving
from tests.integration.test_websocket import until_live_sessions

TEXT = "Hello there, my friend. How are you today?"
SECONDS = 0.06 * sum(map(str.isalpha, TEXT))  # the tone engine: 60 ms a character
KEY = "key-of-a-client"
BEARER = {"Authorization": f"Bearer {KEY}"}


@asynccontextmanager
async def dial(address: str, query: str = "voice=tone&language=en", **options: Any) -> AsyncIterator[ClientConnection]:
    options = {"close_timeout": 0.1, **options}
    url = f"ws://{address}/jambonz?{query}"
    async with connect(url, compression=None, max_size=None, open_timeout=60, **options) as socket:
        yield socket


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def until_samples(socket: ClientConnection, wanted: float) -> bytes:
    pcm = b""
    while len(pcm) // 2 < wanted:
        message = await socket.recv()
        assert isinstance(message, bytes), message
        pcm += message
    return pcm


async def message_of(socket: ClientConnection, kind: str) -> dict[str, Any]:
    while True:
        message = await socket.recv()
        if isinstance(message, str):
            data: dict[str, Any] = json.loads(message)
            assert data["type"] == kind
            return data


async def close_code(socket: ClientConnection) -> int | None:
    try:
        while True:
            await socket.recv()
    except ConnectionClosed as ended:
        return None if ended.rcvd is None else ended.rcvd.code


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 32_000, 48_000])
async def test_socket_speaks_turn_after_turn_at_the_rate(rate_hz: int) -> None:
    async with serving() as address, dial(address, f"voice=tone&language=en-US&sampleRate={rate_hz}") as socket:
        connected = await message_of(socket, "connect")
        assert connected["data"] == {"sample_rate": rate_hz, "base64_encoding": False}
        for _ in range(2):
            for word in TEXT.split(" "):
                await send(socket, "stream", text=f"{word} ")
            await send(socket, "flush")
            await until_samples(socket, SECONDS * rate_hz)
            await send(socket, "keepalive")
            await until_live_sessions(address, 0)


async def test_stop_ends_the_audio_and_the_connection() -> None:
    async with serving() as address, dial(address) as socket:
        await message_of(socket, "connect")
        await send(socket, "stream", text=LONG * 20)
        await until_samples(socket, 1)
        await send(socket, "stop")
        assert await close_code(socket) == 1000
        await until_live_sessions(address, 0)


@pytest.mark.parametrize("message", ["no JSON", '{"type": "dance"}', '{"type": "stream", "text": 7}'])
async def test_invalid_message_is_an_error_and_loses_no_speech(message: str) -> None:
    async with serving() as address, dial(address) as socket:
        await message_of(socket, "connect")
        await socket.send(message)
        assert (await message_of(socket, "error"))["error"]
        await send(socket, "stream", text=TEXT)
        await send(socket, "flush")
        await until_samples(socket, SECONDS * 16_000)


async def test_unknown_rate_is_denied() -> None:
    async with serving() as address:
        with pytest.raises(InvalidStatus, match="400"):
            async with dial(address, "sampleRate=11025"):
                pass


@pytest.mark.parametrize("kind", ["text", "ssml"])
async def test_http_speaks_samples(kind: str) -> None:
    text = f"<speak>{TEXT}</speak>" if kind == "ssml" else TEXT
    body = {"language": "en-US", "voice": "tone", "type": kind, "text": text}
    async with serving(server={"api_keys": [KEY]}) as address, httpx.AsyncClient(timeout=60, headers=BEARER) as http:
        for query, rate_hz in (("", 16_000), ("?sampleRate=8000", 8_000)):
            answer = await http.post(f"http://{address}/jambonz{query}", json=body)
            assert answer.headers["content-type"] == f"audio/l16;rate={rate_hz};channels=1"
            samples = np.frombuffer(answer.content, "<i2")
            assert SECONDS * rate_hz <= len(samples) < 1.5 * SECONDS * rate_hz
            assert int(abs(samples).max()) > 1_000
