"""Many dropped calls leak nothing, and no old audio follows hundreds of STOPs."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections.abc import AsyncIterator

import psutil
import pytest

from tests.conftest import serving, tone_settings, until
from tests.integration.test_websocket import Client, dial
from tts_worker.adapter import TTSWorker
from tts_worker.settings import Settings, load_settings
from tts_worker.types import PcmFrame, SessionOptions
from tts_worker.worker import Worker, running_worker

pytestmark = pytest.mark.timeout(600)  # the calls take 10 s of CPU time

TEXT = "Hello there, my friend. How are you today? I am well, thank you for asking."


async def call(worker: Worker, rng: random.Random) -> None:
    """Run a call that ends at a random point in a random way."""
    ending = rng.randrange(4)
    point = rng.randrange(12)
    if ending == 0:  # drops the iterator
        async for _ in TTSWorker(worker).synthesize_stream(letters(rng)):
            if (point := point - 1) < 0:
                break
        return
    session = worker.hub.open(SessionOptions(realtime=rng.random() < 0.2, raw_chunks=rng.random() < 0.3))
    try:
        session.speak(TEXT[: rng.randrange(len(TEXT))])
        for _ in range(point):
            if rng.random() < 0.3:
                await asyncio.sleep(0)
            session.poll()
        if ending == 1:
            session.pause()
        elif ending == 2:
            session.stop()
            session.speak(TEXT)
        else:
            session.end_text()
    finally:
        session.close()


async def letters(rng: random.Random) -> AsyncIterator[str]:
    for letter in TEXT:
        yield letter
        if rng.random() < 0.1:
            await asyncio.sleep(0)


async def calls(worker: Worker, number: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(number // 50):
        await asyncio.gather(*(call(worker, rng) for _ in range(50)))
    gc.collect()
    engine = next(iter(worker.engines.values()))
    await until(lambda: worker.hub.live_sessions == 0 and engine.live_utterances == 0)


def held() -> tuple[int, int, int]:
    """File descriptors, threads, tasks."""
    return psutil.Process().num_fds(), threading.active_count(), len(asyncio.all_tasks())


@pytest.mark.parametrize(
    ("settings", "number"),
    [(tone_settings(session={"max_sessions": 256}), 1_500), (load_settings(), 100)],
    ids=["tone", "cpu voice"],
)
async def test_dropped_calls_leak_nothing(settings: Settings, number: int) -> None:
    process = psutil.Process(os.getpid())
    async with running_worker(settings) as worker:
        await calls(worker, max(100, number // 6), seed=1)  # fills caches and memory arenas
        before = held()
        memory_bytes = process.memory_info().rss
        await calls(worker, number, seed=2)
        # A thread or socket may still be closing, now or at the first count.
        await until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))
        assert process.memory_info().rss - memory_bytes < 20e6
        assert sum(1 for _ in worker.hub.voices) > 0


async def test_thousand_stops_in_process_send_no_old_audio(worker: Worker) -> None:
    rng = random.Random(3)
    session = worker.hub.open(SessionOptions(realtime=False))
    for _ in range(1_000):
        key = session.speak(TEXT)
        for _ in range(rng.randrange(6)):
            item = await session.next()
            assert not isinstance(item, PcmFrame) or item.key == key
        session.stop()
        while (item := session.poll()) is not None:
            assert not isinstance(item, PcmFrame)
    session.close()


async def test_stops_over_sockets_send_no_old_audio() -> None:
    """All audio after `stopped` is the beginning of the new utterance, byte for byte."""
    async with serving() as address:
        async with dial(address, "/v1/stream?realtime=false") as client:
            await client.send(type="text", text=TEXT, end=True)
            await client.until("done")
            expected = client.pcm
        await asyncio.gather(*(_races(address, expected, 20, seed) for seed in range(10)))


async def _races(address: str, expected: bytes, races: int, seed: int) -> None:
    rng = random.Random(seed)
    async with dial(address, "/v1/stream?realtime=false") as client:
        await client.until("ready")
        for _ in range(races):
            await client.send(type="text", text=TEXT, end=rng.random() < 0.5)
            received = await _receive(client, rng.randrange(8))
            assert expected.startswith(received)
            if rng.random() < 0.3:
                await client.send(type="pause")
            await client.send(type="stop")
            while True:
                event = await client.until("stopped", "done")
                if event["type"] == "stopped":
                    break


async def _receive(client: Client, messages: int) -> bytes:
    """Return the audio of a limited number of messages since `started`; none may precede it."""
    started = False
    received = b""
    for _ in range(messages + 1):
        message = await client.next()
        if isinstance(message, bytes):
            assert started
            received += message
        elif message["type"] == "started":
            started = True
        elif message["type"] == "done":
            break
    return received
