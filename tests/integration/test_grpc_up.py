"""``tts-worker up`` and the example that uses it, as subprocesses."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]


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


async def test_a_dead_worker_ends_the_command_and_its_children() -> None:
    words = ("-m", "tts_worker", "up", "--engine", "tone", "--workers", "1", "--port", "0")
    async with running(*words, stderr=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        while not (line := await process.stdout.readline()).startswith(b"up: "):
            assert line, "it ended"
        children = psutil.Process(process.pid).children(recursive=True)
        worker = next(child for child in children if "serve" in child.cmdline())
        worker.kill()
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert b"a worker has ended" in errors
        # The command has waited for its children; the system may still have to reap them.
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, timeout=30)
        assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


async def test_a_dead_redis_ends_the_command() -> None:
    words = ("-m", "tts_worker", "up", "--engine", "tone", "--workers", "1", "--port", "0")
    async with running(*words, stderr=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        while not (line := await process.stdout.readline()).startswith(b"up: "):
            assert line, "it ended"
        port = int(line.decode().strip().rpartition(":")[2])
        children = psutil.Process(process.pid).children(recursive=True)
        redis = next(child for child in children if "serve" not in child.cmdline() and listens(child, port))
        redis.kill()
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert b"Redis has ended" in errors
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, timeout=30)
        assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


def listens(process: psutil.Process, port: int) -> bool:
    return any(
        found.status == psutil.CONN_LISTEN and found.laddr.port == port for found in process.net_connections("inet")
    )


@pytest.mark.parametrize("arguments", [["--workers", "0"], ["--port", "-1"]])
def test_invalid_numbers_are_rejected(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from tts_worker.cli import main

    assert main(["up", *arguments]) == 2
    assert "--workers" in capsys.readouterr().err
