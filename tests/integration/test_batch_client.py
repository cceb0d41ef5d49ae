"""``client.batches``, ``TTS.batch`` and ``tts-worker batch`` with a real server."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import soundfile

import tts_worker
from tests.conftest import serving
from tts_worker.client.batches import BatchText, UnknownBatch
from tts_worker.errors import ConnectionLost, ErrorCode, InvalidRequest

TEXTS = ["One, two, three.", BatchText("No such voice.", id="bad", voice="missing"), "Four, five, six.", "Seven."]


@asynccontextmanager
async def cutting(address: str, cuts: list[int]) -> AsyncIterator[str]:
    """Run a proxy that breaks each download of results after the next number of bytes, as long as there are any."""
    host, port = address.rsplit(":", 1)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker_reader, worker_writer = await asyncio.open_connection(host, int(port))
        head = await reader.readuntil(b"\r\n\r\n")
        worker_writer.write(head)
        left = cuts.pop() if b"/results" in head and cuts else -1

        async def upload() -> None:
            while data := await reader.read(65_536):
                worker_writer.write(data)

        uploading = asyncio.create_task(upload())
        while data := await worker_reader.read(65_536 if left < 0 else min(left, 65_536)):
            writer.write(data)
            left -= len(data) if left > 0 else 0
            if left == 0:
                break
        uploading.cancel()
        worker_writer.close()
        writer.close()

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_client_continues_broken_downloads() -> None:
    cuts = [20_000, 90_000]
    async with (
        serving() as address,
        cutting(address, cuts) as proxy,
        tts_worker.connect(f"ws://{proxy}") as client,
    ):
        batches = client.batches
        batch = await batches.submit(TEXTS, voice="tone", response_format="wav")
        results = [result async for result in batches.results(batch.id)]
        assert not cuts, "the proxy broke each download"
        assert [(each.index, each.id) for each in results] == [(0, "00001"), (1, "bad"), (2, "00003"), (3, "00004")]
        assert [each.error and each.error.code for each in results] == [None, ErrorCode.UNKNOWN_VOICE, None, None]
        for each in results[2:]:
            info = soundfile.info(io.BytesIO(each.audio))
            assert each.duration_s == pytest.approx(info.frames / info.samplerate, abs=0.001)
        assert [each.index async for each in batches.results(batch.id, start=3)] == [3]
        progress = await batches.get(batch.id)
        assert (progress.is_done, progress.failed, [each.id for each in progress.errors]) == (True, 1, ["bad"])
        assert [each.id for each in await batches.list()] == [batch.id]
        await batches.cancel(batch.id)
        with pytest.raises(UnknownBatch):
            await anext(batches.results(batch.id))
        with pytest.raises(InvalidRequest, match="items"):
            await batches.submit([])

        def speak() -> list[bool]:
            with tts_worker.TTS(f"ws://{address}", voice="tone") as tts:
                return [bool(each.audio) for each in tts.batch(TEXTS)]

        assert await asyncio.to_thread(speak) == [True, False, True, True]
        assert await batches.list() == [], "it is deleted at the end"
    with pytest.raises(ConnectionLost):
        await anext(batches.results(batch.id, retry_s=0))
    async with tts_worker.connect("local:") as local:
        with pytest.raises(InvalidRequest, match="ws://"):
            await local.batches.list()
