"""Checksums of audio on request, and one log record for each chunk."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.conftest import serving
from tests.integration.grpc_worker import running_grpc_worker, say
from tests.integration.test_websocket import Client, dial
from tools import chunk_hashes
from tts_worker.logs import JsonLines
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.settings import load_settings

TEXT = "Hello there, my friend. How are you today?"
FRAMES = "/v1/stream?realtime=false&checksums=true"  # frames have one length, chunks follow the credit
CHUNKS = "/v1/stream?realtime=false&raw_chunks=true&checksums=true"


async def speak(address: str, path: str = CHUNKS) -> Client:
    async with dial(address, path) as client:
        await client.send(type="text", text=TEXT, end=True)
        await client.until("done")
        return client


def digest(audio: bytes) -> str:
    return hashlib.sha256(audio).hexdigest()


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


async def test_fresh_process_and_crowd_give_the_same_hashes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps(await chunk_hashes.record(load_settings(), None, crowd=1)))
    record = [sys.executable, "-m", "tools.chunk_hashes", "record", str(second), "--engine", "cpu", "--crowd", "3"]
    await asyncio.to_thread(subprocess.run, record, check=True, cwd=Path(__file__).parents[2], timeout=60)
    assert chunk_hashes.main(["compare", str(first), str(second)]) == 0
    changed = json.loads(second.read_text())
    changed["hashes"]["Yes."][1] = digest(b"")
    second.write_text(json.dumps(changed))
    assert chunk_hashes.compare(json.loads(first.read_text()), changed)[0].startswith("'Yes.' differs from 0.2 s on")
    assert chunk_hashes.main(["compare", str(first), str(second)]) == 1
    assert chunk_hashes.main(["compare", str(first), str(tmp_path / "missing.json")]) == 2


async def test_grpc_sends_checksums_on_request() -> None:
    async with running_grpc_worker() as server:
        await server.start(checksums="true")
        frames = [frame for frame in (await say(server, TEXT)).frames if frame.audio_data]
        assert [frame.sha256 for frame in frames] == [digest(frame.audio_data) for frame in frames]
        call = tts_worker_pb2_grpc.ConversationStub(server.channel).Converse()
        start = pb.ConverseRequest.Start(
            protocol_version=1, voicing=pb.ConverseRequest.Voicing(speed=1), checksums=True
        )
        await call.write(pb.ConverseRequest(start=start))
        await call.write(pb.ConverseRequest(say=pb.ConverseRequest.Say(context="a", text=TEXT)))
        await call.write(pb.ConverseRequest(end=pb.ConverseRequest.EndText(context="a")))
        sample = audio_messages = 0
        before = pb.ConverseResponse()
        async for response in call:
            if response.WhichOneof("message") == "ended":
                break
            if response.WhichOneof("message") == "pcm":
                assert (before.chunk.sha256, before.chunk.start_sample) == (digest(response.pcm), sample)
                sample += before.chunk.samples
                audio_messages += 1
            before = response
        call.cancel()
    assert audio_messages > 10
    assert frames[0].sha256 != frames[-1].sha256


BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/audio/speech": ({"input": TEXT, "voice": "tone", "stream_format": "sse", "response_format": "pcm"}, "audio"),
    "/tts/sse": (
        {
            "model_id": "tone",
            "transcript": TEXT,
            "voice": {"mode": "id", "id": "tone"},
            "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
        },
        "data",
    ),
    "/v1/text-to-speech/tone/stream/with-timestamps": ({"text": TEXT}, "audio_base64"),
}
"""Body, and field of the audio."""


async def test_http_events_carry_checksums_on_request() -> None:
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        for path, (body, field) in BODIES.items():
            for query, wanted in (("", False), ("?checksums=true", True)):
                answer = await client.post(path + query, json=body)
                lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
                events = [json.loads(line) for line in lines if line.startswith("{")]
                chunks = [event for event in events if event.get(field)]
                assert len(chunks) > 1, answer.text
                sums = [digest(base64.b64decode(chunk[field])) if wanted else None for chunk in chunks]
                assert [chunk.get("sha256") for chunk in chunks] == sums
            assert (await client.post(f"{path}?checksums=maybe", json=body)).status_code in (400, 422)


SOCKETS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "/tts/websocket": (
        [
            {
                "context_id": "a",
                "model_id": "tone",
                "transcript": TEXT,
                "voice": {"mode": "id", "id": "tone"},
                "output_format": {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8_000},
            }
        ],
        "data",
    ),
    "/v1/text-to-speech/tone/stream-input": ([{"text": " "}, {"text": TEXT}, {"text": ""}], "audio"),
    "/v1/text-to-speech/tone/multi-stream-input": (
        [{"context_id": "a", "text": f"{TEXT} "}, {"close_socket": True}],
        "audio",
    ),
}
"""Messages, and field of the audio."""


async def test_vendor_sockets_carry_checksums_on_request() -> None:
    async with serving() as address:
        for path, (messages, field) in SOCKETS.items():
            for query, wanted in (("", False), ("?checksums=true", True)):
                async with connect(f"ws://{address}{path}{query}", open_timeout=60) as socket:
                    for message in messages:
                        await socket.send(json.dumps(message))
                    chunks = []
                    while not (event := json.loads(await socket.recv())).get("isFinal") and not event.get("done"):
                        chunks += [event] if event.get(field) else []
                assert len(chunks) > 1, path
                sums = [digest(base64.b64decode(chunk[field])) if wanted else None for chunk in chunks]
                assert [chunk.get("sha256") for chunk in chunks] == sums
            with pytest.raises(InvalidStatus) as refusal:
                await connect(f"ws://{address}{path}?checksums=maybe", open_timeout=60)
            assert refusal.value.response.status_code in (400, 422)


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
