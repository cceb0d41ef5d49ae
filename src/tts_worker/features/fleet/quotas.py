"""Quotas that the workers of a fleet share through Redis.

Redis keeps token buckets for the requests, characters and source audio of each API key, and its open sessions as leases
that expire unless they are renewed. Scripts use Redis's clock, so the clocks of the workers need not agree. A
request or a session waits for one script. Text is charged while it is spoken, source audio while it is converted:
charges are sent in the background; other workers know them within a second. Requests and charges are numbered, so that
one whose answer was lost is not counted twice.

While Redis does not answer, each worker applies the quotas on its own, starting from what it knew last: calls go on,
and a key may use up to its quota at each worker. Charges and leases are sent again once Redis answers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio

from tts_worker.client.registry.store import RedisStore
from tts_worker.errors import ConnectionLost
from tts_worker.session.quotas import Metered, Quotas

log = logging.getLogger(__name__)

TIMEOUT_S = 0.25
"""How long a request waits for Redis before this worker decides alone."""
RETRY_S = 5.0
"""How long this worker decides alone after Redis has not answered."""
REFRESH_S = 1.0
"""Interval at which the charges of other workers are read."""
LEASE_S = 30.0
"""After this time the sessions of a worker that has crashed are free again."""
_RENEWALS = 3
_RECENT_S = 60.0
"""Keys that were used within this time are read every ``REFRESH_S``."""

_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + t[2] / 1000\n"

_BUCKET = (
    _NOW
    + """
local rate, units, needed, sender, number = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local capacity = math.max(1, rate)
local stored = redis.call('HMGET', KEYS[1], 'units', 'at_ms', 'charge:' .. sender)
local level = capacity
if stored[1] then level = math.min(capacity, stored[1] + math.max(0, now - stored[2]) * rate / 60000) end
local wait_ms = 0
if tonumber(number) > tonumber(stored[3] or 0) then
  if needed == '1' and level < 1 then
    wait_ms = (1 - level) * 60000 / rate
  else
    level = level - units
    redis.call('HSET', KEYS[1], 'charge:' .. sender, number)
  end
end
redis.call('HSET', KEYS[1], 'units', string.format('%.6f', level), 'at_ms', string.format('%.3f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(60000 + (capacity - level) * 60000 / rate))
return {string.format('%.6f', level), string.format('%.3f', wait_ms)}
"""
)
"""Takes units of a token bucket. Answers with its level, and the milliseconds until a unit is available.

The numbers of a sender rise. One that is not new has taken its units before, and its answer was lost.
"""

_RESERVE = (
    _NOW
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
for i = 4, #ARGV do redis.call('ZREM', KEYS[1], ARGV[i]) end
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
)
"""Ends leases, and adds one if there are fewer than allowed."""

_RENEW = (
    _NOW
    + """
local held = tonumber(ARGV[2])
for i = 3, #ARGV do
  if i < 3 + held then redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i]) else redis.call('ZREM', KEYS[1], ARGV[i]) end
end
if held > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return 1
"""
)
"""Renews leases and ends others."""


@dataclass(slots=True)
class _Charges:
    """The characters, or the seconds of source audio, of a key that Redis does not know yet.

    Attributes:
        unsent: Units charged since the last attempt.
        sending: Number and units of the charge that Redis may or may not have.
        used_at_s: When the key was last used.
    """

    per_minute: float
    used_at_s: float
    unsent: float = 0
    sending: tuple[int, float] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RedisQuotas(Quotas):
    """Quotas shared by the workers with the same Redis and prefix.

    Args:
        store: Access to Redis; closed by ``aclose``.
        prefix: Prefix of the keys.
        clock: Monotonic, in seconds.
    """

    def __init__(self, store: RedisStore, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._store = store
        self._prefix = prefix
        self._worker = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._free_senders: list[str] = []  # of requests that were answered
        self._senders = 0
        self._charges: dict[tuple[Metered, str], _Charges] = {}  # by kind and API key
        self._leases: dict[str, set[str]] = {}  # held by this worker, by API key
        self._ended: dict[str, set[str]] = {}  # leases that Redis may still have
        self._changed = asyncio.Event()
        self._away_until_s: float | None = None
        self._is_back = False  # Redis may have lost the leases

    # -- requests -----------------------------------------------------------------------------------------------------

    async def take_request(self, key: str, per_minute: float) -> float:
        sender = self._free_senders.pop() if self._free_senders else self._new_sender()
        try:
            level = await self._take(Metered.REQUESTS, key, per_minute, 1, sender, needed=True)
        finally:
            self._free_senders.append(sender)
        if level is None:
            return await super().take_request(key, per_minute)
        units, wait_s = level
        self._bucket(Metered.REQUESTS, key, per_minute).set_level(units, self._clock())
        return wait_s

    def _new_sender(self) -> str:
        self._senders += 1
        return f"{self._worker}.{self._senders}"

    # -- characters and source audio ----------------------------------------------------------------------------------

    async def refresh(self, kind: Metered, key: str, per_minute: float) -> None:
        await self._exchange(kind, key, self._charges_of(kind, key, per_minute))

    def charge(self, kind: Metered, key: str, per_minute: float, units: float) -> None:
        super().charge(kind, key, per_minute, units)
        if kind is not Metered.REQUESTS:  # those are taken one by one
            self._charges_of(kind, key, per_minute).unsent += units
            self._changed.set()

    def _charges_of(self, kind: Metered, key: str, per_minute: float) -> _Charges:
        charges = self._charges.setdefault((kind, key), _Charges(per_minute, 0.0))
        charges.per_minute = per_minute
        charges.used_at_s = self._clock()
        return charges

    async def _exchange(self, kind: Metered, key: str, charges: _Charges) -> None:
        """Send the charges of a key and take over what is left of its quota."""
        async with charges.lock:  # Redis remembers one number of each sender
            if charges.sending is None:
                charges.sending = (next(self._numbers), charges.unsent)
                charges.unsent = 0
            number, units = charges.sending
            level = await self._take(kind, key, charges.per_minute, units, self._worker, number=number)
            if level is not None:
                charges.sending = None
                bucket = self._bucket(kind, key, charges.per_minute)
                bucket.set_level(level[0] - charges.unsent, self._clock())

    async def _take(
        self,
        kind: Metered,
        key: str,
        per_minute: float,
        units: float,
        sender: str,
        *,
        number: int | None = None,
        needed: bool = False,
    ) -> tuple[float, float] | None:
        """Take units; return what is left and the seconds to wait. None if Redis does not answer.

        The client of Redis sends the script again if the connection breaks; ``number`` tells Redis that it is the same.
        A sender sends one at a time.
        """
        number = next(self._numbers) if number is None else number
        values: tuple[str | float, ...] = (per_minute, units, int(needed), sender, number)
        answer = await self._evaluate(_BUCKET, kind.value, key, values)
        return None if not isinstance(answer, list) else (float(answer[0]), float(answer[1]) / 1000)

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def reserve_session(self, key: str, lease: str, max_sessions: int) -> bool:
        ended = self._ended.pop(key, set())
        # Held from now on: an answer that is lost would leave it in Redis, and a renewal must not end it.
        self._leases.setdefault(key, set()).add(lease)
        values: tuple[str | float, ...] = (lease, max_sessions, int(1000 * LEASE_S), *ended)
        answer = await self._evaluate(_RESERVE, "sessions", key, values)
        if answer is None:
            self._ended.setdefault(key, set()).update(ended)
            return True  # the hub has checked the sessions of this worker
        if answer == 0:
            self._leases.get(key, set()).discard(lease)
        return answer != 0

    def hold_session(self, key: str, lease: str) -> None:
        self._leases.setdefault(key, set()).add(lease)
        self._changed.set()

    def release_session(self, key: str, lease: str) -> None:
        held = self._leases.get(key, set())
        if lease in held:
            held.discard(lease)
            self._ended.setdefault(key, set()).add(lease)
            self._changed.set()

    async def _renew(self, key: str) -> None:
        held, ended = self._leases.get(key, set()), self._ended.pop(key, set())
        answer = await self._evaluate(_RENEW, "sessions", key, (int(1000 * LEASE_S), len(held), *held, *ended))
        if answer is None and ended:
            self._ended.setdefault(key, set()).update(ended)
        elif not self._leases.get(key):  # not ``held``: a session may have been reserved meanwhile
            self._leases.pop(key, None)

    # -- exchange -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        renewed_at_s = refreshed_at_s = -LEASE_S
        while True:
            with anyio.move_on_after(REFRESH_S):
                await self._changed.wait()
            self._changed.clear()
            now_s = self._clock()
            renews = self._is_back or now_s - renewed_at_s >= LEASE_S / _RENEWALS
            refreshes = now_s - refreshed_at_s >= REFRESH_S
            self._is_back = False
            await self._send(renews=renews, refreshes=refreshes)
            renewed_at_s = now_s if renews else renewed_at_s
            refreshed_at_s = now_s if refreshes else refreshed_at_s
            if self.is_away:
                await asyncio.sleep(REFRESH_S)  # each charge would wake it

    async def _send(self, *, renews: bool, refreshes: bool) -> None:
        """Send charges and ended leases; read the quotas in use and renew the leases if they are due."""
        now_s = self._clock()
        for (kind, key), charges in list(self._charges.items()):
            is_settled = charges.unsent == 0 and charges.sending is None and not charges.lock.locked()
            if is_settled and now_s - charges.used_at_s > _RECENT_S:
                del self._charges[kind, key]
            elif refreshes or not is_settled:
                await self._exchange(kind, key, charges)
        for key in [*(self._leases if renews else ()), *self._ended]:
            await self._renew(key)

    async def aclose(self) -> None:
        for key, held in self._leases.items():
            self._ended.setdefault(key, set()).update(held)
        self._leases.clear()
        await self._send(renews=False, refreshes=False)
        await self._store.aclose()

    # -- Redis --------------------------------------------------------------------------------------------------------

    @property
    def is_away(self) -> bool:
        return self._away_until_s is not None and self._clock() < self._away_until_s

    async def _evaluate(self, script: str, kind: str, key: str, values: Sequence[str | float]) -> object:
        """Run a script. Returns None if Redis does not answer, at once if it has not answered a moment ago."""
        if self.is_away:
            return None
        try:
            answer = await self._store.evaluate(script, f"quota:{self._prefix}{kind}:{key}", values, TIMEOUT_S)
        except ConnectionLost as error:
            if self._away_until_s is None:
                log.warning("%s; this worker applies the quotas of API keys on its own", error.message)
            self._away_until_s = self._clock() + RETRY_S
            return None
        if self._away_until_s is not None:
            self._away_until_s = None
            self._is_back = True
            self._changed.set()
            log.info("%s answers again: quotas are shared", self._store.name)
        return answer
