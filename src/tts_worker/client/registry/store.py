"""Access to Redis for the registry and for quotas, with timeouts and typed errors.

Every failure is raised as ConnectionLost. The URL may contain a password and never appears in logs or messages.

A server that has become a replica, has lost its master or is loading its data refuses commands on connections that are
otherwise fine. Such connections are dropped and the command is repeated once, on a new one: the address of a failover
leads to the new master by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from tts_worker.errors import CLIENT_SOURCE, ConfigError, ConnectionLost, MissingExtra
from tts_worker.timeouts import fail_after

if TYPE_CHECKING:
    from redis.asyncio import Redis

_Value = TypeVar("_Value")

SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")
NO_CLUSTER = "Redis Cluster is not supported; use one server, or Sentinel (redis+sentinel://)"
_SENTINEL_PORT = 26_379

TIMEOUT_S = 1.0
_PAGE_KEYS = 200
_MAX_KEYS = 20_000
"""Keys that are read, also those of other writers."""
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
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import BusyLoadingError, MasterDownError, ReadOnlyError, RedisError
        except ModuleNotFoundError:
            raise MissingExtra(purpose, "redis", CLIENT_SOURCE) from None
        self._error: type[Exception] = RedisError
        self._changed_role = (ReadOnlyError, MasterDownError, BusyLoadingError)
        options = {
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": Retry(NoBackoff(), 1),
        }
        if urlsplit(url).scheme in CLUSTER_SCHEMES:
            raise ConfigError(f"the URL of {purpose} is invalid: {NO_CLUSTER}")
        try:
            self._redis, self._sentinels = _connect(url, options)
        except (ValueError, TypeError):
            raise ConfigError(
                f"the URL of {purpose} is invalid: use redis://[:password@]host:port[/db], or "
                "redis+sentinel://[:password@]host:port[,host:port...]/service[/db]"
            ) from None

    async def put(self, key: str, value: bytes, ttl_s: float) -> bytes | None:
        """Store a value that expires after ``ttl_s``; return the one before, if it may be read.

        Raises ConnectionLost, like all methods.
        """
        return await self._run(lambda: self._put(key, value, max(1, int(1000 * ttl_s))))

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
        return await self._run(lambda: self._redis.eval(script, 1, key, *values), timeout_s)

    async def delete_if_unchanged(self, key: str, value: bytes) -> None:
        """Delete a key if it still holds ``value``."""
        await self._run(lambda: self._redis.eval(_DELETE_IF_UNCHANGED, 1, key, value))

    async def read(self, prefix: str, max_bytes: int) -> AsyncGenerator[dict[str, bytes], None]:
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
            cursor, names = await self._run(partial(self._redis.scan, cursor, match=pattern, count=_PAGE_KEYS))
            is_first = False
            if new := sorted({name for name in names if isinstance(name, bytes)} - seen):
                seen.update(new)
                yield await self._run(partial(self._read, new, max_bytes))

    async def _read(self, names: Sequence[bytes], max_bytes: int) -> dict[str, bytes]:
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            pipeline.getrange(name, 0, max_bytes)
        values: Sequence[object] = await pipeline.execute(raise_on_error=False)
        if refusal := next((value for value in values if isinstance(value, self._changed_role)), None):
            raise refusal
        items = zip(names, values, strict=True)
        return {name.decode("utf-8", "replace"): value for name, value in items if isinstance(value, bytes) and value}

    async def _run(self, command: Callable[[], Awaitable[_Value]], timeout_s: float | None = None) -> _Value:
        try:
            async with fail_after(2 * TIMEOUT_S if timeout_s is None else timeout_s):
                try:
                    return await _in_task(command)
                except self._changed_role:
                    # Not those that are in use: their answers are of the same kind, or of the new master.
                    await self._redis.connection_pool.disconnect(inuse_connections=False)
                    return await _in_task(command)
        except (self._error, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            if isinstance(error, self._changed_role):
                await self._redis.connection_pool.disconnect(inuse_connections=False)
            raise ConnectionLost(f"{self.name} {_problem(error)}") from None

    async def aclose(self) -> None:
        """Close the connections."""
        for client in (self._redis, *self._sentinels):
            try:
                await client.aclose()
            except (self._error, OSError):
                pass  # the connection was lost before


async def _in_task(command: Callable[[], Awaitable[_Value]]) -> _Value:
    """Run a command in a separate task.

    redis-py uses asyncio.wait_for, which may lose a cancellation before Python 3.12. The caller would then go on for
    ever.
    """
    task = asyncio.ensure_future(command())
    try:
        await asyncio.wait({task})
        return task.result()
    finally:
        if task.cancel():
            await asyncio.wait({task})  # drops the connection, whose answer is unread
        if not task.cancelled():
            task.exception()  # is not logged


def _connect(url: str, options: dict[str, Any]) -> tuple[Redis, Sequence[Redis]]:
    """Make a client, which connects on first use, and those of its Sentinels.

    Raises:
        ValueError, TypeError: The URL is invalid.
    """
    from redis.asyncio import Redis
    from redis.asyncio.sentinel import Sentinel

    parts = urlsplit(url)
    if parts.scheme not in SENTINEL_SCHEMES:
        return Redis.from_url(url, **options), ()
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("the service is missing")
    sentinels = [urlsplit(f"//{host}") for host in hosts.split(",")]
    sentinel_password = parse_qs(parts.query).get("sentinel_password", [None])[-1]
    own = {**options, "password": sentinel_password}
    if parts.scheme.startswith("rediss"):
        options = {**options, "ssl": True}
        own["ssl"] = True
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        [(each.hostname or "localhost", each.port or _SENTINEL_PORT) for each in sentinels], sentinel_kwargs=own
    )
    more: dict[str, Any] = {"username": unquote(user) or None, "password": unquote(password) or None}
    return sentinel.master_for(service, db=int(database or 0), **more, **options), sentinel.sentinels


def _problem(error: Exception) -> str:
    """Say what is wrong, without what Redis says, which may quote a value."""
    from redis.exceptions import (
        AskError,
        AuthenticationError,
        BusyLoadingError,
        ClusterDownError,
        MasterDownError,
        NoPermissionError,
        ReadOnlyError,
        ResponseError,
    )

    known: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
        (ReadOnlyError, "is a replica and cannot be written to: its address must lead to the master"),
        (MasterDownError, "is a replica that has lost its master"),
        (BusyLoadingError, "is loading its data"),
        ((AskError, ClusterDownError), f"belongs to a cluster: {NO_CLUSTER}"),
        (AuthenticationError, "refuses the login: check user and password in its URL"),
        (NoPermissionError, "forbids the command to the user in its URL"),
    )
    if (problem := next((words for kind, words in known if isinstance(error, kind)), None)) is not None:
        return problem
    if isinstance(error, ResponseError):
        if "unknown command" in str(error).lower():
            return "does not know a command of Redis: a Sentinel needs a URL that begins with redis+sentinel://"
        return f"answers with an error ({type(error).__name__})"
    return f"does not answer ({type(error).__name__})"


def _location(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme in SENTINEL_SCHEMES:
        return parts.netloc.rpartition("@")[2]
    try:
        return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        return "?"


def _escape_glob(prefix: str) -> str:
    """Escape the glob characters of ``prefix``."""
    return "".join(f"\\{character}" if character in "*?[]^\\-" else character for character in prefix)
