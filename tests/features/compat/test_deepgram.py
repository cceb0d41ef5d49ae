"""Deepgram-compatible API: the vendor's SDK and plain WebSockets against the real server."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import soundfile
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.behavior.table import LONG
from tests.conftest import serving
from tests.fakes.late import LateModule
from tests.integration.test_websocket import until_live_sessions

deepgram = LateModule("deepgram", "needs the package deepgram-sdk")
deepgram_environment = LateModule("deepgram.environment")
deepgram_errors = LateModule("deepgram.errors.bad_request_error")
deepgram_speak = LateModule("deepgram.speak.v1.types")

pytestmark = [  # of the SDK
    pytest.mark.filterwarnings("ignore:websockets.* is deprecated:DeprecationWarning"),
]

TEXT = "Hello there, my friend. How are you today?"
SAMPLES = 24 * 60 * sum(map(str.isalpha, TEXT))  # the tone engine: 60 ms a character


class Client:
    """A plain WebSocket client that records messages and audio."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.log: list[dict[str, Any]] = []
        self.pcm = b""

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def until(self, kind: str) -> dict[str, Any]:
        while True:
            message = await self.socket.recv()
            if isinstance(message, bytes):
                self.pcm += message
                continue
            self.log.append(json.loads(message))
            if self.log[-1]["type"] == kind:
                return self.log[-1]

    async def until_audio(self, size: int = 1) -> None:
        wanted = len(self.pcm) + size
        while len(self.pcm) < wanted:
            message = await self.socket.recv()
            if isinstance(message, bytes):
                self.pcm += message
            else:
                self.log.append(json.loads(message))

    async def rest(self) -> ConnectionClosed:
        """Read until the connection ends, and return how."""
        try:
            while True:
                await self.until("")
        except ConnectionClosed as end:
            return end


@asynccontextmanager
async def dial(address: str, query: str = "", path: str = "/v1/speak", **options: Any) -> AsyncIterator[Client]:
    options = {"close_timeout": 0.1, **options}
    url = f"ws://{address}{path}?model=aura-2-thalia-en{query}"
    async with connect(url, compression=None, max_size=None, open_timeout=60, **options) as socket:
        yield Client(socket)


@asynccontextmanager
async def sdk(address: str, key: str = "any key") -> AsyncIterator[Any]:
    base, socket = f"http://{address}", f"ws://{address}"
    environment = deepgram_environment.DeepgramClientEnvironment(
        base=base, production=socket, agent=socket, agent_rest=base
    )
    async with httpx.AsyncClient(timeout=60) as http:
        yield deepgram.AsyncDeepgramClient(api_key=key, environment=environment, httpx_client=http)


# -- the vendor's SDK -------------------------------------------------------------------------------------------------


async def test_sdk_speaks_over_websocket() -> None:
    async with serving() as address, sdk(address) as client:
        async with client.speak.v1.connect(model="aura-2-thalia-en", encoding="linear16", sample_rate=24_000) as socket:
            assert (await socket.recv()).type == "Metadata"
            pcm = b""
            for turn in range(2):
                for word in TEXT.split(" "):
                    await socket.send_text(deepgram_speak.SpeakV1Text(text=f"{word} "))
                await socket.send_flush()
                while isinstance(answer := await socket.recv(), bytes):
                    pcm += answer
                assert (answer.type, answer.sequence_id) == ("Flushed", turn)
                assert len(pcm) // 2 >= SAMPLES * (turn + 1)
        await until_live_sessions(address, 0)


async def test_sdk_downloads_a_file() -> None:
    async with serving() as address, sdk(address) as client:
        parts = [part async for part in client.speak.v1.audio.generate(text=TEXT, model="tone-low")]
        samples, rate_hz = soundfile.read(io.BytesIO(b"".join(parts)))
        assert (rate_hz, len(samples) >= SAMPLES * 22_050 // 24_000) == (22_050, True)


async def test_sdk_raises_its_error_for_an_unknown_model() -> None:
    async with serving() as address, sdk(address) as client:
        with pytest.raises(deepgram_errors.BadRequestError) as refused:
            async for _ in client.speak.v1.audio.generate(text=TEXT, model="missing"):
                pass
        assert refused.value.body["err_msg"]
        assert refused.value.body["request_id"] == refused.value.headers["x-request-id"]


# -- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "rate_hz", "subtype"),
    [
        ("encoding=linear16", 24_000, "PCM_16"),
        ("encoding=linear16&container=wav&sample_rate=8000", 8_000, "PCM_16"),
        ("encoding=mulaw&sample_rate=16000", 16_000, "ULAW"),
        ("encoding=alaw", 8_000, "ALAW"),
        ("", 22_050, "MPEG_LAYER_III"),
        ("encoding=mp3&bit_rate=48000", 22_050, "MPEG_LAYER_III"),
        ("encoding=opus&container=ogg", 48_000, "OPUS"),
        ("encoding=flac&sample_rate=48000", 48_000, "PCM_16"),
    ],
)
async def test_download_has_the_format(query: str, rate_hz: int, subtype: str) -> None:
    async with serving() as address, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"http://{address}/v1/speak?model=tone&{query}", json={"text": TEXT})
        assert answer.status_code == 200, answer.text
        file = soundfile.SoundFile(io.BytesIO(answer.content))
        assert (file.samplerate, file.subtype) == (rate_hz, subtype)
        assert answer.headers["dg-char-count"] == str(len(TEXT))
        assert answer.headers["dg-model-name"] == "tone"
        assert answer.headers["dg-request-id"] == answer.headers["x-request-id"]


async def test_model_names_a_voice_or_the_default() -> None:
    aliases = {"aura-2-apollo-en": "tone-high"}
    async with serving(voices={"aliases": aliases}) as address, httpx.AsyncClient(timeout=60) as http:

        async def pcm(model: str) -> bytes:
            query = f"?model={model}&encoding=linear16&container=none"
            return (await http.post(f"http://{address}/v1/speak{query}", json={"text": TEXT})).content

        default, vendors, low, aliased, high = await asyncio.gather(
            *map(pcm, ("tone", "aura-asteria-en", "tone-low", "aura-2-apollo-en", "tone-high"))
        )
        assert default == vendors != low
        assert aliased == high != default


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?encoding=wav", 400),
        ("?encoding=mp3&container=wav", 400),
        ("?encoding=linear16&container=ogg", 400),
        ("?encoding=linear16&sample_rate=12345", 400),
        ("?speed=3", 400),
        ("?callback=http://example.com", 400),
    ],
)
async def test_invalid_request_has_the_vendors_error(query: str, status: int) -> None:
    async with serving() as address, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"http://{address}/v1/speak{query}", json={"text": TEXT})
        assert answer.status_code == status, answer.text
        error = answer.json()
        assert error.keys() == {"err_code", "err_msg", "category", "message", "request_id"}
        assert answer.headers["dg-error"] == error["err_msg"]
        await until_live_sessions(address, 0)


@pytest.mark.parametrize("query", ["&encoding=mp3", "&sample_rate=12345", "&speed=0.1"])
async def test_handshake_is_denied_with_the_reason(query: str) -> None:
    async with serving() as address:
        with pytest.raises(InvalidStatus) as refused:
            async with dial(address, query):
                pass
        assert refused.value.response.status_code == 400
        assert refused.value.response.headers["dg-error"]


# -- the socket -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [{}, {"preload": []}], ids=["loaded", "not loaded"])
async def test_flushed_follows_the_audio_of_each_turn(models: dict[str, Any]) -> None:
    async with serving(models=models) as address, dial(address) as client:
        await client.until("Metadata")
        texts = [f"This is sentence number {number}." for number in range(20)]  # more than may be queued
        for text in texts:
            await client.send("Speak", text=f"{text} ")
            await client.send("Flush")
        for number in range(20):
            assert (await client.until("Flushed"))["sequence_id"] == number
        assert len(client.pcm) // 2 >= sum(24 * 60 * sum(map(str.isalpha, text)) for text in texts)
        await until_live_sessions(address, 0)


async def test_clear_ends_the_audio_and_frees_the_session() -> None:
    async with serving() as address, dial(address) as client:
        await client.send("Speak", text=LONG * 20)
        await client.send("Flush")
        await client.until_audio()
        await client.send("Clear")
        await client.until("Cleared")
        assert "Flushed" not in [message["type"] for message in client.log]
        await until_live_sessions(address, 0)
        client.pcm = b""
        await client.send("Speak", text=TEXT)
        await client.send("Flush")
        await client.until("Flushed")
        fresh = client.pcm
        assert SAMPLES <= len(fresh) // 2 < SAMPLES * 2


async def test_close_speaks_what_was_sent() -> None:
    async with serving() as address, dial(address) as client:
        await client.send("Speak", text=TEXT)
        await client.send("Close")
        end = await client.rest()
        assert end.rcvd is not None
        assert end.rcvd.code == 1000
        assert len(client.pcm) // 2 >= SAMPLES


async def test_flush_without_text_is_answered() -> None:
    async with serving() as address, dial(address) as client:
        await client.send("Flush")
        await client.until("Flushed")
        await client.send("Clear")
        await client.until("Cleared")
        assert client.pcm == b""


@pytest.mark.parametrize("message", ["no JSON", "[]", '{"type": "Sing"}', '{"type": "Speak", "text": 7}', b"\0\0"])
async def test_invalid_message_is_a_warning(message: str | bytes) -> None:
    async with serving() as address, dial(address) as client:
        await client.send("Speak", text=TEXT)
        await client.socket.send(message)
        warning = await client.until("Warning")
        assert warning["description"] == warning["warn_msg"]
        assert warning["code"] == "INVALID_REQUEST"
        await client.send("Flush")
        await client.until("Flushed")
        assert len(client.pcm) // 2 >= SAMPLES
