"""``tts-worker up`` and the example that uses it, as a user runs them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


async def test_the_example_runs_as_it_is_written() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "examples" / "orchestrator.py"), "tone", stdout=asyncio.subprocess.PIPE
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    assert "registered: ['worker-1', 'worker-2']" in output
    assert "frames of 1920 bytes" in output
    assert 'was heard: "Of course.' in output
    assert "done" in output.splitlines()[-2]
    assert output.splitlines()[-1] == "the fleet has drained"


async def test_a_worker_that_dies_ends_the_command_and_leaves_nothing() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tts_worker", "up", "--engine", "tone", "--workers", "1", "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    while not (line := await process.stdout.readline()).startswith(b"up: "):
        assert line, "it ended"
    children = psutil.Process(process.pid).children(recursive=True)
    worker = next(child for child in children if "serve" in child.cmdline())
    worker.kill()
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"a worker has ended" in errors
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("arguments", [["--workers", "0"], ["--port", "-1"]])
def test_numbers_that_make_no_sense(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from tts_worker.cli import main

    assert main(["up", *arguments]) == 2
    assert "--workers" in capsys.readouterr().err
