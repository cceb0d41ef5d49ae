"""A process that does nothing but sleep and look at the clock: where it wakes late, the machine stood still.

The host of a virtual machine takes a processor away for a tenth of a second now and then. No worker can send in that
time, so a benchmark that counts holes tells those apart that a bystander saw coming from outside. Run as a module this
is that process: a thread on every processor and a line per stall, ``begin end``, on the monotonic clock that all
processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

INTERVAL_S = 0.005
LEAST_STALL_S = 0.01


class Stall(NamedTuple):
    """Seconds of the monotonic clock."""

    begin_s: float
    end_s: float


def stalls(clock: Callable[[], float], sleep: Callable[[float], object]) -> Iterator[Stall]:
    """For ever: every time that a sleeper slept for too long."""
    while True:
        due_s = clock() + INTERVAL_S
        sleep(INTERVAL_S)
        if clock() - due_s >= LEAST_STALL_S:
            yield Stall(due_s, clock())


def explains(seen: Iterable[Stall], hole_s: float, ended_at_s: float, spare_s: float) -> bool:
    """Whether the machine made a hole: one processor or another stood still for most of the time in which the listener
    played what he still had (``spare_s``) and then heard nothing."""
    began_s = ended_at_s - hole_s - spare_s
    covered_s = 0.0
    covered_until_s = began_s
    for stall in sorted(seen):
        begin_s = max(stall.begin_s, covered_until_s)
        end_s = min(stall.end_s, ended_at_s)
        if end_s > begin_s:
            covered_s += end_s - begin_s
            covered_until_s = end_s
    return covered_s > (hole_s + spare_s) / 2


class Bystander:
    """The process, while the context is open. ``stalls``: what it has seen."""

    def __init__(self) -> None:
        self.stalls: list[Stall] = []
        self.process: asyncio.subprocess.Process
        self._reader: asyncio.Task[None]

    async def __aenter__(self) -> Bystander:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert self.process.stdout is not None
        await self.process.stdout.readline()  # it is there
        self._reader = asyncio.create_task(self._read(self.process.stdout))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self._reader
        await self.process.wait()

    async def _read(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            begin_s, end_s = line.split()
            self.stalls.append(Stall(float(begin_s), float(end_s)))


def _watch(cpu: int | None) -> None:
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})  # of this thread
    for stall in stalls(time.monotonic, threading.Event().wait):
        # One write per line: the process may end, and another thread may write, between two.
        os.write(1, f"{stall.begin_s} {stall.end_s}\n".encode())


def _main() -> None:
    cpus: list[int | None] = [None]
    if sys.platform == "linux":
        cpus = [*os.sched_getaffinity(0)]
    print("ready", flush=True)  # the first line, so before the others can write one
    for cpu in cpus:
        threading.Thread(target=_watch, args=(cpu,), daemon=True).start()
    sys.stdin.read()  # until whoever asked goes away


if __name__ == "__main__":
    _main()
