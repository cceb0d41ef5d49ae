"""A worker's own entry: written at once, renewed three times in every heartbeat, taken back when it is not ready.

An entry outlives its last renewal by a heartbeat and a second, so two renewals may be lost before anybody thinks that
the worker is gone. Redis that goes away is a warning in the log and nothing else. Knows no session.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import anyio

from tts_worker.errors import ConnectionLost
from tts_worker.registry.entry import WorkerEntry
from tts_worker.registry.signature import sign_entry
from tts_worker.registry.store import RedisStore

log = logging.getLogger(__name__)

_RENEWALS = 3
_GRACE_S = 1.0


class Registrar:
    """``describe``: the entry as it is now, None while the worker takes no sessions; the time is put in here.
    ``secret``: the entry is signed with it."""

    def __init__(
        self,
        store: RedisStore,
        prefix: str,
        heartbeat_s: float,
        describe: Callable[[], WorkerEntry | None],
        secret: str | None = None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._interval_s = heartbeat_s / _RENEWALS
        self._ttl_s = heartbeat_s + _GRACE_S
        self._describe = describe
        self._secret = secret
        self._written: tuple[str, bytes] | None = None
        self._reachable = True
        self._changed = asyncio.Event()
        self._tried = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="registrar")

    def refresh(self) -> None:
        """``describe`` has something new to say that should not wait: the worker drains, say."""
        self._changed.set()

    async def wait_first_attempt(self) -> None:
        """Until Redis was told for the first time, or has not answered."""
        await self._tried.wait()

    async def stop(self) -> None:
        """Take the entry back, if Redis answers."""
        if self._task is not None:
            # A renewal that is under way is waited for: cut off, it might reach Redis after the entry was taken back.
            self._stopping = True
            self._changed.set()
            await asyncio.wait({self._task})
        try:
            await self._withdraw()
        except ConnectionLost:
            pass  # it expires by itself
        await self._store.aclose()

    async def _run(self) -> None:
        try:
            while not self._stopping:
                self._changed.clear()
                await self._tell()
                self._tried.set()
                with anyio.move_on_after(self._interval_s):
                    await self._changed.wait()
        finally:
            self._tried.set()

    async def _tell(self) -> None:
        try:
            await self._renew()
            if not self._reachable:
                log.info("the registry at %s answers again", self._store.place)
            self._reachable = True
        except ConnectionLost as lost:
            if self._reachable:
                log.warning("%s; the worker goes on and registers when it can", lost.message)
            self._reachable = False

    async def _renew(self) -> None:
        entry = self._describe()
        if entry is None:
            await self._withdraw()
            return
        entry = entry.model_copy(update={"last_heartbeat_ts": time.time()})
        key = f"{self._prefix}{entry.name}"
        value = entry.to_json()
        if self._secret is not None:
            value = sign_entry(value, self._secret, self._prefix)
        self._written = (key, value)  # also if the answer is lost: then it may have been written
        await self._store.put(key, value, self._ttl_s)

    async def _withdraw(self) -> None:
        if self._written is not None:
            await self._store.delete_if_unchanged(*self._written)
            self._written = None
