"""Speak through a worker, wherever it is: ``connect(url)`` -> ``Client`` -> sessions.

    async with tts_worker.connect("ws://127.0.0.1:8080") as client, client.session() as session:
        session.speak("Hello there.")
        session.end_text()
        async for item in session:
            if isinstance(item, PcmFrame): play(item.pcm)
            elif isinstance(item, Ended): break

Owns the public face; ``base`` holds the seam for new schemes. Importing it imports no engine and no server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from tts_worker.client.base import ClientSettings, Connector, Opened, connector_for
from tts_worker.session.hub import SessionOptions
from tts_worker.session.session import Session

__all__ = ["Client", "ClientSettings", "Connector", "Opened", "Session", "SessionOptions", "connect"]


class Client:
    """Sessions over one connector. Building it dials nothing; all methods belong to one event loop."""

    def __init__(self, connector: Connector, settings: ClientSettings | None = None) -> None:
        self._connector = connector
        self._settings = settings or ClientSettings()

    async def prewarm(self) -> None:
        """Reach the worker now, so that the first session finds a warm connection. Raises as ``open`` does."""
        await self._connector.prewarm()

    async def open(self, options: SessionOptions | None = None, *, audio_timeout_s: float | None = None) -> Opened:
        """A session, until its ``close``. ``audio_timeout_s`` overrides the client's.

        Raises UnknownVoice, InvalidRequest, OverCapacity, Draining, NotReady, Unauthenticated, ConnectionLost or
        DeadlineExceeded.
        """
        timeout_s = self._settings.audio_timeout_s if audio_timeout_s is None else audio_timeout_s
        return await self._connector.open(options or SessionOptions(), audio_timeout_s=timeout_s)

    @asynccontextmanager
    async def session(self, options: SessionOptions | None = None) -> AsyncIterator[Session]:
        """A session that is closed at the end of the block. Raises as ``open`` does."""
        session = (await self.open(options)).session
        try:
            yield session
        finally:
            session.close()

    async def aclose(self) -> None:
        """Close every session and connection. Again is fine."""
        await self._connector.aclose()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def connect(url: str, settings: ClientSettings | None = None) -> Client:
    """A client of the worker at ``url``: ``ws://host:port`` or ``wss://`` for a server, ``local:`` for one in this
    process. Dials nothing yet. Raises InvalidRequest if the URL makes no sense, MissingExtra."""
    settings = settings or ClientSettings()
    return Client(connector_for(url, settings), settings)
