"""A worker with its HTTP and gRPC servers in a thread, so that all tests of a module share it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tests.fakes.enroller import serving_worker
from tts_worker.features.compat.cosyvoice_grpc import cosyvoice_service
from tts_worker.grpc_serving import services
from tts_worker.server.grpc.models import ModelCatalog
from tts_worker.server.grpc.server import PortConfig, running_server
from tts_worker.server.limits import ApiLimits
from tts_worker.settings import Settings
from tts_worker.worker import Worker


@dataclass
class ThreadedWorker:
    """Addresses are ``host:port``. The worker belongs to the event loop of its thread."""

    worker: Worker
    address: str
    grpc_address: str
    cosyvoice_address: str
    loop: asyncio.AbstractEventLoop


@contextmanager
def worker_in_thread(settings: Settings) -> Iterator[ThreadedWorker]:
    started: list[ThreadedWorker] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def run() -> None:
        try:
            worker = Worker(settings)
            catalog = ModelCatalog(worker, {name: each.kind for name, each in settings.engines.items()}, {})
            registers = services(worker.hub, settings, catalog)
            cosyvoice = cosyvoice_service(worker.hub, ApiLimits.of(settings))
            port = PortConfig(port=0, keys=worker.keys)
            async with (
                serving_worker(worker) as where,
                running_server(worker.hub, registers, port) as grpc_server,
                running_server(worker.hub, [cosyvoice], replace(port, transport="cosyvoice-grpc")) as cosyvoice_server,
            ):
                started.append(ThreadedWorker(worker, where, grpc_server.address, cosyvoice_server.address, loop))
                ready.set()
                await done.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    ready.wait(120)
    try:
        yield started[0]
    finally:  # also when a test fails: the process would wait for the thread
        loop.call_soon_threadsafe(done.set)
        thread.join(60)
        loop.close()
