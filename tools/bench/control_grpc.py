"""Control latency over the gRPC worker protocol: a server in a separate process, and clients that play the audio.

Every client has a session, speaks one utterance after another with ``Synthesize`` and sends commands with ``Control``,
as an orchestrator does. STOP and PAUSE are timed until the response has arrived and the last old sample is played,
whichever is later. Frames that arrive after the response to a STOP are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

import grpc

from tools.bench.control import Commander, ControlTimes
from tools.bench.stall_monitor import StallMonitor
from tts_worker.errors import EngineFault
from tts_worker.features.bench.stats import Figure, LoopLag, percentile, rounded_ms
from tts_worker.features.bench.texts import paragraph
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.types import BYTES_PER_SAMPLE, ControlName


@contextlib.asynccontextmanager
async def grpc_server_process(arguments: list[str]) -> AsyncIterator[str]:
    """Run ``tts-worker serve`` with gRPC on a free port in a separate process; yield ``host:port`` once it is ready.

    Raises:
        EngineFault: The server did not start.
    """
    words = ["serve", "--port", "0", "--set", "grpc.enabled=true", "--set", "grpc.port=0"]
    words += ["--set", "log_format=text", *arguments]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tts_worker", *words, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        address = ""
        while (line := (await process.stdout.readline()).decode().strip()) != "ready":
            if not line:
                raise EngineFault("the server did not start; see its message above")
            address = line.partition("grpc://")[2] or address
        yield address
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class _GrpcClient:
    """A client that plays, and times when the last sample of a stopped utterance is played."""

    def __init__(self, stub: Any, name: str, rng: random.Random, times: ControlTimes) -> None:
        self._stub = stub
        self._name = name
        self._rng = rng
        self._times = times
        self._playing_until_s = 0.0
        self._stopped_generation = 0
        self._is_paused = self._has_audio = False
        self._resume_sent_at_s: float | None = None
        self._commands: set[asyncio.Task[None]] = set()
        self.acknowledged_s: list[float] = []

    async def start(self) -> None:
        request = pb.StartSessionRequest(session_id=self._name, options={"sample_rate": "48000"})
        answer = await self._stub.StartSession(request)
        if not answer.success:
            raise EngineFault(f"the worker refused a session: {answer.message}")

    def command(self, command: ControlName, at_s: float) -> None:
        task = asyncio.ensure_future(self._control(command, at_s))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    async def _control(self, command: ControlName, at_s: float) -> None:
        if command is ControlName.RESUME:
            self._resume_sent_at_s = at_s
            self._is_paused = False
        request = pb.ControlRequest(session_id=self._name, command=command.name)
        answer = await self._stub.Control(request)
        now_s = perf_counter()
        self.acknowledged_s.append(now_s - at_s)
        if not answer.applied:
            return
        silence_s = max(now_s, self._playing_until_s) - at_s
        if command is ControlName.STOP:
            self._times.stop_s.append(silence_s)
            self._stopped_generation = answer.generation
            self._playing_until_s = now_s  # the client drops its buffer
            self._is_paused = False
        elif command is ControlName.PAUSE:
            self._times.pause_s.append(silence_s)
            self._is_paused = self._resume_sent_at_s is None

    async def listen(self) -> None:
        while True:
            self._resume_sent_at_s = None
            self._has_audio = False
            chunk = pb.TextChunk(session_id=self._name, text=paragraph(self._rng, 6), is_final=True)
            async for frame in self._stub.Synthesize(iter([chunk])):
                if frame.audio_data:
                    self._on_audio(frame, perf_counter())

    def _on_audio(self, frame: pb.AudioFrame, now_s: float) -> None:
        if frame.generation <= self._stopped_generation:
            self._times.frames_after_stop += 1
            return
        if self._resume_sent_at_s is not None:
            self._times.add_resume(now_s - self._resume_sent_at_s, self._has_audio)
            self._resume_sent_at_s = None
        self._times.frames_in_pause += self._is_paused
        self._has_audio = True
        seconds = len(frame.audio_data) / BYTES_PER_SAMPLE / frame.sample_rate
        self._playing_until_s = max(self._playing_until_s, now_s) + seconds


async def measure_control_grpc(address: str, sessions: int, seconds: float) -> dict[str, Figure]:
    """Measure ``sessions`` clients of the worker at ``address`` (``host:port``), over one channel."""
    times = ControlTimes()
    async with StallMonitor() as monitor, grpc.aio.insecure_channel(address) as channel, LoopLag() as lag:
        stub = tts_worker_pb2_grpc.TTSServiceStub(channel)
        clients = [_GrpcClient(stub, f"bench-{index}", random.Random(index), times) for index in range(sessions)]
        for client in clients:
            await client.start()
        listening = [asyncio.create_task(client.listen()) for client in clients]
        commander = Commander(sessions, 1, lambda index, command, at_s: clients[index].command(command, at_s))
        commander.start()
        await asyncio.sleep(seconds)
        await commander.stop()
        for task in listening:
            task.cancel()
        await asyncio.wait(listening)
    stalled_s = [stall.end_s - stall.begin_s for stall in monitor.stalls]
    acknowledged_s = [value for client in clients for value in client.acknowledged_s]
    return {
        **times.figures(),
        "answered_p50_ms": rounded_ms(percentile(acknowledged_s, 50)),
        "answered_p99_ms": rounded_ms(percentile(acknowledged_s, 99)),
        "client_loop_lag_p99_ms": rounded_ms(percentile(lag.lags_s, 99)),
        "machine_stalls": len(stalled_s),
        "machine_stall_max_ms": rounded_ms(max(stalled_s, default=None)),
    }
