"""A burst of calls over gRPC: calls start in order of arrival, however long the texts before theirs are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from tests.integration.grpc_worker import GrpcWorker, running_grpc_worker
from tts_worker.engine.scheduler import Plan
from tts_worker.engine.tone import ToneEngine
from tts_worker.features.grpc.service import TTSService
from tts_worker.features.grpc.synthesize import SynthesizeCall
from tts_worker.protocol import tts_worker_pb2 as pb

CALLS = 60
TEXT = "All of us call at once and have a lot to say before any other one is heard. "
MAX_DISPLACEMENT = 4
"""The frames of a step leave together, and the client's calls are tasks that may be resumed in another order."""


class Recorder:
    """Records the order in which requests are complete and in which first frames leave, at the server.

    The engine begins when all requests have arrived, as if its first step took that long.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrived: list[str] = []
        self.started: list[str] = []
        have_all_arrived = threading.Event()
        submit = ToneEngine.submit
        write = TTSService.write_text
        frames = SynthesizeCall.frames

        def record_arrival(service: TTSService, chunk: pb.TextChunk, session_id: str, call: SynthesizeCall) -> None:
            self.arrived.append(session_id)
            write(service, chunk, session_id, call)
            if len(self.arrived) == CALLS:
                have_all_arrived.set()

        async def record_start(call: SynthesizeCall) -> AsyncIterator[pb.AudioFrame]:
            async for frame in frames(call):
                if frame.audio_data and frame.session_id not in self.started:
                    self.started.append(frame.session_id)
                yield frame

        def submit_when_all_have_arrived(engine: ToneEngine, plan: Plan) -> None:
            assert have_all_arrived.wait(30.0)
            submit(engine, plan)

        monkeypatch.setattr(ToneEngine, "submit", submit_when_all_have_arrived)
        monkeypatch.setattr(TTSService, "write_text", record_arrival)
        monkeypatch.setattr(SynthesizeCall, "frames", record_start)


async def call(server: GrpcWorker, name: str) -> None:
    assert (await server.start(name)).success
    sentences = 1 if int(name.partition("-")[2]) % 3 else 30
    chunk = pb.TextChunk(session_id=name, text=sentences * TEXT, is_final=True)
    async for frame in server.stub.Synthesize(iter([chunk])):
        if frame.audio_data:
            return


def displacements(arrived: list[str], started: list[str]) -> list[int]:
    place = {name: index for index, name in enumerate(started)}
    return [place[name] - index for index, name in enumerate(arrived)]


async def test_burst_is_served_in_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    async with running_grpc_worker(session={"max_sessions": CALLS}) as server:
        await asyncio.gather(*(call(server, f"call-{number}") for number in range(CALLS)))
    assert len(recorder.arrived) == len(recorder.started) == CALLS
    assert max(map(abs, displacements(recorder.arrived, recorder.started))) <= MAX_DISPLACEMENT
