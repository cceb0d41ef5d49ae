"""CosyVoice's own gRPC service, called like its published client does: with a blocking stub and the whole text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import tone_settings, until
from tests.fakes.enroller import EnrollingWorker
from tests.integration.grpc_worker import dial
from tts_worker.features.compat import cosyvoice_pb2 as pb
from tts_worker.features.compat import cosyvoice_pb2_grpc
from tts_worker.grpc_serving import running_grpc
from tts_worker.protocol import tts_worker_pb2, tts_worker_pb2_grpc
from tts_worker.serving import serve
from tts_worker.worker import Worker, running_worker

TEXT = "Hello there, my friend."
SECOND = np.zeros(16_000, "<i2").tobytes()
LOUD = np.full(32_000, 9_000, "<i2").tobytes()


@asynccontextmanager
async def cosyvoice(**sections: Any) -> AsyncIterator[tuple[Worker, str]]:
    grpc_section = {"enabled": True, "port": 0, "cosyvoice_port": 0}
    settings = tone_settings(grpc=grpc_section, voices={"aliases": {"中文女": "tone-high"}}, **sections)
    async with running_worker(settings) as worker, running_grpc(worker) as member:
        yield worker, member.other_addresses["cosyvoice-grpc"]


def published_client(address: str, request: pb.Request) -> bytes:
    with grpc.insecure_channel(address) as channel:
        responses = cosyvoice_pb2_grpc.CosyVoiceStub(channel).Inference(request)
        return b"".join(response.tts_audio for response in responses)


async def ask(address: str, request: pb.Request) -> bytes:
    return await asyncio.to_thread(published_client, address, request)


def sft(text: str = TEXT, voice: str = "中文女") -> pb.Request:
    return pb.Request(sft_request=pb.sftRequest(spk_id=voice, tts_text=text))


def zero_shot(audio: bytes, transcript: str = "") -> pb.Request:
    request = pb.zeroshotRequest(tts_text=TEXT, prompt_text=transcript, prompt_audio=audio)
    return pb.Request(zero_shot_request=request)


async def test_the_published_client_gets_audio() -> None:
    async with cosyvoice() as (worker, address):
        named = await ask(address, sft())
        assert len(named) > 48_000, "expected more than 1 s"
        plain = await ask(address, sft(voice=""))
        assert plain != named, "an empty spk_id must select the default voice"
        instructed = pb.Request(
            instruct_request=pb.instructRequest(tts_text=TEXT, spk_id="中文女", instruct_text="sad")
        )
        with pytest.raises(grpc.RpcError, match="instruct"):
            await ask(address, instructed)  # never ignored silently
        await until(lambda: worker.hub.live_sessions == 0)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pb.Request(), "INVALID_ARGUMENT"),
        (sft(voice="unknown"), "NOT_FOUND"),
        (sft(text=""), "INVALID_ARGUMENT"),
        (sft(text="x" * 20_001), "INVALID_ARGUMENT"),
        (zero_shot(b""), "INVALID_ARGUMENT"),
        (zero_shot(b"odd"), "INVALID_ARGUMENT"),
        (zero_shot(SECOND * 31), "INVALID_ARGUMENT"),
        (zero_shot(SECOND), "INVALID_ARGUMENT"),  # no engine here enrolls voices
    ],
)
async def test_invalid_requests_are_a_status(request_: pb.Request, code: str) -> None:
    async with cosyvoice(server={"max_request_bytes": 4_000_000}) as (worker, address):
        with pytest.raises(grpc.RpcError) as refusal:
            await ask(address, request_)
        assert refusal.value.code() is grpc.StatusCode[code]  # type: ignore[attr-defined]
        await until(lambda: worker.hub.live_sessions == 0)


async def test_huge_uploads_are_rejected_before_any_work() -> None:
    async with cosyvoice() as (_, address):
        huge = pb.Request(zero_shot_request=pb.zeroshotRequest(tts_text="x", prompt_audio=b"\0" * 3_000_000))
        with pytest.raises(grpc.RpcError) as refusal:
            await ask(address, huge)
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]


async def test_cancelling_frees_the_slot_at_once() -> None:
    async with cosyvoice() as (worker, address), dial(address) as channel:
        call = cosyvoice_pb2_grpc.CosyVoiceStub(channel).Inference(sft(TEXT * 200))
        assert (await call.read()).tts_audio
        assert worker.hub.live_sessions == 1
        call.cancel()
        await until(lambda: worker.hub.live_sessions == 0)


async def test_serve_tells_the_address() -> None:
    grpc_section = {"enabled": True, "port": 0, "cosyvoice_port": 0}
    addresses: list[str] = []
    ready = asyncio.Event()
    settings = tone_settings(server={"port": 0}, grpc=grpc_section)
    serving = asyncio.create_task(serve(settings, addresses.append, ready.set))
    try:
        await ready.wait()
        assert [address.partition("://")[0] for address in addresses] == ["http", "grpc", "grpc"]
        assert len(await ask(addresses[-1].removeprefix("grpc://"), sft(voice="tone"))) > 48_000
    finally:
        serving.cancel()
        await asyncio.wait({serving})


async def test_a_recording_is_enrolled_once() -> None:
    worker = EnrollingWorker(grpc={"enabled": True, "port": 0, "cosyvoice_port": 0})
    async with running_grpc(worker) as member:
        address = member.other_addresses["cosyvoice-grpc"]
        await worker.start()
        try:
            low = await ask(address, zero_shot(LOUD, "希望"))
            assert await ask(address, zero_shot(LOUD, "希望")) == low
            async with dial(member.address) as channel:
                worker_protocol = tts_worker_pb2_grpc.TTSServiceStub(channel)
                response = await worker_protocol.GetCapabilities(tts_worker_pb2.GetCapabilitiesRequest())
            assert response.capabilities.zero_shot
            cross = pb.crosslingualRequest(tts_text=TEXT, prompt_audio=LOUD)
            assert await ask(address, pb.Request(cross_lingual_request=cross)) == low
            assert worker.enroller.transcripts == ["希望", ""], "each recording must be enrolled once"
            instructed = pb.instructRequest(tts_text=TEXT, instruct_text="low")
            assert await ask(address, pb.Request(instruct_request=instructed)) == low
            assert await ask(address, sft(f"low<|endofprompt|>{TEXT}", "tone")) == low
            with pytest.raises(grpc.RpcError) as refusal:
                await ask(address, zero_shot(LOUD, "x" * 10_000))
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
        finally:
            await worker.stop()
