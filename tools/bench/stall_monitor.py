"""Detects stalls of the machine from a separate process that sleeps and checks the clock.

The host of a virtual machine can suspend a processor for about 100 ms, during which no worker can send audio.
Benchmarks use the detected stalls to tell underruns caused by the machine from underruns caused by the worker. Run as a
module, this file is the monitor process: one thread per processor, one ``begin end`` line per stall, on the monotonic
clock that all processes of a machine share.
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
MIN_STALL_S = 0.01


class Stall(NamedTuple):
    """Start and end of a stall, in seconds of the monotonic clock."""

    begin_s: float
    end_s: float


def detect_stalls(
    clock: Callable[[], float], sleep: Callable[[float], object], min_stall_s: float = MIN_STALL_S
) -> Iterator[Stall]:
    """Yield a stall whenever a sleep of ``INTERVAL_S`` ends at least ``min_stall_s`` late; never ends."""
    while True:
        due_s = clock() + INTERVAL_S
        sleep(INTERVAL_S)
        if clock() - due_s >= min_stall_s:
            yield Stall(due_s, clock())


def is_machine_stall(observed: Iterable[Stall], gap_s: float, ended_at_s: float, lead_s: float) -> bool:
    """Return whether an underrun was caused by the machine.

    True if stalls cover more than half of the time in which the listener played its buffered audio and then had none.

    Args:
        observed: Stalls of all processors; they may overlap.
        gap_s: Length of the underrun.
        ended_at_s: End of the underrun, on the monotonic clock.
        lead_s: Audio that the listener had buffered.
    """
    began_s = ended_at_s - gap_s - lead_s
    covered_s = 0.0
    covered_until_s = began_s
    for stall in sorted(observed):
        begin_s = max(stall.begin_s, covered_until_s)
        end_s = min(stall.end_s, ended_at_s)
        if end_s > begin_s:
            covered_s += end_s - begin_s
            covered_until_s = end_s
    return covered_s > (gap_s + lead_s) / 2


class StallMonitor:
    """Runs the monitor process while the context is open.

    Args:
        min_stall_s: Shortest delay of a sleep that counts as a stall.

    Attributes:
        stalls: Stalls detected so far.
        process: The monitor process.
    """

    def __init__(self, min_stall_s: float = MIN_STALL_S) -> None:
        self._min_stall_s = min_stall_s
        self.stalls: list[Stall] = []
        self.process: asyncio.subprocess.Process
        self._reader: asyncio.Task[None]

    async def __aenter__(self) -> StallMonitor:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, str(self._min_stall_s)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        await self.process.stdout.readline()  # the process runs
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


def watch(cpu: int | None, min_stall_s: float) -> None:
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})  # affinity of this thread
    for stall in detect_stalls(time.monotonic, threading.Event().wait, min_stall_s):
        # One write per line: the process may end, or another thread may write, between two writes.
        os.write(1, f"{stall.begin_s} {stall.end_s}\n".encode())


def monitor(min_stall_s: float) -> None:
    cpus: list[int | None] = [None]
    if sys.platform == "linux":
        cpus = [*os.sched_getaffinity(0)]
    print("ready", flush=True)  # must be the first line, before the threads can write
    for cpu in cpus:
        threading.Thread(target=watch, args=(cpu, min_stall_s), daemon=True).start()
    sys.stdin.read()  # until the parent closes the pipe


if __name__ == "__main__":
    monitor(float(sys.argv[1]))
