"""Shared by the gRPC tests: a worker on a free loopback port and a client that records frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from tests.conftest import tone_settings
from tts_worker.grpc_serving import GrpcServers, running_grpc
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.worker import Worker, running_worker

TEXT = "Hello there, my friend. How are you today?"
LONG = "This is a rather long story, and it goes on and on. " * 8
SAMPLES_PER_CHAR_48K = 60 * 48
"""Samples that the tone engine synthesizes per character, at 48 kHz."""


@dataclass
class GrpcWorker:
    worker: Worker
    member: GrpcServers
    stub: Any
    channel: grpc.aio.Channel

    async def start(self, session: str = "s", model: str = "", **options: str) -> pb.StartSessionResponse:
        request = pb.StartSessionRequest(session_id=session, model_id=model, options=options)
        return await self.stub.StartSession(request)

    async def control(self, command: int, session: str = "s", **extra: Any) -> pb.ControlResponse:
        return await self.stub.Control(pb.ControlRequest(session_id=session, command=command, **extra))

    def speak(self, *texts: str, session: str = "s", close: bool = True) -> SynthesizeStream:
        call = SynthesizeStream(self.stub.Synthesize(), session)
        call.script = [pb.TextChunk(session_id=session, text=text) for text in texts]
        call.close = close
        return call


@dataclass
class SynthesizeStream:
    """A ``Synthesize`` call that records its frames."""

    rpc: Any
    session: str
    script: list[pb.TextChunk] = field(default_factory=list)
    close: bool = True
    frames: list[pb.AudioFrame] = field(default_factory=list)

    async def begin(self) -> SynthesizeStream:
        for chunk in self.script:
            await self.rpc.write(chunk)
        if self.close:
            await self.rpc.done_writing()
        return self

    async def next(self) -> pb.AudioFrame | None:
        frame = await self.rpc.read()
        if frame is grpc.aio.EOF:
            return None
        self.frames.append(frame)
        return frame

    async def read_frames(self, frames: int) -> None:
        while len(self.frames) < frames:
            assert await self.next() is not None, "the call ended"

    async def read_all(self, pause_s: float = 0.0) -> None:
        while await self.next() is not None:
            if pause_s:
                await asyncio.sleep(pause_s)

    async def end(self) -> pb.AudioFrame:
        """Read to the end and return the final frame, after checking that it is the only one and the last."""
        await self.read_all()
        assert await self.rpc.code() is grpc.StatusCode.OK
        finals = [frame for frame in self.frames if frame.is_final]
        assert finals == self.frames[-1:], "expected exactly one final frame, at the end"
        assert [frame.sequence_number for frame in self.frames] == list(range(1, len(self.frames) + 1))
        return finals[0]

    @property
    def pcm(self) -> bytes:
        """The PCM of all frames without padding."""
        return b"".join(frame.audio_data[: 2 * frame.speech_samples] for frame in self.frames)


async def say(server: GrpcWorker, *texts: str, session: str = "s") -> SynthesizeStream:
    """Synthesize a whole utterance."""
    call = await server.speak(*texts, session=session).begin()
    await call.end()
    return call


@asynccontextmanager
async def running_grpc_worker(**sections: Any) -> AsyncIterator[GrpcWorker]:
    """A worker with the tone engine; keyword arguments override sections of its settings."""
    sections["grpc"] = {"enabled": True, "port": 0, **sections.get("grpc", {})}
    async with (
        running_worker(tone_settings(**sections)) as worker,
        running_grpc(worker) as member,
        dial(member.address) as channel,
    ):
        yield GrpcWorker(worker, member, tts_worker_pb2_grpc.TTSServiceStub(channel), channel)


@asynccontextmanager
async def dial(address: str, options: Iterable[tuple[str, Any]] = ()) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address, options=[*options]) as channel:
        yield channel
