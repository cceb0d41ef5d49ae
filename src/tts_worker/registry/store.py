"""Access to Redis for the registry and for quotas, with timeouts and typed errors.

Every failure is raised as ConnectionLost. The URL may contain a password and never appears in logs or messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from tts_worker.errors import CLIENT_SOURCE, ConfigError, ConnectionLost, MissingExtra
from tts_worker.timeouts import fail_after

if TYPE_CHECKING:
    from redis.asyncio import Redis

_Value = TypeVar("_Value")

TIMEOUT_S = 1.0
_PAGE_KEYS = 200
_MAX_KEYS = 20_000
"""Keys that are read, whoever has written them."""
_DELETE_IF_UNCHANGED = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class RedisStore:
    """Client of one Redis server; connects on first use.

    Attributes:
        name: What it is, with host and port, for messages.

    Args:
        url: A Redis URL.
        purpose: What it is, for messages.

    Raises:
        ConfigError: The URL is invalid.
        MissingExtra: redis-py is not installed.
    """

    def __init__(self, url: str, purpose: str = "the registry") -> None:
        self.name = f"{purpose} at {_location(url)}"
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
        except ModuleNotFoundError:
            raise MissingExtra(purpose, "redis", CLIENT_SOURCE) from None
        self._error: type[Exception] = RedisError
        try:
            self._redis: Redis = Redis.from_url(
                url,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(NoBackoff(), 1),
            )
        except (ValueError, TypeError):
            raise ConfigError(f"the URL of {purpose} is invalid: use redis://[:password@]host:port[/db]") from None

    async def put(self, key: str, value: bytes, ttl_s: float) -> bytes | None:
        """Store a value that expires after ``ttl_s``; return the one before, if it may be read.

        Raises ConnectionLost, like all methods.
        """
        return await self._run(self._put(key, value, max(1, int(1000 * ttl_s))))

    async def _put(self, key: str, value: bytes, ttl_ms: int) -> bytes | None:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.get(key)
        pipeline.set(key, value, px=ttl_ms)
        before, stored = await pipeline.execute(raise_on_error=False)
        if isinstance(stored, Exception):
            raise stored
        return before if isinstance(before, bytes) else None

    async def evaluate(self, script: str, key: str, values: Sequence[str | float], timeout_s: float) -> object:
        """Run a Lua script on one key and return its answer. Raises ConnectionLost also after ``timeout_s``."""
        return await self._run(self._redis.eval(script, 1, key, *values), timeout_s)

    async def delete_if_unchanged(self, key: str, value: bytes) -> None:
        """Delete a key if it still holds ``value``."""
        await self._run(self._redis.eval(_DELETE_IF_UNCHANGED, 1, key, value))

    async def read(self, prefix: str, max_bytes: int) -> AsyncIterator[dict[str, bytes]]:
        """Read all string values of keys with a prefix, in pages, so that the caller decides when it has enough.

        Args:
            prefix: Literal prefix of the keys.
            max_bytes: Size limit; of larger values, the first ``max_bytes + 1`` bytes are returned.

        Yields:
            Values by key, of at most 20,000 keys in all.
        """
        pattern = _escape_glob(prefix) + "*"
        seen: set[bytes] = set()
        cursor, is_first = 0, True
        while (cursor or is_first) and len(seen) < _MAX_KEYS:
            cursor, names = await self._run(self._redis.scan(cursor, match=pattern, count=_PAGE_KEYS))
            is_first = False
            if new := sorted(set(names) - seen):
                seen.update(new)
                yield await self._run(self._read(new, max_bytes))

    async def _read(self, names: Sequence[bytes], max_bytes: int) -> dict[str, bytes]:
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            pipeline.getrange(name, 0, max_bytes)
        values: Sequence[object] = await pipeline.execute(raise_on_error=False)
        items = zip(names, values, strict=True)
        return {name.decode("utf-8", "replace"): value for name, value in items if isinstance(value, bytes) and value}

    async def _run(self, command: Awaitable[_Value], timeout_s: float | None = None) -> _Value:
        # In a separate task: redis-py uses asyncio.wait_for, which may lose a cancellation before Python 3.12. The
        # caller would then go on for ever.
        task = asyncio.ensure_future(command)
        try:
            async with fail_after(2 * TIMEOUT_S if timeout_s is None else timeout_s):
                await asyncio.wait({task})
            return task.result()
        except (self._error, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise ConnectionLost(f"{self.name} {_problem(error)}") from None
        finally:
            if task.cancel():
                await asyncio.wait({task})  # drops the connection, whose answer is unread
            if not task.cancelled():
                task.exception()  # is not logged

    async def aclose(self) -> None:
        """Close the connection."""
        try:
            await self._redis.aclose()
        except (self._error, OSError):
            pass  # the connection was lost before


def _problem(error: Exception) -> str:
    """Say what is wrong, without what Redis says, which may quote a value."""
    from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

    if isinstance(error, AuthenticationError):
        return "refuses the login: check user and password in its URL"
    if isinstance(error, NoPermissionError):
        return "forbids the command to the user in its URL"
    if isinstance(error, ResponseError):
        return f"answers with an error ({type(error).__name__})"
    return f"does not answer ({type(error).__name__})"


def _location(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        return "?"


def _escape_glob(prefix: str) -> str:
    """Escape the glob characters of ``prefix``."""
    return "".join(f"\\{character}" if character in "*?[]^\\-" else character for character in prefix)
