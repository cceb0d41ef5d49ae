"""The registry on real Redis servers: written entries, validation, signatures and outages."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from tests.conftest import until
from tests.fakes.redis import REAL_REDIS, embedded_redis, eventually, real_redis
from tts_worker.client.registry.directory import WorkerDirectory
from tts_worker.client.registry.entry import (
    LOOPBACK,
    WorkerCapabilities,
    WorkerEntry,
    is_allowed,
    parse_entry,
    parse_networks,
    parse_worker_address,
)
from tts_worker.client.registry.signature import sign_entry, verify_entry
from tts_worker.client.registry.store import RedisStore
from tts_worker.errors import ConfigError, ConnectionLost, InvalidRequest
from tts_worker.features.fleet.registrar import Registrar

_prefixes = itertools.count()


def entry(name: str = "one", **values: Any) -> WorkerEntry:
    fields: dict[str, Any] = {
        "name": name,
        "addr": "grpc://127.0.0.1:7002",
        "capabilities": WorkerCapabilities(languages=["en"], max_concurrent_sessions=10, voices=["tone"]),
        "resident_models": ["tone"],
        "metrics": {"queue_depth": 2.0, "rtf": 0.1},
        "last_heartbeat_ts": time.time(),
    }
    return WorkerEntry(**{**fields, **values})


@pytest.fixture(autouse=True)
def long_redis_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow test machine must not look like an unreachable Redis."""
    monkeypatch.setattr("tts_worker.client.registry.store.TIMEOUT_S", 30.0)


@dataclass
class RegistryClient:
    """One key prefix of a Redis server, with unchecked writes."""

    url: str
    prefix: str
    redis: Redis

    def store(self) -> RedisStore:
        return RedisStore(self.url)

    async def forge(self, name: str, value: bytes | str | dict[str, Any]) -> None:
        await self.redis.set(f"{self.prefix}{name}", json.dumps(value) if isinstance(value, dict) else value)

    async def workers(self, networks: Any = LOOPBACK) -> dict[str, str]:
        directory = WorkerDirectory(self.store(), self.prefix, networks)
        try:
            return {worker.entry.name: worker.address for worker in await directory.workers()}
        finally:
            await directory.aclose()

    async def is_empty(self) -> bool:
        return not await self.workers()

    @asynccontextmanager
    async def registered(
        self, describe: Callable[[], WorkerEntry | None] = entry, heartbeat_s: float = 30.0
    ) -> AsyncIterator[Registrar]:
        registrar = Registrar(self.store(), self.prefix, heartbeat_s, describe)
        registrar.start()
        try:
            yield registrar
        finally:
            await registrar.stop()


@pytest.fixture(params=["embedded", "debian"])
async def registry(request: pytest.FixtureRequest) -> AsyncIterator[RegistryClient]:
    if request.param == "debian":
        if REAL_REDIS is None:
            pytest.skip("Debian's redis-server is not installed")
        async with real_redis() as server:
            redis = Redis.from_url(server.url)
            yield RegistryClient(server.url, "worker:", redis)
            await redis.aclose()
        return
    url = embedded_redis()
    redis = Redis.from_url(url)
    yield RegistryClient(url, f"r{next(_prefixes)}:", redis)
    await redis.aclose()


# -- written entries --------------------------------------------------------------------------------------------------


async def test_entry_has_exactly_six_keys_and_expires(registry: RegistryClient) -> None:
    async with registry.registered() as registrar:
        await registrar.wait_first_attempt()
        raw = await registry.redis.get(f"{registry.prefix}one")
        assert raw is not None

        @dataclass
        class OrchestratorEntry:  # orchestrators build it from all keys, so a further key hides the worker
            name: str
            addr: str
            capabilities: dict[str, Any]
            resident_models: list[str]
            metrics: dict[str, float]
            last_heartbeat_ts: float

        parsed = OrchestratorEntry(**json.loads(raw))
        assert parsed.addr == "grpc://127.0.0.1:7002"
        keys = {"streaming", "zero_shot", "lora", "cpu_ok", "languages", "emotive_zero_prompt"}
        assert keys <= set(parsed.capabilities)
        assert parsed.capabilities["max_concurrent_sessions"] == 10
        assert abs(parsed.last_heartbeat_ts - time.time()) < 30
        ttl_ms = await registry.redis.pttl(f"{registry.prefix}one")
        assert 15_000 < ttl_ms <= 31_000, "a heartbeat and a second"
        assert await registry.workers() == {"one": "127.0.0.1:7002"}
    assert await registry.redis.get(f"{registry.prefix}one") is None


async def test_entry_is_renewed_and_deleted_while_not_ready(registry: RegistryClient) -> None:
    ready = True
    described = 0

    def describe() -> WorkerEntry | None:
        nonlocal described
        described += 1
        return entry(metrics={"described": float(described)}) if ready else None

    async def renewed() -> bool:
        raw = await registry.redis.get(f"{registry.prefix}one")
        return raw is not None and json.loads(raw)["metrics"]["described"] >= 4

    async with registry.registered(describe, 0.3) as registrar:
        await eventually(renewed)
        ready = False
        registrar.refresh()
        await eventually(registry.is_empty)
        ready = True
        await eventually(registry.workers)


async def test_refresh_deletes_the_entry_at_once(registry: RegistryClient) -> None:
    """Before the next renewal (100 s) and before the entry expires."""
    ready = True
    async with registry.registered(lambda: entry() if ready else None, 300.0) as registrar:
        await registrar.wait_first_attempt()
        assert await registry.workers()
        ready = False
        registrar.refresh()
        await eventually(registry.is_empty, 30.0)  # an entry is stale after 60 s


async def test_stop_waits_for_a_renewal_under_way(registry: RegistryClient) -> None:
    """A renewal after the deletion would leave the entry until it expires."""
    put_started = asyncio.Event()
    put_allowed = asyncio.Event()

    class SlowRedisStore(RedisStore):
        async def put(self, key: str, value: bytes, ttl_s: float) -> bytes | None:
            put_started.set()
            await put_allowed.wait()
            return await super().put(key, value, ttl_s)

    await registry.forge("one", entry().to_json())  # the previous renewal
    registrar = Registrar(SlowRedisStore(registry.url), registry.prefix, 30.0, entry)
    registrar.start()
    await put_started.wait()
    stopping = asyncio.create_task(registrar.stop())
    for _ in range(20):
        await asyncio.sleep(0)
    put_allowed.set()
    await stopping
    assert await registry.workers() == {}


@pytest.mark.skipif(REAL_REDIS is None, reason="redis-server is not installed")
async def test_messages_say_why_redis_refuses() -> None:
    async with real_redis("right") as server:
        admin = Redis.from_url(server.url)
        await admin.execute_command("ACL", "SETUSER", "reader", "on", ">right", "~*", "-@all")
        await admin.set("text", "a value")
        address = f"127.0.0.1:{server.port}"
        for user, problem in {
            "": "refuses the login: check user and password in its URL",
            ":wrong@": "refuses the login: check user and password in its URL",
            "reader:right@": "forbids the command to the user in its URL",
            ":right@": r"answers with an error \(ResponseError\)",
        }.items():
            store = RedisStore(f"redis://{user}{address}")
            with pytest.raises(ConnectionLost, match=f"^the registry at {address} {problem}$"):
                await store.evaluate("return redis.call('incr', KEYS[1])", "text", [], timeout_s=30.0)
            await store.aclose()
        await admin.aclose()


async def test_an_entry_of_another_worker_is_not_deleted(registry: RegistryClient) -> None:
    async with registry.registered() as registrar:
        await registrar.wait_first_attempt()
        assert await registry.workers()
        await registry.forge("one", entry(addr="grpc://127.0.0.1:7999").to_json())
    assert await registry.workers() == {"one": "127.0.0.1:7999"}


async def test_workers_with_one_name_are_reported(registry: RegistryClient, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        registry.registered(heartbeat_s=0.3),
        registry.registered(lambda: entry(addr="grpc://127.0.0.1:7999"), heartbeat_s=0.3),
    ):
        await until(lambda: "registry.name" in caplog.text)


async def test_restarted_worker_may_take_its_name(registry: RegistryClient, caplog: pytest.LogCaptureFixture) -> None:
    await registry.forge("one", entry(addr="grpc://127.0.0.1:7999").to_json())  # of a process that was killed
    async with registry.registered(heartbeat_s=0.3) as registrar:
        await registrar.wait_first_attempt()
        first = await registry.redis.get(f"{registry.prefix}one")

        async def is_renewed() -> bool:
            return bool(await registry.redis.get(f"{registry.prefix}one") != first)

        await eventually(is_renewed)
    assert not caplog.records


# -- validation -------------------------------------------------------------------------------------------------------

VALID = json.loads(entry().to_json())

INVALID_ENTRIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "not JSON": lambda valid: "{",
    "not an object": lambda valid: "[1, 2]",
    "empty object": lambda valid: {},
    "a key missing": lambda valid: {key: value for key, value in valid.items() if key != "addr"},
    "another name": lambda valid: {**valid, "name": "two"},
    "a name with a path": lambda valid: {**valid, "name": "../one"},
    "a wrong type": lambda valid: {**valid, "resident_models": "all"},
    "a number as text": lambda valid: {**valid, "last_heartbeat_ts": "now"},
    "infinite load": lambda valid: {**valid, "metrics": {"queue_depth": float("inf")}},
    "a stale heartbeat": lambda valid: {**valid, "last_heartbeat_ts": time.time() - 3_600},
    "a heartbeat from the future": lambda valid: {**valid, "last_heartbeat_ts": time.time() + 3_600},
    "too large": lambda valid: {**valid, "metrics": {f"m{i}": 1.0 for i in range(10_000)}},
    "too deep": lambda valid: "[" * 30_000,
    "not UTF-8": lambda valid: b"\xff\xfe" * 100,
    "another scheme": lambda valid: {**valid, "addr": "http://127.0.0.1:7002"},
    "a path": lambda valid: {**valid, "addr": "grpc://127.0.0.1:7002/etc"},
    "a user": lambda valid: {**valid, "addr": "grpc://user@127.0.0.1:7002"},
    "no port": lambda valid: {**valid, "addr": "grpc://127.0.0.1"},
    "an invalid port": lambda valid: {**valid, "addr": "grpc://127.0.0.1:99999"},
    "a socket file": lambda valid: {**valid, "addr": "unix:///var/run/docker.sock"},
    "cloud metadata address": lambda valid: {**valid, "addr": "grpc://169.254.169.254:80"},
    "cloud metadata address in IPv6": lambda valid: {**valid, "addr": "grpc://[::ffff:169.254.169.254]:80"},
    "a private network": lambda valid: {**valid, "addr": "grpc://10.0.0.5:22"},
    "unspecified address": lambda valid: {**valid, "addr": "grpc://0.0.0.0:7002"},
    "an address as a number": lambda valid: {**valid, "addr": "grpc://2852039166:80"},
    "an unresolvable host": lambda valid: {**valid, "addr": "grpc://no-such-host.invalid:7002"},
}
"""Case -> function that invalidates an entry. Functions, because an entry built at import could be stale by now."""


@pytest.mark.parametrize("case", INVALID_ENTRIES)
async def test_invalid_entries_are_skipped(case: str, caplog: pytest.LogCaptureFixture) -> None:
    async with aclosing(Redis.from_url(embedded_redis())) as redis:
        registry = RegistryClient(embedded_redis(), f"r{next(_prefixes)}:", redis)
        await registry.forge("one", INVALID_ENTRIES[case](json.loads(entry().to_json())))
        await registry.forge("good", entry("good").to_json())
        with caplog.at_level(logging.WARNING):
            assert await registry.workers() == {"good": "127.0.0.1:7002"}
        assert f"{registry.prefix}one" in caplog.text
        assert "169.254" not in caplog.text, "values must not be logged"


async def test_an_invalid_entry_is_logged_once(registry: RegistryClient, caplog: pytest.LogCaptureFixture) -> None:
    await registry.forge("one", "{")
    async with aclosing(WorkerDirectory(registry.store(), registry.prefix)) as directory:
        for _ in range(3):
            assert await directory.workers() == []
    assert caplog.text.count("skipped the registry entry") == 1


async def test_keys_of_other_types_and_prefixes_are_ignored(registry: RegistryClient) -> None:
    await registry.forge("good", entry("good").to_json())
    await registry.redis.rpush(f"{registry.prefix}list", "x")  # type: ignore[misc]
    await registry.redis.set("elsewhere:one", entry().to_json())
    assert set(await registry.workers()) == {"good"}


async def test_a_prefix_is_not_a_glob_pattern(registry: RegistryClient) -> None:
    starred = RegistryClient(registry.url, f"{registry.prefix}*?[a-z]:", registry.redis)
    await starred.forge("one", entry().to_json())
    await registry.redis.set(f"{registry.prefix}xya:two", entry("two").to_json())
    assert set(await starred.workers()) == {"one"}


async def test_at_most_a_thousand_workers_are_returned(registry: RegistryClient) -> None:
    pipeline = registry.redis.pipeline(transaction=False)
    for index in range(1_500):
        pipeline.set(f"{registry.prefix}w{index}", entry(f"w{index}").to_json())
    await pipeline.execute()
    assert 900 <= len(await registry.workers()) <= 1_000
    await registry.redis.flushall()


async def test_junk_entries_hide_no_worker(registry: RegistryClient, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = registry.redis.pipeline(transaction=False)
    for index in range(3_000):
        pipeline.set(f"{registry.prefix}junk{index}", b"{")
    for index in range(3):
        pipeline.set(f"{registry.prefix}w{index}", entry(f"w{index}").to_json())
    await pipeline.execute()
    assert set(await registry.workers()) == {"w0", "w1", "w2"}
    assert caplog.text.count("skipped the registry entry") == 20
    await registry.redis.flushall()


async def test_a_host_name_is_replaced_by_its_checked_address(
    registry: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tts_worker.client.registry.directory.RESOLVE_S", 30.0)
    await registry.forge("one", entry(addr="grpc://localhost:7002").to_json())
    assert set(await registry.workers()) == {"one"}
    assert (await registry.workers())["one"] in ("127.0.0.1:7002", "[::1]:7002")
    assert await registry.workers(parse_networks("10.0.0.0/8")) == {}


async def test_allowed_networks_can_be_extended(registry: RegistryClient) -> None:
    await registry.forge("one", entry(addr="grpc://10.1.2.3:7002").to_json())
    assert await registry.workers() == {}
    assert await registry.workers(parse_networks("10.0.0.0/8, fd00::/8")) == {"one": "10.1.2.3:7002"}


@pytest.mark.parametrize(
    ("address", "networks", "allowed"),
    [
        ("127.0.0.1", "127.0.0.0/8", True),
        ("::1", "::1/128", True),
        ("::ffff:127.0.0.1", "127.0.0.0/8", True),
        ("::ffff:10.0.0.1", "::/0", False),
        ("fd00::5", "fd00::/8", True),
        ("fe80::1%eth0", "fe80::/10", True),
        ("10.0.0.1", "::/0", False),
        ("localhost", "0.0.0.0/0", False),
        ("", "0.0.0.0/0", False),
    ],
)
def test_is_allowed(address: str, networks: str, allowed: bool) -> None:
    assert is_allowed(address, parse_networks(networks)) is allowed


@settings(deadline=None, max_examples=150)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
def test_random_bytes_are_rejected(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_entry(raw)


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(sorted(VALID)), _json)
def test_a_random_value_is_rejected_or_harmless(key: str, value: object) -> None:
    try:
        parsed = parse_entry(json.dumps({**VALID, key: value}).encode())
    except InvalidRequest:
        return
    assert parsed.load >= 0
    try:
        target = parse_worker_address(parsed.addr)
    except InvalidRequest:
        return
    assert 1 <= target.port <= 65_535


def test_entries_of_other_implementations_are_read() -> None:
    foreign = {
        "name": "tts-piper@0",
        "addr": "grpc://127.0.0.1:7001",
        "capabilities": {"streaming": True, "languages": ["en"], "something_new": {"x": 1}},
        "resident_models": [],
        "metrics": {},
        "last_heartbeat_ts": 1.5,
        "registered_at": 1,
    }
    assert parse_entry(json.dumps(foreign).encode()).capabilities.protocol_version == 0


# -- Redis outages ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(REAL_REDIS is None, reason="Debian's redis-server is not installed")
async def test_registrar_survives_redis_outages(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        real_redis("a-secret-password") as server,
        aclosing(Redis.from_url(server.url)) as redis,
    ):
        await server.kill()
        registry = RegistryClient(server.url, "worker:", redis)
        with caplog.at_level(logging.INFO):
            async with registry.registered(heartbeat_s=0.3) as registrar:
                await registrar.wait_first_attempt()  # returns although Redis is down
                assert "does not answer" in caplog.text
                await server.start()
                await eventually(registry.workers)
                await until(lambda: "answers again" in caplog.text)
                await server.kill()
                with pytest.raises(ConnectionLost):
                    await registry.workers()
                await server.start()
                await eventually(registry.workers)
        assert "a-secret-password" not in caplog.text
        assert await registry.workers() == {}


async def test_stop_without_redis_succeeds() -> None:
    registrar = Registrar(RedisStore("redis://127.0.0.1:1/0"), "worker:", 30.0, entry)
    registrar.start()
    await asyncio.sleep(0)
    await registrar.stop()


@pytest.mark.parametrize("url", ["http://127.0.0.1:6379", "redis://127.0.0.1:port", "nonsense"])
def test_an_invalid_url_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="registry"):
        RedisStore(url)


# -- signed entries ---------------------------------------------------------------------------------------------------

SECRET = "a secret of this fleet"


async def listed(registry: RegistryClient, secret: str | None, prefix: str | None = None) -> set[str]:
    async with aclosing(WorkerDirectory(registry.store(), prefix or registry.prefix, LOOPBACK, secret)) as directory:
        return {worker.entry.name for worker in await directory.workers()}


async def test_a_signed_entry_is_listed_with_the_secret(registry: RegistryClient) -> None:
    registrar = Registrar(registry.store(), registry.prefix, 30.0, entry, SECRET)
    registrar.start()
    await registrar.wait_first_attempt()
    try:
        assert await listed(registry, SECRET) == {"one"}
        assert await listed(registry, None) == {"one"}, "a reader without the secret still accepts it"
        assert await listed(registry, "another fleet's secret") == set()
        raw = json.loads(await registry.redis.get(f"{registry.prefix}one"))
        assert set(raw) == set(WorkerEntry.model_fields), "other readers accept exactly six keys"
    finally:
        await registrar.stop()


async def test_a_client_with_a_secret_skips_unsigned_entries(
    registry: RegistryClient, caplog: pytest.LogCaptureFixture
) -> None:
    await registry.forge("one", entry().model_dump())
    assert await listed(registry, SECRET) == set()
    assert "not signed" in caplog.text
    assert await listed(registry, None) == {"one"}


@pytest.mark.parametrize(
    "forged",
    [
        lambda signed: {**signed, "addr": "grpc://127.0.0.1:6666"},
        lambda signed: {**signed, "last_heartbeat_ts": signed["last_heartbeat_ts"] + 1.0},
        lambda signed: {**signed, "seventh": 1},
        lambda signed: {**signed, "capabilities": {**signed["capabilities"], "signature": "00" * 32}},
        lambda signed: {**signed, "capabilities": {**signed["capabilities"], "signature": "\udcff"}},
        lambda signed: {**signed, "capabilities": {**signed["capabilities"], "signature": None}},
        lambda signed: [signed],
    ],
)
def test_a_changed_entry_fails_the_verification(forged: Callable[[dict[str, Any]], object]) -> None:
    signed = sign_entry(entry().to_json(), SECRET, "worker:")
    assert parse_entry(verify_entry(signed, SECRET, "worker:")).name == "one"
    with pytest.raises(InvalidRequest):
        verify_entry(json.dumps(forged(json.loads(signed))).encode(), SECRET, "worker:")


def test_a_signature_is_valid_for_one_prefix_only() -> None:
    signed = sign_entry(entry().to_json(), SECRET, "worker:")
    with pytest.raises(InvalidRequest, match="signature"):
        verify_entry(signed, SECRET, "other:")


@given(st.binary(max_size=300) | st.just(b"[" * 60_000) | st.just(b'{"capabilities":' * 4_000))
def test_random_bytes_fail_the_verification(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        verify_entry(raw, SECRET, "worker:")
