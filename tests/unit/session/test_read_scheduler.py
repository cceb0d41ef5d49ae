"""Text of many sessions delays the event loop by a bounded time per iteration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tts_worker.session.reading import MAX_READ_S, ReadScheduler

PORTION_S = MAX_READ_S / 2


class VirtualClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def scheduler(clock: VirtualClock) -> ReadScheduler:
    return ReadScheduler(asyncio.get_running_loop(), clock)


def reader(clock: VirtualClock, read: list[str], name: str) -> Callable[[], None]:
    def read_portion() -> None:
        read.append(name)
        clock.now_s += PORTION_S

    return read_portion


async def test_two_portions_fill_an_iteration(clock: VirtualClock, scheduler: ReadScheduler) -> None:
    read: list[str] = []
    for name in "abcdef":
        scheduler.add(reader(clock, read, name), paced=False)
    for count in (2, 4, 6):
        await asyncio.sleep(0)
        assert read == list("abcdef")[:count]


async def test_calls_do_not_wait_behind_downloads(clock: VirtualClock, scheduler: ReadScheduler) -> None:
    read: list[str] = []
    for name in ("d1", "d2", "d3"):
        scheduler.add(reader(clock, read, name), paced=False)
    scheduler.add(reader(clock, read, "call"), paced=True)
    for _ in range(2):
        await asyncio.sleep(0)
    assert read == ["call", "d1", "d2", "d3"]


async def test_unfinished_text_waits_for_the_next_iteration(clock: VirtualClock, scheduler: ReadScheduler) -> None:
    read: list[str] = []

    def read_endlessly() -> None:
        read.append("endless")
        scheduler.add(read_endlessly, paced=False)

    scheduler.add(read_endlessly, paced=False)
    scheduler.add(reader(clock, read, "other"), paced=False)
    for _ in range(3):
        await asyncio.sleep(0)
    assert read == ["endless", "other", "endless", "endless"]


async def test_new_text_shares_the_time_of_an_iteration(clock: VirtualClock, scheduler: ReadScheduler) -> None:
    assert scheduler.may_read(paced=True)
    clock.now_s += MAX_READ_S
    assert not scheduler.may_read(paced=True)
    await asyncio.sleep(0)
    assert scheduler.may_read(paced=True)


async def test_new_text_does_not_overtake_waiting_text(clock: VirtualClock, scheduler: ReadScheduler) -> None:
    scheduler.add(lambda: None, paced=True)
    assert not scheduler.may_read(paced=True)
    assert scheduler.may_read(paced=False)
