"""The calls of the benchmarks against servers in this process."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request

from tests.conftest import serving, until
from tools.bench.calls import AlwaysSpeaking, Calls, SpeakingCall
from tools.bench.telephone import TelephoneCall
from tts_worker.errors import EngineFault, UnknownVoice
from tts_worker.features.bench.timed_connection import TimedWebSocket


async def test_connection_is_open_when_the_server_has_answered() -> None:
    asked = asyncio.Event()
    may_answer = asyncio.Event()

    async def answer(connection: ServerConnection, request: Request) -> None:
        asked.set()
        await may_answer.wait()

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    received: list[object] = []
    async with serve(echo, "127.0.0.1", 0, process_request=answer) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        socket = TimedWebSocket(f"127.0.0.1:{port}", lambda at_s, message: received.append(message))
        opening = asyncio.create_task(socket.open())
        await asked.wait()
        assert not opening.done()
        may_answer.set()
        await opening
        socket.send({"text": "Hello"})
        await until(lambda: received)
        socket.close()
    assert received == [{"text": "Hello"}]


async def test_refused_connection_is_the_error_of_the_server() -> None:
    async with serving() as address:
        socket = TimedWebSocket(address, lambda at_s, message: None, "/v1/stream?voice=unknown")
        with pytest.raises(UnknownVoice):
            await socket.open()

        socket.close()


async def test_refusal_of_another_server_is_an_error_with_the_status() -> None:
    async def never_called(_: ServerConnection) -> None:
        raise AssertionError

    async with serve(never_called, "127.0.0.1", 0, process_request=lambda it, _: it.respond(404, "no")) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        socket = TimedWebSocket(f"127.0.0.1:{port}", lambda at_s, message: None)
        with pytest.raises(EngineFault, match=r"refused.*404"):
            await socket.open()


async def test_connection_that_the_server_closes_tells_its_reason() -> None:
    async with serving() as address:
        socket = TimedWebSocket(address, lambda at_s, message: None, "/twilio")
        await socket.open()
        socket.send({"event": "stop"})
        with pytest.raises(EngineFault, match="must begin with start"):
            await socket.closed
        socket.close()


@pytest.mark.parametrize("kind", [SpeakingCall, TelephoneCall])
async def test_call_speaks_until_it_is_cancelled(kind: Callable[[str, int, Calls], AlwaysSpeaking]) -> None:
    calls = Calls()
    async with serving() as address:
        tasks = [asyncio.create_task(kind(address, seed, calls).run()) for seed in range(2)]
        await until(lambda: calls.frames >= 20 or any(task.done() for task in tasks))
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
    assert calls.frames >= 20
    assert calls.audio_s == pytest.approx(0.02 * calls.frames)
    assert len(calls.first_audio_s) == 2
    assert min(calls.first_audio_s) > 0
    assert not calls.errors


class _RecordedCall(AlwaysSpeaking):
    """A call whose audio and events are given by the test, in frames of 20 ms."""

    def __init__(self, calls: Calls) -> None:
        super().__init__("127.0.0.1:1", 0, calls)
        self._socket = _DeafSocket("127.0.0.1:1", lambda at_s, message: None)

    async def _speak(self) -> None:
        raise NotImplementedError

    def receive(self, *times_ms: float) -> None:
        for time_ms in times_ms:
            self._on_audio(time_ms / 1000, 0.02)

    def end(self) -> None:
        self._on_event(self._socket, {"type": "done"})
        self._socket.close()


class _DeafSocket(TimedWebSocket):
    def send(self, message: Mapping[str, object]) -> None:
        return


async def test_utterance_plays_after_the_rest_of_the_one_before() -> None:
    calls = Calls()
    call = _RecordedCall(calls)
    call.receive(0, 0, 20)  # plays until 60 ms
    call.end()
    call.receive(40, 66)  # plays from 60 to 80 ms, and on
    assert calls.underruns == []
    call.receive(107)
    assert calls.underruns == [(0.107, pytest.approx(0.007))]
    assert len(calls.first_audio_s) == 2


async def test_silence_before_an_utterance_is_no_underrun() -> None:
    calls = Calls()
    call = _RecordedCall(calls)
    call.receive(0, 20)
    call.end()
    call.receive(500, 505)
    assert calls.underruns == []
    call.receive(550)
    assert calls.underruns == [(0.55, pytest.approx(0.01))]


async def test_telephone_call_returns_marks_when_they_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    call = TelephoneCall("127.0.0.1:1", 7, Calls())
    monkeypatch.setattr(call.provider, "send", sent.append)
    now_s = asyncio.get_running_loop().time()
    call.on_provider_message(now_s, {"event": "media", "media": {"payload": base64.b64encode(bytes(800)).decode()}})
    call.on_provider_message(now_s, {"event": "mark", "mark": {"name": "1"}})
    await until(lambda: sent)
    assert asyncio.get_running_loop().time() >= now_s + 800 / 8_000
    assert sent == [{"event": "mark", "streamSid": "MZ7", "mark": {"name": "1"}}]
    call.provider.close()
    call.agent.close()
