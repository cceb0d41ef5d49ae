"""A worker that cannot rebuild its engine exits, so that its supervisor starts another; clients get their errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.conftest import tone_settings
from tts_worker.cli import EXIT_DEVICE_LOST
from tts_worker.engine.loop import EngineLoop, EngineState
from tts_worker.engine.tone import Fault
from tts_worker.errors import DeviceLost
from tts_worker.worker import Worker, running_worker

TEXT = "Hello there, my friend. How are you today? I am well, thank you for asking."


@asynccontextmanager
async def faulty_server(fault: Fault) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run a real server whose engine fails; yield the process and its ``host:port``."""
    words = ("-m", "tests.fakes.faulty_server", fault.value)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip().removeprefix("listening on http://")
        assert await process.stdout.readline() == b"ready\n"
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def speaking(address: str) -> AsyncIterator[ClientConnection]:
    """A connection with an utterance that has begun."""
    async with connect(f"ws://{address}/v1/stream", compression=None) as socket:
        await socket.send(json.dumps({"type": "text", "text": TEXT, "end": True}))
        while not isinstance(await socket.recv(), bytes):
            pass
        yield socket


async def events_until_closed(socket: ClientConnection) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    with contextlib.suppress(ConnectionClosed):
        async for message in socket:
            if isinstance(message, str):
                events.append(json.loads(message))
    return events


@pytest.mark.parametrize("fault", [Fault.DEVICE_LOST, Fault.RAISE])
async def test_lost_engine_ends_the_process_with_its_status(fault: Fault) -> None:
    """At once after a sticky device error; after five failed attempts if the reason is unknown."""
    async with (
        faulty_server(fault) as (process, address),
        speaking(address) as first,
        speaking(address) as second,
        speaking(address) as third,
    ):
        await third.send('{"type": "stop"}')
        await third.send(json.dumps({"type": "text", "text": TEXT, "end": True}))  # breaks the engine
        events = await asyncio.gather(*(events_until_closed(socket) for socket in (first, second, third)))
        _, log = await process.communicate()
    assert process.returncode == EXIT_DEVICE_LOST == 75
    for received in events:
        (error,) = [event for event in received if event["type"] == "error"]
        assert (error["code"], error["retryable"]) == ("engine_fault", True)
    assert b"must be restarted" in log
    assert log.count(b"is being rebuilt") == (0 if fault is Fault.DEVICE_LOST else 5)


async def test_device_lost_at_start_marks_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: EngineLoop) -> None:
        raise DeviceLost("no kernel image is available")

    monkeypatch.setattr(EngineLoop, "start", fail)
    worker = Worker(tone_settings())
    with pytest.raises(DeviceLost):
        await worker.start()
    assert worker.lost.is_set()
    await worker.stop()


async def test_worker_is_lost_with_one_of_its_engines() -> None:
    async with running_worker(tone_settings()) as worker:
        (engine,) = worker.engines.values()
        assert not worker.lost.is_set()
        engine.on_fault(engine._handle, DeviceLost("sticky"))  # type: ignore[arg-type]
        await worker.lost.wait()
        assert (engine.state, worker.hub.ready, worker.hub.lost) == (EngineState.LOST, False, True)
