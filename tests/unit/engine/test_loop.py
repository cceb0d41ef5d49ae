"""The engine loop, on a thread and with a process: one callback per step, no busy waiting, contained faults.

Tests that look into the engine run it on a thread; ``test_process`` has those of the process itself.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import until
from tests.fakes.assigned_booleans import assigned_booleans
from tests.fakes.tone_factory import BreakingFactory, FaultAt, StartFault, ToneFactory
from tts_worker.engine.handle import ThreadHandle
from tts_worker.engine.loop import MAX_REBUILD_FAILURES, EngineLoop, EngineState
from tts_worker.engine.tone import Fault, ToneEngine, ToneSettings
from tts_worker.engine.worker_thread import ENGINE_NICENESS
from tts_worker.errors import EngineFault, ErrorCode
from tts_worker.types import (
    Audio,
    Boundary,
    Cancel,
    Command,
    Done,
    EndText,
    Event,
    Failed,
    Open,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
)

AMPLE_CREDIT = 10**9


class EventLog:
    """Records the events of one session and waits for the one that a test needs."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._received = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._received.set()

    async def until(self, matches: Callable[[Event], bool]) -> Event:
        checked = 0
        while True:  # bounded by pytest-timeout
            for event in self.events[checked:]:
                if matches(event):
                    return event
            checked = len(self.events)
            self._received.clear()
            await self._received.wait()


@pytest.fixture(params=[False, True], ids=["thread", "process"])
def in_process(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@asynccontextmanager
async def started(factory: Callable[[], ToneEngine], **options: Any) -> AsyncIterator[EngineLoop]:
    loop = EngineLoop(factory, restart_backoff_s=(0.01, 0.05), **options)
    try:
        await loop.start()
        yield loop
    finally:
        await loop.stop()


@asynccontextmanager
async def running(settings: ToneSettings, **options: Any) -> AsyncIterator[EngineLoop]:
    loop = EngineLoop(lambda: ToneEngine(settings), restart_backoff_s=(0.01, 0.05), **options)
    try:
        await loop.start()
        yield loop
    finally:
        settings.hang.set()
        await loop.stop()


def speak(
    loop: EngineLoop, key: UtteranceKey, text: str = "hello", credit: int = AMPLE_CREDIT, voice: str = "tone"
) -> None:
    loop.post(Open(key, SynthesisParams(voice), credit))
    loop.post(Text(key, Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END)))
    loop.post(EndText(key))


def key(session: str, generation: int = 1) -> UtteranceKey:
    return UtteranceKey(session, generation)


async def test_utterance_runs_from_text_to_done(in_process: bool) -> None:
    async with started(ToneEngine, in_process=in_process) as loop:
        assert loop.ready
        assert loop.info.name == "tone"
        log = EventLog()
        loop.subscribe("a", log)
        speak(loop, key("a"), "hello")
        await log.until(lambda e: isinstance(e, Done))
        assert sum(e.samples for e in log.events if isinstance(e, Audio)) == 5 * 60 * 24
        assert loop.live_utterances == 0
        assert loop.stats.steps >= 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
async def test_engine_goes_after_the_event_loop() -> None:
    priorities = []

    class Engine(ToneEngine):
        def step(self, now_s: float) -> Sequence[Event]:
            priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().step(now_s)

    async with started(Engine) as loop:
        log = EventLog()
        loop.subscribe("a", log)
        speak(loop, key("a"))
        await log.until(lambda e: isinstance(e, Done))
    assert set(priorities) == {min(19, os.getpriority(os.PRIO_PROCESS, os.getpid()) + ENGINE_NICENESS)}


async def test_idle_engine_does_not_step(in_process: bool) -> None:
    async with started(ToneEngine, in_process=in_process) as loop:
        log = EventLog()
        loop.subscribe("a", log)
        speak(loop, key("a"), "hello" * 100, credit=4_800)
        await log.until(lambda e: isinstance(e, Audio) and e.meta.start_sample + e.samples == 4_800)
        steps = loop.stats.steps
        # A second utterance runs to its end; the first one is out of credit and takes no step.
        loop.subscribe("b", other := EventLog())
        speak(loop, key("b"), "a")
        await other.until(lambda e: isinstance(e, Done))
        assert loop.stats.steps <= steps + 2


class DelegatingEngine(ToneEngine):
    """An engine that does its next step only when another thread has finished something."""

    def __init__(self) -> None:
        super().__init__()
        self.finished = threading.Event()
        self.wake: Callable[[], None] | None = None
        self.wait_limit_s: float | None = None
        self.commands: list[Command] = []

    def handle(self, command: Command) -> None:
        self.commands.append(command)
        super().handle(command)

    def on_work(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    @property
    def has_work(self) -> bool:
        return self.finished.is_set() and super().has_work


async def test_engine_is_woken_when_another_thread_finishes() -> None:
    built: list[DelegatingEngine] = []
    loop = EngineLoop(lambda: built.append(DelegatingEngine()) or built[-1])  # type: ignore[func-returns-value]
    await loop.start()
    try:
        log = EventLog()
        loop.subscribe("a", log)
        speak(loop, key("a"))
        (engine,) = built
        await until(lambda: len(engine.commands) == 3)
        assert engine.wake is not None
        assert not log.events
        engine.finished.set()
        engine.wake()
        await log.until(lambda e: isinstance(e, Done))
    finally:
        await loop.stop()


async def test_engine_is_asked_for_work_after_its_limit() -> None:
    """For work on another thread that hangs: only a step of the engine is seen by the watchdog."""
    engine = DelegatingEngine()
    engine.wait_limit_s = 0.001
    loop = EngineLoop(lambda: engine)
    await loop.start()
    try:
        log = EventLog()
        loop.subscribe("a", log)
        speak(loop, key("a"))
        await until(lambda: len(engine.commands) == 3)
        engine.finished.set()  # without a call of ``wake``
        await log.until(lambda e: isinstance(e, Done))
    finally:
        await loop.stop()


async def test_cancel_frees_the_slot_at_the_next_step(in_process: bool) -> None:
    async with started(ToneFactory(max_utterances=1), in_process=in_process) as loop:
        loop.subscribe("a", EventLog())
        loop.subscribe("b", other := EventLog())
        speak(loop, key("a"), "hello" * 1_000, credit=2_400)
        loop.post(Cancel(key("a")))
        speak(loop, key("b"), "a")
        assert isinstance(await other.until(lambda e: isinstance(e, Done | Failed)), Done)


async def test_cancel_during_a_step_drops_its_events() -> None:
    in_step = threading.Event()
    proceed = threading.Event()

    def spend(seconds: float) -> None:
        in_step.set()
        proceed.wait(60)

    async with running(ToneSettings(cost_per_audio_s=1.0, spend=spend)) as loop:
        log = EventLog()
        loop.subscribe("a", log)
        speak(loop, key("a"), "hello")
        assert await asyncio.get_running_loop().run_in_executor(None, in_step.wait, 60)
        loop.post(Cancel(key("a")))  # while its audio is being synthesized
        proceed.set()
        loop.subscribe("b", other := EventLog())
        speak(loop, key("b"), "a")
        await other.until(lambda e: isinstance(e, Done))
        assert log.events == []
        assert loop.stats.stale_events >= 1


async def test_failed_utterance_does_not_affect_others(in_process: bool) -> None:
    fault = FaultAt(Fault.FAIL, chunk=2, session="bad")
    async with started(ToneFactory(fault), in_process=in_process) as loop:
        logs = {name: EventLog() for name in ("bad", "good")}
        for name, log in logs.items():
            loop.subscribe(name, log)
            speak(loop, key(name), "hello" * 10)
        failed = await logs["bad"].until(lambda e: isinstance(e, Failed))
        assert isinstance(failed, Failed)
        assert failed.error.code is ErrorCode.SYNTHESIS_FAILED
        await logs["good"].until(lambda e: isinstance(e, Done))
        assert loop.state is EngineState.READY


async def expect_replacement(loop: EngineLoop) -> None:
    """Break a started engine with the session ``poison``: live utterances fail, and a new engine serves others."""
    states: list[EngineState] = []
    ready_again = asyncio.Event()

    def on_state(state: EngineState) -> None:
        states.append(state)
        if state is EngineState.READY:
            ready_again.set()

    loop.on_state(on_state)
    logs = {name: EventLog() for name in ("other", "poison", "later")}
    for name, log in logs.items():
        loop.subscribe(name, log)
    speak(loop, key("other"), "hello" * 1_000, credit=2_400)
    speak(loop, key("poison"))
    for name in ("other", "poison"):
        failed = await logs[name].until(lambda e: isinstance(e, Failed))
        assert isinstance(failed, Failed)
        assert failed.error.code is ErrorCode.ENGINE_FAULT
        assert failed.error.retryable
    await ready_again.wait()
    assert states == [EngineState.FAULTED, EngineState.READY]
    assert loop.stats.faults == 1
    speak(loop, key("later"))
    await logs["later"].until(lambda e: isinstance(e, Done))
    assert not any(isinstance(e, Done) for e in logs["poison"].events)


@pytest.mark.parametrize("kind", [Fault.RAISE, Fault.HANG])
async def test_broken_engine_is_replaced_automatically(kind: Fault) -> None:
    faults: list[UtteranceKey] = []
    now_s = 0.0  # advances only at the fault, so that a busy machine does not look like a hang

    def fault(which: UtteranceKey, chunk: int) -> Fault | None:
        nonlocal now_s
        if which.session == "poison" and not faults:
            faults.append(which)
            now_s += 1.0 if kind is Fault.HANG else 0.0
            return kind
        return None

    async with running(ToneSettings(fault=fault), hang_timeout_s=0.2, clock=lambda: now_s) as loop:
        await expect_replacement(loop)


async def test_a_thread_that_cannot_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = ThreadHandle.launch
    failures = [RuntimeError("can't start new thread")]

    def launch_later(handle: ThreadHandle) -> None:
        if failures:
            raise failures.pop()
        launch(handle)

    async with started(ToneFactory(FaultAt(Fault.RAISE, session="poison"))) as loop:
        monkeypatch.setattr(ThreadHandle, "launch", launch_later)
        loop.subscribe("poison", log := EventLog())
        speak(loop, key("poison"))
        await log.until(lambda e: isinstance(e, Failed))
        await until(lambda: loop.ready)
        assert not failures


async def test_a_session_that_raises_prevents_no_replacement(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(event: Event) -> None:
        if isinstance(event, Failed):
            raise ValueError("the session is broken")

    fault = FaultAt(Fault.RAISE, session="poison")
    async with started(ToneFactory(fault)) as loop:
        loop.subscribe("a", refuse)
        speak(loop, key("a"), "hello" * 1_000, credit=2_400)
        await expect_replacement(loop)
    assert "the session is broken" in caplog.text


async def test_an_utterance_whose_audio_is_refused_fails() -> None:
    refused: list[Event] = []
    log = EventLog()

    def refuse(event: Event) -> None:
        log(event)
        if isinstance(event, Audio):
            refused.append(event)
            raise ValueError("the session is broken")

    async with started(ToneEngine) as loop:
        loop.subscribe("a", refuse)
        speak(loop, key("a"), "hello" * 1_000)
        failed = await log.until(lambda e: isinstance(e, Failed))
        assert isinstance(failed, Failed)
        assert failed.error.code is ErrorCode.SYNTHESIS_FAILED
        assert (loop.live_utterances, len(refused)) == (0, 1)


async def test_open_on_a_broken_engine_fails_at_once(in_process: bool) -> None:
    async with started(ToneFactory(FaultAt(Fault.RAISE)), in_process=in_process) as loop:
        loop.subscribe("a", first := EventLog())
        speak(loop, key("a"))
        await first.until(lambda e: isinstance(e, Failed))
        loop.subscribe("b", second := EventLog())
        assert not loop.ready
        speak(loop, key("b"))
        failed = await second.until(lambda e: isinstance(e, Failed))
        assert isinstance(failed, Failed)
        assert failed.error.retryable


async def test_warm_up_error_is_raised_by_start(in_process: bool) -> None:
    loop = EngineLoop(ToneFactory(start=StartFault.RAISE), in_process=in_process)
    with pytest.raises(EngineFault, match="the output is silent"):
        await loop.start()
    assert loop.state is EngineState.STOPPED


async def test_stop_fails_live_utterances_and_ends_thread() -> None:
    loop = EngineLoop(ToneEngine, name="short-lived")
    await loop.start()
    log = EventLog()
    loop.subscribe("a", log)
    speak(loop, key("a"), "hello" * 1_000, credit=2_400)
    await loop.stop()
    await loop.stop()
    assert isinstance(log.events[-1], Failed)
    # The engine is closed at this point; the thread may exit a moment later.
    await until(lambda: not any(thread.name == "tts-short-lived" for thread in threading.enumerate()))


async def break_and_rebuild(loop: EngineLoop) -> None:
    """Start, break the engine with the utterance ``poison``, wait for the replacement, and stop."""
    ready_again = asyncio.Event()
    try:
        await loop.start()
        loop.on_state(lambda state: ready_again.set() if state is EngineState.READY else None)
        speak(loop, key("poison"))
        await ready_again.wait()
    finally:
        await loop.stop()


async def test_broken_engine_is_freed_before_the_next_is_built(caplog: pytest.LogCaptureFixture) -> None:
    """Two engines may not fit on a device, and a frozen heap is not garbage-collected."""
    engines: list[weakref.ref[ToneEngine]] = []
    alive: list[bool] = []
    poison = ToneSettings(fault=lambda which, chunk: Fault.RAISE if which.session == "poison" else None)

    def factory() -> ToneEngine:
        alive.append(any(engine() is not None for engine in engines))
        engine = ToneEngine(poison)
        engines.append(weakref.ref(engine))
        return engine

    loop = EngineLoop(factory, restart_backoff_s=(0.0, 0.0))
    gc.disable()
    try:
        await break_and_rebuild(loop)
    finally:
        gc.enable()
    assert alive == [False, False]
    assert "tone.py" in caplog.text, "the log shows where it was raised"


async def test_replacement_of_an_engine_assigns_no_boolean() -> None:
    poison = ToneSettings(fault=lambda which, chunk: Fault.RAISE)
    with assigned_booleans() as assigned:
        await break_and_rebuild(EngineLoop(lambda: ToneEngine(poison), restart_backoff_s=(0.0, 0.0)))
    assert assigned == []


async def test_log_tells_when_a_broken_engine_is_back(caplog: pytest.LogCaptureFixture) -> None:
    poison = ToneSettings(fault=lambda which, chunk: Fault.RAISE)
    await break_and_rebuild(EngineLoop(lambda: ToneEngine(poison), name="e", restart_backoff_s=(0.0, 0.0)))
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert messages == ["engine e is being rebuilt", "engine e is ready again"]


async def lose(loop: EngineLoop) -> list[EngineState]:
    """Start, break the engine with the utterance ``poison``, wait until it is lost; return the states."""
    lost = asyncio.Event()
    states: list[EngineState] = []

    def on_state(state: EngineState) -> None:
        states.append(state)
        if state is EngineState.LOST:
            lost.set()

    try:
        await loop.start()
        loop.on_state(on_state)
        speak(loop, key("poison"))
        await lost.wait()
        loop.subscribe("later", log := EventLog())
        speak(loop, key("later"))
        failed = await log.until(lambda e: isinstance(e, Failed))
        assert isinstance(failed, Failed)
        assert (failed.error.code, failed.error.retryable) == (ErrorCode.ENGINE_FAULT, True)
    finally:
        await loop.stop()
    return states


async def test_engine_is_lost_after_repeated_rebuild_failures(in_process: bool, tmp_path: Path) -> None:
    """A lost GPU context cannot be restored in the same process, so the supervisor must start another one."""
    count = tmp_path / "builds"
    factory = BreakingFactory(ToneFactory(start=StartFault.ERROR, count=count))
    loop = EngineLoop(factory, restart_backoff_s=(0.0, 0.0), in_process=in_process)
    assert await lose(loop) == [EngineState.FAULTED, EngineState.LOST, EngineState.STOPPED]
    assert count.stat().st_size == 1 + MAX_REBUILD_FAILURES


async def test_lost_device_is_not_rebuilt() -> None:
    builds = 0

    def factory() -> ToneEngine:
        nonlocal builds
        builds += 1
        return ToneEngine(ToneSettings(fault=lambda which, chunk: Fault.DEVICE_LOST))

    loop = EngineLoop(factory, restart_backoff_s=(0.0, 0.0))
    assert await lose(loop) == [EngineState.LOST, EngineState.STOPPED]
    assert builds == 1


async def test_success_between_faults_resets_the_count() -> None:
    """Only consecutive failures count: an engine that comes back each time is never lost."""
    builds = 0

    def factory() -> ToneEngine:
        nonlocal builds
        builds += 1
        if builds % MAX_REBUILD_FAILURES:
            return ToneEngine(ToneSettings(fault=lambda which, chunk: Fault.RAISE))
        raise RuntimeError("out of memory")

    loop = EngineLoop(factory, restart_backoff_s=(0.0, 0.0))
    ready = asyncio.Event()
    loop.on_state(lambda state: ready.set() if state is EngineState.READY else None)
    try:
        await loop.start()
        while builds <= 3 * MAX_REBUILD_FAILURES:
            await ready.wait()
            ready.clear()
            assert not loop.lost
            speak(loop, key("poison", builds))
    finally:
        await loop.stop()


async def test_hanging_start_is_an_error() -> None:
    proceed = threading.Event()
    now_s = 0.0

    class HangingEngine(ToneEngine):
        def warm_up(self) -> None:
            nonlocal now_s
            now_s += 500.0
            proceed.wait()

    loop = EngineLoop(HangingEngine, hang_timeout_s=0.2, start_timeout_s=400.0, clock=lambda: now_s)
    try:
        with pytest.raises(EngineFault, match="longer than 400 s"):
            await loop.start()
    finally:
        proceed.set()
        await loop.stop()
    await until(lambda: not any(task.get_name() == "engine-watchdog" for task in asyncio.all_tasks()))


async def test_slow_start_within_its_limit_is_no_hang() -> None:
    now_s = 0.0
    proceed = threading.Event()

    class SlowEngine(ToneEngine):
        def warm_up(self) -> None:
            nonlocal now_s
            now_s += 300.0
            proceed.wait()

    loop = EngineLoop(SlowEngine, hang_timeout_s=0.04, start_timeout_s=400.0, clock=lambda: now_s)
    starting = asyncio.ensure_future(loop.start())
    await until(lambda: now_s > 0)
    watched = asyncio.get_running_loop().time() + 0.03  # the watchdog looks every 10 ms
    await until(lambda: asyncio.get_running_loop().time() > watched)
    proceed.set()
    try:
        await starting
        assert loop.ready
    finally:
        await loop.stop()


async def test_engine_that_hangs_while_rebuilt_is_lost() -> None:
    """The thread of the hanging start keeps its memory: another attempt would hang too."""
    proceed = threading.Event()
    now_s = 0.0
    builds = 0

    def factory() -> ToneEngine:
        nonlocal builds, now_s
        builds += 1
        if builds == 2:
            now_s += 500.0
            proceed.wait()
        return ToneEngine(ToneSettings(fault=lambda which, chunk: Fault.RAISE))

    loop = EngineLoop(
        factory, restart_backoff_s=(0.0, 0.0), hang_timeout_s=0.2, start_timeout_s=400.0, clock=lambda: now_s
    )
    try:
        assert await lose(loop) == [EngineState.FAULTED, EngineState.LOST, EngineState.STOPPED]
    finally:
        proceed.set()
    assert builds == 2


class Panic(BaseException):
    """Stands for a panic in a Rust extension, which does not derive from Exception."""


class FaultyEngine(ToneEngine):
    """Runs ``action`` once, on the first call of ``method``; ``faults`` is shared by all instances of a test."""

    def __init__(self, method: str, action: Callable[[], None], faults: list[str]) -> None:
        super().__init__()
        self.method = method
        self.action = action
        self.faults = faults

    def _maybe_fail(self, method: str) -> None:
        if method == self.method and not self.faults:
            self.faults.append(method)
            self.action()

    def handle(self, command: Command) -> None:
        self._maybe_fail("handle")
        super().handle(command)

    def step(self, now: float) -> Sequence[Event]:
        self._maybe_fail("step")
        return super().step(now)


def panic() -> None:
    raise Panic("a lock is poisoned")


@pytest.mark.parametrize("method", ["handle", "step"])
async def test_base_exception_is_an_engine_fault(method: str) -> None:
    faults: list[str] = []
    loop = EngineLoop(lambda: FaultyEngine(method, panic, faults), restart_backoff_s=(0.0, 0.0))
    await break_and_rebuild(loop)
    assert loop.stats.faults == 1


async def test_system_exit_at_start_is_a_typed_error(in_process: bool) -> None:
    loop = EngineLoop(ToneFactory(start=StartFault.EXIT), in_process=in_process)
    with pytest.raises(EngineFault, match="SystemExit"):
        await loop.start()
    assert loop.state is EngineState.STOPPED


@pytest.mark.parametrize("method", ["handle", "step"])
async def test_hanging_engine_call_is_a_fault(method: str) -> None:
    proceed = threading.Event()
    faults: list[str] = []
    now_s = 0.0  # advances only at the fault, so that a busy machine does not look like a hang

    def hang() -> None:
        nonlocal now_s
        now_s += 1.0
        proceed.wait()

    loop = EngineLoop(
        lambda: FaultyEngine(method, hang, faults),
        restart_backoff_s=(0.0, 0.0),
        hang_timeout_s=0.2,
        clock=lambda: now_s,
    )
    loop.subscribe("poison", log := EventLog())
    try:
        await break_and_rebuild(loop)
    finally:
        proceed.set()
    failed = await log.until(lambda e: isinstance(e, Failed))
    assert isinstance(failed, Failed)
    assert failed.error.code is ErrorCode.ENGINE_FAULT
    assert loop.stats.faults == 1


@pytest.mark.parametrize("method", ["handle", "step"])
async def test_abandoned_engine_is_freed_when_its_call_returns(method: str) -> None:
    proceed = threading.Event()
    faults: list[str] = []
    engines: list[weakref.ref[ToneEngine]] = []
    now_s = 0.0

    def hang() -> None:
        nonlocal now_s
        now_s += 1.0
        proceed.wait()

    def factory() -> ToneEngine:
        engine = FaultyEngine(method, hang, faults)
        engines.append(weakref.ref(engine))
        return engine

    loop = EngineLoop(factory, name="stalls", restart_backoff_s=(0.0, 0.0), hang_timeout_s=0.2, clock=lambda: now_s)
    await break_and_rebuild(loop)
    assert engines[0]() is not None, "the call still hangs"
    proceed.set()
    await until(lambda: not any(thread.name == "tts-stalls" for thread in threading.enumerate()))
    assert [engine() for engine in engines] == [None, None]
