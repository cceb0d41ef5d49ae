"""The transports on which the behaviors run. A new transport is one line in ``TRANSPORTS``.

A transport is an asynchronous context manager: it takes a ``Setup``, runs a worker with it and yields a connected
``Client``. On every transport the client's sessions implement ``tts_worker.session.session.Session``.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import uvicorn

from tests.conftest import tone_settings
from tests.fakes.redis import embedded_redis
from tests.fakes.tone_factory import FaultAt, ToneFactory
from tts_worker.client import Client, ClientSettings, connect
from tts_worker.engine.loop import EngineLoop
from tts_worker.engine.tone import ToneEngine, ToneSettings
from tts_worker.grpc_serving import running_grpc
from tts_worker.local import LocalConnector
from tts_worker.serving import create_application
from tts_worker.worker import Worker

LONG_TIMEOUTS = ClientSettings(connect_timeout_s=60.0, audio_timeout_s=60.0)
"""A busy machine must not run a client into its timeouts."""


@dataclass(frozen=True)
class Setup:
    """The worker and the client of a behavior.

    Attributes:
        sections: Sections of the worker's settings.
        engine: A fault-injecting tone engine instead of the configured one.
        client: The client's settings.
    """

    sections: Mapping[str, Any] = field(default_factory=dict)
    engine: ToneSettings | None = None
    client: ClientSettings = LONG_TIMEOUTS


class FaultyWorker(Worker):
    """A worker that can run a fault-injecting tone engine, on a thread or in a process of its own."""

    def __init__(self, setup: Setup, *, in_process: bool = False) -> None:
        self._in_process = in_process
        # On a busy machine the gap between two messages may exceed flush_after_ms.
        session = {"flush_after_ms": 0, **setup.sections.get("session", {})}
        super().__init__(tone_settings(**{**setup.sections, "session": session}))
        # Each worker has its own hang event: the event of the table would stay set after the first worker stopped.
        self._tone = None if setup.engine is None else replace(setup.engine, hang=threading.Event())

    async def _load(self, name: str) -> None:
        if self._tone is None and not self._in_process:
            await super()._load(name)
            return
        if self._tone is None:
            engine = await shared_engine_process()
        else:
            factory: Callable[[], ToneEngine] = lambda: ToneEngine(self._tone)  # noqa: E731
            if self._in_process:
                assert isinstance(self._tone.fault, FaultAt)
                factory = ToneFactory(self._tone.fault)
            engine = EngineLoop(factory, name=name, hang_timeout_s=20.0, in_process=self._in_process)
            await engine.start()
        self.hub.add_engine(name, "tone", engine)
        self.engines[name] = engine

    async def stop(self) -> None:
        if self._tone is not None:
            self._tone.hang.set()
        for name in [name for name, engine in self.engines.items() if engine in _shared_processes]:
            del self.engines[name]  # the next worker uses it
        await super().stop()


_shared_processes: list[EngineLoop] = []


async def shared_engine_process() -> EngineLoop:
    """The engine process of the behaviors without faults, which run on one event loop; started by the first one.

    It takes longer to start than most of them take to run.
    """
    if not _shared_processes:
        engine = EngineLoop(ToneFactory(), name="tone", hang_timeout_s=20.0, in_process=True)
        await engine.start()
        _shared_processes.append(engine)
    return _shared_processes[0]


async def stop_shared_engine_process() -> None:
    while _shared_processes:
        await _shared_processes.pop().stop()


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    try:
        await worker.start()
        yield worker
    finally:
        await worker.stop()


def faulty_worker(setup: Setup) -> AbstractAsyncContextManager[Worker]:
    """Run a worker of this setup."""
    return running(FaultyWorker(setup))


@asynccontextmanager
async def serve_setup(setup: Setup) -> AsyncIterator[str]:
    """Run a server with a worker of this setup on loopback; yield its ``host:port``."""
    async with faulty_worker(setup) as worker, serve_worker(worker) as address:
        yield address


@asynccontextmanager
async def serve_worker(worker: Worker) -> AsyncIterator[str]:
    """Run a server with a running worker on loopback; yield its ``host:port``."""
    config = uvicorn.Config(create_application(worker), port=0, log_config=None, access_log=False, lifespan="off")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        yield f"{host}:{port}"
    finally:
        await worker.hub.drain(0.0)
        await server.shutdown()


async def end_speech(worker: Worker, reason: str) -> None:
    """End all speech now, as a worker does that shuts down (``drain``) or replaces its model (``reload``)."""
    if reason == "drain":
        await worker.hub.drain(0.0)
        return
    [(name, engine)] = worker.engines.items()
    await worker.hub.end_sessions(worker.hub.replace_engine(name, "tone", engine), 0.0)


@asynccontextmanager
async def local(setup: Setup) -> AsyncIterator[Client]:
    async with Client(LocalConnector(lambda: faulty_worker(setup)), setup.client) as client:
        yield client


@asynccontextmanager
async def process(setup: Setup) -> AsyncIterator[Client]:
    """In process, with the engine in a process of its own."""
    worker = FaultyWorker(setup, in_process=True)
    async with Client(LocalConnector(lambda: running(worker)), setup.client) as client:
        yield client


@asynccontextmanager
async def websocket(setup: Setup) -> AsyncIterator[Client]:
    async with serve_setup(setup) as address, connect(f"ws://{address}", setup.client) as client:
        yield client


@asynccontextmanager
async def over_grpc(setup: Setup) -> AsyncIterator[Client]:
    sections = {**setup.sections, "grpc": {"enabled": True, "port": 0}}
    async with (
        faulty_worker(replace(setup, sections=sections)) as worker,
        running_grpc(worker) as member,
        connect(f"grpc://{member.address}", setup.client) as client,
    ):
        yield client


@asynccontextmanager
async def registered(setup: Setup) -> AsyncIterator[Client]:
    """Discovery through a registry. All tests share one Redis; each uses a separate key prefix."""
    registry = {"url": embedded_redis(), "prefix": f"behavior:{secrets.token_hex(4)}:"}
    sections = {**setup.sections, "grpc": {"enabled": True, "port": 0}, "registry": registry}
    async with faulty_worker(replace(setup, sections=sections)) as worker, running_grpc(worker) as member:
        await member.announce()
        async with connect(f"{registry['url']}?prefix={registry['prefix']}", setup.client) as client:
            await client.prewarm()  # makes the worker known before the first session
            yield client


@asynccontextmanager
async def livekit(setup: Setup) -> AsyncIterator[Client]:
    """The LiveKit plugin, as an agent uses it."""
    pytest.importorskip("livekit.agents", reason="needs the extra 'livekit'")
    from tests.behavior.livekit_transport import LiveKitClient

    async with websocket(setup) as client:
        sessions = LiveKitClient(client, setup.client.audio_timeout_s)
        try:
            yield cast(Client, sessions)
        finally:
            await sessions.close()


@asynccontextmanager
async def cosyvoice(setup: Setup) -> AsyncIterator[Client]:
    """In process, with CosyVoice networks as the engine."""
    pytest.importorskip("torch", reason="needs the extra 'cosyvoice'")
    from tests.behavior.cosyvoice_transport import cosyvoice_client

    async with cosyvoice_client(setup) as client:
        yield client


@asynccontextmanager
async def webrtc(setup: Setup) -> AsyncIterator[Client]:
    """aiortc to aiortc: audio on a track, the protocol on a data channel."""
    pytest.importorskip("aiortc", reason="needs the extra 'webrtc'")
    from tests.behavior.webrtc_transport import WebRtcClient

    # On a busy machine audio may wait in the jitter buffer for long.
    settings = replace(setup.client, audio_timeout_s=max(setup.client.audio_timeout_s, 2.0))
    async with serve_setup(setup) as address:
        sessions = WebRtcClient(address, settings)
        try:
            yield cast(Client, sessions)
        finally:
            await sessions.close()


@dataclass(frozen=True)
class TransportCase:
    """A transport and what the behaviors must know of it.

    Attributes:
        connect: Runs a worker and yields a client.
        is_lossless: The audio arrives byte for byte (no codec in between).
        unsupported: Features that the transport cannot express; behaviors that require one are skipped.
        is_slow: Audio takes long to produce or to arrive.
        is_paced: All audio arrives at playback pace. The behaviors wait most of the time, so they run concurrently.
        has_virtual_time: It has no socket, and its engine can run on the event loop. A hanging engine needs a thread.
        concurrent_sessions: Number of other sessions where a behavior wants many.
    """

    connect: Callable[[Setup], AbstractAsyncContextManager[Client]]
    is_lossless: bool = True
    unsupported: frozenset[str] = frozenset()
    is_slow: bool = False
    is_paced: bool = False
    has_virtual_time: bool = False
    concurrent_sessions: int = 25


LIVEKIT_UNSUPPORTED = frozenset(
    {"spans", "surrogates", "flush", "played", "admission", "retryable", "chunks", "formats"}
)

TRANSPORTS: dict[str, TransportCase] = {
    "local": TransportCase(local, has_virtual_time=True),
    "process": TransportCase(process, unsupported=frozenset({"hang"})),  # as the event loop of the server sees it
    "ws": TransportCase(websocket),
    "grpc": TransportCase(over_grpc),
    "redis": TransportCase(registered),
    "cosyvoice": TransportCase(
        cosyvoice, unsupported=frozenset({"tone", "many_sessions", "hang", "formats"}), is_slow=True
    ),
    "livekit": TransportCase(livekit, is_lossless=False, unsupported=LIVEKIT_UNSUPPORTED),
    "webrtc": TransportCase(
        webrtc,
        is_lossless=False,
        unsupported=frozenset({"lead", "chunks", "formats", "alone"}),  # its behaviors run at the same time
        is_slow=True,
        is_paced=True,
        concurrent_sessions=5,  # every session costs a codec on both ends
    ),
}
