"""Models over gRPC: loaded for sessions, unloaded on request, never while sessions use them."""

from __future__ import annotations

import asyncio

from tests.integration.grpc_worker import TEXT, GrpcWorker, dial, say
from tests.integration.test_models import ManyWorker
from tts_worker.grpc_serving import running_grpc
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.settings import GrpcSettings


async def test_loads_and_unloads_race_with_sessions() -> None:
    worker = ManyWorker(load_wait_s=10)
    worker.settings = worker.settings.model_copy(update={"grpc": GrpcSettings(enabled=True, port=0)})
    await worker.start()
    try:
        async with running_grpc(worker) as member, dial(member.address) as channel:
            server = GrpcWorker(worker, member, tts_worker_pb2_grpc.TTSServiceStub(channel), channel)

            async def unload(model: str) -> pb.UnloadModelResponse:
                return await server.stub.UnloadModel(pb.UnloadModelRequest(model_id=model))

            assert (await server.start(model="b")).voice == "b-one", "the session must load its model"
            response = await unload("b")
            assert (response.success, response.error.code) == (False, "illegal_command"), "a model in use must stay"
            assert (await say(server, TEXT)).frames
            await server.stub.EndSession(pb.EndSessionRequest(session_id="s"))
            assert (await unload("b")).unloaded
            assert not (await unload("a")).unloaded, "the default must stay"
            answers = await asyncio.gather(
                *(server.start(f"r{i}", model="b") for i in range(12)),
                *(unload("b") for _ in range(6)),
                *(server.stub.LoadModel(pb.LoadModelRequest(model_id="b")) for _ in range(3)),
            )
            for index, started in enumerate(answers[:12]):
                assert started.success or started.error.retryable, started
                if started.success:
                    assert (await say(server, "Ok.", session=f"r{index}")).frames
            assert any(started.success for started in answers[:12])
    finally:
        await worker.stop()
