"""Client over real sockets: lost, stalled, refusing and incompatible workers, and the connection pool."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from websockets.asyncio.server import ServerConnection, serve

import tts_worker
from tests.behavior.recording_client import RecordingClient
from tests.behavior.transports import TRANSPORTS, Setup, serve_setup
from tests.conftest import until
from tests.fakes.connections import client_tasks
from tests.fakes.proxy import run_proxy
from tts_worker.client import Client, ClientSettings, SessionOptions, connect
from tts_worker.errors import (
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    InvalidRequest,
    RemoteError,
    SessionClosed,
    TTSWorkerError,
    Unauthenticated,
    UnknownVoice,
)
from tts_worker.protocol.session import Session
from tts_worker.types import Alignment, Ended, Outcome, State, SynthesisParams, UtteranceKey

FAST = SessionOptions(realtime=False)
STORY = "This is a long story that goes on and on. " * 10
FAST_HEARTBEAT = ClientSettings(heartbeat_s=1.5)
"""Short enough to detect a lost worker quickly, long enough for a stall of one second of the test machine."""


async def open_recorder(client: Client, options: SessionOptions = FAST) -> RecordingClient:
    return RecordingClient((await client.open(options)).session)


# -- lost workers -----------------------------------------------------------------------------------------------------

_WORKER = """
import asyncio
from tests.behavior.transports import TRANSPORTS, Setup, serve_setup
async def main():
    async with serve_setup(Setup()) as address:
        print(address, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@asynccontextmanager
async def worker_process() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _WORKER, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await process.communicate()


async def test_dead_or_frozen_worker_ends_utterance_once() -> None:
    async with (
        worker_process() as (process, address),
        connect(f"ws://{address}", FAST_HEARTBEAT) as client,
        connect(f"ws://{address}") as other,
    ):
        frozen = await open_recorder(client, SessionOptions())
        killed = await open_recorder(other, SessionOptions())
        keys = [recorder.session.speak(STORY) for recorder in (frozen, killed)]
        await frozen.receive_samples(2_000)
        await killed.receive_samples(2_000)
        process.send_signal(signal.SIGSTOP)
        with anyio.fail_after(60.0):
            ended = await frozen.wait_ended(keys[0])
        assert ended.error is not None
        assert (ended.error.code, ended.error.retryable) == (ErrorCode.CONNECTION_LOST, True)
        assert ended.receipt.text_spoken + ended.receipt.text_remaining == STORY
        process.send_signal(signal.SIGCONT)
        process.kill()
        ended = await killed.wait_ended(keys[1])
        assert ended.error is not None
        assert ended.error.code is ErrorCode.CONNECTION_LOST
        assert ended.receipt.samples_sent * 2 == len(killed.pcm[keys[1]])
        assert await killed.session.next() is None
        assert killed.session.state is State.CLOSED
        with pytest.raises(SessionClosed, match="lost"):
            killed.session.speak("Hello?")
        with pytest.raises(ConnectionLost):
            await client.open()


@pytest.mark.parametrize("point", ["open", "text", "started", "audio", "paused", "ended", "stopped", "idle"])
async def test_lost_connection_ends_each_utterance_once(point: str) -> None:
    async with serve_setup(Setup()) as address, run_proxy(address) as proxy, connect(f"ws://{proxy.address}") as client:
        recorder = await open_recorder(client, SessionOptions())
        keys = [recorder.session.speak("half a sente")] if point != "open" else []
        if point in ("started", "audio", "paused", "ended", "stopped", "idle"):
            await recorder.wait_started()
            recorder.session.speak("nce. ")
        if point in ("audio", "paused", "ended", "stopped", "idle"):
            recorder.session.end_text()
            await recorder.receive_samples(480)
        if point == "paused":
            recorder.session.pause()
        elif point == "stopped":
            proxy.stall()
            recorder.session.stop("barge_in")
        elif point in ("ended", "idle"):
            await recorder.wait_ended(keys[0])
        proxy.reset()
        proxy.resume()
        await recorder.drain()
        assert set(recorder.ends) == set(keys)
        outcomes = {"ended": Outcome.DONE, "idle": Outcome.DONE, "stopped": Outcome.STOPPED}
        assert [ended.outcome for ended in recorder.ends.values()] == [outcomes.get(point, Outcome.ERROR)] * len(keys)
        assert (await (await open_recorder(client)).synthesize("And again.")).outcome is Outcome.DONE


async def test_stop_and_close_do_not_wait_for_the_worker() -> None:
    async with (
        serve_setup(Setup()) as address,
        run_proxy(address) as proxy,
        connect(f"ws://{proxy.address}", FAST_HEARTBEAT) as client,
        connect(f"ws://{proxy.address}", ClientSettings(heartbeat_s=600.0)) as leaving,
    ):
        recorder = await open_recorder(client, SessionOptions())
        other = await open_recorder(leaving, SessionOptions())
        key = recorder.session.speak(STORY)
        other.session.speak(STORY)
        await recorder.receive_samples(2_000)
        await other.receive_samples(2_000)
        proxy.stall()
        recorder.session.stop()
        assert recorder.session.state is State.IDLE
        assert recorder.session.poll() is None, "no audio is delivered while the worker's report is awaited"
        with anyio.fail_after(60.0):  # well below its own heartbeat
            await leaving.aclose()
        with anyio.fail_after(60.0):
            ended = await recorder.wait_ended(key)
        assert ended.outcome is Outcome.STOPPED, "a lost worker does not turn a STOP into an error"


async def test_closed_client_has_no_open_connection() -> None:
    """Also none that it gave up shortly before, which waits for the worker's part of the closing handshake."""
    async with serve_setup(Setup()) as address, run_proxy(address) as proxy:
        client = connect(f"ws://{proxy.address}")
        await client.prewarm()
        proxy.stall()
        with anyio.move_on_after(0.01):  # the connection is given up: the worker does not answer
            await client.open(FAST)
        await client.aclose()
        assert client_tasks() == []


# -- the pool ---------------------------------------------------------------------------------------------------------


async def test_pool_reuses_and_replaces_connections() -> None:
    async with serve_setup(Setup()) as address, run_proxy(address) as proxy:
        client = connect(f"ws://{proxy.address}")
        await client.prewarm()
        await client.prewarm()
        for turn in range(4):
            opened = await client.open(FAST)
            assert opened.connection_reused
            recorder = RecordingClient(opened.session)
            await recorder.synthesize(f"Turn {turn}.")
            recorder.session.close()
        assert proxy.connections == 1
        assert client_tasks().count("reader") == 1
        proxy.reset()
        await until(lambda: not client_tasks())  # the reset has arrived
        recorder = await open_recorder(client)
        assert (await recorder.synthesize("A new connection.")).outcome is Outcome.DONE
        assert proxy.connections == 2
        await client.aclose()


async def test_unanswered_connection_is_not_reused() -> None:
    async with serve_setup(Setup()) as address, run_proxy(address) as proxy, connect(f"ws://{proxy.address}") as client:
        first = await client.open(SessionOptions())
        recorder = RecordingClient(first.session)
        recorder.session.speak(STORY)
        await recorder.receive_samples(2_000)
        proxy.stall()
        recorder.session.close()
        proxy.resume()
        second = await client.open(SessionOptions())
        assert not second.connection_reused
        other = RecordingClient(second.session)
        await other.synthesize("Only this.")
        assert other.log[-1].key == UtteranceKey(second.session.id, 1)


async def test_refused_session_keeps_the_connection() -> None:
    async with serve_setup(Setup()) as address, run_proxy(address) as proxy, connect(f"ws://{proxy.address}") as client:
        for _ in range(3):
            with pytest.raises(UnknownVoice):
                await client.open(SessionOptions(voice="unknown"))
        with pytest.raises(InvalidRequest):
            await client.open(SessionOptions(frame_ms=1_000))
        assert (await (await open_recorder(client)).synthesize("Fine.")).outcome is Outcome.DONE
        assert proxy.connections == 1


async def test_idle_connection_is_closed() -> None:
    async with serve_setup(Setup()) as address, run_proxy(address) as proxy:
        async with connect(f"ws://{proxy.address}", ClientSettings(idle_s=0.05)) as client:
            await client.prewarm()
            await asyncio.sleep(0.3)  # any delay is fine: the connection's timer fires first
            assert not (await client.open(FAST)).connection_reused
        assert proxy.connections == 2


async def test_closed_client_opens_no_session() -> None:
    async with serve_setup(Setup()) as address:
        client = connect(f"ws://{address}")
        recorder = await open_recorder(client, SessionOptions())
        key = recorder.session.speak(STORY)
        await recorder.receive_samples(2_000)
        await client.aclose()
        await client.aclose()
        await recorder.drain()
        assert recorder.ends[key].outcome is Outcome.ERROR
        with pytest.raises(ConnectionLost):
            await client.open()


async def test_slow_reader_applies_backpressure() -> None:
    async with serve_setup(Setup()) as address, connect(f"ws://{address}", ClientSettings(read_ahead_s=0.5)) as client:
        recorder = await open_recorder(client)
        key = recorder.session.speak(STORY * 3)
        recorder.session.end_text()
        await recorder.receive_samples(480)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert recorder.session.buffered_samples <= 0.5 * 24_000 + 480  # type: ignore[attr-defined]
        recorder.session.stop()
        with anyio.fail_after(60.0):
            await recorder.wait_ended(key)


# -- voices and model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["local", "ws", "grpc", "redis"])
async def test_client_lists_voices_and_session_names_its_model(transport: str) -> None:
    async with TRANSPORTS[transport].connect(Setup()) as client:
        voices = await client.voices.list()
        assert {"tone", "tone-high"} <= {voice.id for voice in voices}
        (default,) = [voice for voice in voices if voice.is_default]
        assert (default.id, default.engine) == ("tone", "tone")
        assert default.languages
        assert await client.voices.get("tone") == default
        with pytest.raises(UnknownVoice):
            await client.voices.get("absent")
        async with client.session(SessionOptions(voice=voices[-1].id)) as session:
            assert session.model == "tone"


@pytest.mark.parametrize("transport", ["local", "ws", "grpc"])
async def test_wrong_arguments_change_nothing(transport: str) -> None:
    async with TRANSPORTS[transport].connect(Setup()) as client, client.session(FAST) as session:
        wrong: list[Callable[..., Any]] = [
            lambda given: session.speak(given),
            lambda given: session.speak(None),  # type: ignore[arg-type]
            lambda given: session.stop("x", played_samples="5"),  # type: ignore[arg-type]
            lambda given: session.stop("x", played_samples=1.5),  # type: ignore[arg-type]
            lambda given: session.stop(given),
            lambda given: session.close(given),
            lambda given: session.played("1"),  # type: ignore[arg-type]
            lambda given: session.played(0.5),  # type: ignore[arg-type]
            lambda given: session.played(1, given),
            lambda given: session.stop("x", 1, given),
            lambda given: session.configure(given),
            lambda given: session.configure(SynthesisParams("tone", language=given)),
            lambda given: session.configure(SynthesisParams("tone", speed=float("nan"))),
        ]
        for state in (State.IDLE, State.SPEAKING):
            assert session.state is state
            for call in wrong:
                with pytest.raises(InvalidRequest):
                    call(5)
            assert session.state is state
            if state is State.IDLE:
                session.speak("One word.")
        session.end_text()
        ended = [item async for item in _until_ended(session)]
        assert (ended[-1].outcome, ended[-1].receipt.text_spoken) == (Outcome.DONE, "One word.")


@pytest.mark.parametrize("transport", ["local", "ws", "grpc"])
async def test_configure_refuses_what_no_voice_speaks(transport: str) -> None:
    for params, code in (
        (SynthesisParams(""), None),
        (SynthesisParams("absent"), ErrorCode.UNKNOWN_VOICE),
        (SynthesisParams("tone", speed=100.0), ErrorCode.INVALID_REQUEST),
    ):
        async with TRANSPORTS[transport].connect(Setup()) as client, client.session(FAST) as session:
            try:
                session.configure(params)
                session.speak("One word.")
                session.end_text()
                (ended,) = [item async for item in _until_ended(session)]
                error = ended.error.code if ended.error is not None else None
            except TTSWorkerError as refused:
                error = refused.code
            assert error is code


@pytest.mark.parametrize("transport", ["ws", "grpc"])
async def test_refused_voice_is_never_replaced_by_another(transport: str) -> None:
    """A program that does not look at the first error must not hear the voice of before."""
    async with TRANSPORTS[transport].connect(Setup()) as client, client.session(FAST) as session:
        for voice, code in (("absent", ErrorCode.UNKNOWN_VOICE), ("absent", ErrorCode.UNKNOWN_VOICE), ("tone", None)):
            session.configure(SynthesisParams(voice))
            session.speak("One word.")
            session.end_text()
            (ended,) = [item async for item in _until_ended(session)]
            assert (ended.error.code if ended.error is not None else None) is code


async def _until_ended(session: Session) -> AsyncIterator[Ended]:
    async for item in session:
        if isinstance(item, Ended):
            yield item
            return


@pytest.mark.parametrize(
    ("source", "rate"), [(None, None), (5, None), (None, 16_000), ([b""], "x"), ([b""], -1), ("a\0b", None)]
)
async def test_unsuitable_source_of_a_conversion_is_refused(source: Any, rate: Any) -> None:
    async with TRANSPORTS["local"].connect(Setup()) as client:
        with pytest.raises(InvalidRequest):
            await anext(client.convert(source, live_rate_hz=rate))


async def test_voices_of_silent_worker_raise_deadline_exceeded() -> None:
    async with serve_setup(Setup()) as address, run_proxy(address) as proxy:
        proxy.stall()
        async with connect(f"ws://{proxy.address}", ClientSettings(connect_timeout_s=0.2)) as client:
            with pytest.raises(DeadlineExceeded, match=r"within 0\.2 s"):
                await client.voices.list()
        proxy.resume()


@pytest.mark.parametrize("scheme", ["ws", "grpc"])
async def test_voices_of_unreachable_worker_raise_connection_lost(scheme: str) -> None:
    async with connect(f"{scheme}://127.0.0.1:1") as client:
        with pytest.raises(ConnectionLost, match="cannot be reached"):
            await client.voices.list()


# -- missing and incompatible workers ---------------------------------------------------------------------------------


async def test_api_key_is_sent_and_not_in_repr() -> None:
    keyed = Setup({"server": {"api_keys": ["correct-horse"]}})
    async with serve_setup(keyed) as address:
        async with connect(f"ws://{address}") as client:
            with pytest.raises(Unauthenticated):
                await client.open()
            with pytest.raises(Unauthenticated):
                await client.voices.list()
        with_key = ClientSettings(api_key="correct-horse")
        assert "correct-horse" not in repr(with_key)
        async with connect(f"ws://{address}/", with_key) as client:
            await client.open()
            assert await client.voices.list()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x",
        "ws:",
        "ws://",
        "ws://:80",
        "ws://host:port",
        "ws://user:word@host",
        "ws://host#x",
        "//x",
        "x:y",
        "ws//x",
    ],
)
def test_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        tts_worker.connect(url)


READY = {"type": "ready", "protocol": 1, "session": "s", "sample_rate": 24_000, "format": "pcm_s16le", "channels": 1}
READY["voice"] = "v"
RECEIPT = {
    "reason": "finished",
    "samples_generated": 480,
    "samples_sent": 480,
    "text_spoken": "x",
    "text_remaining": "",
}

Script = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def scripted_worker(script: Script, timeout_s: float = 60.0) -> AsyncIterator[Client]:
    async def handle(socket: ServerConnection) -> None:
        await script(socket)
        await socket.wait_closed()

    async with serve(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}", ClientSettings(connect_timeout_s=timeout_s)) as client:
            yield client


async def send(socket: ServerConnection, *messages: Any) -> None:
    for message in messages:
        await socket.send(message if isinstance(message, bytes | str) else json.dumps(message))


@pytest.mark.parametrize(
    ("greeting", "error"),
    [
        (None, DeadlineExceeded),
        ("not json", ConnectionLost),
        (b"\x00\x01", ConnectionLost),
        ({"type": "welcome"}, ConnectionLost),
        ({**READY, "protocol": 2}, RemoteError),
        ({**READY, "protocol": "new"}, ConnectionLost),
        ({**READY, "format": "opus"}, RemoteError),
        ({**READY, "sample_rate": None}, ConnectionLost),
    ],
)
async def test_invalid_greeting_is_refused(greeting: Any, error: type[TTSWorkerError]) -> None:
    async def script(socket: ServerConnection) -> None:
        if greeting is not None:
            await send(socket, greeting)

    # Only a missing greeting is expected to time out; an answer may take long on a busy machine.
    async with scripted_worker(script, 0.3 if error is DeadlineExceeded else 60.0) as client:
        with pytest.raises(error):
            await client.open()


async def test_unknown_fields_and_messages_are_ignored() -> None:
    async def script(socket: ServerConnection) -> None:
        await send(socket, {**READY, "color": "blue"})
        text = json.loads(await socket.recv())
        named = {"context": text["context"], "mood": "good"}
        word = {"text": "x", "start_char": 0, "end_char": 1, "start_sample": 0, "end_sample": 480, "stress": 1}
        await send(
            socket,
            {"type": "weather", "sunny": True},
            {"type": 7},
            {"type": "started", "voice": "v", **named},
            {"type": "words", "words": [word], **named},
            bytes(960),
            {"type": "done", "alignment": "guessed", "text_spoken": "x", **RECEIPT, **named},
        )

    async with scripted_worker(script) as client:
        ended = await (await open_recorder(client, SessionOptions())).synthesize("x")
        assert (ended.outcome, ended.receipt.alignment) == (Outcome.DONE, Alignment.ESTIMATED)


@pytest.mark.parametrize(
    "message",
    ["{", "[]", {"type": "started"}, {"type": "done"}, {"type": "words", "words": [1]}, {"type": "error", "code": "x"}],
)
async def test_invalid_message_ends_the_connection(message: Any) -> None:
    async def script(socket: ServerConnection) -> None:
        await send(socket, READY)
        context = json.loads(await socket.recv())["context"]
        await send(socket, {"type": "started", "voice": "v", "context": context})
        await send(socket, {"context": context, **message} if isinstance(message, dict) else message)

    async with scripted_worker(script) as client:
        ended = await (await open_recorder(client, SessionOptions())).synthesize("x")
        assert ended.error is not None
        assert ended.error.code is ErrorCode.CONNECTION_LOST


async def test_small_deltas_are_joined() -> None:
    received: list[dict[str, Any]] = []

    async def script(socket: ServerConnection) -> None:
        await send(socket, READY)
        async for raw in socket:
            received.append(json.loads(raw))
            if received[-1]["type"] == "end":
                await send(
                    socket, {"type": "done", "context": received[-1]["context"], **RECEIPT, "text_spoken": "x" * 10_000}
                )

    async with scripted_worker(script) as client:
        recorder = await open_recorder(client, SessionOptions())
        for _ in range(10_000):
            key = recorder.session.speak("x")
        recorder.session.end_text()
        with anyio.fail_after(60.0):
            while (item := await recorder.session.next()) is not None and not isinstance(item, Ended):
                pass
        assert key.generation == 1
        assert len(received) < 20
        assert "".join(message.get("text", "") for message in received) == "x" * 10_000


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("ws://127.0.0.1:1", False),
        ("ws://localhost:1", False),
        ("ws://[::1]:1", False),
        ("wss://tts.example.org", False),
        ("ws://tts.example.org", True),
        ("grpc://10.1.2.3", True),
    ],
)
def test_key_without_tls_is_warned_about(url: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    connect(url, ClientSettings(api_key="correct-horse"))
    assert ("without TLS" in caplog.text) is warns
    assert "correct-horse" not in caplog.text
