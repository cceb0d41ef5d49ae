"""Cartesia-compatible API: the vendor's SDK and LiveKit's plugin against the real server, and invalid messages."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import httpx
import numpy as np
import pytest
import soundfile
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import serving, tone_settings
from tests.fakes.enroller import serving_worker
from tests.fakes.late import LateModule
from tests.integration.test_websocket import LONG_TIMEOUTS, until_live_sessions
from tts_worker.server.limits import ApiLimits
from tts_worker.worker import running_worker

cartesia_sdk = LateModule("cartesia", "needs the package cartesia")
livekit_cartesia = LateModule("livekit.plugins.cartesia", "needs livekit-plugins-cartesia")

TEXT = "Hello there, my friend. How are you today?"
FORMAT = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
SAMPLES = 24 * 60 * len("".join(TEXT.split()))  # the tone engine: 60 ms a character
LONG = "This is a rather long story, and it goes on and on. " * 40
OPEN = {"continue": True}  # keeps the context open for more text


class Client:
    """A plain WebSocket client that records messages."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.log: list[dict[str, Any]] = []

    async def say(self, context: str, transcript: str = TEXT, **fields: Any) -> None:
        await self.send(context_id=context, transcript=transcript, **{**REQUEST, **fields})

    async def send(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self.socket.recv())
        self.log.append(message)
        return message

    async def until(self, kind: str, context: str | None = None) -> dict[str, Any]:
        while True:
            message = await self.next()
            if message["type"] == kind and context in (None, message["context_id"]):
                return message

    async def until_done(self, context: str) -> None:
        """Wait for ``done`` of a context unless it was received before."""
        if not any((message["type"], message["context_id"]) == ("done", context) for message in self.log):
            await self.until("done", context)

    def pcm(self, context: str) -> bytes:
        chunks = [m for m in self.log if m["type"] == "chunk" and m["context_id"] == context]
        return b"".join(base64.b64decode(m["data"]) for m in chunks)


REQUEST: dict[str, Any] = {"model_id": "sonic-3", "voice": {"mode": "id", "id": "tone"}, "output_format": FORMAT}


@asynccontextmanager
async def dial(address: str, query: str = "", **options: Any) -> AsyncIterator[Client]:
    url = f"ws://{address}/tts/websocket?cartesia_version=2025-04-16{query}"
    options = {"close_timeout": 0.1, **options}  # unread audio keeps the client from seeing the closing handshake
    async with connect(url, compression=None, max_size=None, open_timeout=60, **options) as socket:
        yield Client(socket)


# -- the vendor's SDK -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def sdk(address: str) -> AsyncIterator[Any]:
    client = cartesia_sdk.AsyncCartesia(
        api_key="any key", base_url=f"http://{address}", websocket_base_url=f"ws://{address}", max_retries=0
    )
    async with client:
        yield client


async def test_sdk_streams_many_contexts_concurrently() -> None:
    async with serving() as address, sdk(address) as client, client.tts.websocket_connect() as connection:

        async def speak(voice: str) -> tuple[bytes, list[str]]:
            context = connection.context(
                model_id="sonic-3", voice={"mode": "id", "id": voice}, output_format=FORMAT, add_timestamps=True
            )
            for word in TEXT.split(" "):
                await context.push(word + " ")
            await context.no_more_inputs()
            pcm = b""
            words = []
            async for event in context.receive():
                assert event.type != "error", event
                if event.type == "chunk":
                    pcm += event.audio
                elif event.type == "timestamps":
                    words += event.word_timestamps.words
            return pcm, words

        spoken = await asyncio.gather(*map(speak, ("tone", "tone-low", "tone-high", "tone")))
        assert [words for _, words in spoken] == [TEXT.split()] * 4
        assert spoken[0] == spoken[3]
        assert len({pcm for pcm, _ in spoken}) == 3
        assert len(spoken[0][0]) // 2 >= SAMPLES


async def test_sdk_flushes_and_cancels() -> None:
    async with serving() as address, sdk(address) as client, client.tts.websocket_connect() as connection:
        context = connection.context(model_id="sonic-3", voice="tone", output_format=FORMAT, add_timestamps=True)
        await context.push("One two. ")
        await context.push("", flush=True)
        await context.push("Three.")
        await context.no_more_inputs()
        log = []
        starts = []
        async for event in context.receive():
            log.append(event.type)
            if event.type == "timestamps":
                starts += event.word_timestamps.start
        assert log.count("flush_done") == 1
        assert "chunk" in log[: log.index("flush_done")]
        assert "chunk" in log[log.index("flush_done") :]
        assert starts == sorted(starts), "timestamps continue after a flush"
        assert starts[2] >= 6 * 0.06
        stopped = connection.context(model_id="sonic-3", voice="tone", output_format=FORMAT)
        await stopped.push(LONG)
        await stopped.receive().__anext__()
        await stopped.cancel()
        await until_live_sessions(address, 0)


@pytest.mark.parametrize("container", ["raw", "wav", "mp3"])
async def test_sdk_downloads_every_container(container: str) -> None:
    async with serving() as address, sdk(address) as client:
        answer = await client.tts.generate(
            model_id="sonic-3", transcript=TEXT, voice={"id": "tone"}, output_format={**FORMAT, "container": container}
        )
        data = await answer.read()
        assert {"raw": b"\0\0", "wav": b"RIFF", "mp3": b"\xff"}[container][:1] == data[:1] or len(data) > 10_000
        with pytest.raises(cartesia_sdk.NotFoundError) as exc_info:
            await client.tts.generate(
                model_id="sonic-3", transcript=TEXT, voice={"id": "unknown"}, output_format=FORMAT
            )
        assert exc_info.value.body["error_code"] == "unknown_voice"


@pytest.mark.parametrize(
    ("encoding", "subtype"),
    [("pcm_s16le", "PCM_16"), ("pcm_f32le", "FLOAT"), ("pcm_mulaw", "ULAW"), ("pcm_alaw", "ALAW")],
)
async def test_sdk_downloads_wav_of_every_encoding(encoding: str, subtype: str) -> None:
    wav = {"container": "wav", "encoding": encoding, "sample_rate": 44_100}
    async with serving() as address, sdk(address) as client:
        wanted = {"model_id": "sonic-3", "transcript": TEXT, "voice": "tone"}
        file = await (await client.tts.generate(**wanted, output_format=wav)).read()
        raw = await (await client.tts.generate(**wanted, output_format={**wav, "container": "raw"})).read()
    with soundfile.SoundFile(io.BytesIO(file)) as audio_file:
        assert (audio_file.subtype, audio_file.samplerate, audio_file.channels) == (subtype, 44_100, 1)
        samples = audio_file.read(dtype="float32")
    raw_file = soundfile.SoundFile(io.BytesIO(raw), "r", 44_100, 1, subtype, "LITTLE", "RAW")
    assert np.array_equal(samples, raw_file.read(dtype="float32"))


SPEECH: dict[str, Any] = {"model_id": "sonic-3", "transcript": TEXT, "voice": {"mode": "id", "id": "tone"}}


@pytest.mark.parametrize("encoding", ["pcm_s16le", "pcm_f32le", "pcm_mulaw"])
async def test_sdk_streams_server_sent_events(encoding: str) -> None:
    wanted = {**SPEECH, "output_format": {**FORMAT, "encoding": encoding}}
    async with serving() as address, sdk(address) as client:
        events = [event async for event in await client.tts.sse(**wanted, add_timestamps=True, context_id="a")]
        plain = await (await client.tts.generate(**wanted)).read()
        assert b"".join(event.audio for event in events if event.type == "chunk") == plain
        timed = [event.word_timestamps for event in events if event.type == "timestamps"]
        assert [word for times in timed for word in times.words] == TEXT.split()
        starts = [start for times in timed for start in times.start]
        assert starts == sorted(starts)
        assert [event.type for event in events].count("done") == 1
        assert (events[-1].type, events[-1].done, events[-1].status_code) == ("done", True, 200)
        assert {event.context_id for event in events} == {"a"}
        events = [event async for event in await client.tts.sse(**wanted)]
        assert {event.type for event in events} == {"chunk", "done"}
        await until_live_sessions(address, 0)


async def test_sse_failure_is_the_last_event() -> None:
    async with (
        running_worker(tone_settings(**LONG_TIMEOUTS)) as worker,
        serving_worker(worker) as address,
        sdk(address) as client,
    ):
        wanted = {**SPEECH, "transcript": LONG * 9, "output_format": FORMAT}
        events = await client.tts.sse(**wanted)
        assert (await events.__anext__()).type == "chunk"
        await worker.hub.drain(timeout_s=0.0)
        rest = [event async for event in events]
        assert (rest[-1].type, rest[-1].error_code, rest[-1].status_code) == ("error", "draining", 503)


async def test_text_after_the_end_of_a_context_is_spoken() -> None:
    async with serving() as address, dial(address) as client:
        await client.say("a", LONG, add_timestamps=True)
        await client.until("chunk", "a")
        await client.say("a", "More follows. ", **OPEN)
        while (message := await client.next())["type"] != "done":
            if message["type"] == "timestamps" and message["word_timestamps"]["words"][-1] == "follows.":
                break
        assert message["type"] == "timestamps"
        await client.say("a", "And ends.")
        await client.until("done", "a")
        assert client.log[-2]["type"] == "chunk"


async def test_phoneme_timestamps_are_rejected() -> None:
    async with serving() as address, dial(address) as client:
        await client.say("a", add_phoneme_timestamps=True)
        error = await client.until("error", "a")
        assert (error["error_code"], error["status_code"]) == ("invalid_request", 400)
        assert "add_phoneme_timestamps" in error["message"]
        await client.say("b", add_phoneme_timestamps=False)
        await client.until("done", "b")


async def test_sdk_lists_and_gets_voices() -> None:
    async with serving() as address, sdk(address) as client:
        assert [voice.id async for voice in client.voices.list()] == ["tone", "tone-low", "tone-high"]
        assert [voice.id async for voice in client.voices.list(limit=1)] == ["tone", "tone-low", "tone-high"]
        assert [voice.id async for voice in client.voices.list(q="low")] == ["tone-low"]
        assert [voice.id async for voice in client.voices.list(is_owner=True)] == []
        page = await client.voices.list(limit=2, ending_before="tone-high")
        assert [voice.id for voice in page.data] == ["tone", "tone-low"]
        voice = await client.voices.get("tone-low")
        assert (voice.id, voice.name, voice.language) == ("tone-low", "tone-low", "mul")
        assert [(locale.locale, locale.is_native) for locale in voice.locales] == [("mul", True)]
        with pytest.raises(cartesia_sdk.NotFoundError) as exc_info:
            await client.voices.get("unknown")
        assert exc_info.value.body["error_code"] == "unknown_voice"
        for wrong in ({"limit": 101}, {"starting_after": "unknown"}):
            with pytest.raises(cartesia_sdk.BadRequestError):
                await client.voices.list(**wrong)


# -- LiveKit's plugin -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def plugin(address: str, **options: Any) -> AsyncIterator[Any]:
    async with aiohttp.ClientSession() as http:
        tts = livekit_cartesia.TTS(
            api_key="any key", voice="tone", base_url=f"http://{address}", http_session=http, **options
        )
        try:
            yield tts
        finally:
            await tts.aclose()


async def test_livekit_plugin_streams_with_word_timestamps() -> None:
    async with serving() as address, plugin(address) as tts:
        for _ in range(2):  # the second on the same socket
            async with tts.stream() as stream:
                for piece in ("Hello there, ", "my fri", "end. How are", " you today?"):
                    stream.push_text(piece)
                stream.end_input()
                samples = 0
                words = []
                async for event in stream:
                    samples += event.frame.samples_per_channel
                    words += event.frame.userdata.get("lk.timed_transcripts", [])
            assert samples >= SAMPLES
            assert "".join(words).split() == TEXT.split()
            assert [word.start_time for word in words] == sorted(word.start_time for word in words)
        await until_live_sessions(address, 0)


# -- formats ----------------------------------------------------------------------------------------------------------


async def test_every_encoding_at_every_rate() -> None:
    async with serving() as address, dial(address) as client:
        bytes_per_sample = {"pcm_s16le": 2, "pcm_f32le": 4, "pcm_mulaw": 1, "pcm_alaw": 1}
        for encoding in bytes_per_sample:
            for rate in (8_000, 16_000, 22_050, 24_000, 44_100, 48_000):
                name = f"{encoding}-{rate}"
                await client.say(name, "Yes.", output_format={**FORMAT, "encoding": encoding, "sample_rate": rate})
        for _ in range(24):
            await client.until("done")
        seconds = len(client.pcm("pcm_s16le-24000")) / 48_000
        for encoding, size in bytes_per_sample.items():
            for rate in (8_000, 22_050, 48_000):
                assert len(client.pcm(f"{encoding}-{rate}")) / size / rate == pytest.approx(seconds, abs=0.001)
        pcm = np.frombuffer(client.pcm("pcm_s16le-24000"), "<i2")
        assert np.allclose(np.frombuffer(client.pcm("pcm_f32le-24000"), "<f4") * 32_768, pcm, atol=0.01)


# -- contexts ---------------------------------------------------------------------------------------------------------


async def test_cancel_ends_only_its_context() -> None:
    async with serving() as address, dial(address) as client:
        await client.say("continuing", LONG)
        await client.say("cancelled", LONG, **OPEN)
        await client.until("chunk", "continuing")
        await client.until("chunk", "cancelled")
        await client.send(context_id="cancelled", cancel=True)
        await client.say("cancelled", "Text that was sent after the cancel.")
        await client.say("after", "Yes.")
        await client.until("done", "after")
        sent_bytes = len(client.pcm("cancelled"))
        await client.until_done("continuing")
        assert len(client.pcm("cancelled")) == sent_bytes
        await client.say("alone", LONG)
        await client.until("done", "alone")
        assert client.pcm("continuing") == client.pcm("alone")
        assert not [m for m in client.log if m["type"] == "error"]


async def test_contexts_interleave_and_words_precede_audio() -> None:
    async with serving() as address, dial(address) as client:
        for name in ("a", "b"):
            await client.say(name, LONG[:800], add_timestamps=True)
        await client.until("done")
        await client.until("done")
        order = [m["context_id"] for m in client.log if m["type"] == "chunk"]
        for half in (order[: len(order) // 2], order[len(order) // 2 :]):
            assert {"a", "b"} == set(half)
        received_s = 0.0
        for message in client.log:
            if message["context_id"] == "a" and message["type"] == "chunk":
                received_s += len(base64.b64decode(message["data"])) / 48_000
            elif message["context_id"] == "a" and message["type"] == "timestamps":
                assert message["word_timestamps"]["start"][0] >= received_s - 0.001


async def test_continuations_join_and_empty_flush_is_answered() -> None:
    async with serving() as address, dial(address) as client:
        await client.say("whole")
        await client.until("done")
        for piece in ("Hello the", "re, my friend. How", " are you today?"):
            await client.say("cut", piece, **OPEN)
        await client.say("cut", "", **{"continue": False})
        await client.until("done")
        assert client.pcm("cut") == client.pcm("whole")
        await client.say("flushed", "", flush=True, **OPEN)
        assert (await client.until("flush_done"))["flush_id"] == 1
        for _ in range(40):  # more than may be queued
            await client.say("flushed", "Yes. ", flush=True, **OPEN)
        await client.say("flushed", "", **{"continue": False})
        await client.until("done")
        assert [m["flush_id"] for m in client.log if m["type"] == "flush_done"] == list(range(1, 42))


async def test_max_buffer_delay_flushes_unpunctuated_text() -> None:
    async with serving(session={"flush_after_ms": 0}) as address, dial(address) as client:
        await client.say("a", "I would like to book a table for two ", max_buffer_delay_ms=20, **OPEN)
        await client.until("chunk", "a")
        await client.socket.send(json.dumps({"context_id": "a", "cancel": True}))


async def test_idle_context_ends_after_timeout() -> None:
    async with serving(session={"text_idle_timeout_s": 0.2}) as address, dial(address) as client:
        await client.say("a", "One. ", flush=True, **OPEN)
        await client.until("done", "a")
        await until_live_sessions(address, 0)


# -- invalid messages -------------------------------------------------------------------------------------------------

INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("no transcript", {"transcript": None}, "transcript"),
    ("transcript is a number", {"transcript": 5}, "transcript"),
    ("no voice", {"voice": None}, "voice"),
    ("an embedding", {"voice": {"mode": "embedding", "embedding": [0.1]}}, "voice"),
    ("no format", {"output_format": None}, "output_format"),
    ("a strange encoding", {"output_format": {**FORMAT, "encoding": "opus"}}, "output_format.encoding"),
    ("a strange rate", {"output_format": {**FORMAT, "sample_rate": 23_999}}, "output_format.sample_rate"),
    ("a rate as text", {"output_format": {**FORMAT, "sample_rate": "24000"}}, "output_format.sample_rate"),
    ("a file on a socket", {"output_format": {**FORMAT, "container": "wav"}}, "container"),
    ("unknown voice", {"voice": {"mode": "id", "id": "unknown"}}, "voice"),
    ("continue is text", {"continue": "yes"}, "continue"),
    ("too fast", {"generation_config": {"speed": 9}}, "speed"),
]


async def test_invalid_messages_keep_the_socket_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ApiLimits, "of", lambda settings: ApiLimits(max_message_chars=3_000))
    async with serving() as address, dial(address) as client:
        await client.say("fine", LONG)
        for name, fields, location in INVALID:
            await client.say(name, **fields)
            error = await client.until("error", name)
            assert location in error["message"], name
            assert error["status_code"] in (400, 404)
            assert TEXT not in json.dumps(error)
        for raw in ("not JSON", "[]", "{}", '{"cancel": true}', '{"context_id": 3, "transcript": "x"}', b"\0\1"):
            await client.socket.send(raw)
            assert (await client.until("error"))["error_code"] == "invalid_request"
        await client.say("too long", "x" * 3_001)
        assert (await client.until("error", "too long"))["status_code"] == 413
        await client.send(context_id="never opened", cancel=True)
        await client.say("unknown fields", "Yes.", unknown_field={"a": 1}, pronunciation_dict_id="x")
        await client.until_done("unknown fields")
        await client.until_done("fine")


async def test_over_capacity_fails_only_its_context() -> None:
    async with serving(session={"max_sessions": 1, "slot_idle_s": 600}) as address, dial(address) as client:
        await client.say("first", **OPEN)
        await client.until("chunk", "first")
        await client.say("second")
        error = await client.until("error", "second")
        assert (error["status_code"], error["error_code"]) == (503, "over_capacity")
        await client.say("first", "", **{"continue": False})
        await client.until("done", "first")
        await client.say("second")
        await client.until("done", "second")


async def test_key_in_header_or_url_and_foreign_origin() -> None:
    async with serving(server={"api_keys": ["a-long-secret"]}) as address:
        for options in ({"additional_headers": {"X-API-Key": "a-long-secret"}}, {"query": "&api_key=a-long-secret"}):
            async with dial(address, **options) as client:
                await client.say("a", "Yes.")
                await client.until("done")
        for options in ({}, {"query": "&api_key=wrong-secret"}, {"additional_headers": {"Origin": "http://evil.test"}}):
            with pytest.raises(InvalidStatus):
                async with dial(address, **options):
                    pass
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
            assert (await http.get("/v1/voices?api_key=a-long-secret")).status_code == 401


# -- misbehaving clients ----------------------------------------------------------------------------------------------


async def test_dropped_socket_frees_every_context_soon() -> None:
    async with serving(**LONG_TIMEOUTS) as address:
        elapsed_s = []
        for _ in range(3):
            async with dial(address) as client:
                for name in ("a", "b", "c"):
                    await client.say(name, **OPEN)
                    await client.until("chunk", name)
                client.socket.transport.abort()
                start_s = asyncio.get_running_loop().time()
                await until_live_sessions(address, 0)
                elapsed_s.append(asyncio.get_running_loop().time() - start_s)
        # The bound is 100 ms plus the time of the metrics requests. The minimum excludes stalls of the test machine.
        assert min(elapsed_s) < 1.0


async def test_client_that_stops_reading_is_disconnected() -> None:
    async with (
        serving(server={"send_timeout_s": 0.4}) as address,
        connect(f"ws://{address}/tts/websocket", compression=None, max_queue=1, open_timeout=60) as socket,
    ):
        for n in range(20):
            await socket.send(json.dumps({"context_id": f"{n}", "transcript": "", **REQUEST, **OPEN}))
        await until_live_sessions(address, 20)  # nothing is sent yet, so no send can time out
        with suppress(ConnectionClosed):  # the server may close before the last message is sent
            for n in range(20):
                await socket.send(json.dumps({"context_id": f"{n}", "transcript": LONG, **REQUEST}))
        await until_live_sessions(address, 0)
        with pytest.raises(ConnectionClosed):
            await Client(socket).until("never")


async def test_every_flush_of_many_is_answered_while_the_context_is_open() -> None:
    """They arrive together: the engine has to be loaded first."""
    async with serving(models={"preload": []}) as address, dial(address) as client:
        for number in range(20):  # more than may be queued
            await client.say("a", f"This is sentence number {number}. ", flush=True, **OPEN)
        for number in range(20):
            assert (await client.until("flush_done", "a"))["flush_id"] == number + 1
