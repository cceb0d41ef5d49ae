"""Readiness and enrollment while a second engine is loading, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import httpx
import pytest
import uvicorn
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.conftest import until
from tests.fakes.enroller import EnrollingToneEngine, ToneEnroller
from tests.fakes.recordings import SAID, speech, wav
from tests.fakes.scrape import scraped
from tests.integration.grpc_worker import dial
from tests.integration.test_models import NamedTone
from tts_worker.engine.loop import EngineLoop
from tts_worker.errors import ConfigError, InvalidRequest, NotReady
from tts_worker.features.compat import cosyvoice_pb2 as cv
from tts_worker.features.compat import cosyvoice_pb2_grpc
from tts_worker.grpc_serving import running_grpc
from tts_worker.serving import create_application
from tts_worker.settings import EngineSettings, load_settings
from tts_worker.types import ComputationCounts, EngineReport
from tts_worker.voices.enrollment import Enrollment
from tts_worker.worker import Worker


class TwoEngines(Worker):
    """Engine "plain" loads at once; "enroller", which can enroll voices, loads when ``go_on`` is set."""

    def __init__(self, *, has_enroller: bool = True, broken: bool = False, **models: object) -> None:
        self.has_enroller = has_enroller
        self.broken = broken
        self.go_on = asyncio.Event()
        grpc = {"enabled": True, "port": 0, "cosyvoice_port": 0}
        engines = {"plain": {"kind": "tone"}, "enroller": {"kind": "tone"}}
        super().__init__(load_settings(flags={"engines": engines, "grpc": grpc, "models": models}))

    def can_enroll(self, name: str, settings: EngineSettings) -> bool:
        return self.has_enroller and name == "enroller"

    async def start(self) -> None:
        self.hub.voices.add_unloaded("plain", "tone", NamedTone("plain", ("en",)).info)
        await self.models.start()

    async def _load(self, name: str) -> None:
        if name == "plain":
            engine = EngineLoop(lambda: NamedTone("plain", ("en",)), name=name)
            await engine.start()
            self.hub.add_engine(name, "tone", engine)
        else:
            await self.go_on.wait()
            if self.broken:
                raise ConfigError("a file is missing")
            enroller = ToneEnroller()
            engine = EngineLoop(lambda: EnrollingToneEngine(enroller), name=name)
            await engine.start()
            self.hub.add_engine(name, "tone", engine, Enrollment(enroller))
        self.engines[name] = engine


@asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[httpx.AsyncClient]:
    """Serve ``worker`` on a real port before it starts."""
    application = create_application(worker)
    config = uvicorn.Config(application, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=30)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    starting = asyncio.create_task(worker.start())
    try:
        await until(lambda: "plain" in worker.engines or starting.done())
        await server.startup()
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60) as client:
            yield client
    finally:
        await server.shutdown()
        starting.cancel()
        await asyncio.wait({starting})
        await worker.stop()


async def test_ready_is_503_until_every_engine_is_warm() -> None:
    worker = TwoEngines()
    async with serving(worker) as client:
        for _ in range(5):
            answer = await client.get("/health/ready")
            assert (answer.status_code, answer.json()) == (503, {"status": "not_ready"})
        spoken = await client.post("/v1/audio/speech", json={"model": "plain", "voice": "plain-one", "input": "Hi."})
        assert spoken.status_code == 200, "an engine that is warm already speaks"
        worker.go_on.set()
        await until(lambda: worker.hub.ready)
        assert (await client.get("/health/ready")).status_code == 200


class DegradedTone(NamedTone):
    """A tone engine that reports a refused capture."""

    def warm_up(self) -> None:
        self.info = replace(self.info, degraded=("decode: 1 of 4 CUDA graphs could not be captured",))

    def report(self) -> EngineReport:
        return EngineReport((ComputationCounts("decode", captured=3, refused=1, replays=7, eager_calls=2),), "decode")


class DegradedWorker(TwoEngines):
    async def _load(self, name: str) -> None:
        engine = EngineLoop(lambda: DegradedTone(name, ("en",)), name=name)
        await engine.start()
        self.hub.add_engine(name, "tone", engine)
        self.engines[name] = engine
        self.metrics.watch_engine(name, engine.stats)


async def test_degraded_engine_is_ready_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    worker = DegradedWorker(preload=["plain"], on_demand=True)
    reason = "decode: 1 of 4 CUDA graphs could not be captured"
    async with serving(worker) as client:
        await until(lambda: worker.hub.ready)
        answer = await client.get("/health/ready")
        assert (answer.status_code, answer.json()) == (200, {"status": "ready", "degraded": {"plain": [reason]}})
        await client.post("/v1/audio/speech", json={"model": "plain", "voice": "plain-one", "input": "Hi."})
        metrics = (await client.get("/metrics")).text
    assert scraped(metrics, "tts_engine_degraded", engine="plain") == 1
    figures = {"graph": 7, "eager": 2}
    assert figures == {
        mode: scraped(metrics, "tts_engine_computations_total", computation="decode", mode=mode) for mode in figures
    }
    graphs = {"captured": 3, "refused": 1}
    assert graphs == {
        state: scraped(metrics, "tts_engine_graphs", computation="decode", state=state) for state in graphs
    }
    assert scraped(metrics, "tts_engine_slowest_step_seconds", engine="plain", cause="decode") > 0
    assert f"engine plain is degraded: {reason}" in caplog.messages


async def test_grpc_health_waits_for_every_engine() -> None:
    worker = TwoEngines()
    async with serving(worker), running_grpc(worker) as member, dial(member.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        worker.go_on.set()
        while (await health.Check(health_pb2.HealthCheckRequest())).status != health_pb2.HealthCheckResponse.SERVING:
            pass


async def test_failed_preload_does_not_block_readiness() -> None:
    worker = TwoEngines(broken=True, preload=["plain", "enroller"])
    async with serving(worker):
        assert not worker.hub.ready
        worker.go_on.set()
        await until(lambda: worker.hub.ready)


async def test_on_demand_engine_does_not_block_readiness() -> None:
    worker = TwoEngines(preload=["plain"], on_demand=True)
    async with serving(worker) as client:
        await until(lambda: worker.hub.ready)
        assert (await client.get("/health/ready")).status_code == 200
        worker.go_on.set()
        name = await worker.hub.enroll(wav(speech(2.0)), SAID)
        assert worker.hub.voices.get(name).engine == "enroller", "enrollment loads the engine that it needs"


async def test_enrollment_routes_answer_503_while_the_engine_loads() -> None:
    worker = TwoEngines()
    recording = wav(speech(2.0))
    async with serving(worker) as client:
        for path, field, fields in (
            ("/inference_zero_shot", "prompt_wav", {"tts_text": "Hi.", "prompt_text": SAID}),
            ("/inference_cross_lingual", "prompt_wav", {"tts_text": "Hi."}),
            ("/zero_shot_tts", "reference_audio", {"text": "Hi.", "reference_text": SAID}),
            ("/v1/model/cosyvoice/cross_lingual", "reference_audio", {"text": "Hi."}),
        ):
            answer = await client.post(path, data=fields, files={field: ("a.wav", recording)})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready"), path
            assert answer.headers["Retry-After"]
        worker.go_on.set()
        await until(lambda: worker.hub.ready)
        answer = await client.post(path, data=fields, files={field: ("a.wav", recording)})
        assert answer.status_code == 200


async def test_grpc_enrollment_is_unavailable_while_the_engine_loads() -> None:
    worker = TwoEngines()
    async with (
        serving(worker),
        running_grpc(worker) as member,
        dial(member.other_addresses["cosyvoice-grpc"]) as channel,
    ):
        pcm = (speech(2.0, 16_000).samples * 32_767).astype("<i2").tobytes()
        prompt = cv.zeroshotRequest(tts_text="Hi.", prompt_text=SAID, prompt_audio=pcm)
        request = cv.Request(zero_shot_request=prompt)
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            async for _ in cosyvoice_pb2_grpc.CosyVoiceStub(channel).Inference(request):
                pass
        assert exc_info.value.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(exc_info.value.trailing_metadata() or ())["tts-retryable"] == "true"


async def test_enrollment_without_a_capable_engine_is_400() -> None:
    worker = TwoEngines(has_enroller=False)
    async with serving(worker) as client:
        data = {"tts_text": "Hi.", "prompt_text": SAID}
        answer = await client.post("/inference_zero_shot", data=data, files={"prompt_wav": ("a.wav", wav(speech(2.0)))})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


async def test_enrollment_with_an_incapable_engine_is_rejected() -> None:
    worker = TwoEngines()
    async with serving(worker):
        with pytest.raises(InvalidRequest):
            await worker.hub.enroll(wav(speech(2.0)), SAID, engine="plain")
        with pytest.raises(NotReady):
            await worker.hub.enroll(wav(speech(2.0)), SAID, engine="enroller")
