"""A fleet: registered workers, worker selection, failover, and outages of the registry."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from subprocess import DEVNULL, PIPE
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from tests.behavior.recording_client import RecordingClient
from tests.behavior.transports import Setup, faulty_worker
from tests.conftest import until
from tests.fakes.programs import Program
from tests.fakes.proxy import Proxy, run_proxy
from tests.fakes.redis import REAL_REDIS, embedded_redis, eventually, free_port, real_redis
from tts_worker.client import Client, ClientSettings, SessionOptions, connect
from tts_worker.client.grpc import GrpcConnector
from tts_worker.client.registry.directory import WorkerDirectory
from tts_worker.client.registry.store import RedisStore
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
from tts_worker.grpc_serving import GrpcServers, running_grpc
from tts_worker.types import ControlName, Ended, Outcome, Started
from tts_worker.worker import Worker

LONG = "This is a rather long story, and it goes on and on. " * 8
UNPACED = SessionOptions(realtime=False)
HANGING_ENGINE = ToneSettings(fault=lambda key, chunk: Fault.HANG)
"""An engine that hangs before its first audio."""
LONG_TIMEOUTS = ClientSettings(connect_timeout_s=60.0, audio_timeout_s=60.0)
"""Timeouts that a busy test machine does not exceed."""
_names = itertools.count()


@pytest.fixture(autouse=True)
def long_redis_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow test machine must not look like an unreachable Redis."""
    monkeypatch.setattr("tts_worker.client.registry.store.TIMEOUT_S", 30.0)


@dataclass
class ProxiedWorker:
    worker: Worker
    fleet: GrpcServers
    proxy: Proxy

    @property
    def live_sessions(self) -> int:
        return self.worker.hub.live_sessions

    async def reset_connections(self) -> None:
        """Act like a killed process: reset every connection; the entry stays until it expires."""
        await self.proxy.stop()


class Fleet:
    """Workers on one registry, each behind a proxy that tests can break."""

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
    ) -> ProxiedWorker:
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
        member = await self._stack.enter_async_context(running_grpc(worker))
        await member.announce()
        assert name in await self.names()
        return ProxiedWorker(worker, member, proxy)

    def connect(self, settings: ClientSettings | None = None) -> Client:
        return connect(f"{self.url}?prefix={self.prefix}", settings or LONG_TIMEOUTS)

    async def names(self) -> set[str]:
        async with aclosing(WorkerDirectory(RedisStore(self.url), self.prefix)) as directory:
            return {worker.entry.name for worker in await directory.workers()}

    async def wait_listed(self, name: str, present: bool = True) -> None:
        async def matches() -> bool:
            return (name in await self.names()) is present

        await eventually(matches)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(stack, embedded_redis(), f"t{next(_names)}:")


async def open_recording(client: Client, options: SessionOptions = UNPACED) -> RecordingClient:
    return RecordingClient((await client.open(options)).session)


# -- worker selection -------------------------------------------------------------------------------------------------


async def test_sessions_go_to_workers_with_free_slots(fleet: Fleet) -> None:
    small = await fleet.member("small", session={"max_sessions": 2, "slot_idle_s": 600})
    large = await fleet.member("large", session={"max_sessions": 8})
    async with fleet.connect() as client:
        recorders = [await open_recording(client) for _ in range(10)]
        assert (small.live_sessions, large.live_sessions) == (2, 8)
        with pytest.raises(OverCapacity):
            await client.open(UNPACED)
        for recorder in recorders:
            assert (await recorder.synthesize("Hello there.")).outcome is Outcome.DONE
            recorder.session.close()
        await until(lambda: small.live_sessions + large.live_sessions == 0)


async def test_only_workers_with_the_voice_are_tried(fleet: Fleet) -> None:
    await fleet.member("plain")
    special = await fleet.member("special", voices={"aliases": {"dragon": "tone-low"}})
    async with fleet.connect() as client:
        for _ in range(3):
            recorder = await open_recording(client, SessionOptions(voice="dragon", realtime=False))
            assert (await recorder.synthesize("Hi.")).outcome is Outcome.DONE
        assert special.live_sessions == 3
        with pytest.raises(UnknownVoice, match="dragon"):
            await client.open(SessionOptions(voice="unicorn"))


async def test_idle_sessions_move_from_a_draining_worker(fleet: Fleet) -> None:
    first = await fleet.member("first", session={"max_sessions": 1, "slot_idle_s": 600})
    async with fleet.connect() as client:
        recorder = await open_recording(client)
        second = await fleet.member("second")
        other = await _open_until(client, lambda: second.live_sessions == 1)
        first.fleet.begin_drain()
        draining = asyncio.create_task(first.worker.hub.drain(60.0))
        await fleet.wait_listed("first", present=False)
        await until(lambda: first.live_sessions == 0)
        assert (await recorder.synthesize("It was idle, so it moved.")).outcome is Outcome.DONE
        assert second.live_sessions == 2
        assert (await other.synthesize("Undisturbed.")).outcome is Outcome.DONE
        await draining


async def _open_until(client: Client, arrived: Any) -> RecordingClient:
    """Open a session once the client has refreshed its list of workers, which takes 0.5 s."""
    while True:
        try:
            recorder = await open_recording(client)
        except OverCapacity:
            await asyncio.sleep(0.02)
            continue
        assert arrived()
        return recorder


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses of all attempts to open a session."""
    addresses: list[str] = []
    open_stream = GrpcConnector.open_stream

    async def recorded(connector: GrpcConnector, options: SessionOptions) -> Any:
        addresses.append(connector.address)
        return await open_stream(connector, options)

    monkeypatch.setattr(GrpcConnector, "open_stream", recorded)
    return addresses


async def test_an_unreachable_worker_costs_one_attempt(fleet: Fleet, attempts: list[str]) -> None:
    dead = await fleet.member("dead")
    await dead.reset_connections()
    alive = await fleet.member("alive")
    async with fleet.connect() as client:
        for _ in range(4):
            await open_recording(client)
        assert alive.live_sessions == 4
        assert attempts.count(dead.proxy.address) == 1
        assert len(attempts) == 5


async def test_a_hanging_worker_costs_one_connect_timeout(fleet: Fleet, attempts: list[str]) -> None:
    silent = await fleet.member("silent")
    alive = await fleet.member("alive", session={"max_sessions": 1_000})
    silent.proxy.stall()
    # Long enough for the other worker on a busy machine.
    async with fleet.connect(ClientSettings(connect_timeout_s=1.5)) as client:
        for _ in range(6):
            await open_recording(client)
        assert alive.live_sessions == 6
        assert attempts.count(silent.proxy.address) == 1
        assert len(attempts) == 7


async def test_an_empty_registry_is_a_connection_loss() -> None:
    async with connect(f"{embedded_redis()}?prefix=empty:") as client:
        with pytest.raises(ConnectionLost, match="registered"):
            await client.open()
        with pytest.raises(ConnectionLost):
            await client.prewarm()


@pytest.mark.parametrize("query", ["networks=everywhere", "networks=10.0.0.0/99"])
def test_invalid_networks_are_rejected(query: str) -> None:
    with pytest.raises(InvalidRequest, match="networks"):
        connect(f"redis://127.0.0.1:1?{query}")


async def test_workers_of_other_protocol_versions_are_ignored(fleet: Fleet) -> None:
    await fleet.member("ours", heartbeat_s=300.0)  # not renewed during the test
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
async def serving_process(fleet: Fleet, name: str) -> AsyncIterator[Program]:
    """Run ``tts-worker serve`` with the tone engine in the fleet; it is ready on entry, and killed after the test."""
    settings = {
        "grpc.enabled": "true",
        "grpc.port": "0",
        "registry.url": fleet.url,
        "registry.prefix": f'"{fleet.prefix}"',
        "registry.name": name,
        "server.drain_s": "100",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = ("-m", "tts_worker", "serve", "--engine", "tone", "--port", "0", *words)
    with Program(*command, stdout=PIPE, stderr=DEVNULL) as process:
        assert process.stdout is not None
        try:
            while (line := await asyncio.to_thread(process.stdout.readline)) != b"ready\n":
                assert line, "it ended"
            yield process
        finally:
            process.kill()


async def test_sigterm_deletes_the_entry_and_finishes_utterances(fleet: Fleet) -> None:
    async with serving_process(fleet, "served") as process, fleet.connect() as client:
        assert await fleet.names() == {"served"}, "a ready worker must be registered"
        recorder = await open_recording(client, SessionOptions())
        silent = await open_recording(client)
        key = recorder.session.speak("A turn that may end.")
        recorder.session.end_text()
        await recorder.receive_samples(1, key)
        process.terminate()
        await fleet.wait_listed("served", present=False)
        assert (await recorder.wait_ended(key)).outcome is Outcome.DONE
        with anyio.fail_after(60):  # less than drain_s: it does not wait for the idle session
            assert await asyncio.to_thread(process.wait) == 0
        assert await silent.next() is None


async def test_rolling_restart_fails_no_call(fleet: Fleet) -> None:
    """Two workers are replaced one after the other, while callers speak one turn after the other."""
    restarted = False
    names = ("first", "second")
    async with AsyncExitStack() as stack, fleet.connect() as client:

        async def call() -> int:
            """Speak until the restart is over, in one session; return the number of turns."""
            recorder = await open_recording(client, SessionOptions())
            turns = 0
            while not restarted:
                ended = await recorder.synthesize("Yes, I am here.")
                assert ended.error is None, ended.error
                assert ended.outcome is Outcome.DONE
                assert ended.receipt.text_spoken == "Yes, I am here."
                turns += 1
            recorder.session.close()
            return turns

        old = {name: await stack.enter_async_context(serving_process(fleet, name)) for name in names}
        calls = [asyncio.create_task(call()) for _ in range(6)]
        for name in names:
            old[name].terminate()
            await fleet.wait_listed(name, present=False)
            with anyio.fail_after(60):
                assert await asyncio.to_thread(old[name].wait) == 0
            await stack.enter_async_context(serving_process(fleet, name))
            await fleet.wait_listed(name)
        restarted = True
        assert min(await asyncio.gather(*calls)) > 1


# -- failover ---------------------------------------------------------------------------------------------------------


async def test_a_loss_before_the_first_audio_is_retried_elsewhere(fleet: Fleet) -> None:
    first = await fleet.member("first", engine=HANGING_ENGINE)
    async with fleet.connect() as client:
        recorder = await open_recording(client)
        key = recorder.session.speak("Hello there, ")
        recorder.session.flush()
        await recorder.wait_started()
        second = await fleet.member("second")
        await first.reset_connections()
        recorder.session.speak("my friend.")
        recorder.session.end_text()
        waiting = recorder.session.speak("And the next.")
        recorder.session.end_text()
        ended = await recorder.wait_ended(key)
        assert (ended.outcome, ended.receipt.text_spoken) == (Outcome.DONE, "Hello there, my friend.")
        assert (await recorder.wait_ended(waiting)).receipt.text_spoken == "And the next."
        assert [item.key for item in recorder.log if isinstance(item, Started)] == [key, waiting]
        assert second.live_sessions == 1
        assert (await recorder.synthesize("Still here.")).outcome is Outcome.DONE


async def test_a_loss_during_audio_is_an_error_of_that_session_only(fleet: Fleet) -> None:
    first = await fleet.member("first", session={"max_sessions": 1, "slot_idle_s": 600})
    async with fleet.connect() as client:
        recorder = await open_recording(client, SessionOptions())
        key = recorder.session.speak(LONG)
        await recorder.receive_samples(5_000, key)
        second = await fleet.member("second")
        other = await _open_until(client, lambda: second.live_sessions == 1)
        whole = other.pcm[(await other.synthesize("Undisturbed by that. " * 3)).key]
        other.session.speak("Undisturbed by that. " * 3)
        other.session.end_text()
        going_on = await other.receive_samples(5_000)
        await first.reset_connections()
        ended = await recorder.wait_ended(key)
        assert ended.error is not None
        assert (ended.error.code, ended.error.retryable) == (ErrorCode.CONNECTION_LOST, True)
        assert ended.receipt.samples_sent * 2 == len(recorder.pcm[key])
        assert ended.receipt.text_spoken + ended.receipt.text_remaining == LONG
        await other.wait_ended(going_on)
        assert other.pcm[going_on] == whole


async def test_a_paused_session_stays_paused_after_failover(fleet: Fleet) -> None:
    first = await fleet.member("first", engine=HANGING_ENGINE)
    async with fleet.connect() as client:
        recorder = await open_recording(client)
        key = recorder.session.speak("Held back.")
        recorder.session.end_text()
        recorder.session.pause()
        assert (await recorder.wait_acknowledged(ControlName.PAUSE)).applied
        second = await fleet.member("second")
        await first.reset_connections()
        await until(lambda: second.live_sessions == 1)
        recorder.session.resume()
        assert (await recorder.wait_acknowledged(ControlName.RESUME)).applied
        assert (await recorder.wait_ended(key)).outcome is Outcome.DONE


async def test_a_stop_without_any_worker_is_confirmed(fleet: Fleet) -> None:
    only = await fleet.member("only", engine=HANGING_ENGINE)
    async with fleet.connect() as client:
        recorder = await open_recording(client)
        key = recorder.session.speak("Never heard.")
        await recorder.wait_started()
        only.proxy.stall()
        only.proxy.reset()
        recorder.session.stop("changed_my_mind")
        ended = await recorder.wait_ended(key)
        assert (ended.outcome, ended.receipt.reason) == (Outcome.STOPPED, "changed_my_mind")
        assert ended.receipt.text_remaining == "Never heard."


async def test_without_another_worker_the_session_fails(fleet: Fleet) -> None:
    only = await fleet.member("only", engine=HANGING_ENGINE)
    async with fleet.connect() as client:
        recorder = await open_recording(client)
        key = recorder.session.speak("Never heard.")
        recorder.session.end_text()
        await recorder.wait_started()
        await only.reset_connections()
        ended = await recorder.wait_ended(key)
        assert ended.error is not None
        assert (ended.error.code, ended.receipt.samples_sent) == (ErrorCode.CONNECTION_LOST, 0)
        assert await recorder.next() is None, "the session is over"


async def test_closing_during_failover_stops_the_utterance(fleet: Fleet) -> None:
    only = await fleet.member("only", engine=HANGING_ENGINE)
    async with fleet.connect() as client:
        recorder = await open_recording(client)
        key = recorder.session.speak("Never heard.")
        await recorder.wait_started()
        only.proxy.stall()
        only.proxy.reset()
        await asyncio.sleep(0)
        recorder.session.close("leaving")
        await recorder.drain()
        assert isinstance(recorder.ends[key], Ended)
        assert recorder.ends[key].outcome is Outcome.STOPPED


# -- outages of the registry ------------------------------------------------------------------------------------------


@pytest.mark.skipif(REAL_REDIS is None, reason="Debian's redis-server is not installed")
async def test_sessions_survive_a_redis_outage() -> None:
    async with real_redis(password="a-password-that-must-not-leak") as redis, AsyncExitStack() as stack:
        fleet = Fleet(stack, redis.url, "worker:")
        member = await fleet.member("one")
        async with fleet.connect() as client:
            recorder = await open_recording(client)
            await redis.kill()
            assert (await recorder.synthesize("Running sessions go on.")).outcome is Outcome.DONE
            assert (await (await open_recording(client)).synthesize("And new ones begin.")).outcome is Outcome.DONE
            async with fleet.connect() as new_client:
                with pytest.raises(TTSWorkerError) as lost:
                    await new_client.open()
            assert lost.value.code is ErrorCode.CONNECTION_LOST
            assert "a-password" not in lost.value.message
            await redis.start()
            await fleet.wait_listed("one")
        assert member.worker.hub.ready


async def test_a_hanging_registry_delays_no_session(fleet: Fleet) -> None:
    await fleet.member("one")
    async with AsyncExitStack() as stack:
        registry = await stack.enter_async_context(run_proxy(fleet.url.removeprefix("redis://")))
        client = await stack.enter_async_context(
            connect(f"redis://{registry.address}?prefix={fleet.prefix}", LONG_TIMEOUTS)
        )
        (await open_recording(client)).session.close()
        registry.stall()
        with anyio.fail_after(20.0):  # less than the Redis timeout of 30 s
            stalled_at_s = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < stalled_at_s + 1.2:  # twice the list is too old to be used
                speaking = await open_recording(client)
                assert (await speaking.synthesize("Hi.")).outcome is Outcome.DONE
                speaking.session.close()


# -- API keys ---------------------------------------------------------------------------------------------------------

KEY = "correct-horse-battery"
SECRET = "a secret of this fleet"


async def test_a_key_is_not_sent_over_an_unsigned_registry(fleet: Fleet) -> None:
    await fleet.member("one")
    with pytest.raises(ConfigError, match=r"registry\.secret"):
        fleet.connect(replace(LONG_TIMEOUTS, api_key=KEY))
    async with fleet.connect() as client:
        assert (await (await open_recording(client)).synthesize("Without a key it works.")).outcome is Outcome.DONE


async def test_a_key_is_sent_to_a_worker_with_a_signed_entry(fleet: Fleet) -> None:
    await fleet.member("one", server={"api_keys": [KEY]}, secret=SECRET)
    async with fleet.connect(replace(LONG_TIMEOUTS, api_key=KEY, registry_secret=SECRET)) as client:
        assert (await (await open_recording(client)).synthesize("Hello.")).outcome is Outcome.DONE


async def test_a_forged_entry_is_never_connected_to(fleet: Fleet) -> None:
    real = await fleet.member("real", server={"api_keys": [KEY]}, secret=SECRET)
    async with run_proxy("127.0.0.1:1") as thief, Redis.from_url(fleet.url) as redis:
        entry = json.loads(await redis.get(f"{fleet.prefix}real"))
        forged = {**entry, "name": "thief", "addr": f"grpc://{thief.address}"}
        await redis.set(f"{fleet.prefix}thief", json.dumps(forged))
        async with fleet.connect(replace(LONG_TIMEOUTS, api_key=KEY, registry_secret=SECRET)) as client:
            for _ in range(5):
                await open_recording(client)
            assert real.live_sessions == 5
        assert thief.connections == 0


async def test_the_secret_may_come_from_the_environment(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    await fleet.member("one", server={"api_keys": [KEY]}, secret=SECRET)
    monkeypatch.setenv("TTS_WORKER_REGISTRY__SECRET", SECRET)
    async with fleet.connect(replace(LONG_TIMEOUTS, api_key=KEY)) as client:
        assert (await (await open_recording(client)).synthesize("Hello.")).outcome is Outcome.DONE
