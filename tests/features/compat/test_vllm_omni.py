"""vLLM-Omni's WebSocket ``/v1/audio/speech/stream`` against the real server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import soundfile
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.behavior.table import LONG
from tests.conftest import serving
from tests.fakes.enroller import EnrollingWorker, serving_worker
from tests.fakes.recordings import speech, wav
from tests.integration.test_websocket import until_live_sessions

TEXT = "Hello there, my friend. How are you today?"
SAMPLES = 24 * 60 * sum(map(str.isalpha, TEXT))  # the tone engine: 60 ms a character
STREAM: dict[str, Any] = {"voice": "tone", "response_format": "pcm", "stream_audio": True}


class Client:
    """A plain WebSocket client that records messages and audio."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.log: list[dict[str, Any]] = []
        self.audio: list[bytes] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def say(self, text: str) -> dict[str, Any]:
        """Say a text in parts and wait until it is done."""
        for start in range(0, len(text), 5):
            await self.send("input.text", text=text[start : start + 5])
        await self.send("input.done")
        return await self.until("session.done")

    async def until(self, kind: str) -> dict[str, Any]:
        while True:
            message = await self.socket.recv()
            if isinstance(message, bytes):
                self.audio.append(message)
                continue
            self.log.append(json.loads(message))
            if self.log[-1]["type"] == kind:
                return self.log[-1]

    async def close_code(self) -> int | None:
        with pytest.raises(ConnectionClosed) as ended:
            await self.until("")
        return None if ended.value.rcvd is None else ended.value.rcvd.code

    @property
    def kinds(self) -> list[str]:
        return [message["type"] for message in self.log]


@asynccontextmanager
async def dial(address: str, **config: Any) -> AsyncIterator[Client]:
    url = f"ws://{address}/v1/audio/speech/stream"
    async with connect(url, compression=None, max_size=None, open_timeout=60, close_timeout=0.1) as socket:
        client = Client(socket)
        if config:
            await client.send("session.config", **config)
        yield client


async def test_audio_streams_turn_after_turn() -> None:
    async with serving() as address, dial(address, **STREAM) as client:
        for turn in range(3):
            done = await client.say(TEXT)
            assert (done["utterance_index"], done["total_sentences"]) == (turn, 1)
            start, end = client.log[-3:-1]
            assert (start["type"], end["type"]) == ("audio.start", "audio.done")
            assert start["utterance_index"] == end["utterance_index"] == turn
            assert (start["format"], start["sample_rate"], end["error"]) == ("pcm", 24_000, False)
            assert end["total_bytes"] == len(b"".join(client.audio)) >= 2 * SAMPLES
            client.audio.clear()
        await until_live_sessions(address, 0)


async def test_audio_begins_before_the_text_is_done() -> None:
    async with serving() as address, dial(address, **STREAM) as client:
        await client.send("input.text", text="Hello there, my friend. And")
        await client.until("audio.start")
        await client.send("input.done")
        await client.until("session.done")


@pytest.mark.parametrize("audio_format", ["wav", "flac", "mp3", "opus"])
async def test_audio_that_is_not_streamed_is_one_file(audio_format: str) -> None:
    async with serving() as address, dial(address, voice="tone", response_format=audio_format) as client:
        for _ in range(2):
            await client.say(TEXT)
            assert client.kinds[-3:] == ["audio.start", "audio.done", "session.done"]
            assert client.log[-3]["sentence_text"] == TEXT
            (file,) = client.audio
            assert soundfile.SoundFile(io.BytesIO(file)).samplerate == 24_000
            if audio_format == "wav":
                samples, _ = soundfile.read(io.BytesIO(file))
                assert len(samples) >= SAMPLES
            client.audio.clear()


async def test_words_have_their_times() -> None:
    async with serving() as address, dial(address, **STREAM, word_timestamps=True) as client:
        await client.say(TEXT)
        chunks = [message for message in client.log if message["type"] == "audio.chunk"]
        assert client.log[0]["word_timestamps"] is True
        assert [chunk["chunk_id"] for chunk in chunks] == list(range(len(chunks)))
        *spoken, last = chunks
        pcm = b"".join(base64.b64decode(chunk["audio_b64"]) for chunk in spoken)
        assert client.audio == []
        assert len(pcm) // 2 >= SAMPLES
        ends = [chunk["chunk_end_ms"] for chunk in spoken]
        assert [chunk["chunk_start_ms"] for chunk in spoken] == [0, *ends[:-1]]
        assert all(chunk["timestamps"] is None for chunk in spoken)
        assert (last["audio_b64"], last["chunk_end_ms"]) == ("", ends[-1])
        assert [time["word"] for time in last["timestamps"]] == TEXT.split()
        starts = [time["start_ms"] for time in last["timestamps"]]
        assert starts == sorted(starts)
        assert starts[-1] < ends[-1]


async def test_config_between_turns_changes_the_voice() -> None:
    async with serving() as address, dial(address, **STREAM) as client:
        await client.say(TEXT)
        first = client.audio[:]
        client.audio.clear()
        await client.send("input.text", text=TEXT)
        await client.send("input.done")
        await client.send("session.config", **{**STREAM, "voice": None, "speaker": "tone-low"})
        await client.send("input.text", text=TEXT)
        await client.send("input.done")
        await client.until("session.done")
        assert b"".join(client.audio) == b"".join(first), "the turn before is spoken to its end"
        client.audio.clear()
        await client.until("session.done")
        assert b"".join(client.audio) != b"".join(first)


async def test_recording_in_the_config_gives_its_voice() -> None:
    worker = EnrollingWorker()
    recording = base64.b64encode(wav(speech(4, 16_000, level=0.3))).decode()
    async with serving_worker(worker) as address, dial(address, **STREAM, ref_audio=recording, ref_text="Hi.") as own:
        await own.say(TEXT)
        assert worker.enroller.transcripts == ["Hi."]
        async with dial(address, **STREAM) as tone:
            await tone.say(TEXT)
            assert b"".join(tone.audio) != b"".join(own.audio)


async def test_flush_without_text_is_done_at_once() -> None:
    async with serving() as address, dial(address, **STREAM) as client:
        done = await client.say(" \n")
        assert (done["utterance_index"], done["total_sentences"]) == (0, 0)
        assert client.kinds == ["session.done"]


async def test_close_frees_the_session() -> None:
    async with serving() as address, dial(address, **STREAM) as client:
        await client.send("input.text", text=LONG * 20)
        await client.until("audio.start")
        await client.send("session.close")
        assert await client.close_code() == 1000
        await until_live_sessions(address, 0)


async def test_client_that_goes_while_a_config_waits_frees_the_session() -> None:
    async with serving() as address:
        async with dial(address, **STREAM) as client:
            await client.send("input.text", text=LONG * 20)
            await client.send("input.done")
            await client.send("session.config", **STREAM)
            await client.until("audio.start")
            client.socket.transport.abort()
        await until_live_sessions(address, 0)


@pytest.mark.parametrize(
    "first",
    [
        {"type": "input.text", "text": TEXT},
        {"type": "session.config", **STREAM, "voice": "missing"},
        {"type": "session.config", **STREAM, "model": "missing"},
        {"type": "session.config", **STREAM, "response_format": "wav"},
        {"type": "session.config", "word_timestamps": True},
        {"type": "session.config", "speed": 9},
        {"type": "session.config", "ref_text": "Hi."},
        {"type": "hello"},
    ],
)
async def test_connection_needs_a_valid_config(first: dict[str, Any]) -> None:
    async with serving() as address, dial(address) as client:
        await client.socket.send(json.dumps(first))
        assert (await client.until("error"))["message"]
        assert await client.close_code() is not None


@pytest.mark.parametrize(
    "message",
    [
        "no JSON",
        json.dumps({"type": "input.text", "text": 7}),
        json.dumps({"type": "session.config", **STREAM, "voice": "missing"}),
        json.dumps({"type": "unknown"}),
    ],
)
async def test_later_error_leaves_the_connection_open(message: str) -> None:
    async with serving() as address, dial(address, **STREAM) as client:
        await client.say(TEXT)
        await client.socket.send(message)
        await client.until("error")
        await client.say(TEXT)


async def test_error_in_the_middle_of_a_turn_loses_no_audio() -> None:
    async with serving() as address, dial(address, voice="tone") as client:
        await client.send("input.text", text=TEXT)
        await client.socket.send("no JSON")
        await client.send("input.done")
        await client.until("session.done")
        (file,) = client.audio
        samples, _ = soundfile.read(io.BytesIO(file))
        assert len(samples) >= SAMPLES


async def test_config_in_the_middle_of_a_turn_is_an_error() -> None:
    async with serving() as address, dial(address, **STREAM) as client:
        await client.send("input.text", text="Hello there, ")
        await client.send("session.config", **STREAM)
        assert "in progress" in (await client.until("error"))["message"]
        await client.say("my friend.")


async def test_many_connections_speak_at_once() -> None:
    async with serving() as address:

        async def speak(voice: str) -> bytes:
            async with dial(address, **{**STREAM, "voice": voice}) as client:
                await client.say(TEXT)
                return b"".join(client.audio)

        tone, low, nova = await asyncio.gather(*map(speak, ("tone", "tone-low", "nova")))
        assert tone == nova != low
