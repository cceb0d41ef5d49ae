"""``redis://``: sessions on whichever worker of a fleet has the voice and the most room.

``redis://[:password@]host:port[/db]?prefix=worker:&networks=127.0.0.0/8,10.0.0.0/8`` (``rediss://`` for TLS). Workers
outside ``networks`` (loopback unless it says otherwise) are never dialled, whatever the registry says. Owns the choice
and the connectors; ``failover`` keeps a session alive when its worker is lost before it was heard.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio

from tts_worker.client.base import ClientSettings, Opened
from tts_worker.client.conversation import Conversation
from tts_worker.client.failover import FailoverLink
from tts_worker.client.grpc import GrpcConnector
from tts_worker.client.remote import RemoteSession
from tts_worker.errors import (
    ConfigError,
    ConnectionLost,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    TTSWorkerError,
    UnknownVoice,
)
from tts_worker.registry.directory import ResolvedWorker, WorkerDirectory
from tts_worker.registry.entry import LOOPBACK, parse_networks
from tts_worker.registry.store import RedisStore
from tts_worker.session.hub import SessionOptions
from tts_worker.transports.grpc.messages import PROTOCOL_VERSION

_FRESH_S = 0.5
"""A list of workers is used for so long before the registry is asked again."""
_REFRESH_PATIENCE_S = 0.05
"""How long a session waits for a newer list where one is known; a Redis that hangs must not delay every session."""
_SUSPECT_S = 5.0
"""A worker that could not be reached is the last choice for so long; its entry may outlive it."""


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
    """See ``base.Connector``. Raises ConfigError for an API key if the directory verifies no
    signatures: any writer to Redis could name itself a worker and collect the key."""

    def __init__(self, directory: WorkerDirectory, settings: ClientSettings) -> None:
        if settings.api_key is not None and not directory.verifies_signatures:
            raise ConfigError(
                "an API key is not sent to workers of an unsigned registry: set the workers' registry.secret and the "
                "same as registry_secret here (or TTS_WORKER_REGISTRY__SECRET), or give no key"
            )
        self._directory = directory
        self._settings = settings
        self._connectors: dict[str, GrpcConnector] = {}
        self._links: set[FailoverLink] = set()
        self._known: list[ResolvedWorker] = []
        self._asked_at_s = -_FRESH_S
        self._asking: asyncio.Task[None] | None = None
        self._lost_registry: ConnectionLost | None = None
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

    async def open(self, options: SessionOptions, *, audio_timeout_s: float) -> Opened:
        address, conversation, reused = await self._begin(options)
        place = [address]  # where the session is now

        async def next_worker() -> Conversation:
            self._suspect(place[0])
            # The same voice: another worker's default may be another one.
            place[0], following, _ = await self._begin(replace(options, voice=conversation.params.voice))
            return following

        link = FailoverLink(conversation, next_worker)
        config = self._connector(address).remote_config(conversation, audio_timeout_s)
        session = RemoteSession(link, config)
        self._links = {known for known in self._links if not known.over} | {link}
        link.attach(session, self._over)
        return Opened(session, connection_reused=reused)

    async def _begin(self, options: SessionOptions) -> tuple[str, Conversation, bool]:
        """A conversation with the best worker that takes it. Raises what the last one said, if none does."""
        refusal: TTSWorkerError = NotReady("no worker of the fleet is ready", retry_after_s=1.0)
        tried: set[str] = set()
        for newest in (False, True):  # where all that are known refuse, there may be one that is not known yet
            for worker in await self._candidates(options, newest=newest):
                if worker.address in tried:
                    continue
                tried.add(worker.address)
                connector = self._connector(worker.address)
                reused = connector.connected
                try:
                    conversation = await connector.begin(options)
                except InvalidRequest:
                    raise  # it would be as wrong elsewhere
                except TTSWorkerError as error:
                    refusal = error
                    if isinstance(error, ConnectionLost | DeadlineExceeded):
                        self._suspect(worker.address)
                else:
                    connector.adopt(conversation)
                    return worker.address, conversation, reused
        raise refusal

    def _over(self, conversation: Conversation) -> None:
        for connector in self._connectors.values():
            connector.forget(conversation)

    # -- the choice ---------------------------------------------------------------------------------------------------

    async def _candidates(self, options: SessionOptions, *, newest: bool = False) -> Sequence[ResolvedWorker]:
        """Workers that could take such a session, the best first; ``newest`` asks the registry now.

        Raises UnknownVoice where none has the voice, ConnectionLost while nothing is known of any worker.
        """
        if self._closed:
            raise ConnectionLost("the client is closed")
        await self._refresh(newest=newest)
        ours = [worker for worker in self._known if worker.entry.capabilities.protocol_version == PROTOCOL_VERSION]
        if not ours:
            raise self._lost_registry or ConnectionLost("no worker of this kind is registered")
        able = [worker for worker in ours if options.voice in (None, *worker.entry.capabilities.voices)]
        if not able:
            voices = sorted({voice for worker in ours for voice in worker.entry.capabilities.voices})
            raise UnknownVoice(f'no worker has the voice "{(options.voice or "")[:64]}"; there are: {voices[:20]}')
        if options.voice is None and options.language is not None:
            able = [worker for worker in able if _speaks(worker, options.language)] or able
        now_s = asyncio.get_running_loop().time()
        return sorted(able, key=lambda worker: (self._suspects.get(worker.address, 0) > now_s, self._load(worker)))

    def _load(self, worker: ResolvedWorker) -> tuple[float, float]:
        """What it says, or what we know better: it has told before our latest sessions began."""
        places = worker.entry.capabilities.max_concurrent_sessions or 1
        connector = self._connectors.get(worker.address)
        ours = 0 if connector is None else connector.sessions
        return max(worker.entry.load, ours / places), random.random()

    async def _refresh(self, *, newest: bool) -> None:
        """Ask the registry, once however many ask at the same time. While it is away, what was known goes on: then
        it is asked in the background, and no session waits for it."""
        loop = asyncio.get_running_loop()
        if self._known and not newest and loop.time() - self._asked_at_s < _FRESH_S:
            return
        if self._asking is None:
            self._asking = loop.create_task(self._ask(), name="tts-client-registry")
        patience_s: float | None = _REFRESH_PATIENCE_S
        if not self._known:
            patience_s = None
        elif self._lost_registry is not None:
            patience_s = 0.0
        elif newest:
            patience_s = None
        with anyio.move_on_after(patience_s):
            await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        try:
            self._known = await self._directory.workers()
            self._lost_registry = None
        except ConnectionLost as lost:
            self._lost_registry = lost
        finally:
            self._asked_at_s = asyncio.get_running_loop().time()
            self._asking = None
        addresses = {worker.address for worker in self._known}
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
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})
        await self._directory.aclose()


def _speaks(worker: ResolvedWorker, language: str) -> bool:
    tags = {tag.split("-")[0].lower() for tag in worker.entry.capabilities.languages}
    return "mul" in tags or language.split("-")[0].lower() in tags
