"""Downloads that run in a separate process, so that reading them cannot delay the calls of a benchmark.

A download is a ``POST /v1/audio/speech`` whose client reads as fast as it can. ``DownloadProcess`` starts the process
and asks it for progress; run as a module, this file is that process. It answers every line of its input with one JSON
line: the first one begins the downloads, the others ask how far they are.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from time import monotonic

import h11

from tts_worker.errors import EngineFault
from tts_worker.features.bench.texts import SENTENCES

_READ_BYTES = 65_536


@dataclass
class Download:
    """Progress of one download.

    Attributes:
        received_bytes: Audio received so far.
        first_byte_s: Seconds from the request to the first byte.
        ended: Whether the response is complete.
        error: Why the download failed, None if it did not.
    """

    received_bytes: int = 0
    first_byte_s: float | None = None
    ended: bool = False
    error: str | None = None


async def download(address: str, characters: int, seed: int, result: Download) -> None:
    """Read one long response to its end, or until the server refuses it (``Download.error``)."""
    host, _, port = address.rpartition(":")
    rng = random.Random(seed)
    text = ""
    while len(text) < characters:
        text += rng.choice(SENTENCES) + " "
    body = json.dumps({"input": text[:characters].rstrip(), "response_format": "pcm"}).encode()
    began_s = monotonic()
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        http = h11.Connection(h11.CLIENT)
        headers = [("Host", address), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        request = h11.Request(method="POST", target="/v1/audio/speech", headers=headers)
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(http.send(event) or b"")
        await writer.drain()
        async for message in _events(http, reader):
            if isinstance(message, h11.Response) and message.status_code != 200:
                result.error = f"the server answered a download with status {message.status_code}"
                return
            if isinstance(message, h11.Data):
                if result.first_byte_s is None:
                    result.first_byte_s = monotonic() - began_s
                result.received_bytes += len(message.data)
        result.ended = True
    finally:
        writer.close()


async def _events(http: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[object]:
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return
        else:
            yield event


class DownloadProcess:
    """Downloads from ``address`` (``host:port``) in a separate process while the context is open.

    Args:
        address: The server.
        count: Number of downloads.
        characters: Text length of each.
    """

    def __init__(self, address: str, count: int, characters: int) -> None:
        self._words = [address, str(count), str(characters)]
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> DownloadProcess:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, *self._words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        await self._read_line()  # the process has imported everything
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def begin(self) -> None:
        """Begin all downloads at once."""
        await self.progress()

    async def progress(self) -> list[Download]:
        """Return how far the downloads are.

        Raises:
            EngineFault: The server refused a download, or the process has ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        results = [Download(**result) for result in json.loads(await self._read_line())]
        for result in results:
            if result.error is not None:
                raise EngineFault(result.error)
        return results

    async def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise EngineFault("the process of the downloads has ended; see its message above")
        return line


async def _serve(address: str, count: int, characters: int) -> None:
    results = [Download() for _ in range(count)]
    tasks: Sequence[asyncio.Task[None]] = ()
    print("[]", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        tasks = tasks or [
            asyncio.create_task(download(address, characters, seed, result)) for seed, result in enumerate(results)
        ]
        for task, result in zip(tasks, results, strict=True):
            if task.done() and (error := task.exception()) is not None:
                result.error = f"a download failed: {error}"
        print(json.dumps([asdict(result) for result in results]), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
