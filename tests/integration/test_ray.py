"""Ray Serve for real: one cluster on this machine, two replicas behind its proxy, one of them killed, all replaced.

The tests share the cluster and are run in order: what a replica loses in one is there again in the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest
import soundfile
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as dial
from websockets.exceptions import ConnectionClosed

from tests.behaviour.behaviours import BEHAVIOURS, BehaviourContext
from tests.behaviour.transports import Setup
from tests.conftest import tone_settings
from tests.fakes.clock import standing_still
from tts_worker.app import Worker, running_worker
from tts_worker.client import connect
from tts_worker.errors import ConfigError
from tts_worker.session.hub import SessionOptions
from tts_worker.settings import Settings
from tts_worker.types import Ended, PcmFrame

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
serve = pytest.importorskip("ray.serve", reason="needs the extra 'ray'")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(400),
    # Of Ray's own making, in the process that starts it.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

TEXT = "Hello there, my friend. How are you today? "
TURN = TEXT * 2
"""About five seconds."""


def settings_of(port: int, **sections: Any) -> Settings:
    server = {"port": port, "drain_s": 60, "send_timeout_s": 100, **sections.pop("server", {})}
    replicas = {"min_replicas": 2, "max_replicas": 2, "cpus_per_replica": 0.1, **sections.pop("ray", {})}
    return tone_settings(server=server, ray=replicas, **sections)


@dataclass
class Cluster:
    port: int
    address: str = ""

    async def deploy(self, **sections: Any) -> None:
        """Replace what runs."""
        from tts_worker.transports.ray import deploy

        self.address = await asyncio.to_thread(deploy, settings_of(self.port, **sections))

    @property
    def host(self) -> str:
        return self.address.removeprefix("http://")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    from tts_worker.transports import ray as ours

    before = set(psutil.Process().children(recursive=True))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)  # replicas import these tests
        ours.connect(settings_of(port).ray)
    try:
        yield Cluster(port, ours.deploy(settings_of(port)))
    finally:
        serve.shutdown()
        ray.shutdown()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        left = set(psutil.Process().children(recursive=True)) - before
        _, alive = psutil.wait_procs(left, timeout=60)
        for process in alive:
            process.kill()
        assert not alive


@dataclass
class Talk:
    """One WebSocket conversation: which replica has it, what came and when."""

    socket: ClientConnection
    replica: str
    pcm: bytearray = field(default_factory=bytearray)
    arrived_s: list[float] = field(default_factory=list)
    ended: dict[str, Any] | None = None
    lost: bool = False

    async def speak(self, text: str = TURN) -> None:
        await self.socket.send(json.dumps({"type": "text", "text": text, "end": True}))

    async def listen(self) -> None:
        """Until the turn is over or the connection is."""
        try:
            while self.ended is None:
                message = await self.socket.recv()
                if isinstance(message, bytes):
                    self.pcm += message
                    self.arrived_s.append(time.monotonic())
                elif (event := json.loads(message))["type"] in ("done", "stopped", "error"):
                    self.ended = event
        except ConnectionClosed:
            self.lost = True

    async def first_sound(self) -> None:
        while not isinstance(message := await self.socket.recv(), bytes):
            pass
        self.pcm += message
        self.arrived_s.append(time.monotonic())

    @property
    def longest_hole_s(self) -> float:
        """By how much sound came too late for a listener who began 100 ms after the first of it."""
        first_s = self.arrived_s[0] + 0.1
        return max(at_s - first_s - index * 0.02 for index, at_s in enumerate(self.arrived_s))


@asynccontextmanager
async def talking(cluster: Cluster) -> AsyncIterator[Talk]:
    async with dial(f"ws://{cluster.host}/v1/stream") as socket:
        ready = json.loads(await socket.recv())
        yield Talk(socket, ready["session"].partition("-")[0])


async def talks_on(stack: AsyncExitStack, cluster: Cluster, replicas: int, each: int) -> dict[str, list[Talk]]:
    """So many conversations on each of so many replicas; Ray decides which one gets which."""
    found: dict[str, list[Talk]] = {}
    with anyio.fail_after(200):
        while len(found) < replicas or min(map(len, found.values())) < each:
            try:
                own = AsyncExitStack()
                talk = await own.enter_async_context(talking(cluster))
            except (OSError, ConnectionClosed):
                continue  # a replica that is just coming or going
            if len(found.setdefault(talk.replica, [])) < each:
                found[talk.replica].append(talk)
                stack.push_async_callback(own.aclose)
            else:
                await own.aclose()
    return found


async def expected(text: str) -> bytes:
    """What a worker in this process says."""
    async with running_worker(tone_settings()) as worker:
        session = worker.hub.open(SessionOptions(realtime=False))
        session.speak(text)
        session.end_text()
        pcm = bytearray()
        async for item in session:
            if isinstance(item, PcmFrame):
                pcm += item.pcm
            elif isinstance(item, Ended):
                break
        session.close()
    return bytes(pcm)


def running_replicas() -> int:
    states = serve.status().applications["tts-worker"].deployments["worker"].replica_states
    return sum(count for state, count in states.items() if state == "RUNNING")


async def until_running(replicas: int) -> None:
    with anyio.fail_after(100):
        while running_replicas() != replicas:  # noqa: ASYNC110  (Ray decides, nothing tells when)
            await asyncio.sleep(0.05)


async def live_sessions(client: httpx.AsyncClient) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith("tts_sessions ")).split()[1])


async def test_sessions_spread_over_replicas_and_sound_like_one_worker(cluster: Cluster) -> None:
    sound = await expected(TEXT)
    async with AsyncExitStack() as stack:
        talks = [talk for some in (await talks_on(stack, cluster, 2, 2)).values() for talk in some]
        for talk in talks:
            await talk.speak(TEXT)
        await asyncio.gather(*(talk.listen() for talk in talks))
    assert all(talk.ended is not None and talk.ended["type"] == "done" for talk in talks)
    assert {bytes(talk.pcm) for talk in talks} == {sound}


async def test_every_route_is_there(cluster: Cluster) -> None:
    sound = await expected(TEXT)
    async with httpx.AsyncClient(base_url=cluster.address, timeout=100) as client:
        assert (await client.get("/health/ready")).status_code == 200
        assert (await client.post("/v1/model/cosyvoice/healthcheck")).json() == {"status": "healthy"}
        asked = {"input": TEXT, "voice": "tone", "response_format": "pcm"}
        async with client.stream("POST", "/v1/audio/speech", json=asked) as answer:
            chunks = [chunk async for chunk in answer.aiter_raw()]
        assert b"".join(chunks) == sound
        assert len(chunks) > 3  # streamed through the proxy
        asked = {"text": TEXT, "voice_type": "tone", "stream": True}
        mp3 = await client.post("/v1/model/cosyvoice/tts", json=asked)
        samples, rate_hz = soundfile.read(io.BytesIO(mp3.content))
        assert len(samples) / rate_hz == pytest.approx(len(sound) / 48_000, abs=0.15)
        said = {"tts_text": TEXT, "spk_id": "tone"}
        assert (await client.request("GET", "/inference_sft", data=said)).content == sound
        refused = await client.post("/v1/audio/speech", json={"input": TEXT, "voice": "nobody"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_voice")
        form = await client.post("/inference_zero_shot", data={"tts_text": TEXT, "prompt_text": "x"}, files={"x": b"x"})
        assert form.status_code == 400
        large = await client.post("/v1/audio/speech", content=bytes(2 << 20))
        assert large.status_code == 413


@pytest.mark.parametrize("name", [name for name, wanted in BEHAVIOURS.items() if wanted.setup == Setup()])
async def test_behaviour(cluster: Cluster, name: str) -> None:
    wanted = BEHAVIOURS[name]
    async with connect(f"ws://{cluster.host}", wanted.setup.client) as client:
        await wanted.run(BehaviourContext(client, True))


def test_the_cluster_listens_on_loopback_only(cluster: Cluster) -> None:
    """Children of this process, and what Ray has detached from it, by their names and their session."""
    listening = set[tuple[str, str]]()
    for process in {psutil.Process(), *psutil.Process().children(recursive=True)}:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    listening.add((process.name(), connection.laddr.ip))
    names = {name for name, _ in listening}
    assert {"raylet", "gcs_server"} <= names
    assert any("ServeReplica" in name for name in names)
    assert {address for _, address in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, sorted(listening)


async def test_a_client_that_leaves_frees_its_slot(cluster: Cluster) -> None:
    async with httpx.AsyncClient(base_url=cluster.address, timeout=100) as client:
        for path in ("ws", "http"):
            if path == "ws":
                async with talking(cluster) as talk:
                    await talk.speak(TURN * 20)
                    await talk.first_sound()
                    talk.socket.transport.abort()
            else:
                asked = {"input": TURN * 200, "voice": "tone", "response_format": "pcm"}
                async with client.stream("POST", "/v1/audio/speech", json=asked) as answer:
                    await anext(answer.aiter_raw())
            zeros = 0
            with anyio.fail_after(50):  # of a turn of 100 s, for which nothing else would give up
                while zeros < 12:  # either replica answers
                    zeros = 0 if await live_sessions(client) else zeros + 1


async def test_a_killed_replica_costs_its_own_sessions_only(cluster: Cluster) -> None:
    sound = await expected(TURN)
    async with AsyncExitStack() as stack:
        talks = await talks_on(stack, cluster, 2, 2)
        everybody = [talk for some in talks.values() for talk in some]
        stood_still = await stack.enter_async_context(standing_still())
        for talk in everybody:
            await talk.speak()
        await asyncio.gather(*(talk.first_sound() for talk in everybody))
        names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
        replica = next(name for name in names if name.startswith("SERVE_REPLICA::"))
        ray.kill(ray.get_actor(replica, namespace="serve"))
        await asyncio.gather(*(talk.listen() for talk in everybody))
        fates = {name: {(talk.lost, bytes(talk.pcm) == sound) for talk in some} for name, some in talks.items()}
        assert sorted(map(sorted, fates.values())) == [[(False, True)], [(True, False)]], fates
        survivors = [talk for talk in everybody if not talk.lost]
        # It is 0 where the machine is not busy; here the next replica starts beside what is being said.
        assert max(talk.longest_hole_s for talk in survivors) < 1.0 + 2 * stood_still()
        # Another one comes in its place.
        await talks_on(stack, cluster, 2, 1)


async def test_an_update_lets_running_turns_end(cluster: Cluster) -> None:
    sound = await expected(TURN)
    async with AsyncExitStack() as stack:
        talks = [talk for some in (await talks_on(stack, cluster, 2, 1)).values() for talk in some]
        for talk in talks:
            await talk.speak()
        await asyncio.gather(*(talk.first_sound() for talk in talks))
        listening = [asyncio.create_task(talk.listen()) for talk in talks]
        updating = asyncio.create_task(cluster.deploy(session={"frame_ms": 40}))
        await asyncio.gather(*listening)
        assert all(bytes(talk.pcm) == sound for talk in talks)
        for talk in talks:
            await talk.socket.close()
        await updating
        async with talking(cluster) as fresh:
            assert fresh.replica not in {talk.replica for talk in talks}
            await fresh.speak(TEXT)
            await fresh.first_sound()
            assert len(fresh.pcm) == 1_920  # of the new settings


@pytest.mark.parametrize("name", [name for name, wanted in BEHAVIOURS.items() if wanted.setup.sections])
async def test_behaviour_of_a_worker_with_settings_of_its_own(cluster: Cluster, name: str) -> None:
    wanted = BEHAVIOURS[name]
    await cluster.deploy(**wanted.setup.sections, ray={"min_replicas": 1, "max_replicas": 1})
    async with connect(f"ws://{cluster.host}", wanted.setup.client) as client:
        await wanted.run(BehaviourContext(client, True))


def replica_with(name: str) -> Any:
    """A replica with the worker of a behaviour."""
    from tts_worker.transports.ray import Replica

    class FaultyReplica(Replica):
        @staticmethod
        def create_worker(settings: Settings) -> Worker:
            from tests.behaviour.behaviours import BEHAVIOURS  # in the replica's process: a table cannot be sent there
            from tests.behaviour.transports import FaultyWorker

            return FaultyWorker(BEHAVIOURS[name].setup)

    return FaultyReplica


@pytest.mark.parametrize("name", [name for name, wanted in BEHAVIOURS.items() if wanted.setup.engine is not None])
async def test_behaviour_of_a_worker_that_fails(cluster: Cluster, name: str) -> None:
    from tts_worker.transports import ray as ours

    wanted = BEHAVIOURS[name]
    one = ours.application(settings_of(cluster.port, ray={"min_replicas": 1, "max_replicas": 1}), replica_with(name))
    await asyncio.to_thread(serve.run, one, name=ours.APPLICATION, route_prefix="/")
    async with connect(f"ws://{cluster.host}", wanted.setup.client) as client:
        await wanted.run(BehaviourContext(client, True))


async def test_more_sessions_bring_more_replicas(cluster: Cluster) -> None:
    delays = {"look_back_s": 1, "upscale_delay_s": 0, "downscale_delay_s": 0}
    await cluster.deploy(ray={"min_replicas": 1, "max_replicas": 2, "target_sessions": 2, **delays})
    await until_running(1)
    async with AsyncExitStack() as stack:
        first = await talks_on(stack, cluster, 1, 1)
        held = await talks_on(stack, cluster, 1, 6)
        assert set(held) >= set(first)
        await talks_on(stack, cluster, 2, 1)
        await until_running(2)


async def test_the_command_deploys_drains_and_leaves_the_cluster_to_others(cluster: Cluster) -> None:
    address = ray.get_runtime_context().gcs_address
    words = ["serve", "--ray", "--engine", "tone", "--port", str(cluster.port), "--set", f"ray.address={address}"]
    small = ["--set", "ray.cpus_per_replica=0.1", "--set", "server.drain_s=60"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tts_worker", *words, *small),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ},
    )
    try:
        assert process.stdout is not None
        assert (await process.stdout.readline()).decode() == f"listening on {cluster.address}\n"
        assert await process.stdout.readline() == b"ready\n"
        async with talking(cluster) as talk:
            await talk.speak(TEXT)
            await talk.first_sound()
            process.send_signal(signal.SIGTERM)
            await talk.listen()
            assert talk.ended is not None
            assert talk.ended["type"] == "done"
        _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()[-2_000:]
        assert ray.is_initialized()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def test_rays_own_command_line_gets_the_application(tmp_path: Path) -> None:
    from tts_worker.transports.ray import app

    file = tmp_path / "ray.yaml"
    file.write_text("ray: {max_replicas: 3, gpus_per_replica: 0.5}\nsession: {max_sessions: 10}\n")
    assert isinstance(app({"config": str(file)}), serve.Application)
    with pytest.raises(ConfigError, match="confg"):
        app({"confg": str(file)})
    file.write_text("ray: {min_replicas: 3, max_replicas: 2}\n")
    with pytest.raises(ConfigError, match="ray: max_replicas"):
        app({"config": str(file)})
