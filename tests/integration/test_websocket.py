"""``/v1/stream`` over a real socket: the protocol, invalid input, and misbehaving clients."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import Serving, serving
from tts_worker.server.websocket_protocol import WebSocketProtocol
from tts_worker.text.lexicon import Lexicon
from tts_worker.worker import Worker

TEXT = "Hello there, my friend. How are you today?"
BRISK = {"tone": {"kind": "tone", "ms_per_char": 30}}
"""An engine with short characters, for tests that wait for the end of paced audio."""
LONG = TEXT * 20  # long enough that commands arrive before its end, also on a slow machine

LONG_TIMEOUTS: dict[str, Any] = {
    "server": {"send_timeout_s": 600},
    "session": {"text_idle_timeout_s": 600, "pause_timeout_s": 600},
}
"""Settings without timeouts: only a disconnect ends a session."""


class Client:
    """A client that records audio and events in order."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.log: list[bytes | dict[str, Any]] = []

    async def send(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def next(self) -> bytes | dict[str, Any]:
        raw = await self.socket.recv()
        item = raw if isinstance(raw, bytes) else json.loads(raw)
        self.log.append(item)
        return item

    async def until(self, *types: str) -> dict[str, Any]:
        while not (isinstance(item := await self.next(), dict) and item["type"] in types):
            pass
        return item

    async def until_closed(self) -> None:
        """Read until the socket raises ConnectionClosed."""
        while True:
            await self.next()

    async def until_audio(self) -> bytes:
        while not isinstance(item := await self.next(), bytes):
            pass
        return item

    @property
    def pcm(self) -> bytes:
        return b"".join(item for item in self.log if isinstance(item, bytes))

    @property
    def types(self) -> list[str]:
        return [item["type"] for item in self.log if isinstance(item, dict)]


@asynccontextmanager
async def dial(address: str, path: str = "/v1/stream", **options: Any) -> AsyncIterator[Client]:
    options = {"close_timeout": 0.1, **options}  # unread audio keeps the client from seeing the closing handshake
    async with connect(f"ws://{address}{path}", compression=None, max_size=None, open_timeout=60, **options) as socket:
        yield Client(socket)


async def test_utterance_from_ready_to_done() -> None:
    async with serving(engines=BRISK) as address, dial(address) as client:
        ready = await client.until("ready")
        assert (ready["sample_rate"], ready["format"], ready["channels"]) == (24_000, "pcm_s16le", 1)
        await client.send(type="text", text=TEXT, end=True)
        done = await client.until("done")
        assert done["samples_sent"] == len(client.pcm) // 2 > 24_000
        assert (done["text_spoken"], done["text_remaining"]) == (TEXT, "")
        assert client.types[:2] == ["ready", "started"]
        words = [w for m in client.log if isinstance(m, dict) and m["type"] == "words" for w in m["words"]]
        assert [w["text"] for w in words] == TEXT.split()
        assert all(TEXT[w["start_char"] : w["end_char"]] == w["text"] for w in words)


async def test_text_fragmentation_does_not_change_audio() -> None:
    text = "Naïve café – 🎉 **bold** 3.14, 你好. Done 👩‍👩‍👧 ok."
    units = text.encode("utf-16-le", "surrogatepass")

    async def speak(fragments: list[str]) -> bytes:
        async with dial(address, "/v1/stream?realtime=false") as client:
            for fragment in fragments:
                await client.send(type="text", text=fragment)
            await client.send(type="end")
            await client.until("done")
            return client.pcm

    async with serving() as address:
        expected = await speak([text])
        # One UTF-16 unit per message: emoji arrive as two lone surrogates, as from a JavaScript client.
        fragments = [units[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(units), 2)]
        assert await speak(fragments) == expected


async def test_pause_resume_stop_and_next_utterance() -> None:
    async with serving() as address, dial(address) as client:
        await client.send(type="text", text=LONG, end=True)
        await client.until_audio()
        await client.send(type="pause")
        paused = await client.until("paused")
        assert paused["applied"]
        assert paused["position_samples"] == len(client.pcm) // 2
        await client.send(type="pause")
        assert not (await client.until("paused"))["applied"]
        before = client.pcm
        await client.send(type="resume")
        assert (await client.until("resumed"))["applied"]
        await client.until_audio()
        await client.send(type="stop", played_samples=len(before) // 2, reason="barge-in")
        stopped = await client.until("stopped")
        sent = len(client.pcm) // 2
        assert (stopped["reason"], stopped["samples_played"]) == ("barge-in", len(before) // 2)
        assert stopped["samples_sent"] == sent
        assert stopped["text_spoken"] + stopped["text_remaining"] == LONG
        await client.send(type="text", text="New.", end=True)
        started = await client.until("started")
        assert started["utterance"] == 2
        assert len(client.pcm) // 2 == sent, "audio of the stopped utterance after the acknowledgement"
        await client.until("done")


async def test_utterances_have_other_numbers_after_a_start() -> None:
    async with serving(engines=BRISK) as address, dial(address) as client:
        for number in (1, 2):
            await client.send(type="start")
            await client.send(type="text", text="Hi.", end=True)
            assert (await client.until("done"))["utterance"] == number


@pytest.mark.parametrize("by_stop", [True, False])
async def test_late_position_does_not_count_after_a_start(by_stop: bool) -> None:
    async with serving(engines=BRISK) as address, dial(address) as client:
        await client.send(type="text", text=TEXT, end=True)
        ended = await client.until("done")
        await client.send(type="start")
        await client.send(type="text", text=LONG, end=True)
        started = await client.until("started")
        await client.until_audio()
        position = {"utterance": ended["utterance"]}
        if by_stop:
            await client.send(type="stop", played_samples=ended["samples_sent"], **position)
        else:
            await client.send(type="played", samples=ended["samples_sent"], **position)
            await client.send(type="stop")
        stopped = await client.until("stopped")
        assert stopped["utterance"] == started["utterance"] != ended["utterance"]
        assert "samples_played" not in stopped


async def test_commands_without_utterance_change_nothing() -> None:
    async with serving() as address, dial(address) as client:
        await client.until("ready")
        for command, answer in (("pause", "paused"), ("resume", "resumed"), ("stop", "stopped"), ("clear", "stopped")):
            await client.send(type=command)
            reply = await client.until(answer)
            assert (reply["applied"], reply["utterance"]) == (False, None)
        await client.send(type="flush")
        await client.send(type="end")
        assert (await client.until("rejected"))["code"] == "illegal_command"
        await client.send(type="ping", id=7)
        assert (await client.until("pong"))["id"] == 7


async def test_flush_speaks_incomplete_sentence() -> None:
    async with serving() as address, dial(address) as client:
        await client.send(type="text", text="an unfinished sent")
        await client.send(type="flush")
        await client.until_audio()
        await client.send(type="text", text=" ence.", end=True)
        assert (await client.until("done"))["text_spoken"] == "an unfinished sent ence."


async def test_start_configures_the_session() -> None:
    async with serving() as address, dial(address) as client:
        await client.until("ready")
        await client.send(type="start", voice="tone-low", speed=2.0, realtime=False, lexicon={"hi": "hello hello"})
        assert (await client.until("ready"))["voice"] == "tone-low"
        await client.send(type="text", text="hi", end=True)
        assert (await client.until("started"))["voice"] == "tone-low"
        done = await client.until("done")
        assert done["samples_sent"] == 10 * 60 * 24 // 2  # ten letters, twice as fast
        assert done["words"][0]["text"] == "hi"
        # An invalid start changes nothing.
        await client.send(type="start", voice="unknown")
        assert (await client.until("rejected"))["code"] == "unknown_voice"
        await client.send(type="text", text="hi", end=True)
        assert (await client.until("started"))["voice"] == "tone-low"
        await client.until("done")


@pytest.mark.parametrize(
    ("drops", "opening", "words"),
    [(True, "<think>", ["Hi."]), ("from_start", "", ["Hi."]), (False, "<think>", ["secret", "plan", "Hi."])],
)
async def test_reasoning_is_not_spoken_but_counts_in_the_report(
    drops: bool | str, opening: str, words: list[str]
) -> None:
    text = f"{opening}secret plan</think> Hi."
    async with (
        serving(text={"drop_reasoning": drops}) as address,
        dial(address, "/v1/stream?realtime=false") as client,
    ):
        for part in (text[:4], text[4:20], text[20:]):
            await client.send(type="text", text=part)
        await client.send(type="end")
        done = await client.until("done")
    assert [word["text"] for word in done["words"]] == words
    assert done["text_spoken"] + done["text_remaining"] == text


async def test_start_while_speaking_applies_to_next_utterance() -> None:
    async with serving() as address, dial(address, "/v1/stream?realtime=false") as client:
        await client.send(type="text", text=TEXT)
        await client.until("started")
        await client.send(type="start", voice="tone-high")
        await client.until("ready")
        await client.send(type="text", text=" More of the same.", end=True)
        await client.until("done")
        await client.send(type="text", text="Next.", end=True)
        assert (await client.until("started"))["voice"] == "tone-high"
        await client.until("done")


async def test_late_text_of_stopped_context_is_dropped() -> None:
    async with serving() as address, dial(address) as client:
        await client.send(type="text", text=TEXT, context="a")
        await client.until_audio()
        await client.send(type="stop")
        for _ in range(5):
            await client.send(type="text", text="late words of the old utterance. ", context="a")
        await client.send(type="end", context="a")
        await client.send(type="text", text="New utterance.", context="b", end=True)
        await client.until("stopped")
        assert (await client.until("done"))["text_spoken"] == "New utterance."


BAD_MESSAGES: list[tuple[str | bytes, str]] = [
    (b"\x00\x01binary", "invalid_request"),
    ("not json", "invalid_request"),
    ("[" * 200_000, "invalid_request"),
    ('{"a":' * 50_000, "invalid_request"),
    ("[]", "invalid_request"),
    ("null", "invalid_request"),
    ("{}", "invalid_request"),
    ('{"type": "sing"}', "invalid_request"),
    ('{"type": ["text"]}', "invalid_request"),
    ('{"type": "text"}', "invalid_request"),
    ('{"type": "text", "text": 5}', "invalid_request"),
    ('{"type": "text", "text": null}', "invalid_request"),
    ('{"type": "text", "text": "a", "end": "yes"}', "invalid_request"),
    ('{"type": "start", "speed": "fast"}', "invalid_request"),
    ('{"type": "start", "speed": NaN}', "invalid_request"),
    ('{"type": "start", "speed": 99}', "invalid_request"),
    ('{"type": "start", "seed": 1.5}', "invalid_request"),
    ('{"type": "start", "seed": 1e999}', "invalid_request"),
    ('{"type": "start", "voice": "unknown"}', "unknown_voice"),
    ('{"type": "start", "voice": 7}', "invalid_request"),
    ('{"type": "start", "lexicon": {"a": 1}}', "invalid_request"),
    ('{"type": "start", "frame_ms": 0}', "invalid_request"),
    ('{"type": "start", "lead_ms": -1}', "invalid_request"),
    ('{"type": "start", "language": "xx-no-such-thing-that-is-far-too-long-to-be-true"}', "invalid_request"),
    ('{"type": "stop", "played_samples": -3}', "invalid_request"),
    ('{"type": "played", "samples": "all"}', "invalid_request"),
    (json.dumps({"type": "text", "text": "a" * 150_000}), "text_too_long"),
    ('{"type": "end"}', "illegal_command"),
]


async def test_bad_messages_are_rejected() -> None:
    async with serving() as address, dial(address, "/v1/stream?realtime=false") as client:
        await client.until("ready")
        for message, code in BAD_MESSAGES:
            await client.socket.send(message)
            rejected = await client.until("rejected")
            assert rejected["code"] == code, message[:60]
            assert rejected["message"]
            assert "aaaa" not in rejected["message"], "user text in an error message"
        await client.send(type="text", text=TEXT, end=True)
        assert (await client.until("done"))["text_spoken"] == TEXT


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        "no full stop ever " * 5_000,
        "🎉" * 50_000,
        "\x00\x01\x1b[31m bell \x07 null",
        "‮right to left‬ ​zero​width",
        "\ud800 lone \udfff surrogates \ud83d",
        "<|endofprompt|>[laughter]<speak>&amp;</speak>" * 50,
        "((((((((((**************" * 1_000,
    ],
    ids=["no-space", "no-stop", "emoji", "control", "bidi", "surrogates", "markup", "markers"],
)
async def test_hostile_text_keeps_session_usable(text: str) -> None:
    async with serving() as address, dial(address, "/v1/stream?realtime=false") as client:
        start_s = time.process_time()  # CPU time of this process, independent of other load
        await client.send(type="text", text=text, end=True)
        if len(text) < 5_000:
            end = await client.until("done", "error")
            assert end["text_spoken"] + end["text_remaining"] == text.encode("utf-16", "surrogatepass").decode(
                "utf-16", "replace"
            )
        await client.send(type="ping")
        await client.until("pong", "error")
        await client.send(type="stop")
        await client.until("stopped", "error")
        assert time.process_time() - start_s < 10
        await client.send(type="text", text="Still here.", end=True)
        assert (await client.until("done"))["text_spoken"] == "Still here."


async def test_oversized_message_closes_with_1009() -> None:
    async with serving() as address:
        async with dial(address) as client:
            await client.until("ready")
            await client.socket.send(json.dumps({"type": "text", "text": "a" * 2_000_000}))
            with pytest.raises(ConnectionClosed) as closed:
                await client.until_closed()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        await until_live_sessions(address, 0)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/stream?voice=unknown", 404),
        ("/v1/stream?needs=word_times,telepathy", 400),
        ("/v1/stream?speed=fast", 400),
        ("/v1/stream?speed=100", 400),
        ("/v1/stream?type=text", 400),
        ("/v1/nothing", 404),
    ],
)
async def test_invalid_handshake_is_rejected(path: str, status: int) -> None:
    async with serving() as address:
        with pytest.raises(InvalidStatus) as exc_info:
            async with dial(address, path):
                pass
        assert exc_info.value.response.status_code == status


async def test_over_capacity_is_503_within_50_ms() -> None:
    async with serving(session={"max_sessions": 1, "slot_idle_s": 600}) as address:
        async with dial(address) as client:
            await client.until("ready")
            elapsed_s = []
            for _ in range(20):
                start_s = time.monotonic()
                with pytest.raises(InvalidStatus) as exc_info:
                    async with dial(address):
                        pass
                elapsed_s.append(time.monotonic() - start_s)
                assert exc_info.value.response.status_code == 503
                assert exc_info.value.response.headers["Retry-After"]
            assert min(elapsed_s) < 0.05, "the minimum excludes stalls of the test machine"
        await until_live_sessions(address, 0)
        async with dial(address) as client:
            await client.until("ready")


async def test_keys_and_origins_are_checked() -> None:
    async with serving(server={"api_keys": ["correct-horse"]}) as address:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Bearer correct-horse", "Origin": "http://evil.example"}, 403),
        ):
            with pytest.raises(InvalidStatus) as exc_info:
                async with dial(address, additional_headers=headers):
                    pass
            assert exc_info.value.response.status_code == status
        async with dial(address, additional_headers={"X-API-Key": "correct-horse"}) as client:
            await client.until("ready")
        async with dial(address, subprotocols=["tts-worker", "key.correct-horse"]) as client:
            assert client.socket.subprotocol == "tts-worker"
            await client.until("ready")
        async with dial(
            address, additional_headers={"X-API-Key": "correct-horse", "Origin": f"http://{address}"}
        ) as client:
            await client.until("ready")


async def test_client_that_stops_reading_is_disconnected() -> None:
    async with (
        serving(server={"send_timeout_s": 1.0}, session={"max_sessions": 4}) as address,
        not_reading(address) as writer,
    ):
        assert await until_live_sessions(address, 1) == 1
        writer.write(masked({"type": "text", "text": "many words " * 8_000}))
        # Other clients are served meanwhile, and the slow client buffers a bounded amount of audio.
        async with dial(address, "/v1/stream?realtime=false") as client:
            await client.send(type="text", text=TEXT, end=True)
            await client.until("done")
        assert await metric(address, "tts_buffered_seconds") <= 1.6
        await until_live_sessions(address, 0)


@asynccontextmanager
async def not_reading(address: str) -> AsyncIterator[asyncio.StreamWriter]:
    """A client that completes the handshake and reads nothing afterwards."""
    host, port = address.split(":")
    slow = socket.create_connection((host, int(port)))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    reader, writer = await asyncio.open_connection(sock=slow)
    try:
        writer.write(
            f"GET /v1/stream?realtime=false HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        yield writer
    finally:
        writer.close()


def masked(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return b"\x81\xff" + len(data).to_bytes(8, "big") + bytes(4) + data


@pytest.mark.parametrize("point", range(8))
async def test_vanished_client_frees_its_slot(point: int) -> None:
    """The connection is reset without a close frame at eight points of an utterance."""
    path = "/v1/stream?realtime=false" if point % 2 else "/v1/stream"
    async with serving(**LONG_TIMEOUTS) as address, dial(address, path) as client:
        if point >= 1:
            await client.until("ready")
        if point >= 2:
            await client.send(type="text", text="half a sente")
        if point >= 3:
            await client.until("started")
        if point >= 4:
            await client.send(type="text", text="nce. " * 100)
            await client.until_audio()
        if point == 5:
            await client.send(type="pause")
            await client.until("paused")
        if point == 6:
            await client.send(type="end")
        if point == 7:
            await client.send(type="stop")
        client.socket.transport.abort()
        await until_live_sessions(address, 0)


async def metric(address: str, name: str) -> float:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        text = (await http.get("/metrics")).text
    (value,) = [line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(value)


async def until_live_sessions(address: str, wanted: int) -> float:
    with anyio.fail_after(60):  # before pytest-timeout, which skips cleanup
        # A request takes processor time from what it waits for.
        while (live := await metric(address, "tts_sessions")) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return live


async def test_drain_closes_open_connections_with_1012(serve_tone: Serving) -> None:
    async with AsyncExitStack() as stack:
        async with serve_tone(server={"drain_s": 0.1}) as address:
            client = await stack.enter_async_context(dial(address))
            await client.until("ready")
        with pytest.raises(ConnectionClosed) as closed:
            await client.until_closed()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


async def test_speaking_client_is_told_of_a_drain_before_the_connection_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Worker.stop

    async def stop_late(worker: Worker) -> None:
        await asyncio.sleep(0.2)  # as after a long step of the event loop: the HTTP server looks every 0.1 s
        await stop(worker)

    monkeypatch.setattr(Worker, "stop", stop_late)
    async with AsyncExitStack() as stack:
        async with serving() as address:
            client = await stack.enter_async_context(dial(address))
            await client.send(type="text", text=TEXT * 20, end=True)
            await client.until_audio()
        assert (await client.until("stopped"))["reason"] == "drain"
        with pytest.raises(ConnectionClosed) as closed:
            await client.until_closed()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


async def test_start_sets_flush_after_ms() -> None:
    async with serving(session={"flush_after_ms": 0}) as address, dial(address) as client:
        await client.send(type="start", flush_after_ms=-1)
        error = await client.until("rejected")
        assert (error["code"], error["message"]) == ("invalid_request", "flush_after_ms must be 0 to 60000")
        await client.send(type="start", realtime=False, flush_after_ms=20)
        await client.send(type="text", text="I would like to book a table for two ")
        await client.until_audio()
        await client.send(type="end")
        await client.until("done")


async def test_start_while_speaking_sets_next_flush_after_ms() -> None:
    async with serving(session={"flush_after_ms": 0}) as address, dial(address, "/v1/stream?realtime=false") as client:
        await client.send(type="text", text=TEXT)
        await client.until("started")
        await client.send(type="start", realtime=False, flush_after_ms=-1)
        assert (await client.until("rejected"))["message"] == "flush_after_ms must be 0 to 60000"
        await client.send(type="start", realtime=False, flush_after_ms=20)
        await client.until("ready")
        await client.send(type="end")
        await client.until("done")
        await client.send(type="text", text="I would like to book a table for two ")
        await client.until_audio()


async def test_large_lexicon_is_built_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    builders: list[threading.Thread] = []
    build = Lexicon.from_mapping

    def record_thread(data: object, *, name: str = "lexicon") -> Lexicon:
        builders.append(threading.current_thread())
        return build(data, name=name)

    async with serving() as address, dial(address) as client:
        monkeypatch.setattr(Lexicon, "from_mapping", record_thread)
        await client.until("ready")
        await client.send(type="start", lexicon={f"word{number}": "said" for number in range(5_000)})
        await client.until("ready")
        assert builders
        assert threading.main_thread() not in builders
        await client.send(type="start", lexicon={f"word{number}": number for number in range(5_000)})
        assert "lexicon['word0'] must be a spelling" in (await client.until("rejected"))["message"]


async def test_audio_is_complete_while_the_socket_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be sent at once is sent later, in order, also between a checksum and its audio."""
    calls = itertools.count()
    send_now = WebSocketProtocol.send_now
    monkeypatch.setattr(
        WebSocketProtocol, "send_now", lambda self, message: next(calls) % 3 < 2 and send_now(self, message)
    )
    path = "/v1/stream?checksums=true&lead_ms=200"
    async with serving(engines=BRISK) as address, dial(address, path) as client:
        await client.send(type="text", text=TEXT, end=True)
        done = await client.until("done")
        assert len(client.pcm) == 2 * done["samples_sent"]
        audio = [index for index, item in enumerate(client.log) if isinstance(item, bytes)]
        assert len(audio) > 50
        for index in audio:
            description = client.log[index - 1]
            data = client.log[index]
            assert isinstance(description, dict)
            assert isinstance(data, bytes)
            assert description["sha256"] == hashlib.sha256(data).hexdigest()
