"""The workers that a client may go to: entries that are valid, fresh, and inside the allowed networks.

Entries are hearsay. One that is not what it should be is left out and named once in the log; a host name is resolved
here and only its checked address is given on, so that nobody resolves it to something else later. Knows no session.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from tts_worker.errors import InvalidRequest
from tts_worker.registry.entry import (
    LOOPBACK,
    MAX_ENTRY_BYTES,
    Network,
    WorkerAddress,
    WorkerEntry,
    is_allowed,
    parse_entry,
    parse_worker_address,
)
from tts_worker.registry.signature import verify_entry
from tts_worker.registry.store import RedisStore

log = logging.getLogger(__name__)

STALE_S = 60.0
"""Redis lets entries expire; an entry older than this was not written by a worker that lives, or clocks differ by as
much."""
_RESOLVE_S = 1.0


@dataclass(frozen=True, slots=True)
class ResolvedWorker:
    """``address``: ``host:port`` with an IP address that was checked."""

    entry: WorkerEntry
    address: str


class WorkerDirectory:
    """``networks``: where workers may be; nothing outside is ever dialled. ``secret``: of the fleet; entries that are
    not signed with it are left out. None takes unsigned entries, which prove nothing about their writer."""

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
        self._complained: set[str] = set()

    @property
    def verifies_signatures(self) -> bool:
        """Whether the writer of every entry is known to belong to the fleet."""
        return self._secret is not None

    async def workers(self) -> list[ResolvedWorker]:
        """Those that can be gone to now. Raises ConnectionLost if Redis does not answer."""
        entries = await self._store.read(self._prefix, MAX_ENTRY_BYTES)
        found = await asyncio.gather(*(self._believe(key, raw) for key, raw in entries.items()))
        return [worker for worker in found if worker is not None]

    async def _believe(self, key: str, raw: bytes) -> ResolvedWorker | None:
        try:
            return await self._check(key, raw)
        except InvalidRequest as problem:
            self._complain(key, problem.message)
            return None

    async def _check(self, key: str, raw: bytes) -> ResolvedWorker:
        entry = parse_entry(raw if self._secret is None else verify_entry(raw, self._secret, self._prefix))
        if key != f"{self._prefix}{entry.name}":
            raise InvalidRequest("its name is not that of its key")
        if abs(time.time() - entry.last_heartbeat_ts) > STALE_S:
            raise InvalidRequest("it is stale, or its clock is wrong")
        return ResolvedWorker(entry, await self._resolve(parse_worker_address(entry.addr)))

    async def _resolve(self, target: WorkerAddress) -> str:
        """Raises InvalidRequest if any address of that host lies outside the networks."""
        if is_allowed(target.host, self._networks):  # an address, and a good one
            return _joined(target.host, target.port)
        found: Sequence[tuple[object, ...]] = ()
        with anyio.move_on_after(_RESOLVE_S):
            try:
                loop = asyncio.get_running_loop()
                found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                pass
        addresses = [str(sockaddr[0]) for *_, sockaddr in found if isinstance(sockaddr, tuple)]
        if not addresses:
            raise InvalidRequest("its host has no address")
        if not all(is_allowed(address, self._networks) for address in addresses):
            raise InvalidRequest("it is outside the allowed networks")
        return _joined(addresses[0], target.port)

    def _complain(self, key: str, problem: str) -> None:
        """Once for every key: somebody who forges entries should not fill the log too."""
        if key not in self._complained and len(self._complained) < 1_000:
            self._complained.add(key)
            log.warning("the registry's entry %.80r is left out: %s", key, problem)

    async def aclose(self) -> None:
        await self._store.aclose()


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
