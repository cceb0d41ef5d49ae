"""Quotas that workers share through Redis: real Redis servers, workers on real sockets, outages."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx
import pytest
from redis.asyncio import Redis
from websockets.exceptions import InvalidStatus

from tests.conftest import serving, until
from tests.fakes.redis import REAL_REDIS, embedded_redis, eventually, real_redis
from tests.integration.test_api_keys import APP, bearer, key_file, speak
from tests.integration.test_websocket import dial
from tts_worker.client.registry.store import RedisStore
from tts_worker.errors import ConnectionLost
from tts_worker.features.fleet.quotas import RedisQuotas
from tts_worker.session.quotas import Metered

_prefixes = itertools.count()


@pytest.fixture(autouse=True)
def long_redis_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow test machine must not look like an unreachable Redis."""
    monkeypatch.setattr("tts_worker.features.fleet.quotas.TIMEOUT_S", 30.0)
    monkeypatch.setattr("tts_worker.features.fleet.quotas.RETRY_S", 0.05)
    monkeypatch.setattr("tts_worker.features.fleet.quotas.REFRESH_S", 0.05)


@asynccontextmanager
async def sharing(url: str, prefix: str = "", *, workers: int = 2) -> AsyncIterator[list[RedisQuotas]]:
    """Quotas of several workers that exchange with one Redis, by default with a prefix of their own."""
    prefix = prefix or f"q{next(_prefixes)}:"
    members = [RedisQuotas(RedisStore(url), prefix, lambda: asyncio.get_running_loop().time()) for _ in range(workers)]
    tasks = [asyncio.create_task(member.run()) for member in members]
    try:
        yield members
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for member in members:
            await member.aclose()


async def test_workers_share_the_requests_of_a_key() -> None:
    async with sharing(embedded_redis(), workers=3) as members:
        # Far less than one request is refilled while they are made.
        waits = await asyncio.gather(*(member.take_request("app", 0.5) for member in members for _ in range(5)))
        taken = [wait_s for wait_s in waits if wait_s == 0]
        assert len(taken) == 1
        assert 60 < max(waits) <= 120
        assert await members[0].take_request("other", 0.5) == 0


async def test_request_of_a_broken_connection_counts_once() -> None:
    """The client sends a script again whose answer was lost."""
    async with answers_of(embedded_redis()) as answers:
        member = RedisQuotas(RedisStore(answers.url), f"q{next(_prefixes)}:")
        per_minute = 3  # and far less than one is refilled
        assert await member.take_request("app", per_minute) == 0
        answers.lose_next()
        assert await member.take_request("app", per_minute) == 0
        assert answers.lost == 1
        answers.lose_next()
        assert await member.take_request("app", per_minute) == 0, "the last one is not refused, either"
        assert answers.lost == 2
        assert await member.take_request("app", per_minute) > 0
        await member.aclose()


async def test_characters_are_charged_once_over_workers() -> None:
    async with sharing(embedded_redis()) as (one, two):
        for member in (one, two):
            await member.refresh(Metered.CHARACTERS, "app", 10)
        one.charge(Metered.CHARACTERS, "app", 10, 400)
        two.charge(Metered.CHARACTERS, "app", 10, 600)
        assert one.wait_s(Metered.CHARACTERS, "app", 10) > 0, "its own text counts at once"
        await eventually(lambda: _waits(one, 5_000))
        await eventually(lambda: _waits(two, 5_000))
        await asyncio.gather(
            *(member.refresh(Metered.CHARACTERS, "app", 10) for member in (one, two) for _ in range(20))
        )
        for member in (one, two):  # 991 characters at 10 a minute
            assert 5_000 < member.wait_s(Metered.CHARACTERS, "app", 10) <= 991 * 6


async def test_source_audio_is_charged_over_workers() -> None:
    async with sharing(embedded_redis()) as (one, two):
        one.charge(Metered.CHARACTERS, "app", 10, 1_000)  # which do not apply
        one.charge(Metered.SOURCE, "app", 10, 60.5)
        two.charge(Metered.SOURCE, "app", 10, 40)
        for member in (one, two, one):
            await member.refresh(Metered.SOURCE, "app", 10)
        for member in (one, two):  # 91.5 s at 10 a minute
            assert 500 < member.wait_s(Metered.SOURCE, "app", 10) <= 91.5 * 6


class _Answers:
    """A proxy of a Redis server that can lose an answer: the server has run the command, and the connection breaks."""

    def __init__(self, redis_url: str) -> None:
        self._redis = urlsplit(redis_url)
        self._loses = False
        self.lost = 0
        self.url = ""
        self.connections: set[asyncio.Task[None]] = set()

    def lose_next(self) -> None:
        self._loses = True

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self.connections.add(connection)
        from_redis, to_redis = await asyncio.open_connection(self._redis.hostname, self._redis.port)
        commands = asyncio.create_task(_forward(reader, to_redis))
        try:
            while answer := await from_redis.read(1 << 16):
                if self._loses:
                    self._loses = False
                    self.lost += 1
                    break
                writer.write(answer)
        finally:
            commands.cancel()
            for each in (writer, to_redis):
                each.close()
                await each.wait_closed()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


@asynccontextmanager
async def answers_of(redis_url: str) -> AsyncIterator[_Answers]:
    answers = _Answers(redis_url)
    server = await asyncio.start_server(answers.accept, "127.0.0.1", 0)
    answers.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    try:
        yield answers
        await asyncio.wait(answers.connections)  # they end with those of the client
    finally:
        server.close()


async def _waits(member: RedisQuotas, seconds: float) -> bool:
    return member.wait_s(Metered.CHARACTERS, "app", 10) > seconds


async def test_lost_answers_charge_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = 3
    evaluate = RedisStore.evaluate

    async def lossy(self: RedisStore, *values: Any) -> object:
        nonlocal lost
        answer = await evaluate(self, *values)
        if lost:
            lost -= 1
            raise ConnectionLost("the answer was lost")
        return answer

    monkeypatch.setattr(RedisStore, "evaluate", lossy)
    async with sharing(embedded_redis()) as (one, two):
        one.charge(Metered.CHARACTERS, "app", 10, 1_000)
        await until(lambda: lost == 0 and not one.is_away)
        for member in (one, two):
            await member.refresh(Metered.CHARACTERS, "app", 10)
        assert 5_000 < two.wait_s(Metered.CHARACTERS, "app", 10) <= 991 * 6


async def test_a_cancelled_script_is_cancelled() -> None:
    store = RedisStore(embedded_redis())
    await store.evaluate("return 1", "connected", (), 30)
    for turns in range(8):
        task = asyncio.create_task(store.evaluate("return 1", "key", (), 30))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_cancelled = task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() is is_cancelled, f"in turn {turns} of the event loop"
    await store.aclose()


async def test_sessions_of_a_crashed_worker_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_worker.features.fleet.quotas.LEASE_S", 0.3)
    async with sharing(embedded_redis(), "crashed:") as (one, two):
        crashed = RedisQuotas(RedisStore(embedded_redis()), "crashed:")  # it renews nothing
        assert await crashed.reserve_session("app", "a", 2)
        assert await one.reserve_session("app", "b", 2)
        assert not await two.reserve_session("app", "c", 2)
        await eventually(lambda: two.reserve_session("app", "c", 2))
        assert not await two.reserve_session("app", "d", 2), "a living worker renews its lease"
        one.release_session("app", "b")
        await eventually(lambda: two.reserve_session("app", "d", 2))
        await crashed.aclose()


def registered(prefix: str) -> dict[str, Any]:
    return {"grpc": {"enabled": True, "port": 0}, "registry": {"url": embedded_redis(), "prefix": prefix}}


def unregistered(prefix: str) -> dict[str, Any]:
    return {"registry": {"quotas_url": embedded_redis(), "prefix": prefix}}


async def test_session_reserved_during_a_renewal_stays_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_worker.features.fleet.quotas.LEASE_S", 0.3)

    class SlowStore:
        name = "slow"
        answers = asyncio.Event()
        asked: ClassVar[list[tuple[object, ...]]] = []

        async def evaluate(self, script: str, key: str, values: tuple[object, ...], timeout_s: float) -> int:
            self.asked.append(values)
            await self.answers.wait()
            return 1

    store = SlowStore()
    quotas = RedisQuotas(store, "slow:", asyncio.get_running_loop().time)
    quotas.hold_session("app", "ended")
    quotas.release_session("app", "ended")
    running = asyncio.create_task(quotas.run())
    await until(lambda: store.asked)  # to end the only lease of the key
    reserving = asyncio.create_task(quotas.reserve_session("app", "lease", 1))
    await until(lambda: len(store.asked) == 2)
    store.answers.set()
    assert await reserving
    await until(lambda: (300, 1, "lease") in store.asked)  # it is renewed from now on
    running.cancel()


async def test_two_workers_answer_429_for_one_key(tmp_path: Path) -> None:
    file = key_file(tmp_path, requests_per_minute=4, max_sessions=1)
    server = {"key_file": str(file)}
    prefix = f"q{next(_prefixes)}:"
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(serving(server=server, **registered(prefix)))
        two = await stack.enter_async_context(serving(server=server, **unregistered(prefix)))
        client = await stack.enter_async_context(httpx.AsyncClient())
        client.base_url = httpx.URL(f"http://{two}")
        async with dial(one, additional_headers=bearer(APP)) as held:
            await held.until("ready")
            with pytest.raises(InvalidStatus) as refusal:
                async with dial(two, additional_headers=bearer(APP)):
                    pass
            assert refusal.value.response.status_code == 429
            assert refusal.value.response.headers["Retry-After"]
            refused = await speak(client, APP)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
            assert "sessions open" in refused.json()["error"]["message"]
        for _ in range(2):
            answer = await speak(client, APP)
        assert (answer.status_code, "requests per minute" in answer.text) == (429, True)
        assert 0 < int(answer.headers["Retry-After"]) <= 16


@pytest.mark.skipif(REAL_REDIS is None, reason="Debian's redis-server is not installed")
async def test_outage_of_redis_leaves_each_worker_its_quota(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tts_worker.features.fleet.quotas")
    async with real_redis("secret") as server, sharing(server.url, "outage:") as (one, two):
        assert await one.take_request("app", 1) == 0
        assert await two.take_request("app", 1) > 0
        assert await one.reserve_session("app", "a", 1)
        await one.refresh(Metered.CHARACTERS, "app", 10)
        await server.kill()
        one.charge(Metered.CHARACTERS, "app", 10, 1_000)
        assert await two.take_request("app", 1) > 0, "it goes on from what it knew"
        assert await two.take_request("new", 1) == 0
        assert await two.take_request("new", 1) > 0, "it applies the quota on its own"
        assert await two.reserve_session("app", "b", 1), "the hub checks the sessions of this worker"
        two.release_session("app", "b")
        assert one.wait_s(Metered.CHARACTERS, "app", 10) > 0
        await server.start()  # it has lost everything

        async def is_charged() -> bool:
            await two.refresh(Metered.CHARACTERS, "app", 10)
            return two.wait_s(Metered.CHARACTERS, "app", 10) > 5_000

        await eventually(is_charged)  # the text of the outage

        async def is_held() -> bool:
            client = Redis.from_url(server.url)
            try:
                return await client.zcard("quota:outage:sessions:app") == 1
            finally:
                await client.aclose()

        await eventually(is_held)
        assert not await two.reserve_session("app", "c", 1)
    text = caplog.text
    assert text.count("applies the quotas of API keys on its own") >= 1
    assert "answers again" in text
    assert "secret" not in text
