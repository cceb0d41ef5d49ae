"""The way to Redis: the four commands that the registry needs, with time limits and typed errors.

Every failure is ConnectionLost, whatever the library calls it, so that callers have one thing to survive. Knows keys
and bytes; not what an entry is. The URL may hold a password and is never logged or repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import anyio

from tts_worker.errors import ConfigError, ConnectionLost, MissingExtra

if TYPE_CHECKING:
    from redis.asyncio import Redis

_Value = TypeVar("_Value")

TIMEOUT_S = 1.0
_MAX_KEYS = 1_000
_DELETE_IF_UNCHANGED = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class RedisStore:
    """Built without dialling. Raises ConfigError for a URL that makes no sense, MissingExtra."""

    def __init__(self, url: str) -> None:
        self.place = _place(url)
        """Host and port, for messages."""
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
        except ModuleNotFoundError:
            raise MissingExtra("the registry", "redis") from None
        self._error: type[Exception] = RedisError
        try:
            self._redis: Redis = Redis.from_url(
                url,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(NoBackoff(), 1),
            )
        except (ValueError, TypeError):
            raise ConfigError("the URL of the registry makes no sense: redis://[:password@]host:port[/db]") from None

    async def put(self, key: str, value: bytes, ttl_s: float) -> None:
        """Raises ConnectionLost, as all of them do."""
        await self._run(self._redis.set(key, value, px=max(1, int(1000 * ttl_s))))

    async def delete_if_unchanged(self, key: str, value: bytes) -> None:
        """Delete it unless somebody else has written it since."""
        await self._run(self._redis.eval(_DELETE_IF_UNCHANGED, 1, key, value))

    async def read(self, prefix: str, max_bytes: int) -> dict[str, bytes]:
        """The values of the keys that begin with ``prefix``, each at most ``max_bytes + 1`` bytes of it. Keys of
        another type are left out; there are never more than a thousand."""
        return await self._run(self._read(prefix, max_bytes))

    async def _read(self, prefix: str, max_bytes: int) -> dict[str, bytes]:
        names: list[bytes] = []
        async for name in self._redis.scan_iter(match=_literally(prefix) + "*", count=500):
            names.append(name)
            if len(names) == _MAX_KEYS:
                break
        names = sorted(set(names))
        if not names:
            return {}
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            pipeline.getrange(name, 0, max_bytes)
        values: Sequence[object] = await pipeline.execute(raise_on_error=False)
        found = zip(names, values, strict=True)
        return {name.decode("utf-8", "replace"): value for name, value in found if isinstance(value, bytes) and value}

    async def _run(self, command: Awaitable[_Value]) -> _Value:
        try:
            with anyio.fail_after(2 * TIMEOUT_S):
                return await command
        except (self._error, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise ConnectionLost(f"the registry at {self.place} does not answer ({type(error).__name__})") from None

    async def aclose(self) -> None:
        try:
            await self._redis.aclose()
        except (self._error, OSError):
            pass  # it was gone already


def _place(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        return "?"


def _literally(prefix: str) -> str:
    """A glob pattern that matches exactly ``prefix``."""
    return "".join(f"\\{character}" if character in "*?[]^\\-" else character for character in prefix)
