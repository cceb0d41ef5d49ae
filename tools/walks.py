"""Print the files that a text delta, a STOP and an uploaded voice pass through, in order, as a profiler sees them.

python -m tools.walks [--engine tone] [--bundle DIR] [--json]

A worker serves in this process, a client asks over its sockets, and the profiler notes each file of the package when a
function of it is first called: from the message of the client to the first audio, to ``stopped``, to the answer with
the voice. What else the worker does at that time is noted, too; so each walk is repeated, and the files of every
repetition are printed. ARCHITECTURE.md explains those that matter; the others are called on the way, such as metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType

import httpx
from websockets.asyncio.client import ClientConnection, connect

import tts_worker
from tts_worker.serving import serve
from tts_worker.settings import load_settings

_PACKAGE = str(Path(tts_worker.__file__).parent) + "/"
_TEXT = "Hello there, my friend, this goes on for a while. "
_REPETITIONS = 4
_IDLE_S = 1.5
"""More than the time between two looks of whatever looks regularly."""


class Recorder:
    """Notes the files of the package in which functions are called, while ``entered`` is a list."""

    def __init__(self) -> None:
        self._entered: dict[str, None] | None = None
        threading.setprofile(self._on_event)  # of threads that start later
        sys.setprofile(self._on_event)

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        if self._entered is not None and event == "call" and (file := frame.f_code.co_filename).startswith(_PACKAGE):
            self._entered[file.removeprefix(_PACKAGE)] = None

    @contextmanager
    def recording(self) -> Iterator[list[str]]:
        """Yield a list that has the files, in order of their first call, when the block has ended."""
        files: list[str] = []
        self._entered = {}
        try:
            yield files
        finally:
            files += self._entered
            self._entered = None


@asynccontextmanager
async def _serving(engine: dict[str, object]) -> AsyncIterator[str]:
    """Run a server with one engine on a free port; yield its ``host:port``."""
    ready = asyncio.Event()
    urls: list[str] = []
    settings = load_settings(flags={"engines": {"engine": engine}, "server": {"port": 0}})
    task = asyncio.create_task(serve(settings, urls.append, ready.set))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield urls[0].removeprefix("http://")
    finally:
        waiting.cancel()
        task.cancel()
        await asyncio.wait({task})


async def _until(socket: ClientConnection, kind: str | None) -> None:
    """Read up to a message of this type; None: up to the first audio."""
    async for message in socket:
        if isinstance(message, bytes):
            if kind is None:
                return
        elif json.loads(message)["type"] == kind:
            return


def _common(walks: list[list[str]]) -> list[str]:
    """Return the files that are in all of ``walks``, in the order of the first."""
    return [file for file in walks[0] if all(file in walk for walk in walks)]


async def walk_speech(recorder: Recorder, engine: str) -> dict[str, list[str]]:
    """Return the files of a text delta and of a STOP, of a session that has spoken before."""
    async with _serving({"kind": engine}) as address, connect(f"ws://{address}/v1/stream") as socket:
        await socket.send(json.dumps({"type": "text", "text": _TEXT, "end": True}))
        await _until(socket, "done")
        deltas, stops = [], []
        for _ in range(_REPETITIONS):
            with recorder.recording() as delta:
                await socket.send(json.dumps({"type": "text", "text": _TEXT * 4}))
                await _until(socket, None)
            with recorder.recording() as stop:
                await socket.send(json.dumps({"type": "stop"}))
                await _until(socket, "stopped")
            deltas.append(delta)
            stops.append(stop)
    return {"text delta": _common(deltas), "STOP": _common(stops)}


async def walk_upload(recorder: Recorder, bundle: Path, recording: bytes) -> dict[str, list[str]]:
    """Return the files of ``POST /v1/voices`` with a recording, which the model at ``bundle`` enrolls and stores.

    And those of a worker without a request, which are in the walk, too, if the machine is busy and it takes long.
    """
    engine = {"kind": "cosyvoice", "bundle": str(bundle), "device": "cpu", "threads": 1, "memory_gb": 0.1}
    async with _serving(engine) as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=120) as http:
        fields = {"name": "walker", "consent": "true", "transcript": "What is said in it."}
        uploads = []
        for _ in range(_REPETITIONS):
            with recorder.recording() as upload:
                answer = await http.post("/v1/voices", data=fields, files={"audio": ("walker.wav", recording)})
            answer.raise_for_status()
            (await http.delete("/v1/voices/walker")).raise_for_status()
            uploads.append(upload)
        with recorder.recording() as idle:
            await asyncio.sleep(_IDLE_S)
    return {"uploaded voice": _common(uploads), "no request": idle}


def main() -> None:
    """Parse the command line and print the walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="hibari", help="engine of the text delta and the STOP (default hibari)")
    parser.add_argument("--bundle", type=Path, help="a CosyVoice directory that enrolls voices, for the uploaded one")
    parser.add_argument("--recording", type=Path, help="the recording to upload, 3 to 30 s of speech")
    parser.add_argument("--json", action="store_true", help="print walks and files as JSON")
    words = parser.parse_args()
    if (words.bundle is None) is not (words.recording is None):
        parser.error("--bundle and --recording belong together")
    recorder = Recorder()
    walks = asyncio.run(walk_speech(recorder, words.engine))
    if words.bundle is not None:
        walks |= asyncio.run(walk_upload(recorder, words.bundle, words.recording.read_bytes()))
    if words.json:
        print(json.dumps(walks))
        return
    for name, files in walks.items():
        print(f"{name}: {len(files)} files", *files, sep="\n  ")


if __name__ == "__main__":
    main()
