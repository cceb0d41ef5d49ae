"""A fleet: workers that register, clients that find them, what is lost and what goes on."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from tests.behaviour.recording_client import RecordingClient
from tests.behaviour.transports import Setup, faulty_worker
from tests.conftest import until
from tests.fakes.proxy import Proxy, run_proxy
from tests.fakes.redis import REAL_REDIS, embedded_redis, eventually, free_port, real_redis
from tts_worker.app import Worker
from tts_worker.client import Client, ClientSettings, SessionOptions, connect
from tts_worker.client.grpc import GrpcConnector
from tts_worker.engine.tone import Fault, ToneSettings
from tts_worker.errors import (
    ConfigError,
    ConnectionLost,
    ErrorCode,
    InvalidRequest,
    OverCapacity,
    TTSWorkerError,
    UnknownVoice,
)
from tts_worker.fleet import FleetMember, join_fleet
from tts_worker.registry.directory import WorkerDirectory
from tts_worker.registry.store import RedisStore
from tts_worker.types import ControlName, Ended, Outcome, Started

LONG = "This is a rather long story, and it goes on and on. " * 8
FAST = SessionOptions(realtime=False)
MUTE = ToneSettings(fault=lambda key, chunk: Fault.HANG)
"""An engine that never comes to its first sound, however long a test takes to get there."""
PATIENT = ClientSettings(connect_timeout_s=60.0, audio_timeout_s=60.0)
"""A client that a busy machine does not make give up."""
_names = itertools.count()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that a busy machine lets answer late is not one that does not answer."""
    monkeypatch.setattr("tts_worker.registry.store.TIMEOUT_S", 30.0)


@dataclass
class Member:
    worker: Worker
    fleet: FleetMember
    proxy: Proxy

    @property
    def live(self) -> int:
        return self.worker.hub.live_sessions

    async def die(self) -> None:
        """As a process that is killed: every connection is reset; the entry stays until it expires."""
        await self.proxy.stop()


class Fleet:
    """Workers on one registry, each behind a proxy that a test may break."""

    def __init__(self, stack: AsyncExitStack, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self._stack = stack

    async def member(
        self,
        name: str,
        *,
        engine: ToneSettings | None = None,
        heartbeat_s: float = 3.0,
        secret: str | None = None,
        **sections: Any,
    ) -> Member:
        port = free_port()
        proxy = await self._stack.enter_async_context(run_proxy(f"127.0.0.1:{port}"))
        sections["registry"] = {
            "url": self.url,
            "prefix": self.prefix,
            "name": name,
            "heartbeat_s": heartbeat_s,
            "address": proxy.address,
            "secret": secret,
        }
        sections["grpc"] = {"enabled": True, "port": port}
        worker = await self._stack.enter_async_context(faulty_worker(Setup(sections, engine)))
        member = await self._stack.enter_async_context(join_fleet(worker))
        await member.announce()
        assert name in await self.names()
        return Member(worker, member, proxy)

    def connect(self, settings: ClientSettings | None = None) -> Client:
        return connect(f"{self.url}?prefix={self.prefix}", settings or PATIENT)

    async def names(self) -> set[str]:
        async with aclosing(WorkerDirectory(RedisStore(self.url), self.prefix)) as directory:
            return {worker.entry.name for worker in await directory.workers()}

    async def listed(self, name: str, there: bool = True) -> None:
        async def so() -> bool:
            return (name in await self.names()) is there

        await eventually(so)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(stack, embedded_redis(), f"t{next(_names)}:")


async def opened(client: Client, options: SessionOptions = FAST) -> RecordingClient:
    return RecordingClient((await client.open(options)).session)


# -- the choice -------------------------------------------------------------------------------------------------------


async def test_sessions_go_where_there_is_room(fleet: Fleet) -> None:
    small = await fleet.member("small", session={"max_sessions": 2, "slot_idle_s": 600})
    large = await fleet.member("large", session={"max_sessions": 8})
    async with fleet.connect() as client:
        recorders = [await opened(client) for _ in range(10)]
        assert (small.live, large.live) == (2, 8)
        with pytest.raises(OverCapacity):
            await client.open(FAST)
        for recorder in recorders:
            assert (await recorder.synthesize("Hello there.")).outcome is Outcome.DONE
            recorder.session.close()
        await until(lambda: small.live + large.live == 0)


async def test_only_a_worker_that_has_the_voice_is_asked(fleet: Fleet) -> None:
    await fleet.member("plain")
    special = await fleet.member("special", voices={"aliases": {"dragon": "tone-low"}})
    async with fleet.connect() as client:
        for _ in range(3):
            recorder = await opened(client, SessionOptions(voice="dragon", realtime=False))
            assert (await recorder.synthesize("Hi.")).outcome is Outcome.DONE
        assert special.live == 3
        with pytest.raises(UnknownVoice, match="dragon"):
            await client.open(SessionOptions(voice="unicorn"))


async def test_a_new_worker_is_found_and_a_draining_one_is_left(fleet: Fleet) -> None:
    first = await fleet.member("first", session={"max_sessions": 1, "slot_idle_s": 600})
    async with fleet.connect() as client:
        recorder = await opened(client)
        second = await fleet.member("second")
        other = await _open_until(client, lambda: second.live == 1)
        first.fleet.begin_drain()
        draining = asyncio.create_task(first.worker.hub.drain(60.0))
        await fleet.listed("first", there=False)
        await until(lambda: first.live == 0)
        assert (await recorder.synthesize("It said nothing, so it moved.")).outcome is Outcome.DONE
        assert second.live == 2
        assert (await other.synthesize("Undisturbed.")).outcome is Outcome.DONE
        await draining


async def _open_until(client: Client, arrived: Any) -> RecordingClient:
    """The client asks the registry again after half a second; until then it knows the full worker only."""
    while True:
        try:
            recorder = await opened(client)
        except OverCapacity:
            await asyncio.sleep(0.02)
            continue
        assert arrived()
        return recorder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses of the workers that were asked for a session, one a try."""
    addresses: list[str] = []
    begin = GrpcConnector.begin

    async def counted(connector: GrpcConnector, options: SessionOptions) -> Any:
        addresses.append(connector._address)
        return await begin(connector, options)

    monkeypatch.setattr(GrpcConnector, "begin", counted)
    return addresses


async def test_a_worker_that_cannot_be_reached_costs_one_try(fleet: Fleet, asked: list[str]) -> None:
    dead = await fleet.member("dead")
    await dead.die()
    alive = await fleet.member("alive")
    async with fleet.connect() as client:
        for _ in range(4):
            await opened(client)
        assert alive.live == 4
        assert asked.count(dead.proxy.address) == 1
        assert len(asked) == 5


async def test_a_worker_that_answers_nothing_costs_the_deadline_once(fleet: Fleet, asked: list[str]) -> None:
    silent = await fleet.member("silent")
    alive = await fleet.member("alive", session={"max_sessions": 1_000})
    silent.proxy.stall()
    # The deadline is one that the other worker keeps on a busy machine too.
    async with fleet.connect(ClientSettings(connect_timeout_s=1.5)) as client:
        for _ in range(6):
            await opened(client)
        assert alive.live == 6
        assert asked.count(silent.proxy.address) == 1
        assert len(asked) == 7


async def test_nobody_there() -> None:
    async with connect(f"{embedded_redis()}?prefix=nobody:") as client:
        with pytest.raises(ConnectionLost, match="registered"):
            await client.open()
        with pytest.raises(ConnectionLost):
            await client.prewarm()


@pytest.mark.parametrize("query", ["networks=everywhere", "networks=10.0.0.0/99"])
def test_networks_that_make_no_sense(query: str) -> None:
    with pytest.raises(InvalidRequest, match="networks"):
        connect(f"redis://127.0.0.1:1?{query}")


async def test_workers_of_other_kinds_and_versions_are_not_asked(fleet: Fleet) -> None:
    await fleet.member("ours", heartbeat_s=300.0)  # nor will it come back while it is looked for
    async with aclosing(Redis.from_url(fleet.url)) as redis:
        entry = json.loads(await redis.get(f"{fleet.prefix}ours"))
        for version in (0, 2):
            entry |= {"name": f"v{version}", "capabilities": {**entry["capabilities"], "protocol_version": version}}
            await redis.set(f"{fleet.prefix}v{version}", json.dumps(entry))
        await redis.delete(f"{fleet.prefix}ours")
        async with fleet.connect() as client:
            with pytest.raises(ConnectionLost, match="with this protocol version"):
                await client.open()


@asynccontextmanager
async def serve_process(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """``tts-worker serve`` with tones. Nothing is left of it, whatever became of the test."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tts_worker",
        "serve",
        "--engine",
        "tone",
        "--port",
        "0",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_sigterm_takes_the_entry_back_and_lets_a_turn_end(fleet: Fleet) -> None:
    settings = {
        "grpc.enabled": "true",
        "grpc.port": "0",
        "registry.url": fleet.url,
        "registry.prefix": f'"{fleet.prefix}"',
        "registry.name": "served",
        "server.drain_s": "100",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    async with serve_process(*words) as process, fleet.connect() as client:
        assert process.stdout is not None
        while (line := await process.stdout.readline()) != b"ready\n":
            assert line, "it ended"
        assert await fleet.names() == {"served"}, "who is ready is there"
        recorder = await opened(client, SessionOptions())
        silent = await opened(client)
        key = recorder.session.speak("A turn that may end.")
        recorder.session.end_text()
        await recorder.receive_samples(1, key)
        process.terminate()
        await fleet.listed("served", there=False)
        assert (await recorder.wait_ended(key)).outcome is Outcome.DONE
        with anyio.fail_after(60):  # it waits for no silent session
            assert await process.wait() == 0
        assert await silent.next() is None


# -- loss -------------------------------------------------------------------------------------------------------------


async def test_lost_before_the_first_sound_is_said_again_elsewhere(fleet: Fleet) -> None:
    first = await fleet.member("first", engine=MUTE)
    async with fleet.connect() as client:
        recorder = await opened(client)
        key = recorder.session.speak("Hello there, ")
        recorder.session.flush()
        await recorder.wait_started()
        second = await fleet.member("second")
        await first.die()
        recorder.session.speak("my friend.")
        recorder.session.end_text()
        waiting = recorder.session.speak("And the next.")
        recorder.session.end_text()
        ended = await recorder.wait_ended(key)
        assert (ended.outcome, ended.receipt.text_spoken) == (Outcome.DONE, "Hello there, my friend.")
        assert (await recorder.wait_ended(waiting)).receipt.text_spoken == "And the next."
        assert [item.key for item in recorder.log if isinstance(item, Started)] == [key, waiting]
        assert second.live == 1
        assert (await recorder.synthesize("Still here.")).outcome is Outcome.DONE


async def test_a_loss_in_the_middle_is_told_and_disturbs_nobody_else(fleet: Fleet) -> None:
    first = await fleet.member("first", session={"max_sessions": 1, "slot_idle_s": 600})
    async with fleet.connect() as client:
        recorder = await opened(client, SessionOptions())
        key = recorder.session.speak(LONG)
        await recorder.receive_samples(5_000, key)
        second = await fleet.member("second")
        other = await _open_until(client, lambda: second.live == 1)
        whole = other.pcm[(await other.synthesize("Undisturbed by that. " * 3)).key]
        other.session.speak("Undisturbed by that. " * 3)
        other.session.end_text()
        going_on = await other.receive_samples(5_000)
        await first.die()
        ended = await recorder.wait_ended(key)
        assert ended.error is not None
        assert (ended.error.code, ended.error.retryable) == (ErrorCode.CONNECTION_LOST, True)
        assert ended.receipt.samples_sent * 2 == len(recorder.pcm[key])
        assert ended.receipt.text_spoken + ended.receipt.text_remaining == LONG
        await other.wait_ended(going_on)
        assert other.pcm[going_on] == whole


async def test_a_paused_session_is_paused_on_the_next_worker_too(fleet: Fleet) -> None:
    first = await fleet.member("first", engine=MUTE)
    async with fleet.connect() as client:
        recorder = await opened(client)
        key = recorder.session.speak("Held back.")
        recorder.session.end_text()
        recorder.session.pause()
        assert (await recorder.wait_acknowledged(ControlName.PAUSE)).applied
        second = await fleet.member("second")
        await first.die()
        await until(lambda: second.live == 1)
        recorder.session.resume()
        assert (await recorder.wait_acknowledged(ControlName.RESUME)).applied
        assert (await recorder.wait_ended(key)).outcome is Outcome.DONE


async def test_a_stop_while_nobody_is_there_is_confirmed(fleet: Fleet) -> None:
    only = await fleet.member("only", engine=MUTE)
    async with fleet.connect() as client:
        recorder = await opened(client)
        key = recorder.session.speak("Never heard.")
        await recorder.wait_started()
        only.proxy.stall()
        only.proxy.reset()
        recorder.session.stop("changed_my_mind")
        ended = await recorder.wait_ended(key)
        assert (ended.outcome, ended.receipt.reason) == (Outcome.STOPPED, "changed_my_mind")
        assert ended.receipt.text_remaining == "Never heard."


async def test_no_other_worker_is_a_loss(fleet: Fleet) -> None:
    only = await fleet.member("only", engine=MUTE)
    async with fleet.connect() as client:
        recorder = await opened(client)
        key = recorder.session.speak("Never heard.")
        recorder.session.end_text()
        await recorder.wait_started()
        await only.die()
        ended = await recorder.wait_ended(key)
        assert ended.error is not None
        assert (ended.error.code, ended.receipt.samples_sent) == (ErrorCode.CONNECTION_LOST, 0)
        assert await recorder.next() is None, "the session is over"


async def test_closing_while_a_worker_is_looked_for(fleet: Fleet) -> None:
    only = await fleet.member("only", engine=MUTE)
    async with fleet.connect() as client:
        recorder = await opened(client)
        key = recorder.session.speak("Never heard.")
        await recorder.wait_started()
        only.proxy.stall()
        only.proxy.reset()
        await asyncio.sleep(0)
        recorder.session.close("leaving")
        await recorder.drain()
        assert isinstance(recorder.ends[key], Ended)
        assert recorder.ends[key].outcome is Outcome.STOPPED


# -- the registry goes away -------------------------------------------------------------------------------------------


@pytest.mark.skipif(REAL_REDIS is None, reason="Debian's redis-server is not installed")
async def test_redis_may_go_away_and_come_back() -> None:
    async with real_redis(password="a-password-that-nobody-may-see") as redis, AsyncExitStack() as stack:
        fleet = Fleet(stack, redis.url, "worker:")
        member = await fleet.member("one")
        async with fleet.connect() as client:
            recorder = await opened(client)
            await redis.kill()
            assert (await recorder.synthesize("Running sessions go on.")).outcome is Outcome.DONE
            assert (await (await opened(client)).synthesize("And new ones begin.")).outcome is Outcome.DONE
            async with fleet.connect() as stranger:
                with pytest.raises(TTSWorkerError) as lost:
                    await stranger.open()
            assert lost.value.code is ErrorCode.CONNECTION_LOST
            assert "a-password" not in lost.value.message
            await redis.start()
            await fleet.listed("one")
        assert member.worker.hub.ready


async def test_a_registry_that_hangs_delays_no_session(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_worker.client.fleet._CACHE_TTL_S", 0.0)
    await fleet.member("one")
    async with AsyncExitStack() as stack:
        registry = await stack.enter_async_context(run_proxy(fleet.url.removeprefix("redis://")))
        client = await stack.enter_async_context(connect(f"redis://{registry.address}?prefix={fleet.prefix}", PATIENT))
        (await opened(client)).session.close()
        registry.stall()
        with anyio.fail_after(20.0):  # less than a registry has to answer here
            for _ in range(5):
                assert (await (await opened(client)).synthesize("Hi.")).outcome is Outcome.DONE


# -- who gets the API key ---------------------------------------------------------------------------------------------

KEY = "correct-horse-battery"
SECRET = "a secret of this fleet"


async def test_a_key_is_not_sent_over_an_unsigned_registry(fleet: Fleet) -> None:
    await fleet.member("one")
    with pytest.raises(ConfigError, match=r"registry\.secret"):
        fleet.connect(replace(PATIENT, api_key=KEY))
    async with fleet.connect() as client:
        assert (await (await opened(client)).synthesize("Without a key it works.")).outcome is Outcome.DONE


async def test_a_key_is_sent_to_a_worker_with_a_signed_entry(fleet: Fleet) -> None:
    await fleet.member("one", server={"api_keys": [KEY]}, secret=SECRET)
    async with fleet.connect(replace(PATIENT, api_key=KEY, registry_secret=SECRET)) as client:
        assert (await (await opened(client)).synthesize("Hello.")).outcome is Outcome.DONE


async def test_a_forged_worker_is_never_dialled(fleet: Fleet) -> None:
    real = await fleet.member("real", server={"api_keys": [KEY]}, secret=SECRET)
    async with run_proxy("127.0.0.1:1") as thief, Redis.from_url(fleet.url) as redis:
        entry = json.loads(await redis.get(f"{fleet.prefix}real"))
        forged = {**entry, "name": "thief", "addr": f"grpc://{thief.address}"}
        await redis.set(f"{fleet.prefix}thief", json.dumps(forged))
        async with fleet.connect(replace(PATIENT, api_key=KEY, registry_secret=SECRET)) as client:
            for _ in range(5):
                await opened(client)
            assert real.live == 5
        assert thief.connections == 0


async def test_the_secret_may_come_from_the_environment(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    await fleet.member("one", server={"api_keys": [KEY]}, secret=SECRET)
    monkeypatch.setenv("TTS_WORKER_REGISTRY__SECRET", SECRET)
    async with fleet.connect(replace(PATIENT, api_key=KEY)) as client:
        assert (await (await opened(client)).synthesize("Hello.")).outcome is Outcome.DONE
