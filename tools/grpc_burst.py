"""Order of a burst: calls that begin at once over gRPC, and who gets the first audio when.

    python -m tools.record grpc-burst-cpu -- python -m tools.grpc_burst --baseline OLD/src

Every call sends a whole text; the texts are sent one after another in the same millisecond, over one channel. The
displacement of a call is the difference between its place in that order and its place among the first audio frames
that arrive. A baseline, the server of another version, is measured in turn with this one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

import grpc

from tts_worker.features.bench.stats import percentile, rounded_ms
from tts_worker.features.bench.texts import SENTENCES
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc


@contextlib.asynccontextmanager
async def serving(source: str | None, engine: str, streams: int) -> AsyncIterator[str]:
    """Run a server in a separate process; yield its gRPC address."""
    settings = ["grpc.enabled=true", "grpc.port=0", f"session.max_sessions={streams}", "log_level=warning"]
    kind = "hibari" if engine == "cpu" else "tone"
    settings += [f"engines.{engine}.kind={kind}", f"engines.{engine}.max_utterances={streams}"]
    words = [word for setting in settings for word in ("--set", setting)]
    environment = dict(os.environ) if source is None else os.environ | {"PYTHONPATH": source}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tts_worker", "serve", "--port", "0", *words),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None
    try:
        address = ""
        while (line := (await process.stdout.readline()).decode().strip()) != "ready":
            if not line:
                raise SystemExit("the server did not start; see its message above")
            address = line.partition("grpc://")[2] or address
        yield address
    finally:
        process.kill()
        await process.wait()


async def read_frames(call: Any, first_audio: asyncio.Future[float]) -> None:
    """Read a call to its end, as unread frames would fill the window that all calls share; note the first audio."""
    async for frame in call:
        if frame.audio_data and not first_audio.done():
            first_audio.set_result(perf_counter())
    if not first_audio.done():
        raise SystemExit("a call ended without audio")


async def measure_burst(address: str, streams: int) -> tuple[list[float], list[int]]:
    """Return the first-audio latency and the displacement of every call."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = tts_worker_pb2_grpc.TTSServiceStub(channel)
        calls = []
        for number in range(streams):
            await stub.StartSession(pb.StartSessionRequest(session_id=f"burst-{number}"))
            calls.append(stub.Synthesize())
        first_audio = [asyncio.get_running_loop().create_future() for _ in calls]
        reading = [asyncio.create_task(read_frames(*pair)) for pair in zip(calls, first_audio, strict=True)]
        sent_s = []
        for number, call in enumerate(calls):
            sent_s.append(perf_counter())
            text = SENTENCES[number % len(SENTENCES)]
            await call.write(pb.TextChunk(session_id=f"burst-{number}", text=text, is_final=True))
        at_s = await asyncio.gather(*first_audio)
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
    order = sorted(range(streams), key=lambda number: at_s[number])
    displacements = [place - number for place, number in enumerate(order)]
    return [at - sent for at, sent in zip(at_s, sent_s, strict=True)], displacements


def figures(bursts: list[tuple[list[float], list[int]]]) -> dict[str, Any]:
    latencies_s = [latency_s for burst_s, _ in bursts for latency_s in burst_s]
    return {
        "first_audio_p50_ms": rounded_ms(percentile(latencies_s, 50)),
        "first_audio_p95_ms": rounded_ms(percentile(latencies_s, 95)),
        "first_audio_max_ms": rounded_ms(max(latencies_s)),
        "largest_displacements": [max(map(abs, places)) for _, places in bursts],
        "displacements_p95": [percentile([abs(place) for place in places], 95) for _, places in bursts],
    }


async def compare(baseline: str | None, engine: str, streams: int, rounds: int) -> dict[str, Any]:
    results: dict[str, list[tuple[list[float], list[int]]]] = {}
    versions = {"this": None} if baseline is None else {"baseline": baseline, "this": None}
    for _ in range(rounds):
        for version, source in versions.items():
            async with serving(source, engine, streams) as address:
                await measure_burst(address, 1)  # what a first call loads
                results.setdefault(version, []).append(await measure_burst(address, streams))
    return {version: figures(bursts) for version, bursts in results.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("cpu", "tone"), default="cpu")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--baseline", metavar="DIR", help="source folder of another version, measured in turn")
    parser.add_argument("--json", action="store_true", help="accepted for tools/record.py; the output is always JSON")
    args = parser.parse_args()
    result = asyncio.run(compare(args.baseline, args.engine, args.streams, args.rounds))
    kind = "hibari" if args.engine == "cpu" else "tone"
    print(json.dumps({"engine": kind, "streams": args.streams, "rounds": args.rounds} | result))


if __name__ == "__main__":
    main()
