"""Loads, unloads, evictions and sessions in every order: what is in use stays, nothing is loaded twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.errors import BundleError, IllegalCommand, NotReady, OverCapacity, UnknownModel
from tts_worker.models.manager import EngineActions, ManagerConfig, ModelManager, ModelState
from tts_worker.models.policy import EvictionRules

NAMES = ("main", "a", "b", "c")


class House:
    """Engines that start and stop when the test lets them, a clock that it turns, and what must never happen."""

    def __init__(self, *, steps: int = 1, **config: Any) -> None:
        self.now_s = 0.0
        self.steps = steps  # turns of the event loop that a start or stop takes
        self.running: set[str] = set()  # holds memory: from the beginning of its start to the end of its stop
        self.offered: set[str] = set()
        self.sessions: Counter[str] = Counter()
        self.starts: Counter[str] = Counter()
        self.broken: set[str] = set()
        self.most = 0
        self.told: list[tuple[str, str]] = []
        rules = EvictionRules(**{"ttl_s": 100, "min_residency_s": 20, "resident_cap": 2, **config.pop("rules", {})})
        self.models = ModelManager(
            NAMES,
            EngineActions(self._start, self._withdraw, self._stop, lambda name: self.sessions[name]),
            self,
            ManagerConfig(**{"default": "main", "preload": (), "on_demand": True, "rules": rules, **config}),
            lambda: self.now_s,
        )

    async def _start(self, name: str) -> None:
        assert name not in self.running, "loaded twice"
        self.running.add(name)
        self.starts[name] += 1
        self.most = max(self.most, len(self.running))
        try:
            for _ in range(self.steps):
                await asyncio.sleep(0)
            if name in self.broken:
                raise BundleError("a file is missing")
        except BaseException:
            self.running.discard(name)
            raise
        self.offered.add(name)

    def _withdraw(self, name: str) -> None:
        if self.sessions[name]:
            raise IllegalCommand("in use")
        self.offered.remove(name)

    async def _stop(self, name: str) -> None:
        for _ in range(self.steps):
            await asyncio.sleep(0)
        assert not self.sessions[name], "taken from under a session"
        self.running.remove(name)

    def open(self, name: str) -> bool:
        """As the hub does it: a session begins if the engine is there."""
        if name in self.offered:
            self.sessions[name] += 1
            self.models.touch(name)
        return name in self.offered

    def close(self, name: str) -> None:
        if self.sessions[name]:
            self.sessions[name] -= 1
            self.models.touch(name)

    def model_loaded(self, name: str, seconds: float) -> None:
        self.told.append(("loaded", name))

    def model_failed(self, name: str, code: str) -> None:
        self.told.append(("failed", name))

    def model_unloaded(self, name: str, reason: str) -> None:
        self.told.append((reason, name))

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("load", "unload", "open", "close", "wait", "refusal", "evict", "later", "turn")),
        st.sampled_from(NAMES),
        st.integers(1, 60),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=150)
@given(STEPS, st.integers(1, 3), st.integers(1, 2), st.sampled_from((0, 20)))
def test_in_any_order_nothing_is_loaded_twice_or_taken_away(
    steps: list[tuple[str, str, int]], takes: int, parallel: int, residency_s: int
) -> None:
    async def play() -> None:
        house = House(steps=takes, max_parallel_loads=parallel, rules={"min_residency_s": residency_s})
        await house.models.start()
        tasks: list[asyncio.Task[None]] = []
        for what, name, number in steps:
            if what == "load":
                tasks.append(asyncio.create_task(house.models.load(name)))
            elif what == "unload":
                tasks.append(asyncio.create_task(house.models.unload(name)))
            elif what == "wait":
                tasks.append(asyncio.create_task(house.models.wait(name)))
            elif what == "open":
                house.open(name)
            elif what == "close":
                house.close(name)
            elif what == "refusal" and house.models.state(name) is not ModelState.RESIDENT:
                assert house.models.not_ready_error(name).retry_after_s is not None
            elif what == "evict":
                house.models.evict_idle()
            elif what == "later":
                house.now_s += number
            await asyncio.sleep(0)
            # What sessions find is what the manager says.
            assert house.offered == set(house.models.resident)
            assert len(house.running) <= 2, "more than the cap"
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, IllegalCommand | OverCapacity | NotReady), result
        await house.settle()
        assert house.running == house.offered == set(house.models.resident)
        assert all(house.models.state(n) in (ModelState.COLD, ModelState.RESIDENT) for n in NAMES)
        await house.models.close()

    asyncio.run(play())


async def test_a_hundred_who_want_a_model_load_it_once() -> None:
    house = House()
    await asyncio.gather(*(house.models.load("a") for _ in range(50)), *(house.models.wait("a") for _ in range(50)))
    assert house.starts["a"] == 1


async def test_who_stops_waiting_does_not_end_the_load() -> None:
    house = House(steps=5)
    impatient, patient = (asyncio.create_task(house.models.load("a")) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    await patient
    assert impatient.cancelled()
    assert house.starts["a"] == 1


async def test_the_longest_idle_makes_room_but_none_that_is_young_used_or_the_default() -> None:
    house = House()
    await house.models.start()
    await house.models.load("a")
    with pytest.raises(OverCapacity) as young:
        await house.models.load("b")
    assert young.value.retry_after_s == 20  # when "a" is old enough
    house.now_s = 20
    assert house.open("a")
    with pytest.raises(OverCapacity):
        await house.models.wait("b")
    house.close("a")
    await house.models.load("b")
    assert set(house.models.resident) == {"main", "b"}
    assert ("made_room", "a") in house.told
    assert house.most == 2  # "a" was gone before "b" came


async def test_idle_models_expire_and_the_default_never() -> None:
    house = House(rules={"resident_cap": None})
    await house.models.start()
    await house.models.load("a")
    await house.models.load("b")
    house.now_s = 50
    assert house.open("b")
    house.close("b")
    house.now_s = 100
    assert house.models.evict_idle() == ("a",)
    house.now_s = 1_000
    assert house.models.evict_idle() == ("b",)
    await house.settle()
    assert house.models.resident == ("main",)


async def test_without_a_preload_list_everything_is_there_for_ever() -> None:
    house = House(preload=None, rules={"resident_cap": None})
    await house.models.start()
    house.now_s = 10_000
    assert house.models.evict_idle() == ()
    assert house.models.resident == NAMES
    await house.models.close()


async def test_a_failed_preload_is_logged_and_a_failed_default_is_fatal() -> None:
    house = House(preload=("a", "b"), rules={"resident_cap": None})
    house.broken.add("a")
    await house.models.start()
    assert house.models.resident == ("main", "b")
    await house.models.close()
    house = House()
    house.broken.add("main")
    with pytest.raises(BundleError):
        await house.models.start()


async def test_sessions_do_not_begin_a_broken_load_again_and_again() -> None:
    house = House()
    house.broken.add("a")
    with pytest.raises(NotReady, match="could not be loaded") as refused:
        await house.models.wait("a")
    assert refused.value.retry_after_s == 1
    for _ in range(5):
        with pytest.raises(NotReady):
            await house.models.wait("a")
        assert house.models.not_ready_error("a").retryable
    assert house.starts["a"] == 1
    house.now_s = 1
    with pytest.raises(NotReady) as refused:
        await house.models.wait("a")
    assert (house.starts["a"], refused.value.retry_after_s) == (2, 2)  # and later every time
    with pytest.raises(BundleError):  # an operator is told what is wrong, and may try at any time
        await house.models.load("a")
    house.broken.clear()
    house.now_s = 100
    await house.models.wait("a")
    assert house.offered == {"a"}


async def test_waiting_is_bounded_in_time_and_number() -> None:
    house = House(steps=10**6, load_wait_s=0.02, max_waiting=2)
    waits = [asyncio.create_task(house.models.wait("a")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OverCapacity):
        await house.models.wait("a")
    for wait in waits:
        with pytest.raises(NotReady, match="still being loaded"):
            await wait
    assert house.models.state("a") is ModelState.LOADING
    closing = asyncio.create_task(house.models.load("a"))
    await asyncio.sleep(0)
    await house.models.close()
    with pytest.raises(NotReady, match="shutting down"):
        await closing
    assert not house.running


async def test_not_on_demand_means_refused_until_somebody_loads_it() -> None:
    house = House(on_demand=False)
    with pytest.raises(NotReady, match="not loaded") as refused:
        await house.models.wait("a")
    assert refused.value.retryable
    assert house.models.not_ready_error("a").retry_after_s is not None
    await house.settle()
    assert house.starts["a"] == 0
    await house.models.load("a")
    await house.models.wait("a")


async def test_a_session_that_cannot_wait_finds_the_model_when_it_comes_back() -> None:
    house = House()
    assert house.models.not_ready_error("a").retry_after_s
    assert house.models.not_ready_error("a").retry_after_s
    await house.settle()
    assert house.open("a")
    with pytest.raises(IllegalCommand):
        await house.models.unload("a")
    house.close("a")
    await house.models.unload("a")  # on order, however young
    await house.models.unload("a")
    assert house.models.state("a") is ModelState.COLD


async def test_unknown_models() -> None:
    house = House()
    for call in (house.models.load, house.models.unload, house.models.wait):
        with pytest.raises(UnknownModel, match="main"):
            await call("x" * 1_000)
    house.models.touch("x")  # an engine that somebody added by hand
