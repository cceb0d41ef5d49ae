"""``tts-worker up`` and the example that uses it, as subprocesses."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest

from tests.features.fleet.test_gpus import FOUND, SMI
from tts_worker.client import SessionOptions, connect
from tts_worker.errors import InvalidRequest, TTSWorkerError
from tts_worker.features.fleet import up
from tts_worker.types import Ended, Outcome

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def running(*words: str, **pipes: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python process; it and its children are killed after the test."""
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE, **pipes)
    try:
        yield process
    finally:
        if process.returncode is None:
            for leftover in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    leftover.kill()
        await process.communicate()


async def test_the_orchestrator_example_runs() -> None:
    async with running(str(ROOT / "examples" / "orchestrator.py"), "tone") as process:
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output
    assert "registered: ['worker-1', 'worker-2']" in output
    assert "frames of 1920 bytes" in output
    assert 'interrupted: spoken:    "Of course.' in output
    assert "done" in output.splitlines()[-2]
    assert output.splitlines()[-1] == "the fleet has drained"


async def until_line(stream: asyncio.StreamReader | None, start: bytes) -> bytes:
    """Return the next line that begins with ``start``; fail at the end of the output."""
    assert stream is not None
    while not (line := await stream.readline()).startswith(start):
        assert line, "it ended"
    return line


def workers_of(process: asyncio.subprocess.Process) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "serve" in child.cmdline()]


async def test_dead_worker_is_started_again_without_redis_all_end() -> None:
    words = ("-m", "tts_worker", "up", "--engine", "tone", "--workers", "1", "--port", "0")
    async with running(*words, stderr=asyncio.subprocess.PIPE) as process:
        line = await until_line(process.stdout, b"up: 1 workers")
        url = line.decode().split()[-1]
        (worker,) = workers_of(process)
        worker.kill()
        assert b"worker-1 ended (killed by SIGKILL)" in await until_line(process.stderr, b"up: ")
        async with connect(url) as client:  # finds the next one in the registry
            while True:
                with contextlib.suppress(TTSWorkerError):
                    session = (await client.open(SessionOptions(realtime=False))).session
                    break
            session.speak("Hello.")
            session.end_text()
            async for output in session:
                if isinstance(output, Ended):
                    assert output.outcome is Outcome.DONE
                    break
        (replacement,) = workers_of(process)
        assert replacement.pid != worker.pid
        children = psutil.Process(process.pid).children(recursive=True)
        port = int(line.decode().strip().rpartition(":")[2])
        redis = next(child for child in children if "serve" not in child.cmdline() and listens(child, port))
        redis.kill()
        assert process.stderr is not None
        assert b"Redis has ended" in await process.stderr.read()
        assert await process.wait() == 1
        await until_gone(children)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # by the Redis package, seen on Python 3.10
async def test_url_of_a_redis_is_on_no_command_line() -> None:
    words = ("-m", "tts_worker", "up", "--engine", "tone", "--workers", "1", "--port", "0")
    async with up.local_redis() as url:  # such a URL may hold a password, and everyone on a machine sees command lines
        environment = {**os.environ, "TTS_WORKER_REGISTRY__URL": url}
        async with running(*words, env=environment) as process, connect(url) as client:
            assert b"1 workers at the given Redis" in await until_line(process.stdout, b"up: ")
            assert "tone-low" in [voice.id for voice in await client.voices.list()]
            parts = psutil.Process(process.pid).children(recursive=True)
            assert workers_of(process)
            assert not [word for part in parts for word in part.cmdline() if "redis:" in word]


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_addresses_of_each_worker_are_printed(log_format: str) -> None:
    words = ["-m", "tts_worker", "up", "--engine", "tone", "--workers", "1", "--port", "0"]
    async with running(*words, "--set", f"log_format={log_format}") as process:
        with anyio.fail_after(60):
            line = await until_line(process.stdout, b"worker-1: ")
            await until_line(process.stdout, b"up: 1 workers")
        http, grpc = line.decode().split()[1:]
        async with httpx.AsyncClient() as client, connect(grpc) as worker:
            assert 'engine="tone"' in (await client.get(f"{http}/metrics")).text
            assert "tone-low" in [voice.id for voice in await worker.voices.list()]


async def until_gone(children: list[psutil.Process]) -> None:
    """Check that the children of a command that has waited for them end; the system may still have to reap them."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, timeout=30)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


async def test_worker_that_cannot_start_ends_the_command() -> None:
    words = ("-m", "tts_worker", "up", "--engine", "tone", "--port", "0", "--set", "session.lead_ms=-1")
    async with running(*words, stderr=asyncio.subprocess.PIPE) as process:
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert b"session.lead_ms" in errors
        assert b"did not start" in errors


async def test_one_worker_per_gpu_sees_only_its_gpu(tmp_path: Path) -> None:
    """On a machine whose nvidia-smi lists two slices and a GPU; the tone engine stands for a GPU engine."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat <<'X'\n{SMI}X\n")
    smi.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    words = ("-m", "tts_worker", "up", "--gpus", "all", "--engine", "tone", "--port", "0")
    async with running(*words, env=environment) as process:
        first = await until_line(process.stdout, b"worker-")
        assert re.match(rb"worker-\d on NVIDIA .* (GPU|MIG)-[\w-]+: http://", first)
        await until_line(process.stdout, b"up: 3 workers")
        visible = [worker.environ()["CUDA_VISIBLE_DEVICES"] for worker in workers_of(process)]
        assert sorted(visible) == sorted(gpu.uuid for gpu in FOUND)
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert await process.wait() == 0
        await until_gone(children)


def plan(*words: str) -> list[up.Member]:
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    return up.plan(parser.parse_args(words))


def test_workers_on_one_gpu_divide_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "list_gpus", lambda: FOUND)
    members = plan("--gpus", "1", "--workers", "2", "--config", "cosyvoice3.yaml")
    assert [member.environment["CUDA_VISIBLE_DEVICES"] for member in members] == [FOUND[2].uuid] * 2
    assert [float(member.settings["engine.memory_share"]) for member in members] == [0.5, 0.5]
    assert [member.port for member in members] == [7002, 7003]
    assert all(not member.settings for member in plan("--gpus", "1", "--engine", "tone"))


def test_taken_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    from tts_worker.cli import main

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["up", "--workers", "1", "--port", str(port)]) == 2
    assert f"port {port} is taken: choose others with --port, or free ones with --port 0" in capsys.readouterr().err


def test_gpus_need_an_engine_that_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "list_gpus", lambda: FOUND)
    with pytest.raises(InvalidRequest, match="--config"):
        plan("--gpus", "all")


def listens(process: psutil.Process, port: int) -> bool:
    return any(
        found.status == psutil.CONN_LISTEN and found.laddr.port == port for found in process.net_connections("inet")
    )


@pytest.mark.parametrize("arguments", [["--workers", "0"], ["--port", "-1"]])
def test_invalid_numbers_are_rejected(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from tts_worker.cli import main

    assert main(["up", *arguments]) == 2
    assert "--workers" in capsys.readouterr().err
