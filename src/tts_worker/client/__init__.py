"""Python client: ``connect(url)`` returns a ``Client``, which opens sessions on a local or remote worker.

    async with tts_worker.connect("ws://127.0.0.1:8080") as client, client.session() as session:
        session.speak("Hello there.")
        session.end_text()
        async for item in session:
            if isinstance(item, PcmFrame): play(item.pcm)
            elif isinstance(item, Ended): break

Importing this package imports no engine and no server. ``base`` describes how to add a URL scheme.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tts_worker.client.arguments import check_seconds
from tts_worker.client.base import Connector, OpenedSession, connector_for
from tts_worker.client.batches import WorkerBatches
from tts_worker.client.conversion import AsyncConversion, AudioSource
from tts_worker.client.settings import ClientSettings
from tts_worker.client.voices import WorkerVoices
from tts_worker.errors import InvalidRequest
from tts_worker.protocol.messages import check_options
from tts_worker.protocol.session import Session
from tts_worker.protocol.voices import VoiceInfo
from tts_worker.types import SessionOptions

__all__ = [
    "Client",
    "ClientSettings",
    "Connector",
    "OpenedSession",
    "Session",
    "SessionOptions",
    "VoiceInfo",
    "connect",
]


class Client:
    """Opens sessions over one connector.

    Construction does not connect. All methods must run on one event loop.
    """

    def __init__(self, connector: Connector, settings: ClientSettings | None = None) -> None:
        self._connector = connector
        self._settings = settings or ClientSettings()

    async def prewarm(self) -> None:
        """Connect in advance, so that the first session reuses a connection. Raises like ``open``."""
        await self._connector.prewarm()

    async def open(
        self, options: SessionOptions | None = None, *, audio_timeout_s: float | None = None
    ) -> OpenedSession:
        """Open a session; the caller closes it.

        Args:
            options: Voice, pacing and text options; None takes the worker's defaults.
            audio_timeout_s: Overrides ``ClientSettings.audio_timeout_s`` for this session.

        Raises:
            UnknownVoice: No worker has this voice.
            InvalidRequest: An option or ``audio_timeout_s`` is invalid.
            Unauthenticated: The API key is missing or wrong.
            OverCapacity, NotReady, Draining: The worker takes no session now; retry later.
            ConnectionLost: The worker cannot be reached.
            DeadlineExceeded: The worker did not answer in time.
        """
        options = SessionOptions() if options is None else options
        check_options(options)
        timeout_s = self._settings.audio_timeout_s if audio_timeout_s is None else audio_timeout_s
        check_seconds(timeout_s, "audio_timeout_s")
        return await self._connector.open(options, audio_timeout_s=timeout_s)

    @asynccontextmanager
    async def session(self, options: SessionOptions | None = None) -> AsyncIterator[Session]:
        """Open a session and close it at the end of the block. Raises like ``open``."""
        session = (await self.open(options)).session
        try:
            yield session
        finally:
            session.close()

    @property
    def voices(self) -> WorkerVoices:
        """The voices: ``await client.voices.list()``, ``await client.voices.add("anna", "anna.wav", consent=True)``."""
        return WorkerVoices(self._connector.voice_access)

    @property
    def batches(self) -> WorkerBatches:
        """Batches of texts, for ``ws://`` URLs: ``await client.batches.submit(["Welcome.", "Goodbye."])``."""
        return WorkerBatches(self._connector.batch_access)

    def convert(
        self,
        source: AudioSource,
        options: SessionOptions | None = None,
        *,
        live_rate_hz: int | None = None,
    ) -> AsyncConversion:
        """Return the speech of ``source`` in the voice of ``options``, in parts of s16le while it is generated.

        Args:
            source: A WAV, FLAC, Ogg, MP3, AIFF, CAF, M4A, AAC or WebM file or its content, or live audio: parts of
                s16le mono, of any length. An ordinary iterable runs on a thread.
            options: Voice, model, speed, seed, sample rate and pacing.
            live_rate_hz: Sample rate of live audio.

        Raises:
            InvalidRequest: An option is invalid, or the arguments contradict each other. Other errors are raised by the
                iteration, as by ``open``.
        """
        options = SessionOptions(realtime=False, raw_chunks=True) if options is None else options
        check_options(options)
        return AsyncConversion(self._connector.conversion_access, source, options, live_rate_hz)

    async def aclose(self) -> None:
        """Close every session and connection. Idempotent."""
        await self._connector.aclose()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def connect(url: str, settings: ClientSettings | None = None) -> Client:
    """Create a client for the worker at ``url``. Does not connect yet.

    Args:
        url: ``ws://host:port`` (or ``http://``), ``wss://``, ``grpc://``, ``grpcs://``, ``redis://`` (a fleet), or
            ``local:`` for a worker in this process.
        settings: API key and timeouts.

    Raises:
        InvalidRequest: The URL is malformed or its scheme is unknown, or ``settings`` are no ``ClientSettings``.
        MissingExtra: The scheme needs an optional dependency that is not installed.
        MissingServer: ``local:``, and only the client is installed.
    """
    settings = ClientSettings() if settings is None else settings
    if not isinstance(settings, ClientSettings):
        raise InvalidRequest(f"settings must be ClientSettings, not {type(settings).__name__}")
    return Client(connector_for(url, settings), settings)
