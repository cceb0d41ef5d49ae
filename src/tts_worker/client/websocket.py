"""Connector for ``ws://`` and ``wss://``: sessions over ``/v1/stream`` with a pool of open connections.

A connection serves one session at a time and returns to the pool when the worker has answered all its commands.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit
from weakref import WeakSet

from tts_worker.client.base import OpenedSession
from tts_worker.client.batches import BatchAccess, HttpBatches
from tts_worker.client.connection import STREAM_PATH, WorkerConnection, dial
from tts_worker.client.conversion import ConversionAccess, HttpConversion
from tts_worker.client.remote import RemoteSession
from tts_worker.client.settings import ClientSettings
from tts_worker.client.voices import HttpVoices, VoiceAccess
from tts_worker.errors import ConnectionLost, DeadlineExceeded, InvalidRequest, TTSWorkerError
from tts_worker.timeouts import fail_after
from tts_worker.types import SessionOptions


def connector(url: str, settings: ClientSettings) -> WebSocketConnector:
    """See ``base.SchemeModule``. A URL without a path means ``/v1/stream``."""
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc and not parts.fragment
    except ValueError:  # the port is not a number
        is_valid = False
    if not is_valid:
        # A name and a password would reach the WebSocket only, not the requests over HTTP.
        raise InvalidRequest(
            "a WebSocket URL needs a host and an optional port, such as ws://127.0.0.1:8080, no user and no fragment"
        )
    if parts.path in ("", "/"):
        url = parts._replace(path=STREAM_PATH).geturl()
    return WebSocketConnector(url, settings)


class WebSocketConnector:
    """Connector to the worker at one URL. See ``base.Connector``."""

    def __init__(self, url: str, settings: ClientSettings) -> None:
        self._url = url
        self._settings = settings
        self._connections: set[WorkerConnection] = set()
        self._idle: list[WorkerConnection] = []
        self._closing: WeakSet[WorkerConnection] = WeakSet()  # until their tasks have ended
        self._closed = False

    async def prewarm(self) -> None:
        if not self._connections:
            try:
                async with fail_after(self._settings.connect_timeout_s):
                    connection = await self._dial()
            except TimeoutError:
                raise self._open_timeout() from None
            self._release(connection)

    async def open(self, options: SessionOptions, *, audio_timeout_s: float) -> OpenedSession:
        try:
            async with fail_after(self._settings.connect_timeout_s):
                return await self._open(options, audio_timeout_s)
        except TimeoutError:
            raise self._open_timeout() from None

    async def voice_access(self) -> VoiceAccess:
        return HttpVoices(self._url, self._settings)

    async def conversion_access(self) -> ConversionAccess:
        return HttpConversion(self._url, self._settings)

    async def batch_access(self) -> BatchAccess:
        return HttpBatches(self._url, self._settings)

    async def _open(self, options: SessionOptions, audio_timeout_s: float) -> OpenedSession:
        while self._idle:
            try:
                session = await self._open_session(self._idle.pop(), options, audio_timeout_s)
            except ConnectionLost:
                continue  # the idle connection was lost meanwhile
            return OpenedSession(session, connection_reused=True)
        session = await self._open_session(await self._dial(), options, audio_timeout_s)
        return OpenedSession(session, connection_reused=False)

    def _open_timeout(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"the worker did not answer within {self._settings.connect_timeout_s:g} s")

    async def _dial(self) -> WorkerConnection:
        if self._closed:
            raise ConnectionLost("the client is closed")
        connection = await dial(self._url, self._settings, self._release, self._forget)
        self._connections.add(connection)
        return connection

    async def _open_session(
        self, connection: WorkerConnection, options: SessionOptions, audio_timeout_s: float
    ) -> RemoteSession:
        try:
            return await connection.open_session(options, audio_timeout_s)
        except ConnectionLost:
            connection.close()
            raise
        except TTSWorkerError:
            self._release(connection)  # the worker refused the session, not the connection
            raise
        except BaseException:  # timeout or cancellation: a late answer would be taken for the next session's
            connection.close()
            raise

    def _release(self, connection: WorkerConnection) -> None:
        """Keep an idle connection for the next session, or close it."""
        if self._closed or connection.is_lost or len(self._idle) >= self._settings.idle_connections:
            connection.close()
        else:
            self._idle.append(connection)
            asyncio.get_running_loop().call_later(
                self._settings.idle_s, self._close_unused, connection, connection.sessions
            )

    def _close_unused(self, connection: WorkerConnection, sessions: int) -> None:
        if connection in self._idle and connection.sessions == sessions:  # not used since the timer started
            self._idle.remove(connection)
            connection.close()

    def _forget(self, connection: WorkerConnection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._closing.add(connection)

    async def aclose(self) -> None:
        self._closed = True
        for connection in list(self._connections):
            connection.close()
        for connection in list(self._closing):
            await connection.wait_closed()
