"""Connector for ``redis://``: sessions on the least-loaded worker of a fleet that has the voice.

``redis://[:password@]host:port[/db]?prefix=worker:&networks=127.0.0.0/8,10.0.0.0/8`` (``rediss://`` for TLS). The
client never connects to a worker outside ``networks`` (default: loopback), even if the registry lists it. ``failover``
moves a session to another worker if the first one is lost before any audio was delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

from tts_worker.client.base import OpenedSession
from tts_worker.client.batches import ONLY_HTTP, BatchAccess
from tts_worker.client.converse_stream import ConverseStream
from tts_worker.client.conversion import ConversionAccess, SourceAudio
from tts_worker.client.failover import FailoverLink
from tts_worker.client.grpc import GrpcConnector
from tts_worker.client.registry.directory import ResolvedWorker, WorkerDirectory
from tts_worker.client.registry.entry import LOOPBACK, parse_networks
from tts_worker.client.registry.store import RedisStore
from tts_worker.client.remote import RemoteSession
from tts_worker.client.settings import ClientSettings
from tts_worker.client.voices import VoiceAccess
from tts_worker.errors import (
    ConfigError,
    ConnectionLost,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    TTSWorkerError,
    UnknownVoice,
)
from tts_worker.protocol.messages import PROTOCOL_VERSION
from tts_worker.protocol.voices import VoiceInfo, VoiceUpload
from tts_worker.types import SessionOptions

_Answer = TypeVar("_Answer")

_CACHE_TTL_S = 0.5
"""How long a list of workers is used before the registry is read again."""
_REFRESH_TIMEOUT_S = 0.05
"""How long a session waits for a newer list if it has an old one, so that a hanging Redis does not delay sessions."""
_SUSPECT_S = 5.0
"""How long an unreachable worker is tried last; its registry entry may outlive it."""


def connector(url: str, settings: ClientSettings) -> FleetConnector:
    """See ``base.SchemeModule``."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    prefix = query.pop("prefix", ["worker:"])[-1]
    networks = parse_networks(query.pop("networks", [""])[-1]) or LOOPBACK
    store_url = parts._replace(query=urlencode(query, doseq=True)).geturl()
    secret = settings.registry_secret or os.environ.get("TTS_WORKER_REGISTRY__SECRET") or None
    return FleetConnector(WorkerDirectory(RedisStore(store_url), prefix, networks, secret), settings)


class FleetConnector:
    """Connector to a fleet. See ``base.Connector``.

    Raises:
        ConfigError: An API key is set but the directory verifies no signatures. Any writer to Redis could register a
            worker and collect the key.
    """

    def __init__(self, directory: WorkerDirectory, settings: ClientSettings) -> None:
        if settings.api_key is not None and not directory.verifies_signatures:
            raise ConfigError(
                "an API key is not sent to workers of an unsigned registry: set registry.secret on the workers and the "
                "same value as registry_secret here (or TTS_WORKER_REGISTRY__SECRET), or use no key"
            )
        self._directory = directory
        self._settings = settings
        self._connectors: dict[str, GrpcConnector] = {}
        self._links: set[FailoverLink] = set()
        self._workers: list[ResolvedWorker] = []
        self._fetched_at_s = -_CACHE_TTL_S
        self._refresh_task: asyncio.Task[None] | None = None
        self._registry_error: ConnectionLost | None = None
        self._suspects: dict[str, float] = {}
        self._closed = False

    async def prewarm(self) -> None:
        for worker in await self._candidates(SessionOptions()):
            try:
                await self._connector(worker.address).prewarm()
                return
            except TTSWorkerError:
                self._suspect(worker.address)
        raise ConnectionLost("no worker of the fleet can be reached")

    async def open(self, options: SessionOptions, *, audio_timeout_s: float) -> OpenedSession:
        address, stream, reused = await self._open_stream(options)
        current_address = [address]

        async def next_worker() -> ConverseStream:
            self._suspect(current_address[0])
            # The voice is named because default voices may differ between workers.
            same_voice = replace(options, voice=stream.params.voice)
            current_address[0], next_stream, _ = await self._open_stream(same_voice)
            return next_stream

        link = FailoverLink(stream, next_worker)
        config = self._connector(address).remote_config(stream, audio_timeout_s)
        session = RemoteSession(link, config)
        self._links = {known for known in self._links if not known.is_closed} | {link}
        link.attach(session, self._on_stream_closed)
        return OpenedSession(session, connection_reused=reused)

    async def voice_access(self) -> VoiceAccess:
        workers = await self._candidates(SessionOptions(), newest=True)
        if not workers:
            raise NotReady("no worker of the fleet is ready", retry_after_s=1.0)
        return FleetVoices([await self._connector(worker.address).voice_access() for worker in workers])

    async def conversion_access(self) -> ConversionAccess:
        return FleetConversion(self)

    async def batch_access(self) -> BatchAccess:
        raise InvalidRequest(ONLY_HTTP)

    async def connector_for(self, options: SessionOptions) -> GrpcConnector:
        """Return the connection to the best worker for these options. Raises like ``open``."""
        workers = await self._candidates(options)
        if not workers:
            raise NotReady("no worker of the fleet is ready", retry_after_s=1.0)
        return self._connector(workers[0].address)

    async def _open_stream(self, options: SessionOptions) -> tuple[str, ConverseStream, bool]:
        """Open a stream on the best worker that accepts it.

        Returns:
            Address, stream, and whether an open connection was used.

        Raises:
            TTSWorkerError: The last refusal, if every worker refuses.
        """
        refusal: TTSWorkerError = NotReady("no worker of the fleet is ready", retry_after_s=1.0)
        tried: set[str] = set()
        for newest in (False, True):  # if all known workers refuse, read the registry again
            for worker in await self._candidates(options, newest=newest):
                if worker.address in tried:
                    continue
                tried.add(worker.address)
                connector = self._connector(worker.address)
                reused = connector.connected
                try:
                    stream = await connector.open_stream(options)
                except InvalidRequest:
                    raise  # invalid on every worker
                except TTSWorkerError as error:
                    refusal = error
                    if isinstance(error, ConnectionLost | DeadlineExceeded):
                        self._suspect(worker.address)
                else:
                    connector.adopt(stream)
                    return worker.address, stream, reused
        raise refusal

    def _on_stream_closed(self, stream: ConverseStream) -> None:
        for connector in self._connectors.values():
            connector.forget(stream)

    # -- worker selection ---------------------------------------------------------------------------------------------

    async def _candidates(self, options: SessionOptions, *, newest: bool = False) -> Sequence[ResolvedWorker]:
        """Workers that support these options, best first.

        Args:
            options: Voice and language are matched.
            newest: Read the registry now instead of using the cached list.

        Raises:
            UnknownVoice: No worker has the voice.
            ConnectionLost: No worker is known.
        """
        if self._closed:
            raise ConnectionLost("the client is closed")
        await self._refresh(newest=newest)
        compatible = [
            worker for worker in self._workers if worker.entry.capabilities.protocol_version == PROTOCOL_VERSION
        ]
        if not compatible:
            raise self._registry_error or ConnectionLost("no worker with this protocol version is registered")
        eligible = [worker for worker in compatible if options.voice in (None, *worker.entry.capabilities.voices)]
        if not eligible:
            voices = sorted({voice for worker in compatible for voice in worker.entry.capabilities.voices})
            known = ", ".join(voices[:20]) or "none"
            raise UnknownVoice(f'no worker has the voice "{(options.voice or "")[:64]}"; there are: {known}')
        if options.voice is None and options.language is not None:
            eligible = [worker for worker in eligible if _supports_language(worker, options.language)] or eligible
        now_s = asyncio.get_running_loop().time()
        return sorted(eligible, key=lambda worker: (self._suspects.get(worker.address, 0) > now_s, self._load(worker)))

    def _load(self, worker: ResolvedWorker) -> tuple[float, float]:
        """The reported load or the load of this client's own sessions, which may be newer; ties are random."""
        max_sessions = worker.entry.capabilities.max_concurrent_sessions or 1
        connector = self._connectors.get(worker.address)
        own_sessions = 0 if connector is None else connector.sessions
        return max(worker.entry.load, own_sessions / max_sessions), random.random()

    async def _refresh(self, *, newest: bool) -> None:
        """Read the registry; concurrent calls share one read.

        While the registry is unreachable, the old list is used and the read continues in the background.
        """
        loop = asyncio.get_running_loop()
        if self._workers and not newest and loop.time() - self._fetched_at_s < _CACHE_TTL_S:
            return
        if self._refresh_task is None:
            self._refresh_task = loop.create_task(self._fetch(), name="tts-client-registry")
        timeout_s: float | None = _REFRESH_TIMEOUT_S
        if not self._workers:
            timeout_s = None
        elif self._registry_error is not None:
            timeout_s = 0.0
        elif newest:
            timeout_s = None
        refresh = self._refresh_task
        await asyncio.wait({refresh}, timeout=timeout_s)
        if refresh.done():
            refresh.result()

    async def _fetch(self) -> None:
        try:
            self._workers = await self._directory.workers()
            self._registry_error = None
        except ConnectionLost as lost:
            self._registry_error = lost
        finally:
            self._fetched_at_s = asyncio.get_running_loop().time()
            self._refresh_task = None
        addresses = {worker.address for worker in self._workers}
        gone = [a for a, connector in self._connectors.items() if a not in addresses and not connector.sessions]
        for address in gone:
            await self._connectors.pop(address).aclose()

    def _connector(self, address: str) -> GrpcConnector:
        if address not in self._connectors:
            self._connectors[address] = GrpcConnector(address, self._settings)
        return self._connectors[address]

    def _suspect(self, address: str) -> None:
        now_s = asyncio.get_running_loop().time()
        self._suspects = {known: until_s for known, until_s in self._suspects.items() if until_s > now_s}
        self._suspects[address] = now_s + _SUSPECT_S

    async def aclose(self) -> None:
        self._closed = True
        for link in list(self._links):
            link.close()
        for connector in self._connectors.values():
            await connector.aclose()
        if self._refresh_task is not None:
            self._refresh_task.cancel()
            await asyncio.wait({self._refresh_task})
        await self._directory.aclose()


def _supports_language(worker: ResolvedWorker, language: str) -> bool:
    tags = set(map(_primary_tag, worker.entry.capabilities.languages))
    return "mul" in tags or _primary_tag(language) in tags


def _primary_tag(language: str) -> str:
    return language.replace("_", "-").split("-")[0].lower()


class FleetConversion:
    """Conversion by the least-loaded worker that has the voice. See ``conversion.ConversionAccess``."""

    def __init__(self, fleet: FleetConnector) -> None:
        self._fleet = fleet

    async def convert(self, source: SourceAudio, options: SessionOptions) -> AsyncGenerator[bytes, None]:
        """See ``conversion.ConversionAccess``."""
        access = await (await self._fleet.connector_for(options)).conversion_access()
        async with aclosing(access.convert(source, options)) as parts:
            async for part in parts:
                yield part


class FleetVoices:
    """See ``voices.VoiceAccess``: the voices of several workers, which need not be the same.

    A voice is added on the first worker; those with the same storage have it as well.
    """

    def __init__(self, workers: Sequence[VoiceAccess]) -> None:
        self._workers = workers

    async def list(self) -> list[VoiceInfo]:
        answers = await asyncio.gather(*(worker.list() for worker in self._workers), return_exceptions=True)
        lists = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not lists:
            raise next(answer for answer in answers if isinstance(answer, BaseException))
        return list({voice.id: voice for voices in reversed(lists) for voice in voices}.values())

    async def get(self, voice: str) -> VoiceInfo:
        return await self._on_worker_with_voice(lambda worker: worker.get(voice))

    async def add(self, upload: VoiceUpload, audio: bytes | None) -> VoiceInfo:
        return await self._workers[0].add(upload, audio)

    async def delete(self, voice: str) -> None:
        await self._on_worker_with_voice(lambda worker: worker.delete(voice))

    async def _on_worker_with_voice(self, request: Callable[[VoiceAccess], Awaitable[_Answer]]) -> _Answer:
        for worker in self._workers[:-1]:
            with contextlib.suppress(UnknownVoice):
                return await request(worker)
        return await request(self._workers[-1])
