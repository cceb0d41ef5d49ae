"""Publishes a worker's registry entry: renewed three times per heartbeat, deleted while the worker is not ready.

An entry expires a heartbeat and a second after its last renewal, so two lost renewals are tolerated. While Redis is
unreachable, the worker logs a warning and continues.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable

import anyio

from tts_worker.client.registry.entry import WorkerEntry
from tts_worker.client.registry.signature import sign_entry
from tts_worker.client.registry.store import RedisStore
from tts_worker.errors import ConnectionLost

log = logging.getLogger(__name__)

_RENEWALS = 3
_GRACE_S = 1.0


class Registrar:
    """Keeps the entry of one worker in Redis.

    Args:
        store: Access to Redis.
        prefix: Prefix of the entry's key.
        heartbeat_s: Heartbeat interval; sets the renewal interval and the expiry time.
        describe: Returns the current entry, None while the worker accepts no sessions. The registrar sets the time.
        secret: Signs the entry if given.
    """

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
        self._published: tuple[str, bytes] | None = None
        self._is_reachable = True
        self._shares_name = False
        self._refresh_requested = asyncio.Event()
        self._attempted = asyncio.Event()
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start publishing in a background task."""
        self._task = asyncio.create_task(self._run(), name="registrar")

    async def announce(self) -> None:
        """Start publishing, and wait for the first attempt."""
        self.start()
        await self.wait_first_attempt()

    def refresh(self) -> None:
        """Publish the entry again now, for example because the worker drains."""
        self._refresh_requested.set()

    async def wait_first_attempt(self) -> None:
        """Wait until the first attempt to publish has succeeded or failed."""
        await self._attempted.wait()

    async def stop(self) -> None:
        """Stop publishing and delete the entry if Redis answers."""
        if self._task is not None:
            # Waits for a renewal under way: after a cancellation it could still reach Redis after the deletion.
            self._is_stopping = True
            self._refresh_requested.set()
            await asyncio.wait({self._task})
        try:
            await self._delete()
        except ConnectionLost:
            pass  # Redis expires the entry
        await self._store.aclose()

    async def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._refresh_requested.clear()
                await self._publish()
                self._attempted.set()
                with anyio.move_on_after(self._interval_s):
                    await self._refresh_requested.wait()
        finally:
            self._attempted.set()

    async def _publish(self) -> None:
        try:
            await self._renew()
            if not self._is_reachable:
                log.info("%s answers again", self._store.name)
            self._is_reachable = True
        except ConnectionLost as error:
            if self._is_reachable:
                log.warning("%s; the worker keeps serving and registers when it answers", error.message)
            self._is_reachable = False

    async def _renew(self) -> None:
        entry = self._describe()
        if entry is None:
            await self._delete()
            return
        entry = entry.model_copy(update={"last_heartbeat_ts": time.time()})
        key = f"{self._prefix}{entry.name}"
        value = entry.to_json()
        if self._secret is not None:
            value = sign_entry(value, self._secret, self._prefix)
        has_published = self._published is not None
        self._published = (key, value)  # set first: Redis may store the entry although its reply is lost
        before = await self._store.put(key, value, self._ttl_s)
        if has_published and before is not None:  # the first one may replace that of a worker that has ended
            self._check_name(entry, before)

    def _check_name(self, entry: WorkerEntry, before: bytes) -> None:
        """Log once if another worker has written the entry since it was renewed: clients find only one of the two."""
        shares_name = _address(before) != entry.addr
        if shares_name and not self._shares_name:
            log.warning(
                'another worker is registered as "%s", too, and clients find only one of them: '
                "give each another registry.name",
                entry.name,
            )
        self._shares_name = shares_name

    async def _delete(self) -> None:
        if self._published is not None:
            await self._store.delete_if_unchanged(*self._published)
            self._published = None


def _address(value: bytes) -> str | None:
    """Return the address in an entry; None if there is none."""
    try:
        return str(json.loads(value)["addr"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
