"""Use a fleet of workers as an orchestrator does: ``python examples/orchestrator.py``.

Needs ``pip install ./packages/tts-worker-client ".[fleet]"``. Starts Redis and two workers on this machine, then uses
them in both ways: the TTS worker protocol over gRPC (sessions, 48 kHz frames, barge-in with PAUSE and STOP), and this
package's own client, which selects a worker and fails over to another one.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

import tts_worker
from tts_worker.client import SessionOptions
from tts_worker.client.registry.directory import WorkerDirectory
from tts_worker.client.registry.store import RedisStore
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.types import Ended, PcmFrame

REPLY = "Of course. The museum opens at nine, but the garden behind it is free and open all day long."
ENGINE = sys.argv[1] if len(sys.argv) > 1 else "cpu"


async def main() -> None:
    async with fleet() as redis:
        await talk_to_one_worker(await least_loaded(redis))
        await use_the_client(redis)


@asynccontextmanager
async def fleet() -> AsyncIterator[str]:
    """Run ``tts-worker up`` as a process; yields the URL of its Redis."""
    command = [sys.executable, "-m", "tts_worker", "up", "--port", "0", "--engine", ENGINE]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = ""
        while not line.startswith("up: "):
            line = (await process.stdout.readline()).decode()
            if not line:
                raise SystemExit("the fleet did not start")
            print("  ", line.strip())
        yield line.split()[-1]
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        print("the fleet has drained" if await process.wait() == 0 else "the fleet has failed")


async def least_loaded(redis: str) -> str:
    """Read the registry as a router does; return the address of the least loaded worker."""
    directory = WorkerDirectory(RedisStore(redis))
    workers = await directory.workers()
    await directory.aclose()
    print(f"registered: {sorted(worker.entry.name for worker in workers)}")
    return min(workers, key=lambda worker: worker.entry.load).address


async def talk_to_one_worker(address: str) -> None:
    """One session with a complete turn and an interrupted one."""
    async with grpc.aio.insecure_channel(address) as channel:
        worker = tts_worker_pb2_grpc.TTSServiceStub(channel)
        await worker.StartSession(pb.StartSessionRequest(session_id="caller-1"))

        frames = [frame async for frame in worker.Synthesize(chunks("Of course. One moment, please."))]
        seconds = sum(frame.speech_samples for frame in frames) / 48_000
        print(f"a turn: {len(frames)} frames of {len(frames[0].audio_data)} bytes, {seconds:.1f} s of speech")

        call = worker.Synthesize(chunks(REPLY))
        frame_count = 0
        async for frame in call:
            frame_count += 1
            if frame_count == 60:  # after 1.2 s the user begins to speak
                await worker.Control(pb.ControlRequest(session_id="caller-1", command=pb.PAUSE))
                answer = await worker.Control(
                    pb.ControlRequest(session_id="caller-1", command=pb.STOP, played_ms=1_150, reason="barge_in")
                )
                print(f'interrupted: spoken:    "{answer.spoken_text}"')
                print(f'             remaining: "{answer.remaining_text}"')
            if frame.is_final:
                break
        await worker.EndSession(pb.EndSessionRequest(session_id="caller-1"))


async def chunks(text: str) -> AsyncIterator[pb.TextChunk]:
    """Stream text word by word, as a language model does."""
    for word in text.split(" "):
        yield pb.TextChunk(session_id="caller-1", text=f"{word} ")


async def use_the_client(redis: str) -> None:
    """The same with the Python client, which selects the worker."""
    unpaced = SessionOptions(realtime=False)  # an agent keeps the default
    async with tts_worker.connect(redis) as client, client.session(unpaced) as session:
        session.speak(REPLY)
        session.end_text()
        samples = 0
        async for item in session:
            if isinstance(item, PcmFrame):
                samples += item.samples
            elif isinstance(item, Ended):
                print(f"through the fleet: {samples / session.sample_rate_hz:.1f} s of speech, {item.outcome.value}")
                break


if __name__ == "__main__":
    asyncio.run(main())
