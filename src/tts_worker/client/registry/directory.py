"""The workers that a client may connect to: entries that are valid, fresh and inside the allowed networks.

Registry entries are not trusted. An invalid one is skipped and logged once. Host names are resolved here, and clients
get the checked address, so a later DNS answer cannot redirect them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tts_worker.client.registry.entry import (
    LOOPBACK,
    MAX_ENTRY_BYTES,
    Network,
    WorkerAddress,
    WorkerEntry,
    is_allowed,
    parse_entry,
    parse_worker_address,
)
from tts_worker.client.registry.signature import verify_entry
from tts_worker.client.registry.store import RedisStore
from tts_worker.errors import InvalidRequest
from tts_worker.timeouts import fail_after

log = logging.getLogger(__name__)

STALE_S = 60.0
"""Maximum age of an entry. Redis expires entries earlier; an older one has a dead writer or a wrong clock."""
MAX_WORKERS = 1_000
_MAX_WARNINGS = 20
RESOLVE_S = 1.0


@dataclass(frozen=True, slots=True)
class ResolvedWorker:
    """A usable worker; ``address`` is ``host:port`` with a checked IP address."""

    entry: WorkerEntry
    address: str


class WorkerDirectory:
    """Lists the workers of a registry.

    Args:
        store: Access to Redis.
        prefix: Prefix of the keys of entries.
        networks: Networks that workers may be in; addresses outside are never used.
        secret: Secret of the fleet; entries without its signature are skipped. None accepts unsigned entries, which
            any writer to Redis can forge.
    """

    def __init__(
        self,
        store: RedisStore,
        prefix: str = "worker:",
        networks: Sequence[Network] = LOOPBACK,
        secret: str | None = None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._networks = networks
        self._secret = secret
        self._warned_keys: set[str] = set()

    @property
    def verifies_signatures(self) -> bool:
        """Whether entries need a valid signature of the fleet."""
        return self._secret is not None

    async def workers(self) -> list[ResolvedWorker]:
        """Return the workers that are usable now. Raises ConnectionLost if Redis does not answer."""
        workers: list[ResolvedWorker] = []
        async with aclosing(self._store.read(self._prefix, MAX_ENTRY_BYTES)) as pages:
            async for entries in pages:
                found = await asyncio.gather(*(self._validate(key, raw) for key, raw in entries.items()))
                workers += [worker for worker in found if worker is not None]
                if len(workers) >= MAX_WORKERS:
                    break
        return workers[:MAX_WORKERS]

    async def _validate(self, key: str, raw: bytes) -> ResolvedWorker | None:
        try:
            return await self._parse(key, raw)
        except InvalidRequest as error:
            self._warn_once(key, error.message)
            return None

    async def _parse(self, key: str, raw: bytes) -> ResolvedWorker:
        entry = parse_entry(raw if self._secret is None else verify_entry(raw, self._secret, self._prefix))
        if key != f"{self._prefix}{entry.name}":
            raise InvalidRequest("its name differs from its key")
        if abs(time.time() - entry.last_heartbeat_ts) > STALE_S:
            raise InvalidRequest("it is stale, or its clock is wrong")
        return ResolvedWorker(entry, await self._resolve(parse_worker_address(entry.addr)))

    async def _resolve(self, target: WorkerAddress) -> str:
        """Return ``host:port`` with an IP address. Raises InvalidRequest if any address is outside the networks."""
        if is_allowed(target.host, self._networks):  # the host is an allowed IP address already
            return _join_host_port(target.host, target.port)
        records: Sequence[tuple[object, ...]] = ()
        try:
            async with fail_after(RESOLVE_S):
                loop = asyncio.get_running_loop()
                records = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            pass
        addresses = [str(sockaddr[0]) for *_, sockaddr in records if isinstance(sockaddr, tuple)]
        if not addresses:
            raise InvalidRequest("its host cannot be resolved")
        if not all(is_allowed(address, self._networks) for address in addresses):
            raise InvalidRequest("it is outside the allowed networks")
        return _join_host_port(addresses[0], target.port)

    def _warn_once(self, key: str, reason: str) -> None:
        """Log one warning per key and few in all, so that forged entries cannot flood the log."""
        if key in self._warned_keys or len(self._warned_keys) >= _MAX_WARNINGS:
            return
        self._warned_keys.add(key)
        last = "; no more are logged" if len(self._warned_keys) == _MAX_WARNINGS else ""
        log.warning("skipped the registry entry %.80r: %s%s", key, reason, last)

    async def aclose(self) -> None:
        """Close the connection to Redis."""
        await self._store.aclose()


def _join_host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
