"""Checksums of audio on request, and one log record for each chunk."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any

import numpy as np
import pytest

from tests.conftest import serving
from tests.integration.test_websocket import Client, dial
from tts_worker.logs import JsonLines

TEXT = "Hello there, my friend. How are you today?"
FRAMES = "/v1/stream?realtime=false&checksums=true"  # frames have one length, chunks follow the credit
CHUNKS = "/v1/stream?realtime=false&raw_chunks=true&checksums=true"


async def speak(address: str, path: str = CHUNKS) -> Client:
    async with dial(address, path) as client:
        await client.send(type="text", text=TEXT, end=True)
        await client.until("done")
        return client


def described(client: Client) -> list[dict[str, Any]]:
    return [item for item in client.log if isinstance(item, dict) and item["type"] == "chunk"]


@pytest.mark.parametrize("path", [CHUNKS, "/v1/stream?realtime=false&checksums=true&encoding=mulaw&sample_rate=8000"])
async def test_each_audio_message_follows_its_checksum(path: str) -> None:
    async with serving() as address:
        client = await speak(address, path)
    sample = 0
    for index, item in enumerate(client.log):
        if not isinstance(item, bytes):
            continue
        chunk = client.log[index - 1]
        assert isinstance(chunk, dict)
        assert chunk["type"] == "chunk"
        assert chunk["sha256"] == hashlib.sha256(item).hexdigest()
        assert chunk["start_sample"] == sample
        sample += chunk["samples"]
    assert [chunk["index"] for chunk in described(client)] == list(range(len(described(client))))
    assert sample > 10_000


async def test_checksums_do_not_depend_on_other_sessions() -> None:
    async with serving() as address:
        alone = [chunk["sha256"] for chunk in described(await speak(address, FRAMES))]
        crowd = await asyncio.gather(*(speak(address, FRAMES) for _ in range(8)))
    for client in crowd:
        assert [chunk["sha256"] for chunk in described(client)] == alone


async def test_no_checksums_without_request() -> None:
    async with serving() as address:
        assert "chunk" not in (await speak(address, "/v1/stream?realtime=false")).types


async def test_debug_log_has_each_chunk_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tts_worker.chunks")
    async with serving() as address:
        client = await speak(address)
    records = [record for record in caplog.records if record.name == "tts_worker.chunks"]
    logged = [record.fields for record in records]  # type: ignore[attr-defined]
    # The engine's audio is sent as it is: the tone engine is a test signal, without loudness correction.
    assert [fields["sha256"] for fields in logged] == [chunk["sha256"] for chunk in described(client)]
    assert sum(fields["samples"] for fields in logged) == len(client.pcm) // 2
    samples = np.frombuffer(client.pcm, "<i2")
    assert min(fields["pcm_min"] for fields in logged) == samples.min()
    assert max(fields["pcm_max"] for fields in logged) == samples.max()
    assert {fields["engine"] for fields in logged} == {"tone"}
    lines = "".join(JsonLines().format(record) for record in records)
    assert not any(word in lines for word in ("Hello", "friend", "today"))
