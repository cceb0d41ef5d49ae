"""The model manager under loads, unloads, evictions and sessions in any order."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.errors import BundleError, IllegalCommand, NotReady, OverCapacity, UnknownModel
from tts_worker.models.manager import EngineActions, ManagerConfig, ModelManager, ModelState
from tts_worker.models.policy import EvictionRules

NAMES = ("main", "a", "b", "c")


class FakeEngines:
    """Fake engines with a manual clock; they assert that the manager never misuses them.

    ``loop_turns``: event loop iterations that a start or stop takes.
    """

    def __init__(self, *, loop_turns: int = 1, **config: Any) -> None:
        self.now_s = 0.0
        self.loop_turns = loop_turns
        self.running: set[str] = set()  # uses memory: from the beginning of its start to the end of its stop
        self.available: set[str] = set()
        self.sessions: Counter[str] = Counter()
        self.starts: Counter[str] = Counter()
        self.failing: set[str] = set()
        self.max_running = 0
        self.events: list[tuple[str, str]] = []
        rules = EvictionRules(**{"ttl_s": 100, "min_residency_s": 20, "resident_cap": 2, **config.pop("rules", {})})
        self.manager = ModelManager(
            NAMES,
            EngineActions(
                self._start,
                self._withdraw,
                self._stop,
                lambda name: self.sessions[name],
                self._replace,
                self._vacate,
            ),
            self,
            ManagerConfig(**{"default": "main", "preload": (), "on_demand": True, "rules": rules, **config}),
            lambda: self.now_s,
        )

    async def _start(self, name: str) -> None:
        assert name not in self.running, "loaded twice"
        self.running.add(name)
        self.starts[name] += 1
        self.max_running = max(self.max_running, len(self.running))
        try:
            for _ in range(self.loop_turns):
                await asyncio.sleep(0)
            if name in self.failing:
                raise BundleError("a file is missing")
        except BaseException:
            self.running.discard(name)
            raise
        self.available.add(name)

    async def _replace(self, name: str) -> None:
        for _ in range(self.loop_turns):
            await asyncio.sleep(0)
            assert name in self.available, "the old one serves meanwhile"
        if name in self.failing:
            raise BundleError("a file is missing")
        self.starts[name] += 1

    async def _vacate(self, name: str) -> None:
        self.available.remove(name)
        await asyncio.sleep(0)
        self.sessions[name] = 0
        await self._stop(name)

    def _withdraw(self, name: str) -> None:
        if self.sessions[name]:
            raise IllegalCommand("in use")
        self.available.remove(name)

    async def _stop(self, name: str) -> None:
        for _ in range(self.loop_turns):
            await asyncio.sleep(0)
        assert not self.sessions[name], "stopped while a session uses it"
        self.running.remove(name)

    def open(self, name: str) -> bool:
        """Open a session like the hub if the engine is available."""
        if name in self.available:
            self.sessions[name] += 1
            self.manager.touch(name)
        return name in self.available

    def close(self, name: str) -> None:
        if self.sessions[name]:
            self.sessions[name] -= 1
            self.manager.touch(name)

    def model_loaded(self, name: str, seconds: float) -> None:
        self.events.append(("loaded", name))

    def model_failed(self, name: str, code: str) -> None:
        self.events.append(("failed", name))

    def model_unloaded(self, name: str, reason: str) -> None:
        self.events.append((reason, name))

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ("load", "unload", "swap", "open", "close", "wait", "not_ready", "evict", "advance_clock", "idle")
        ),
        st.sampled_from(NAMES),
        st.integers(1, 60),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=150)
@given(ACTIONS, st.integers(1, 3), st.integers(1, 2), st.sampled_from((0, 20)))
def test_any_order_loads_once_and_never_stops_a_used_engine(
    actions: list[tuple[str, str, int]], loop_turns: int, parallel: int, residency_s: int
) -> None:
    async def play() -> None:
        engines = FakeEngines(
            loop_turns=loop_turns, max_parallel_loads=parallel, rules={"min_residency_s": residency_s}
        )
        await engines.manager.start()
        tasks: list[asyncio.Task[None]] = []
        for action, name, seconds in actions:
            match action:
                case "load" | "unload" | "wait":
                    tasks.append(asyncio.create_task(getattr(engines.manager, action)(name)))
                case "swap":
                    tasks.append(asyncio.create_task(engines.manager.reload(name, free_first=True)))
                case "open":
                    engines.open(name)
                case "close":
                    engines.close(name)
                case "not_ready" if engines.manager.state(name) is not ModelState.RESIDENT:
                    assert engines.manager.not_ready_error(name).retry_after_s is not None
                case "evict":
                    engines.manager.evict_idle()
                case "advance_clock":
                    engines.now_s += seconds
            await asyncio.sleep(0)
            assert engines.available >= set(engines.manager.resident)
            assert len(engines.running) <= 2, "more engines than the cap"
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, IllegalCommand | OverCapacity | NotReady), result
        await engines.settle()
        assert engines.running == engines.available == set(engines.manager.resident)
        assert all(engines.manager.state(n) in (ModelState.COLD, ModelState.RESIDENT) for n in NAMES)
        await engines.manager.close()

    asyncio.run(play())


async def test_concurrent_requests_share_one_load() -> None:
    engines = FakeEngines()
    await asyncio.gather(
        *(engines.manager.load("a") for _ in range(50)), *(engines.manager.wait("a") for _ in range(50))
    )
    assert engines.starts["a"] == 1


async def test_reload_that_frees_first_keeps_the_place() -> None:
    engines = FakeEngines(loop_turns=3)
    await engines.manager.start()
    assert engines.open("main")
    reloading = asyncio.create_task(engines.manager.reload("main", free_first=True))
    await asyncio.sleep(0)
    assert engines.manager.describe_state("main") == "reloading"
    assert engines.manager.not_ready_error("main").retryable
    await asyncio.gather(engines.manager.wait("main"), engines.manager.load("main"), reloading)
    assert (engines.starts["main"], engines.max_running) == (2, 1), "both never use memory at the same time"
    engines.failing.add("main")
    with pytest.raises(BundleError):
        await engines.manager.reload("main", free_first=True)
    assert engines.manager.state("main") is ModelState.COLD
    assert not engines.running
    engines.failing.clear()
    await engines.manager.reload("main")
    assert engines.manager.resident == ("main",)
    await engines.manager.close()


async def test_model_freed_for_a_failed_reload_is_unloaded() -> None:
    engines = FakeEngines()
    await engines.manager.start()
    engines.failing.add("main")
    with pytest.raises(BundleError):
        await engines.manager.reload("main", free_first=True)
    assert engines.events == [("loaded", "main"), ("reload", "main"), ("failed", "main")]
    await engines.manager.close()


async def test_log_tells_of_loads_and_unloads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tts_worker")
    engines = FakeEngines()
    await engines.manager.start()
    await engines.manager.load("a")
    await engines.manager.unload("a")
    await engines.manager.close()
    assert [record.getMessage() for record in caplog.records] == ["model a loaded in 0.0 s", "model a unloaded (asked)"]


async def test_cancelled_caller_does_not_cancel_the_load() -> None:
    engines = FakeEngines(loop_turns=5)
    cancelled, waiting = (asyncio.create_task(engines.manager.load("a")) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    await waiting
    assert cancelled.cancelled()
    assert engines.starts["a"] == 1


async def test_cap_evicts_only_models_that_are_idle_and_old_enough() -> None:
    engines = FakeEngines()
    await engines.manager.start()
    await engines.manager.load("a")
    with pytest.raises(OverCapacity) as young:
        await engines.manager.load("b")
    assert young.value.retry_after_s == 20  # "a" becomes evictable then
    engines.now_s = 20
    assert engines.open("a")
    with pytest.raises(OverCapacity):
        await engines.manager.wait("b")
    engines.close("a")
    await engines.manager.load("b")
    assert set(engines.manager.resident) == {"main", "b"}
    assert ("made_room", "a") in engines.events
    assert engines.max_running == 2  # "a" was stopped before "b" started


async def test_idle_models_expire_except_the_default() -> None:
    engines = FakeEngines(rules={"resident_cap": None})
    await engines.manager.start()
    await engines.manager.load("a")
    await engines.manager.load("b")
    engines.now_s = 50
    assert engines.open("b")
    engines.close("b")
    engines.now_s = 100
    assert engines.manager.evict_idle() == ("a",)
    engines.now_s = 1_000
    assert engines.manager.evict_idle() == ("b",)
    await engines.settle()
    assert engines.manager.resident == ("main",)


async def test_without_preload_list_every_model_stays() -> None:
    engines = FakeEngines(preload=None, rules={"resident_cap": None})
    await engines.manager.start()
    engines.now_s = 10_000
    assert engines.manager.evict_idle() == ()
    assert engines.manager.resident == NAMES
    await engines.manager.close()


async def test_failed_preload_is_tolerated() -> None:
    engines = FakeEngines(preload=("a", "b"), rules={"resident_cap": None})
    engines.failing.add("a")
    await engines.manager.start()
    assert engines.manager.resident == ("main", "b")
    await engines.manager.close()


async def test_failed_default_model_is_fatal() -> None:
    engines = FakeEngines()
    engines.failing.add("main")
    with pytest.raises(BundleError):
        await engines.manager.start()


async def test_sessions_retry_a_failing_load_with_backoff() -> None:
    engines = FakeEngines()
    engines.failing.add("a")
    with pytest.raises(NotReady, match="could not be loaded") as error:
        await engines.manager.wait("a")
    assert error.value.retry_after_s == 1
    for _ in range(5):
        with pytest.raises(NotReady):
            await engines.manager.wait("a")
        assert engines.manager.not_ready_error("a").retryable
    assert engines.starts["a"] == 1
    engines.now_s = 1
    with pytest.raises(NotReady) as error:
        await engines.manager.wait("a")
    assert (engines.starts["a"], error.value.retry_after_s) == (2, 2)  # doubled
    with pytest.raises(BundleError):  # an explicit load gets the cause and ignores the backoff
        await engines.manager.load("a")
    engines.failing.clear()
    engines.now_s = 100
    await engines.manager.wait("a")
    assert engines.available == {"a"}


async def test_waiting_is_bounded_in_time_and_count() -> None:
    engines = FakeEngines(loop_turns=10**6, load_wait_s=0.02, max_waiting=2)
    waits = [asyncio.create_task(engines.manager.wait("a")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OverCapacity):
        await engines.manager.wait("a")
    for wait in waits:
        with pytest.raises(NotReady, match="still being loaded"):
            await wait
    assert engines.manager.state("a") is ModelState.LOADING
    closing = asyncio.create_task(engines.manager.load("a"))
    await asyncio.sleep(0)
    await engines.manager.close()
    with pytest.raises(NotReady, match="shutting down"):
        await closing
    assert not engines.running


async def test_without_on_demand_sessions_need_an_explicit_load() -> None:
    engines = FakeEngines(on_demand=False)
    with pytest.raises(NotReady, match="not loaded") as error:
        await engines.manager.wait("a")
    assert error.value.retryable
    assert engines.manager.not_ready_error("a").retry_after_s is not None
    await engines.settle()
    assert engines.starts["a"] == 0
    await engines.manager.load("a")
    await engines.manager.wait("a")


async def test_not_ready_error_starts_the_load() -> None:
    engines = FakeEngines()
    assert engines.manager.not_ready_error("a").retry_after_s
    assert engines.manager.not_ready_error("a").retry_after_s
    await engines.settle()
    assert engines.open("a")
    with pytest.raises(IllegalCommand):
        await engines.manager.unload("a")
    engines.close("a")
    await engines.manager.unload("a")  # an explicit unload ignores the residency time
    await engines.manager.unload("a")
    assert engines.manager.state("a") is ModelState.COLD


async def test_unknown_models_are_rejected() -> None:
    engines = FakeEngines()
    for call in (engines.manager.load, engines.manager.unload, engines.manager.wait):
        with pytest.raises(UnknownModel, match="main"):
            await call("x" * 1_000)
    engines.manager.touch("x")  # engines outside the manager are ignored
