"""Deployment on a real Ray Serve cluster on this machine: two replicas behind its proxy.

The tests share the cluster and run in order; each one restores the replicas that it stops.
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
from unittest import mock

import anyio
import httpx
import psutil
import pytest
import soundfile
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as dial
from websockets.exceptions import ConnectionClosed

from tests.behavior.behaviors import BEHAVIORS, BehaviorContext
from tests.behavior.transports import Setup
from tests.conftest import tone_settings
from tests.fakes.clock import measure_stalls
from tests.fakes.late import LateModule
from tts_worker.client import connect
from tts_worker.errors import ConfigError
from tts_worker.features.fleet.settings import RaySettings
from tts_worker.settings import Settings, load_settings
from tts_worker.types import Ended, PcmFrame, SessionOptions
from tts_worker.worker import Worker, running_worker

ray = LateModule("ray", "needs the extra 'ray'")
serve = LateModule("ray.serve", "needs the extra 'ray'")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(400),
    # Raised by Ray in the process that starts it.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

TEXT = "Hello there, my friend. How are you today? "
LONG_TEXT = TEXT * 2
"""About 5 s of audio."""
ONE_REPLICA = {"min_replicas": 1, "max_replicas": 1}
SCALED = {
    "session": {"frame_ms": 40},
    "ray": {"min_replicas": 1, "max_replicas": 2, "target_sessions": 2},
}


def settings_of(port: int, **sections: Any) -> Settings:
    server = {"port": port, "drain_s": 60, "send_timeout_s": 100, **sections.pop("server", {})}
    replicas = {"min_replicas": 2, "max_replicas": 2, "cpus_per_replica": 0.1, **sections.pop("ray", {})}
    return tone_settings(server=server, ray=replicas, **sections)


@dataclass
class Cluster:
    port: int
    address: str = ""
    sections: dict[str, Any] = field(default_factory=dict)

    async def deploy(self, **sections: Any) -> None:
        """Replace the running deployment if it has other settings."""
        from tts_worker.features.fleet import ray as ray_transport

        if sections != self.sections:
            with mock.patch.multiple(ray_transport, _LOOK_BACK_S=1.0, _UPSCALE_DELAY_S=0.0, _DOWNSCALE_DELAY_S=0.0):
                self.address = await asyncio.to_thread(ray_transport.deploy, settings_of(self.port, **sections))
            self.sections = sections

    @property
    def host(self) -> str:
        return self.address.removeprefix("http://")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _connect(settings: Settings) -> None:
    """Start a cluster; again if Ray's own limit of 30 s ran out on a busy machine."""
    from tts_worker.features.fleet import ray as ray_transport

    before = set(psutil.Process().children(recursive=True))
    try:
        ray_transport.connect(settings.section(RaySettings))
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        ray.shutdown()
        for process in set(psutil.Process().children(recursive=True)) - before:  # Ray would end them at exit
            process.kill()
        ray_transport.connect(settings.section(RaySettings))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray.serve", reason="needs the extra 'ray'")
    from tts_worker.features.fleet import ray as ray_transport

    before = set(psutil.Process().children(recursive=True))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)  # replicas import these tests
        _connect(settings_of(port))
    try:
        yield Cluster(port, ray_transport.deploy(settings_of(port)))
    finally:
        serve.shutdown()
        ray.shutdown()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        leftover = set(psutil.Process().children(recursive=True)) - before
        _, alive = psutil.wait_procs(leftover, timeout=60)
        for process in alive:
            process.kill()
        assert not alive


@dataclass
class RecordedCall:
    """One WebSocket session that records its replica, audio and arrival times."""

    socket: ClientConnection
    replica: str
    pcm: bytearray = field(default_factory=bytearray)
    arrivals_s: list[float] = field(default_factory=list)
    ended: dict[str, Any] | None = None
    connection_lost: bool = False

    async def speak(self, text: str = LONG_TEXT) -> None:
        await self.socket.send(json.dumps({"type": "text", "text": text, "end": True}))

    async def receive(self) -> None:
        """Receive until the utterance or the connection ends."""
        try:
            while self.ended is None:
                message = await self.socket.recv()
                if isinstance(message, bytes):
                    self.pcm += message
                    self.arrivals_s.append(time.monotonic())
                elif (event := json.loads(message))["type"] in ("done", "stopped", "error"):
                    self.ended = event
        except ConnectionClosed:
            self.connection_lost = True

    async def wait_first_audio(self) -> None:
        while not isinstance(message := await self.socket.recv(), bytes):
            pass
        self.pcm += message
        self.arrivals_s.append(time.monotonic())

    @property
    def longest_underrun_s(self) -> float:
        """Longest delay of a frame for playback that starts 100 ms after the first frame."""
        first_s = self.arrivals_s[0] + 0.1
        return max(at_s - first_s - index * 0.02 for index, at_s in enumerate(self.arrivals_s))


@asynccontextmanager
async def open_call(cluster: Cluster) -> AsyncIterator[RecordedCall]:
    async with dial(f"ws://{cluster.host}/v1/stream") as socket:
        ready = json.loads(await socket.recv())
        yield RecordedCall(socket, ready["session"].partition("-")[0])


async def calls_per_replica(
    stack: AsyncExitStack, cluster: Cluster, replicas: int, each: int
) -> dict[str, list[RecordedCall]]:
    """Open ``each`` sessions on each of ``replicas`` replicas; Ray selects the replica of a session."""
    found: dict[str, list[RecordedCall]] = {}
    with anyio.fail_after(200):
        while len(found) < replicas or min(map(len, found.values())) < each:
            try:
                own = AsyncExitStack()
                call = await own.enter_async_context(open_call(cluster))
            except (OSError, ConnectionClosed):
                await asyncio.sleep(0.05)  # a replica is starting or stopping
                continue
            if len(found.setdefault(call.replica, [])) < each:
                found[call.replica].append(call)
                stack.push_async_callback(own.aclose)
            else:
                await own.aclose()
                await asyncio.sleep(0.05)  # a starting replica needs the processor
    return found


async def local_pcm(text: str) -> bytes:
    """Synthesize ``text`` with a worker in this process."""
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
        while running_replicas() != replicas:  # noqa: ASYNC110  (Ray has no notification)
            await asyncio.sleep(0.05)


async def live_sessions(client: httpx.AsyncClient) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith("tts_sessions ")).split()[1])


async def test_replicas_share_sessions_and_produce_equal_audio(cluster: Cluster) -> None:
    expected_pcm = await local_pcm(TEXT)
    async with AsyncExitStack() as stack:
        calls = [call for some in (await calls_per_replica(stack, cluster, 2, 2)).values() for call in some]
        for call in calls:
            await call.speak(TEXT)
        await asyncio.gather(*(call.receive() for call in calls))
    assert all(call.ended is not None and call.ended["type"] == "done" for call in calls)
    assert {bytes(call.pcm) for call in calls} == {expected_pcm}


async def test_routes_work_through_the_proxy(cluster: Cluster) -> None:
    expected_pcm = await local_pcm(TEXT)
    async with httpx.AsyncClient(base_url=cluster.address, timeout=100) as client:
        assert (await client.get("/health/ready")).status_code == 200
        assert (await client.post("/v1/model/cosyvoice/healthcheck")).json() == {"status": "healthy"}
        body = {"input": TEXT, "voice": "tone", "response_format": "pcm"}
        async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
            chunks = [chunk async for chunk in answer.aiter_raw()]
        assert b"".join(chunks) == expected_pcm
        assert len(chunks) > 3  # streamed through the proxy
        body = {"text": TEXT, "voice_type": "tone", "stream": True}
        mp3 = await client.post("/v1/model/cosyvoice/tts", json=body)
        samples, rate_hz = soundfile.read(io.BytesIO(mp3.content))
        assert len(samples) / rate_hz == pytest.approx(len(expected_pcm) / 48_000, abs=0.15)
        form_fields = {"tts_text": TEXT, "spk_id": "tone"}
        assert (await client.request("GET", "/inference_sft", data=form_fields)).content == expected_pcm
        refused = await client.post("/v1/audio/speech", json={"input": TEXT, "voice": "unknown"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_voice")
        form = await client.post("/inference_zero_shot", data={"tts_text": TEXT, "prompt_text": "x"}, files={"x": b"x"})
        assert form.status_code == 400
        large = await client.post("/v1/audio/speech", content=bytes(2 << 20))
        assert large.status_code == 413


@pytest.mark.parametrize("name", [name for name, behavior in BEHAVIORS.items() if behavior.setup == Setup()])
async def test_behavior(cluster: Cluster, name: str) -> None:
    behavior = BEHAVIORS[name]
    async with connect(f"ws://{cluster.host}", behavior.setup.client) as client:
        await behavior.run(BehaviorContext(client, True))


def test_the_cluster_listens_on_loopback_only(cluster: Cluster) -> None:
    """Checks this process and its children, which include the daemons of Ray."""
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
                async with open_call(cluster) as call:
                    await call.speak(LONG_TEXT * 20)
                    await call.wait_first_audio()
                    call.socket.transport.abort()
            else:
                body = {"input": LONG_TEXT * 200, "voice": "tone", "response_format": "pcm"}
                async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
                    await anext(answer.aiter_raw())
            zeros = 0
            with anyio.fail_after(50):  # the utterance takes 100 s, and no other timeout ends it
                while zeros < 12:  # the proxy asks either replica
                    zeros = 0 if await live_sessions(client) else zeros + 1


async def test_a_killed_replica_loses_its_own_sessions_only(cluster: Cluster) -> None:
    expected_pcm = await local_pcm(LONG_TEXT)
    async with AsyncExitStack() as stack:
        calls = await calls_per_replica(stack, cluster, 2, 2)
        all_calls = [call for some in calls.values() for call in some]
        stall_s = await stack.enter_async_context(measure_stalls())
        for call in all_calls:
            await call.speak()
        await asyncio.gather(*(call.wait_first_audio() for call in all_calls))
        names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
        replica = next(name for name in names if name.startswith("SERVE_REPLICA::"))
        ray.kill(ray.get_actor(replica, namespace="serve"))
        await asyncio.gather(*(call.receive() for call in all_calls))
        results = {
            name: {(call.connection_lost, bytes(call.pcm) == expected_pcm) for call in some}
            for name, some in calls.items()
        }
        assert sorted(map(sorted, results.values())) == [[(False, True)], [(True, False)]], results
        survivors = [call for call in all_calls if not call.connection_lost]
        # 0 on an idle machine; here the replacement replica starts during playback.
        assert max(call.longest_underrun_s for call in survivors) < 1.0 + 2 * stall_s()
        # A new replica replaces it.
        await calls_per_replica(stack, cluster, 2, 1)


async def test_an_update_finishes_running_utterances(cluster: Cluster) -> None:
    expected_pcm = await local_pcm(LONG_TEXT)
    async with AsyncExitStack() as stack:
        calls = [call for some in (await calls_per_replica(stack, cluster, 2, 1)).values() for call in some]
        for call in calls:
            await call.speak()
        await asyncio.gather(*(call.wait_first_audio() for call in calls))
        receiving = [asyncio.create_task(call.receive()) for call in calls]
        updating = asyncio.create_task(cluster.deploy(**SCALED))
        await asyncio.gather(*receiving)
        assert all(bytes(call.pcm) == expected_pcm for call in calls)
        for call in calls:
            await call.socket.close()
        await updating
        async with open_call(cluster) as fresh:
            assert fresh.replica not in {call.replica for call in calls}
            await fresh.speak(TEXT)
            await fresh.wait_first_audio()
            assert len(fresh.pcm) == 1_920  # 40 ms, by the new settings


async def test_more_sessions_add_replicas(cluster: Cluster) -> None:
    await cluster.deploy(**SCALED)
    await until_running(1)
    async with AsyncExitStack() as stack:
        first = await calls_per_replica(stack, cluster, 1, 1)
        held = await calls_per_replica(stack, cluster, 1, 6)
        assert set(held) >= set(first)
        await calls_per_replica(stack, cluster, 2, 1)
        await until_running(2)


async def test_behavior_with_other_settings(cluster: Cluster) -> None:
    """A deployment takes seconds. Every setting reaches a replica in the same way, so one stands for all."""
    behavior = BEHAVIORS["full_worker_refuses_until_a_slot_is_free"]
    await cluster.deploy(**behavior.setup.sections, ray=ONE_REPLICA)
    async with connect(f"ws://{cluster.host}", behavior.setup.client) as client:
        await behavior.run(BehaviorContext(client, True))


def replica_with(name: str) -> Any:
    """Replica class with the faulty worker of a behavior."""
    from tts_worker.features.fleet.ray import Replica

    class FaultyReplica(Replica):
        @staticmethod
        def create_worker(settings: Settings) -> Worker:
            from tests.behavior.behaviors import BEHAVIORS  # the table cannot be pickled, so the replica imports it
            from tests.behavior.transports import FaultyWorker

            return FaultyWorker(BEHAVIORS[name].setup)

    return FaultyReplica


async def test_behavior_with_a_failing_worker(cluster: Cluster) -> None:
    from tts_worker.features.fleet import ray as ray_transport

    name = "engine_fault_is_a_retryable_error"
    behavior = BEHAVIORS[name]
    one = ray_transport.application(settings_of(cluster.port, ray=ONE_REPLICA), replica_with(name))
    cluster.sections = {"failing": name}  # unlike those of any other deployment
    await asyncio.to_thread(serve.run, one, name=ray_transport.APPLICATION, route_prefix="/")
    async with connect(f"ws://{cluster.host}", behavior.setup.client) as client:
        await behavior.run(BehaviorContext(client, True))


async def test_the_command_drains_and_leaves_the_cluster_running(cluster: Cluster) -> None:
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
        async with open_call(cluster) as call:
            await call.speak(TEXT)
            await call.wait_first_audio()
            process.send_signal(signal.SIGTERM)
            await call.receive()
            assert call.ended is not None
            assert call.ended["type"] == "done"
        _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()[-2_000:]
        assert ray.is_initialized()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def test_replicas_on_one_gpu_divide_its_memory() -> None:
    pytest.importorskip("ray.serve", reason="needs the extra 'ray'")
    from tts_worker.features.fleet.ray import replica_flags

    def share(gpus: float, **engine: float) -> float:
        flags = {"ray": {"gpus_per_replica": gpus}, "engine": engine}
        used: float = replica_flags(load_settings(flags=flags))["engine"]["memory_share"]
        return used

    assert [share(gpus) for gpus in (0.5, 0.25, 0, 1, 2)] == [0.5, 0.25, 1.0, 1.0, 1.0]
    assert share(0.5, memory_share=0.3) == 0.3


def test_the_application_builder_of_ray_serve(tmp_path: Path) -> None:
    pytest.importorskip("ray.serve", reason="needs the extra 'ray'")
    from tts_worker.features.fleet.ray import app

    file = tmp_path / "ray.yaml"
    file.write_text("ray: {max_replicas: 3, gpus_per_replica: 0.5}\nsession: {max_sessions: 10}\n")
    assert isinstance(app({"config": str(file)}), serve.Application)
    with pytest.raises(ConfigError, match="confg"):
        app({"confg": str(file)})
    file.write_text("ray: {min_replicas: 3, max_replicas: 2}\n")
    with pytest.raises(ConfigError, match="ray: max_replicas"):
        app({"config": str(file)})
