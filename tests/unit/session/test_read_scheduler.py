"""Text of many sessions delays the event loop by a bounded time per iteration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.session.reading import MAX_READ_S, TURN_PORTIONS, ReadScheduler

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
        while scheduler.may_read(paced=False):
            reader(clock, read, "endless")()
        scheduler.add(read_endlessly, paced=False)

    scheduler.add(read_endlessly, paced=False)
    for count in (2, 4, 6):
        await asyncio.sleep(0)
        assert read == ["endless"] * count


def read_texts(texts: Sequence[int], portion_s: float) -> list[int]:
    """Read texts of that many portions, of which all but the first wait; return whose portions were read, in order."""
    clock = VirtualClock()
    read: list[int] = []

    async def read_all() -> None:
        scheduler = ReadScheduler(asyncio.get_running_loop(), clock)
        unread = list(texts)

        def reader(text: int) -> Callable[[], None]:
            def read_while_it_may() -> None:
                while unread[text]:
                    if not scheduler.may_read(paced=True):
                        scheduler.add(read_while_it_may, paced=True)
                        return
                    read.append(text)
                    unread[text] -= 1
                    clock.now_s += portion_s

            return read_while_it_may

        for text in range(len(texts)):
            reader(text)()
        for _ in range(sum(texts)):  # every iteration reads at least one portion
            await asyncio.sleep(0)

    asyncio.run(read_all())
    return read


texts_of_a_turn = st.lists(st.integers(1, TURN_PORTIONS), min_size=1, max_size=30)
portion_times_s = st.sampled_from([MAX_READ_S * share for share in (0.03, 0.15, 0.4, 1.0, 2.5)])


@settings(deadline=None, max_examples=50)
@given(texts_of_a_turn, portion_times_s)
def test_short_texts_are_read_in_order_of_arrival(texts: list[int], portion_s: float) -> None:
    in_order = [text for text, portions in enumerate(texts) for _ in range(portions)]
    assert read_texts(texts, portion_s) == in_order


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 5 * TURN_PORTIONS), min_size=2, max_size=12), portion_times_s)
def test_texts_wait_for_one_turn_of_each_other(texts: list[int], portion_s: float) -> None:
    """The first text also reads at once, while it is new and alone."""
    read = read_texts(texts, portion_s)
    began = [read.index(text) for text in range(len(texts))]
    assert began == sorted(began)
    at_once = MAX_READ_S / portion_s + 1
    for text, before in enumerate(began):
        assert before <= at_once + text * TURN_PORTIONS


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
