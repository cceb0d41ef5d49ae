"""The registry against real servers: what is written, what is believed, and Redis that comes and goes."""

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
from tts_worker.errors import ConfigError, ConnectionLost, InvalidRequest
from tts_worker.registry.directory import WorkerDirectory
from tts_worker.registry.entry import (
    LOOPBACK,
    WorkerCapabilities,
    WorkerEntry,
    is_allowed,
    parse_entry,
    parse_networks,
    parse_worker_address,
)
from tts_worker.registry.registrar import Registrar
from tts_worker.registry.signature import sign_entry, verify_entry
from tts_worker.registry.store import RedisStore

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
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that a busy machine lets answer late is not one that does not answer."""
    monkeypatch.setattr("tts_worker.registry.store.TIMEOUT_S", 30.0)


@dataclass
class Place:
    """A prefix of a Redis, and a client that writes whatever it likes."""

    url: str
    prefix: str
    redis: Redis

    def store(self) -> RedisStore:
        return RedisStore(self.url)

    async def forge(self, name: str, value: bytes | str | dict[str, Any]) -> None:
        await self.redis.set(f"{self.prefix}{name}", json.dumps(value) if isinstance(value, dict) else value)

    async def believed(self, networks: Any = LOOPBACK) -> dict[str, str]:
        directory = WorkerDirectory(self.store(), self.prefix, networks)
        try:
            return {worker.entry.name: worker.address for worker in await directory.workers()}
        finally:
            await directory.aclose()

    async def nobody(self) -> bool:
        return not await self.believed()

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
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param == "debian":
        if REAL_REDIS is None:
            pytest.skip("Debian's redis-server is not installed")
        async with real_redis() as server:
            redis = Redis.from_url(server.url)
            yield Place(server.url, "worker:", redis)
            await redis.aclose()
        return
    url = embedded_redis()
    redis = Redis.from_url(url)
    yield Place(url, f"r{next(_prefixes)}:", redis)
    await redis.aclose()


# -- what is written --------------------------------------------------------------------------------------------------


async def test_an_entry_has_the_six_keys_that_orchestrators_take_and_expires(place: Place) -> None:
    async with place.registered() as registrar:
        await registrar.wait_first_attempt()
        raw = await place.redis.get(f"{place.prefix}one")
        assert raw is not None

        @dataclass
        class TheirRegistration:  # their reader makes one of all keys: one too many and the worker is invisible
            name: str
            addr: str
            capabilities: dict[str, Any]
            resident_models: list[str]
            metrics: dict[str, float]
            last_heartbeat_ts: float

        theirs = TheirRegistration(**json.loads(raw))
        assert theirs.addr == "grpc://127.0.0.1:7002"
        keys = {"streaming", "zero_shot", "lora", "cpu_ok", "languages", "emotive_zero_prompt"}
        assert keys <= set(theirs.capabilities)
        assert theirs.capabilities["max_concurrent_sessions"] == 10
        assert abs(theirs.last_heartbeat_ts - time.time()) < 30
        left_ms = await place.redis.pttl(f"{place.prefix}one")
        assert 15_000 < left_ms <= 31_000, "a heartbeat and a second"
        assert await place.believed() == {"one": "127.0.0.1:7002"}
    assert await place.redis.get(f"{place.prefix}one") is None


async def test_it_is_renewed_and_taken_back_when_the_worker_is_not_ready(place: Place) -> None:
    ready = True
    told = 0

    def describe() -> WorkerEntry | None:
        nonlocal told
        told += 1
        return entry(metrics={"told": float(told)}) if ready else None

    async def renewed() -> bool:
        raw = await place.redis.get(f"{place.prefix}one")
        return raw is not None and json.loads(raw)["metrics"]["told"] >= 4

    async with place.registered(describe, 0.3) as registrar:
        await eventually(renewed)
        ready = False
        registrar.refresh()
        await eventually(place.nobody)
        ready = True
        await eventually(place.believed)


async def test_it_is_taken_back_at_once(place: Place) -> None:
    """And not when it would have been renewed, or has expired."""
    ready = True
    async with place.registered(lambda: entry() if ready else None, 300.0) as registrar:
        await registrar.wait_first_attempt()
        assert await place.believed()
        ready = False
        registrar.refresh()
        await eventually(place.nobody, 30.0)  # after 60 s nobody would believe it any more


async def test_a_renewal_that_is_under_way_does_not_outlive_the_worker(place: Place) -> None:
    """An entry that is written while the worker takes it back would stay until it expires."""
    begun = asyncio.Event()
    go_on = asyncio.Event()

    class SlowRedisStore(RedisStore):
        async def put(self, key: str, value: bytes, ttl_s: float) -> None:
            begun.set()
            await go_on.wait()
            await super().put(key, value, ttl_s)

    await place.forge("one", entry().to_json())  # of the renewal before
    registrar = Registrar(SlowRedisStore(place.url), place.prefix, 30.0, entry)
    registrar.start()
    await begun.wait()
    stopping = asyncio.create_task(registrar.stop())
    for _ in range(20):
        await asyncio.sleep(0)
    go_on.set()
    await stopping
    assert await place.believed() == {}


async def test_a_name_that_another_worker_has_taken_is_left_to_it(place: Place) -> None:
    async with place.registered() as registrar:
        await registrar.wait_first_attempt()
        assert await place.believed()
        await place.forge("one", entry(addr="grpc://127.0.0.1:7999").to_json())
    assert await place.believed() == {"one": "127.0.0.1:7999"}


# -- what is believed -------------------------------------------------------------------------------------------------

VALID = json.loads(entry().to_json())

FORGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no JSON": lambda valid: "{",
    "no object": lambda valid: "[1, 2]",
    "nothing in it": lambda valid: {},
    "a key missing": lambda valid: {key: value for key, value in valid.items() if key != "addr"},
    "another name": lambda valid: {**valid, "name": "two"},
    "a name with a path": lambda valid: {**valid, "name": "../one"},
    "a type that is wrong": lambda valid: {**valid, "resident_models": "all"},
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
    "a port that is none": lambda valid: {**valid, "addr": "grpc://127.0.0.1:99999"},
    "a socket file": lambda valid: {**valid, "addr": "unix:///var/run/docker.sock"},
    "the cloud's metadata": lambda valid: {**valid, "addr": "grpc://169.254.169.254:80"},
    "the same in IPv6": lambda valid: {**valid, "addr": "grpc://[::ffff:169.254.169.254]:80"},
    "a private network": lambda valid: {**valid, "addr": "grpc://10.0.0.5:22"},
    "every address": lambda valid: {**valid, "addr": "grpc://0.0.0.0:7002"},
    "an address as a number": lambda valid: {**valid, "addr": "grpc://2852039166:80"},
    "a name of nothing": lambda valid: {**valid, "addr": "grpc://no-such-host.invalid:7002"},
}
"""What is wrong -> how an entry that is valid now becomes so: one that was made at the start of all tests is stale when
this one is run."""


@pytest.mark.parametrize("what", FORGED)
async def test_what_is_forged_is_left_out(what: str, caplog: pytest.LogCaptureFixture) -> None:
    async with aclosing(Redis.from_url(embedded_redis())) as redis:
        place = Place(embedded_redis(), f"r{next(_prefixes)}:", redis)
        await place.forge("one", FORGED[what](json.loads(entry().to_json())))
        await place.forge("good", entry("good").to_json())
        with caplog.at_level(logging.WARNING):
            assert await place.believed() == {"good": "127.0.0.1:7002"}
        assert f"{place.prefix}one" in caplog.text
        assert "169.254" not in caplog.text, "the log repeats no value"


async def test_complaints_come_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    await place.forge("one", "{")
    async with aclosing(WorkerDirectory(place.store(), place.prefix)) as directory:
        for _ in range(3):
            assert await directory.workers() == []
    assert caplog.text.count("skipped the registry entry") == 1


async def test_keys_of_other_types_and_other_prefixes_are_not_looked_at(place: Place) -> None:
    await place.forge("good", entry("good").to_json())
    await place.redis.rpush(f"{place.prefix}list", "x")  # type: ignore[misc]
    await place.redis.set("elsewhere:one", entry().to_json())
    assert set(await place.believed()) == {"good"}


async def test_a_prefix_is_no_pattern(place: Place) -> None:
    starred = Place(place.url, f"{place.prefix}*?[a-z]:", place.redis)
    await starred.forge("one", entry().to_json())
    await place.redis.set(f"{place.prefix}xya:two", entry("two").to_json())
    assert set(await starred.believed()) == {"one"}


async def test_there_are_never_more_than_a_thousand(place: Place) -> None:
    pipeline = place.redis.pipeline(transaction=False)
    for index in range(1_500):
        pipeline.set(f"{place.prefix}w{index}", entry(f"w{index}").to_json())
    await pipeline.execute()
    assert 900 <= len(await place.believed()) <= 1_000
    await place.redis.flushall()


async def test_a_host_name_is_gone_to_by_its_checked_address(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_worker.registry.directory._RESOLVE_S", 30.0)
    await place.forge("one", entry(addr="grpc://localhost:7002").to_json())
    assert set(await place.believed()) == {"one"}
    assert (await place.believed())["one"] in ("127.0.0.1:7002", "[::1]:7002")
    assert await place.believed(parse_networks("10.0.0.0/8")) == {}


async def test_a_wider_fleet_is_allowed_on_purpose(place: Place) -> None:
    await place.forge("one", entry(addr="grpc://10.1.2.3:7002").to_json())
    assert await place.believed() == {}
    assert await place.believed(parse_networks("10.0.0.0/8, fd00::/8")) == {"one": "10.1.2.3:7002"}


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
def test_which_addresses_are_allowed(address: str, networks: str, allowed: bool) -> None:
    assert is_allowed(address, parse_networks(networks)) is allowed


@settings(deadline=None, max_examples=150)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
def test_no_bytes_are_more_than_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_entry(raw)


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(sorted(VALID)), _json)
def test_one_wrong_key_is_refused_or_harmless(key: str, value: object) -> None:
    try:
        believed = parse_entry(json.dumps({**VALID, key: value}).encode())
    except InvalidRequest:
        return
    assert believed.load >= 0
    try:
        target = parse_worker_address(believed.addr)
    except InvalidRequest:
        return
    assert 1 <= target.port <= 65_535


def test_an_entry_of_another_make_is_read() -> None:
    theirs = {
        "name": "tts-piper@0",
        "addr": "grpc://127.0.0.1:7001",
        "capabilities": {"streaming": True, "languages": ["en"], "something_new": {"x": 1}},
        "resident_models": [],
        "metrics": {},
        "last_heartbeat_ts": 1.5,
        "registered_at": 1,
    }
    assert parse_entry(json.dumps(theirs).encode()).capabilities.protocol_version == 0


# -- Redis comes and goes ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(REAL_REDIS is None, reason="Debian's redis-server is not installed")
async def test_redis_down_at_start_killed_and_back(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        real_redis("a-secret-password") as server,
        aclosing(Redis.from_url(server.url)) as redis,
    ):
        await server.kill()
        place = Place(server.url, "worker:", redis)
        with caplog.at_level(logging.INFO):
            async with place.registered(heartbeat_s=0.3) as registrar:
                await registrar.wait_first_attempt()  # nobody is made to wait for a registry that is away
                assert "does not answer" in caplog.text
                await server.start()
                await eventually(place.believed)
                await until(lambda: "answers again" in caplog.text)
                await server.kill()
                with pytest.raises(ConnectionLost):
                    await place.believed()
                await server.start()
                await eventually(place.believed)
        assert "a-secret-password" not in caplog.text
        assert await place.believed() == {}


@pytest.mark.skipif(REAL_REDIS is None, reason="Debian's redis-server is not installed")
async def test_a_wrong_password_is_a_registry_that_does_not_answer() -> None:
    async with real_redis("a-secret-password") as server:
        async with aclosing(RedisStore(server.url.replace("a-secret-password", "a-wrong-one"))) as store:
            with pytest.raises(ConnectionLost) as lost:
                await store.put("worker:x", b"y", 1.0)
        assert "wrong-one" not in lost.value.message


async def test_stopping_without_redis_is_fine() -> None:
    registrar = Registrar(RedisStore("redis://127.0.0.1:1/0"), "worker:", 30.0, entry)
    registrar.start()
    await asyncio.sleep(0)
    await registrar.stop()


@pytest.mark.parametrize("url", ["http://127.0.0.1:6379", "redis://127.0.0.1:port", "nonsense"])
def test_a_url_that_makes_no_sense_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="registry"):
        RedisStore(url)


# -- signed entries ---------------------------------------------------------------------------------------------------

SECRET = "a secret of this fleet"


async def listed(place: Place, secret: str | None, prefix: str | None = None) -> set[str]:
    async with aclosing(WorkerDirectory(place.store(), prefix or place.prefix, LOOPBACK, secret)) as directory:
        return {worker.entry.name for worker in await directory.workers()}


async def test_a_signed_entry_is_listed_with_the_secret(place: Place) -> None:
    registrar = Registrar(place.store(), place.prefix, 30.0, entry, SECRET)
    registrar.start()
    await registrar.wait_first_attempt()
    try:
        assert await listed(place, SECRET) == {"one"}
        assert await listed(place, None) == {"one"}, "a reader without the secret still reads it"
        assert await listed(place, "another fleet's secret") == set()
        raw = json.loads(await place.redis.get(f"{place.prefix}one"))
        assert set(raw) == set(WorkerEntry.model_fields), "readers of other make take six keys"
    finally:
        await registrar.stop()


async def test_an_unsigned_entry_is_left_out_with_a_secret(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    await place.forge("one", entry().model_dump())
    assert await listed(place, SECRET) == set()
    assert "not signed" in caplog.text
    assert await listed(place, None) == {"one"}


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
def test_a_changed_entry_is_not_verified(forged: Callable[[dict[str, Any]], object]) -> None:
    signed = sign_entry(entry().to_json(), SECRET, "worker:")
    assert parse_entry(verify_entry(signed, SECRET, "worker:")).name == "one"
    with pytest.raises(InvalidRequest):
        verify_entry(json.dumps(forged(json.loads(signed))).encode(), SECRET, "worker:")


def test_a_signature_counts_for_one_prefix_only() -> None:
    signed = sign_entry(entry().to_json(), SECRET, "worker:")
    with pytest.raises(InvalidRequest, match="signature"):
        verify_entry(signed, SECRET, "other:")


@given(st.binary(max_size=300) | st.just(b"[" * 60_000) | st.just(b'{"capabilities":' * 4_000))
def test_no_bytes_break_the_verification(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        verify_entry(raw, SECRET, "worker:")
