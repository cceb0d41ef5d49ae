"""Redis in virtual time: what ``redis.asyncio.Redis`` is to a ``RedisStore``, with faults of server and connection."""

from __future__ import annotations

import asyncio
import fnmatch
import random
from collections.abc import Callable
from enum import Enum
from typing import Any

from redis import exceptions

from tts_worker.features.fleet import quotas

Operation = Callable[[], object]
_PAGE_KEYS = 2
"""Few, so that a small fleet takes several pages."""


class RedisMode(Enum):
    """How the server answers."""

    UP = "answers"
    DOWN = "refuses connections"
    HUNG = "accepts requests and does not answer"
    READ_ONLY = "is a replica, which refuses to write"


class SimulatedRedis:
    """The server: keys that expire, token buckets and leases.

    Args:
        clock: Time in seconds.
        chance: Draws delays and lost answers.

    Attributes:
        mode: How it answers.
        lost_answers: Share of requests that are carried out and whose answer is lost.
        was_disturbed: Whether it has lost data or has not answered.
        epoch: Number of failovers. Connections of before lead to a replica, which refuses to write.
    """

    def __init__(self, clock: Callable[[], float], chance: random.Random) -> None:
        self.mode = RedisMode.UP
        self.lost_answers = 0.0
        self.was_disturbed = False
        self.epoch = 0
        self._clock = clock
        self._chance = chance
        self._values: dict[str, tuple[bytes, float]] = {}
        self._buckets: dict[str, dict[str, float]] = {}
        self._leases: dict[str, dict[str, float]] = {}

    def client_type(self) -> type[SimulatedRedisClient]:
        """Return what replaces ``redis.asyncio.Redis``."""
        return type("Redis", (SimulatedRedisClient,), {"server": self})

    def lose_data(self) -> None:
        """Restart without what was stored."""
        self.was_disturbed = True
        self._values.clear()
        self._buckets.clear()
        self._leases.clear()

    def set_mode(self, mode: RedisMode) -> None:
        self.mode = mode
        self.was_disturbed = self.was_disturbed or mode is not RedisMode.UP

    async def request(self, operation: Operation, *, writes: bool) -> Any:
        """Carry out an operation for a client. Raises the errors of redis-py."""
        await asyncio.sleep(self._chance.uniform(0.000_2, 0.004))
        if self.mode is RedisMode.HUNG:
            await asyncio.sleep(3_600)
        if self.mode is RedisMode.DOWN:
            raise exceptions.ConnectionError("refused")
        if self.mode is RedisMode.READ_ONLY and writes:
            raise exceptions.ReadOnlyError("READONLY You can't write against a read only replica.")
        answer = operation()
        if self.lost_answers and self._chance.random() < self.lost_answers:
            # redis-py connects again and repeats the request once.
            if self._chance.random() < 0.5:
                await asyncio.sleep(self._chance.uniform(0.001, 0.02))
                return operation()
            self.was_disturbed = True
            raise exceptions.ConnectionError("the connection broke")
        return answer

    # -- commands -----------------------------------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        value, expires_s = self._values.get(key, (None, 0.0))
        return value if expires_s > self._clock() else None

    def set(self, key: str, value: bytes, px: int) -> bool:
        self._values[key] = (value, self._clock() + px / 1000)
        return True

    def keys(self, pattern: str) -> list[str]:
        """Return the keys that match a pattern and have not expired, in order."""
        return sorted(key for key in self._values if fnmatch.fnmatchcase(key, pattern) and self.get(key) is not None)

    def evaluate(self, script: str, key: str, values: tuple[Any, ...]) -> object:
        """Do what a script of the worker does."""
        if script is quotas._BUCKET:
            return self._take(key, *values)
        if script is quotas._RESERVE:
            return self._reserve(key, *values)
        if script is quotas._RENEW:
            return self._renew(key, *values)
        if self.get(key) == values[0]:  # delete_if_unchanged
            del self._values[key]
            return 1
        return 0

    def _take(self, key: str, rate: float, units: float, needed: int, sender: str, number: int) -> list[bytes]:
        now_s = self._clock()
        capacity = max(1.0, rate)
        bucket = self._buckets.setdefault(key, {"units": capacity, "at_s": now_s})
        level = min(capacity, bucket["units"] + max(0.0, now_s - bucket["at_s"]) * rate / 60)
        wait_ms = 0.0
        if number > bucket.get(f"charge:{sender}", 0):
            if needed and level < 1:
                wait_ms = (1 - level) * 60_000 / rate
            else:
                level -= units
                bucket[f"charge:{sender}"] = number
        bucket |= {"units": level, "at_s": now_s}
        return [f"{level:.6f}".encode(), f"{wait_ms:.3f}".encode()]

    def _live_leases(self, key: str) -> dict[str, float]:
        now_s = self._clock()
        self._leases[key] = {name: end_s for name, end_s in self._leases.get(key, {}).items() if end_s > now_s}
        return self._leases[key]

    def _reserve(self, key: str, lease: str, most: int, ttl_ms: int, *ended: str) -> int:
        leases = self._live_leases(key)
        for name in ended:
            leases.pop(name, None)
        if len(leases) >= most:
            return 0
        leases[lease] = self._clock() + ttl_ms / 1000
        return 1

    def _renew(self, key: str, ttl_ms: int, held: int, *names: str) -> int:
        leases = self._live_leases(key)
        for number, name in enumerate(names):
            if number < held:
                leases[name] = self._clock() + ttl_ms / 1000
            else:
                leases.pop(name, None)
        return 1


class SimulatedRedisClient:
    """A client, with the methods that ``registry.store.RedisStore`` calls. The host of its URL is its name.

    Attributes:
        is_cut: Nothing reaches the server: its process was killed.
    """

    server: SimulatedRedis

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_cut = False
        self.connection_pool = self
        self._epoch: int | None = None  # of the server that its connection leads to; None without one

    @classmethod
    def from_url(cls, url: str, **_: object) -> SimulatedRedisClient:
        return cls(url.removeprefix("redis://").partition(":")[0])

    async def request(self, operation: Operation, *, writes: bool) -> Any:
        if self.is_cut:
            raise exceptions.ConnectionError("the process was killed")
        if self._epoch is None:
            self._epoch = self.server.epoch
        if self._epoch != self.server.epoch and writes:
            raise exceptions.ReadOnlyError("READONLY You can't write against a read only replica.")
        return await self.server.request(operation, writes=writes)

    async def eval(self, script: str, keys: int, key: str, *values: object) -> Any:
        return await self.request(lambda: self.server.evaluate(script, key, values), writes=True)

    async def scan(self, cursor: int, match: str, count: int) -> tuple[int, list[bytes]]:
        names = await self.request(lambda: self.server.keys(match), writes=False)
        page = names[cursor : cursor + _PAGE_KEYS]
        following = cursor + _PAGE_KEYS
        return following if following < len(names) else 0, [name.encode() for name in page]

    def pipeline(self, transaction: bool) -> _Pipeline:
        return _Pipeline(self)

    async def disconnect(self, inuse_connections: bool) -> None:
        """As that of a connection pool: the next request connects anew."""
        self._epoch = None

    async def aclose(self) -> None:
        pass


class _Pipeline:
    def __init__(self, client: SimulatedRedisClient) -> None:
        self._client = client
        self._operations: list[Operation] = []
        self._writes = False

    def get(self, key: str) -> None:
        self._operations.append(lambda: self._client.server.get(key))

    def set(self, key: str, value: bytes, px: int) -> None:
        self._operations.append(lambda: self._client.server.set(key, value, px))
        self._writes = True

    def getrange(self, key: bytes, start: int, end: int) -> None:
        self._operations.append(lambda: (self._client.server.get(key.decode()) or b"")[start : end + 1])

    async def execute(self, raise_on_error: bool) -> list[object]:
        try:
            return await self._client.request(lambda: [each() for each in self._operations], writes=self._writes)  # type: ignore[no-any-return]
        except exceptions.ReadOnlyError as error:
            return [error for _ in self._operations]
