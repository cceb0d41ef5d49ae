"""A TCP proxy on loopback that can stall or reset its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Forwards connections to ``target``.

    Attributes:
        address: ``host:port`` for clients.
        connections: Number of accepted connections.
    """

    def __init__(self, target: str) -> None:
        self._host, self._port = target.rsplit(":", 1)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self.address = ""
        self.connections = 0

    def lead_to(self, target: str) -> None:
        """Connect later connections to another server; those that are open stay."""
        self._host, self._port = target.rsplit(":", 1)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    def stall(self) -> None:
        """Forward nothing and keep all connections open."""
        self._passing.clear()

    def resume(self) -> None:
        """Forward again, beginning with the held data."""
        self._passing.set()

    def reset(self) -> None:
        """Reset every connection, as a killed process would."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._passing.wait()
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            self._writers.add(far_writer)
            back = asyncio.create_task(self._pump(far_reader, writer))
            self._tasks.add(back)
            await self._pump(reader, far_writer)
            back.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def stop(self) -> None:
        """Reset all connections, stop accepting, and wait for all tasks."""
        if self._server is not None:
            self._server.close()
        await asyncio.sleep(0)  # what was just accepted becomes a task
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.reset()
        await asyncio.sleep(0)


@asynccontextmanager
async def run_proxy(target: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
