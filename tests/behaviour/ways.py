"""Every way to a worker, as the behaviours see it. A new transport joins with one line in ``WAYS``.

A way is an asynchronous context manager: it gets a ``Setup``, runs a worker with it and yields a ``Client`` of that
worker. The client's sessions keep ``tts_worker.session.session.Session``, whatever carries them.
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
from tts_worker.app import Worker, create_application
from tts_worker.client import Client, ClientSettings, connect
from tts_worker.client.local import LocalConnector
from tts_worker.engine.loop import EngineLoop
from tts_worker.engine.tone import ToneEngine, ToneSettings
from tts_worker.fleet import in_fleet

PATIENT = ClientSettings(connect_timeout_s=60.0, audio_timeout_s=60.0)
"""A client that a busy machine does not make give up."""


@dataclass(frozen=True)
class Setup:
    """``sections``: the worker's settings; ``engine``: a tone engine that is told to misbehave, instead of the one of
    the settings; ``client``: the client's settings."""

    sections: Mapping[str, Any] = field(default_factory=dict)
    engine: ToneSettings | None = None
    client: ClientSettings = PATIENT


class BentWorker(Worker):
    """A worker whose engine does what a test wants."""

    def __init__(self, setup: Setup) -> None:
        # On a busy machine more time may pass between two messages than a writer may be silent.
        session = {"flush_after_ms": 0, **setup.sections.get("session", {})}
        super().__init__(tone_settings(**{**setup.sections, "session": session}))
        # A hang of its own: the one of the table would stay ended once a worker has been stopped.
        self._bent = None if setup.engine is None else replace(setup.engine, hang=threading.Event())

    async def _load(self, name: str) -> None:
        if self._bent is None:
            await super()._load(name)
            return
        engine = EngineLoop(lambda: ToneEngine(self._bent), name=name, hang_timeout_s=20.0)
        await engine.start()
        self.hub.add_engine(name, "tone", engine)
        self.engines[name] = engine

    async def stop(self) -> None:
        if self._bent is not None:
            self._bent.hang.set()
        await super().stop()


@asynccontextmanager
async def started(worker: Worker) -> AsyncIterator[Worker]:
    try:
        await worker.start()
        yield worker
    finally:
        await worker.stop()


def bent_worker(setup: Setup) -> AbstractAsyncContextManager[Worker]:
    """A running worker of this setup."""
    return started(BentWorker(setup))


@asynccontextmanager
async def served(setup: Setup) -> AsyncIterator[str]:
    """``host:port`` of a server on loopback with a worker of this setup."""
    async with bent_worker(setup) as worker:
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


@asynccontextmanager
async def local(setup: Setup) -> AsyncIterator[Client]:
    async with Client(LocalConnector(lambda: bent_worker(setup)), setup.client) as client:
        yield client


@asynccontextmanager
async def websocket(setup: Setup) -> AsyncIterator[Client]:
    async with served(setup) as address, connect(f"ws://{address}", setup.client) as client:
        yield client


@asynccontextmanager
async def over_grpc(setup: Setup) -> AsyncIterator[Client]:
    sections = {**setup.sections, "grpc": {"enabled": True, "port": 0}}
    async with (
        bent_worker(replace(setup, sections=sections)) as worker,
        in_fleet(worker) as member,
        connect(f"grpc://{member.address}", setup.client) as client,
    ):
        yield client


@asynccontextmanager
async def registered(setup: Setup) -> AsyncIterator[Client]:
    """Found through a registry. A Redis serves all tests, each under a prefix of its own."""
    registry = {"url": embedded_redis(), "prefix": f"behaviour:{secrets.token_hex(4)}:"}
    sections = {**setup.sections, "grpc": {"enabled": True, "port": 0}, "registry": registry}
    async with bent_worker(replace(setup, sections=sections)) as worker, in_fleet(worker) as member:
        await member.announce()
        async with connect(f"{registry['url']}?prefix={registry['prefix']}", setup.client) as client:
            await client.prewarm()  # it is found at once
            yield client


@asynccontextmanager
async def livekit(setup: Setup) -> AsyncIterator[Client]:
    """The plugin, as an agent uses it."""
    pytest.importorskip("livekit.agents", reason="needs the extra 'livekit'")
    from tests.behaviour.livekit_way import LiveKitClient

    async with websocket(setup) as client:
        speaking = LiveKitClient(client, setup.client.audio_timeout_s)
        try:
            yield cast(Client, speaking)
        finally:
            await speaking.close()


@asynccontextmanager
async def cosyvoice(setup: Setup) -> AsyncIterator[Client]:
    """In this process, with the real networks of CosyVoice for an engine."""
    pytest.importorskip("torch", reason="needs the extra 'cosyvoice'")
    from tests.behaviour.cosyvoice_way import cosyvoice_client

    async with cosyvoice_client(setup) as client:
        yield client


@asynccontextmanager
async def webrtc(setup: Setup) -> AsyncIterator[Client]:
    """aiortc to aiortc: sound on a track, the protocol on a data channel."""
    pytest.importorskip("aiortc", reason="needs the extra 'webrtc'")
    from tests.behaviour.webrtc_way import WebRtcClient

    # Sound waits in the listener's jitter buffer, and may do so for as long as a busy machine likes.
    patient = replace(setup.client, audio_timeout_s=max(setup.client.audio_timeout_s, 2.0))
    async with served(setup) as address:
        speaking = WebRtcClient(address, patient)
        try:
            yield cast(Client, speaking)
        finally:
            await speaking.close()


@dataclass(frozen=True)
class Way:
    """``exact``: its sound is the worker's, byte for byte (no codec between). ``lacks``: what it has no words for.
    ``slow``: its sound takes time. ``paced``: all of it comes at the pace of a listener, who waits most of the time, so
    the behaviours run side by side. ``crowd``: how many others speak where there are to be many."""

    enter: Callable[[Setup], AbstractAsyncContextManager[Client]]
    exact: bool = True
    lacks: frozenset[str] = frozenset()
    slow: bool = False
    paced: bool = False
    crowd: int = 50


WAYS: dict[str, Way] = {
    "local": Way(local),
    "ws": Way(websocket),
    "grpc": Way(over_grpc),
    "redis": Way(registered),
    "cosyvoice": Way(cosyvoice, lacks=frozenset({"tone", "crowd", "hang"}), slow=True),
    "livekit": Way(livekit, False, frozenset({"spans", "surrogates", "flush", "played", "admission", "retryable"})),
    "webrtc": Way(
        webrtc, False, frozenset({"lead"}), slow=True, paced=True, crowd=5
    ),  # each speaker costs a codec on both ends
}
