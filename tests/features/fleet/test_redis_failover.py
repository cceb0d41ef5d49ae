"""Redis that changes its role: registry and quotas follow it. Real servers, replicas, Sentinels and cluster nodes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from tests.fakes.proxy import run_proxy
from tests.fakes.redis import EMBEDDED_BINARY, REAL_REDIS, RedisProcess, eventually, free_port, real_redis
from tests.features.fleet.test_quotas import long_redis_timeout, sharing
from tests.features.fleet.test_registry import entry
from tts_worker.client import connect
from tts_worker.client.registry.directory import WorkerDirectory
from tts_worker.client.registry.store import RedisStore
from tts_worker.errors import ConfigError, ConnectionLost
from tts_worker.features.fleet.registrar import Registrar
from tts_worker.features.fleet.settings import RegistrySettings
from tts_worker.settings import load_settings

__all__ = ["long_redis_timeout"]  # a fixture for every test of this module, too

BINARIES = [
    pytest.param(EMBEDDED_BINARY, id="embedded"),
    pytest.param(
        REAL_REDIS, id="debian", marks=pytest.mark.skipif(REAL_REDIS is None, reason="redis-server is not installed")
    ),
]
pytestmark = [pytest.mark.parametrize("binary", BINARIES), pytest.mark.timeout(120)]
_prefixes = itertools.count()
_LOADING_CONNECTIONS = 4
"""The store tries twice, and so does the client of Redis each time."""


@asynccontextmanager
async def replicated(binary: str | Path) -> AsyncIterator[tuple[RedisProcess, RedisProcess]]:
    """A master and its replica, which has all that the master has."""
    async with real_redis(binary=binary) as master, real_redis(binary=binary) as replica:
        await replica.command("REPLICAOF", "127.0.0.1", master.port)
        await eventually(lambda: is_synchronized(replica))
        yield master, replica


async def is_synchronized(replica: RedisProcess) -> bool:
    return (await replica.command("INFO", "replication")).get("master_link_status") == "up"


async def swap(master: RedisProcess, replica: RedisProcess) -> None:
    """Make the replica the master; connections of clients stay open."""
    await replica.command("REPLICAOF", "NO", "ONE")
    await master.command("REPLICAOF", "127.0.0.1", replica.port)


async def names(url: str) -> set[str]:
    directory = WorkerDirectory(RedisStore(url))
    try:
        return {worker.entry.name for worker in await directory.workers()}
    finally:
        await directory.aclose()


async def test_worker_stays_registered_when_its_redis_becomes_a_replica(binary: str | Path) -> None:
    async with replicated(binary) as (master, replica), run_proxy(f"127.0.0.1:{master.port}") as address:
        registrar = Registrar(RedisStore(f"redis://{address.address}/0"), "worker:", 1.0, entry)
        registrar.start()
        await registrar.wait_first_attempt()
        address.lead_to(f"127.0.0.1:{replica.port}")
        await swap(master, replica)
        await replica.command("FLUSHALL")  # what follows is written after the failover

        async def is_registered() -> bool:
            return await names(replica.url) == {"one"}

        await eventually(is_registered)
        await registrar.stop()
        assert await names(replica.url) == set()


async def test_quotas_stay_shared_after_a_failover(binary: str | Path) -> None:
    async with AsyncExitStack() as stack:
        master, replica = await stack.enter_async_context(replicated(binary))
        address = await stack.enter_async_context(run_proxy(f"127.0.0.1:{master.port}"))
        one, two = await stack.enter_async_context(sharing(f"redis://{address.address}/0"))
        assert await one.take_request("app", 2) == 0
        assert await two.take_request("app", 2) == 0
        assert await one.reserve_session("app", "a", 1)
        await master.command("WAIT", 1, 10_000)
        address.lead_to(f"127.0.0.1:{replica.port}")
        await swap(master, replica)
        assert await one.take_request("app", 2) > 0, "the new master knows both requests"
        assert await one.take_request("new", 1) == 0
        assert await two.take_request("new", 1) > 0, "and they share the next ones"
        assert not await two.reserve_session("app", "b", 1)


async def test_replica_without_a_master_behind_its_address_is_named(binary: str | Path) -> None:
    async with replicated(binary) as (_, replica):
        store = RedisStore(replica.url)
        with pytest.raises(ConnectionLost, match="is a replica and cannot be written to"):
            await store.put("key", b"value", 5.0)
        await store.aclose()


async def test_replica_that_lost_its_master_is_left(binary: str | Path) -> None:
    async with replicated(binary) as (master, replica):
        await replica.command("CONFIG", "SET", "replica-serve-stale-data", "no")
        store = RedisStore(replica.url)
        await master.kill()

        async def has_lost_it() -> bool:
            try:
                await store.evaluate("return 1", "key", (), 5.0)
            except ConnectionLost as error:
                return "has lost its master" in error.message
            return False

        await eventually(has_lost_it)
        await replica.command("REPLICAOF", "NO", "ONE")
        assert await store.put("key", b"value", 5.0) is None
        await store.aclose()


async def test_server_that_loads_its_data_is_asked_again(binary: str | Path) -> None:
    """A real server loads too fast: its answer is played on the first connections."""
    async with real_redis(binary=binary) as server:
        serving: list[asyncio.Task[None] | None] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.append(asyncio.current_task())
            if len(serving) <= _LOADING_CONNECTIONS:
                while await reader.read(65_536):
                    writer.write(b"-LOADING Redis is loading the dataset in memory\r\n" * 4)
            else:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port)
                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
            writer.close()

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65_536):
                writer.write(data)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
            store = RedisStore(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0")
            with pytest.raises(ConnectionLost, match="is loading its data"):
                await store.put("key", b"value", 5.0)
            assert await store.put("key", b"value", 5.0) is None
            assert await server.command("GET", "key") == "value"
            await store.aclose()
            await asyncio.wait([task for task in serving if task is not None])


async def test_sentinel_url_follows_the_master(binary: str | Path) -> None:
    async with AsyncExitStack() as stack:
        master, replica = await stack.enter_async_context(replicated(binary))
        config = f"sentinel monitor calls 127.0.0.1 {master.port} 1\nsentinel down-after-milliseconds calls 1000\n"
        config += "sentinel failover-timeout calls 1000\n"
        options: dict[str, Any] = {"binary": binary, "options": ("--sentinel",), "config": config}
        sentinel = await stack.enter_async_context(real_redis(**options))
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/calls/0"
        one, two = await stack.enter_async_context(sharing(url))
        assert await one.take_request("app", 1) == 0
        assert await two.take_request("app", 1) > 0

        async def knows_the_replica() -> bool:
            return bool(await sentinel.command("SENTINEL", "REPLICAS", "calls"))

        await eventually(knows_the_replica)
        await master.command("WAIT", 1, 10_000)

        async def has_failed_over() -> bool:
            with suppress(ResponseError):  # it is under way, or was given up: the replica was not seen for a moment
                await sentinel.command("SENTINEL", "FAILOVER", "calls")
            await asyncio.sleep(0.1)
            with suppress(RedisConnectionError):  # Sentinel kills the clients of the server that it promotes
                return bool((await replica.command("ROLE"))[0] == "master")
            return False

        await eventually(has_failed_over)

        async def is_shared() -> bool:
            key = f"app-{next(_prefixes)}"
            waits = [await member.take_request(key, 1) for member in (one, two)]
            return waits[0] == 0 < waits[1]

        await eventually(is_shared)
        assert await one.take_request("app", 1) > 0, "the request before the failover counts"


async def test_node_of_a_cluster_is_named(binary: str | Path) -> None:
    async with real_redis(
        binary=binary, options=("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    ) as node:
        store = RedisStore(node.url)
        with pytest.raises(ConnectionLost, match="Redis Cluster is not supported"):
            await store.evaluate("return 1", "key", (), 5.0)
        await store.aclose()


async def test_sentinel_without_its_scheme_is_named(binary: str | Path) -> None:
    options: dict[str, Any] = {
        "binary": binary,
        "options": ("--sentinel",),
        "config": "sentinel resolve-hostnames no\n",
    }
    async with real_redis(**options) as sentinel:
        store = RedisStore(sentinel.url)
        with pytest.raises(ConnectionLost, match=r"redis\+sentinel://"):
            await store.evaluate("return 1", "key", (), 5.0)
        await store.aclose()


def test_cluster_url_is_refused_by_name(binary: str | Path) -> None:
    url = "redis+cluster://:secret@127.0.0.1:7000"
    with pytest.raises(ConfigError, match="Redis Cluster is not supported") as refused:
        RedisStore(url)
    assert "secret" not in refused.value.message
    with pytest.raises(ConfigError, match="Redis Cluster is not supported"):
        load_settings(flags={"registry": {"quotas_url": url}})


def test_sentinel_url_is_a_setting_and_a_client_url(binary: str | Path) -> None:
    url = "redis+sentinel://:secret@127.0.0.1:26379,127.0.0.1:26380/calls/1"
    settings = load_settings(flags={"registry": {"quotas_url": url}})
    assert settings.section(RegistrySettings).quotas_url is not None
    assert RedisStore(url).name.endswith("127.0.0.1:26379,127.0.0.1:26380")
    assert connect(f"{url}?prefix=worker:") is not None
    with pytest.raises(ConfigError):
        RedisStore("redis+sentinel://127.0.0.1:26379")
    with pytest.raises(ConfigError):
        load_settings(flags={"registry": {"quotas_url": "redis+sentinel://127.0.0.1:26379"}})
