"""A server in another process, so that a measurement does not share its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from typing import NamedTuple

from tts_worker.errors import EngineFault


class ServerProcess(NamedTuple):
    """A running server: its address, ``host:port``, and the id of its process."""

    address: str
    pid: int


@contextlib.asynccontextmanager
async def server_process(arguments: list[str], *, source: str | None = None) -> AsyncIterator[ServerProcess]:
    """Run ``tts-worker serve`` on a free port in a separate process; yield it once it is ready.

    Args:
        arguments: Further arguments.
        source: Folder of the package to run, to measure another version; None is this one.

    Raises:
        EngineFault: The server did not start.
    """
    words = ["serve", "--port", "0", "--set", "log_format=text", *arguments]
    environment = dict(os.environ) if source is None else os.environ | {"PYTHONPATH": source}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tts_worker", *words), stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    try:
        listening = (await process.stdout.readline()).decode()
        if not listening.startswith("listening on http://") or not await process.stdout.readline():
            raise EngineFault("the server did not start; see its message above")
        yield ServerProcess(listening.split("//")[1].strip(), process.pid)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
