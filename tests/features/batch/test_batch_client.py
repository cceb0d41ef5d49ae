"""``client.batches``, ``TTS.batch`` and ``tts-worker batch`` with a real server."""

from __future__ import annotations

import asyncio
import io
import json
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import soundfile

import tts_worker
from tests.conftest import serving
from tts_worker.cli import main
from tts_worker.client.batches import BatchText, HttpBatches, UnknownBatch
from tts_worker.client.settings import ClientSettings
from tts_worker.errors import ConnectionLost, ErrorCode, InvalidRequest
from tts_worker.features.batch.command import parse_texts
from tts_worker.timeouts import fail_after

TEXTS: list[str | BatchText] = [
    "One, two, three.",
    BatchText("No such voice.", id="bad", voice="missing"),
    "Four, five, six.",
    "Seven.",
]


@asynccontextmanager
async def cutting(address: str, cuts: list[int]) -> AsyncIterator[str]:
    """Run a proxy that breaks the answers to submissions and downloads after the last of ``cuts`` bytes each."""
    host, port = address.rsplit(":", 1)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker_reader, worker_writer = await asyncio.open_connection(host, int(port))
        head = await reader.readuntil(b"\r\n\r\n")
        worker_writer.write(head)
        left = cuts.pop() if (b"/results" in head or head.startswith(b"POST")) and cuts else -1

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
    cuts = [20_000, 90_000, 10]  # the last one is the answer to the submission, which is repeated
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
            assert each.audio[4:8] == struct.pack("<I", len(each.audio) - 8), "the header knows the size of the file"
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


async def test_cancelled_download_disconnects_at_once() -> None:
    is_waiting, is_left = asyncio.Event(), asyncio.Event()

    async def worker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        is_waiting.set()
        await reader.read()
        is_left.set()
        writer.close()

    server = await asyncio.start_server(worker, "127.0.0.1", 0)
    async with server, fail_after(10):
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        results = HttpBatches(url, ClientSettings()).results("batch", 0)
        assert await anext(results) is None
        reading = asyncio.ensure_future(anext(results))
        await is_waiting.wait()
        await asyncio.sleep(0)  # it waits for data on its thread
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await is_left.wait()


async def test_command_continues_and_retries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "texts.jsonl", tmp_path / "audio"
    items = [{"id": "intro", "input": "One."}, {"input": "Two.", "voice": "missing"}, {"input": "Three.", "speed": 1.2}]
    file.write_text("\n".join(json.dumps(item) for item in items) + "\n")
    async with serving() as address, tts_worker.connect(f"ws://{address}") as client:

        async def batch(*options: str) -> tuple[int, str]:
            command = ["batch", str(file), "--out", str(out), "--url", f"http://{address}", *options]
            return await asyncio.to_thread(main, command), capsys.readouterr().err

        code, shown = await batch("--voice", "tone")
        assert code == 1
        assert "error: 00002: unknown voice" in shown
        assert "2 of 3 items" in shown
        audio = {name: (out / f"{name}.wav").read_bytes() for name in ("intro", "00003")}
        assert {each.name for each in out.glob("[!.]*")} == {"intro.wav", "00003.wav"}
        (first,) = await client.batches.list()

        (out / "00003.wav").unlink()  # as if the download had been interrupted
        code, shown = await batch("--voice", "tone")
        assert code == 1
        assert first.id in shown
        assert (out / "00003.wav").read_bytes() == audio["00003"]
        assert len(await client.batches.list()) == 1, "no item was submitted again"

        (out / "intro.wav").unlink()
        await client.batches.cancel(first.id)
        assert (await batch("--voice", "tone"))[0] == 1
        assert (out / "intro.wav").read_bytes() == audio["intro"]
        (second,) = await client.batches.list()
        assert second.items == 2, "only what is missing is submitted again"

        state = out / ".tts-worker-batch.json"
        state.write_text(state.read_text().replace("true", "false"))
        code, shown = await batch("--voice", "tone-low")
        assert (code, "--restart" in shown) == (2, True), "an unfinished batch is not lost"
        file.write_text("One.\n\nTwo.\n")
        code, shown = await batch("--voice", "tone-low", "--format", "mulaw", "--restart")
        assert (code, "2 of 2 items" in shown) == (0, True)
        assert (out / "00001.ulaw").stat().st_size > 1_000
        (third,) = await client.batches.list()
        assert third.id != second.id, "--restart cancels"
        assert (await batch("--voice", "tone-low", "--format", "mulaw"))[0] == 0
        assert [each.id for each in await client.batches.list()] == [third.id], "there is nothing to do"


async def test_command_with_lost_answer_starts_one_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "texts.txt", tmp_path / "audio"
    file.write_text("One.\nTwo.\n")
    async with (
        serving() as address,
        cutting(address, [10, 10]) as proxy,
        tts_worker.connect(f"ws://{address}") as client,
    ):

        async def batch(target: str, *options: str) -> tuple[int, str]:
            command = ["batch", str(file), "--out", str(out), "--url", f"http://{target}", *options]
            return await asyncio.to_thread(main, command), capsys.readouterr().err

        code, shown = await batch(address, "--model", "x" * 200)
        assert (code, "model" in shown) == (2, True), "the worker refuses it"
        code, shown = await batch(proxy, "--voice", "tone")
        assert (code, "cannot be reached" in shown) == (1, True)
        (accepted,) = await client.batches.list()
        code, shown = await batch(address, "--voice", "tone")
        assert (code, "2 of 2 items" in shown) == (0, True)
        assert [each.id for each in await client.batches.list()] == [accepted.id]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n \n", "no text"),
        ('{"input": "a"}\n{"input', "line 2 is not valid JSON"),
        ('{"text": "a"}', "line 1: an item is an object"),
        ('{"input": "a", "color": 1}', "line 1: unknown field 'color'"),
        ('{"input": "a", "speed": "fast"}', "line 1: the type of speed"),
        ('{"input": "a", "id": "../a"}', "line 1: an id has"),
        ('{"input": "a", "id": "x"}\n{"input": "b", "id": "X"}', "line 2: the id X is also that of line 1"),
    ],
)
def test_command_names_the_bad_line(content: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        parse_texts(content)


def test_command_reports_an_unreadable_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", str(tmp_path / "absent"), "--out", str(tmp_path / "out")]) == 2
    assert "cannot read" in capsys.readouterr().err
    (tmp_path / "texts.txt").write_text("One.")
    url = ["--url", "ws://127.0.0.1:1"]
    assert main(["batch", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out"), *url]) == 1
    assert "is it running?" in capsys.readouterr().err
