"""``ws://`` and ``wss://``: sessions over ``/v1/stream``, on a few connections that stay warm.

Owns the pool: a connection serves one session at a time and is handed on as soon as the worker has answered everything
of the one before. What goes over a connection is ``connection``'s affair, what a session promises ``remote``'s.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import anyio

from tts_worker.client.base import ClientSettings, Opened
from tts_worker.client.connection import Connection, dial
from tts_worker.client.remote import RemoteSession
from tts_worker.errors import ConnectionLost, DeadlineExceeded, InvalidRequest, TTSWorkerError
from tts_worker.session.hub import SessionOptions


def connector(url: str, settings: ClientSettings) -> WebSocketConnector:
    """See ``base.SchemeModule``. A URL without a path means ``/v1/stream``."""
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        named = False
    if not named:
        raise InvalidRequest("a WebSocket URL names a host and perhaps a port, such as ws://127.0.0.1:8080")
    if parts.path in ("", "/"):
        url = parts._replace(path="/v1/stream").geturl()
    return WebSocketConnector(url, settings)


class WebSocketConnector:
    """A worker behind one URL. See ``base.Connector``."""

    def __init__(self, url: str, settings: ClientSettings) -> None:
        self._url = url
        self._settings = settings
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._closed = False

    async def prewarm(self) -> None:
        if not self._connections:
            try:
                with anyio.fail_after(self._settings.connect_timeout_s):
                    connection = await self._dial()
            except TimeoutError:
                raise self._too_late() from None
            self._release(connection)

    async def open(self, options: SessionOptions, *, audio_timeout_s: float) -> Opened:
        if options.raw_chunks:
            raise InvalidRequest("a WebSocket carries frames: leave raw_chunks out")
        try:
            with anyio.fail_after(self._settings.connect_timeout_s):
                return await self._open(options, audio_timeout_s)
        except TimeoutError:
            raise self._too_late() from None

    async def _open(self, options: SessionOptions, audio_timeout_s: float) -> Opened:
        while self._idle:
            try:
                return Opened(await self._begin(self._idle.pop(), options, audio_timeout_s), connection_reused=True)
            except ConnectionLost:
                pass  # it died while nobody looked: take the next, or a new one
        return Opened(await self._begin(await self._dial(), options, audio_timeout_s), connection_reused=False)

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"the worker did not answer within {self._settings.connect_timeout_s:g} s")

    async def _dial(self) -> Connection:
        if self._closed:
            raise ConnectionLost("the client is closed")
        connection = await dial(self._url, self._settings, self._release, self._forget)
        self._connections.add(connection)
        return connection

    async def _begin(self, connection: Connection, options: SessionOptions, audio_timeout_s: float) -> RemoteSession:
        try:
            return await connection.begin(options, audio_timeout_s)
        except ConnectionLost:
            connection.close()
            raise
        except TTSWorkerError:
            self._release(connection)  # the worker refused the session, not the connection
            raise
        except BaseException:  # too late or cancelled: nobody knows what it would answer next
            connection.close()
            raise

    def _release(self, connection: Connection) -> None:
        """A connection has nothing to do."""
        if self._closed or connection.lost or len(self._idle) >= self._settings.idle_connections:
            connection.close()
        else:
            self._idle.append(connection)
            asyncio.get_running_loop().call_later(self._settings.idle_s, self._retire, connection, connection.sessions)

    def _retire(self, connection: Connection, sessions: int) -> None:
        if connection in self._idle and connection.sessions == sessions:  # unused ever since
            self._idle.remove(connection)
            connection.close()

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def aclose(self) -> None:
        self._closed = True
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()
