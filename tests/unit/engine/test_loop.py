"""The engine thread: one callback a step, no busy waiting, and faults that stay inside."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.conftest import until
from tts_worker.engine.loop import REBUILDS_UNTIL_LOST, EngineLoop, EngineState
from tts_worker.engine.tone import Fault, ToneEngine, ToneSettings
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

LOTS = 10**9


class Inbox:
    """Collects the events of one session and waits for the one a test needs."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._arrived = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._arrived.set()

    async def until(self, wanted: Callable[[Event], bool]) -> Event:
        seen = 0
        while True:  # pytest-timeout guards
            for event in self.events[seen:]:
                if wanted(event):
                    return event
            seen = len(self.events)
            self._arrived.clear()
            await self._arrived.wait()


@asynccontextmanager
async def running(settings: ToneSettings, **options: Any) -> AsyncIterator[EngineLoop]:
    loop = EngineLoop(lambda: ToneEngine(settings), restart_backoff_s=(0.01, 0.05), **options)
    try:
        await loop.start()
        yield loop
    finally:
        settings.hang.set()
        await loop.stop()


def speak(loop: EngineLoop, key: UtteranceKey, text: str = "hello", credit: int = LOTS) -> None:
    loop.post(Open(key, SynthesisParams("tone"), credit))
    loop.post(Text(key, Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END)))
    loop.post(EndText(key))


def key(session: str, generation: int = 1) -> UtteranceKey:
    return UtteranceKey(session, generation)


async def test_an_utterance_from_text_to_done() -> None:
    async with running(ToneSettings()) as loop:
        assert loop.ready
        assert loop.info.name == "tone"
        inbox = Inbox()
        loop.subscribe("a", inbox)
        speak(loop, key("a"), "hello")
        await inbox.until(lambda e: isinstance(e, Done))
        assert sum(e.samples for e in inbox.events if isinstance(e, Audio)) == 5 * 60 * 24
        assert loop.live_utterances == 0
        assert loop.stats.steps >= 3


async def test_an_idle_engine_does_not_step() -> None:
    async with running(ToneSettings()) as loop:
        inbox = Inbox()
        loop.subscribe("a", inbox)
        speak(loop, key("a"), "hello" * 100, credit=4_800)
        await inbox.until(lambda e: isinstance(e, Audio) and e.meta.start_sample + e.samples == 4_800)
        steps = loop.stats.steps
        # A second utterance runs to its end while the first, out of credit, costs nothing.
        loop.subscribe("b", other := Inbox())
        speak(loop, key("b"), "a")
        await other.until(lambda e: isinstance(e, Done))
        assert loop.stats.steps <= steps + 2


async def test_cancel_frees_the_slot_at_the_next_step() -> None:
    async with running(ToneSettings(max_utterances=1)) as loop:
        loop.subscribe("a", Inbox())
        loop.subscribe("b", other := Inbox())
        speak(loop, key("a"), "hello" * 1_000, credit=2_400)
        loop.post(Cancel(key("a")))
        speak(loop, key("b"), "a")
        assert isinstance(await other.until(lambda e: isinstance(e, Done | Failed)), Done)


async def test_nothing_of_a_cancelled_utterance_is_delivered() -> None:
    in_step = threading.Event()
    go_on = threading.Event()

    def spend(seconds: float) -> None:
        in_step.set()
        go_on.wait(60)

    async with running(ToneSettings(cost_per_audio_s=1.0, spend=spend)) as loop:
        inbox = Inbox()
        loop.subscribe("a", inbox)
        speak(loop, key("a"), "hello")
        assert await asyncio.get_running_loop().run_in_executor(None, in_step.wait, 60)
        loop.post(Cancel(key("a")))  # while its sound is being made
        go_on.set()
        loop.subscribe("b", other := Inbox())
        speak(loop, key("b"), "a")
        await other.until(lambda e: isinstance(e, Done))
        assert inbox.events == []
        assert loop.stats.stale_events >= 1


async def test_a_failing_utterance_leaves_the_others_alone() -> None:
    def fault(which: UtteranceKey, chunk: int) -> Fault | None:
        return Fault.FAIL if which.session == "bad" and chunk == 2 else None

    async with running(ToneSettings(fault=fault)) as loop:
        inboxes = {name: Inbox() for name in ("bad", "good")}
        for name, inbox in inboxes.items():
            loop.subscribe(name, inbox)
            speak(loop, key(name), "hello" * 10)
        failed = await inboxes["bad"].until(lambda e: isinstance(e, Failed))
        assert isinstance(failed, Failed)
        assert failed.error.code is ErrorCode.SYNTHESIS_FAILED
        await inboxes["good"].until(lambda e: isinstance(e, Done))
        assert loop.state is EngineState.READY


@pytest.mark.parametrize("kind", [Fault.RAISE, Fault.HANG])
async def test_a_broken_engine_is_replaced_without_an_operator(kind: Fault) -> None:
    broke: list[UtteranceKey] = []
    now_s = 0.0  # stands still, or a busy machine would make a step look as if it hung

    def fault(which: UtteranceKey, chunk: int) -> Fault | None:
        nonlocal now_s
        if which.session == "poison" and not broke:
            broke.append(which)
            now_s += 1.0 if kind is Fault.HANG else 0.0
            return kind
        return None

    states: list[EngineState] = []
    async with running(ToneSettings(fault=fault), hang_timeout_s=0.2, clock=lambda: now_s) as loop:
        ready_again = asyncio.Event()

        def on_state(state: EngineState) -> None:
            states.append(state)
            if state is EngineState.READY:
                ready_again.set()

        loop.on_state(on_state)
        inboxes = {name: Inbox() for name in ("bystander", "poison", "later")}
        for name, inbox in inboxes.items():
            loop.subscribe(name, inbox)
        speak(loop, key("bystander"), "hello" * 1_000, credit=2_400)
        speak(loop, key("poison"))
        for name in ("bystander", "poison"):
            failed = await inboxes[name].until(lambda e: isinstance(e, Failed))
            assert isinstance(failed, Failed)
            assert failed.error.code is ErrorCode.ENGINE_FAULT
            assert failed.error.retryable
        await ready_again.wait()
        assert states == [EngineState.FAULTED, EngineState.READY]
        assert loop.stats.faults == 1
        speak(loop, key("later"))
        await inboxes["later"].until(lambda e: isinstance(e, Done))
        assert not any(isinstance(e, Done) for e in inboxes["poison"].events)


async def test_work_for_a_broken_engine_fails_at_once() -> None:
    async with running(ToneSettings(fault=lambda k, c: Fault.RAISE)) as loop:
        loop.subscribe("a", first := Inbox())
        speak(loop, key("a"))
        await first.until(lambda e: isinstance(e, Failed))
        loop.subscribe("b", second := Inbox())
        assert not loop.ready
        speak(loop, key("b"))
        failed = await second.until(lambda e: isinstance(e, Failed))
        assert isinstance(failed, Failed)
        assert failed.error.retryable


async def test_an_engine_that_cannot_start_says_why() -> None:
    class Dumb(ToneEngine):
        def warm_up(self) -> None:
            raise EngineFault("no sound came out")

    loop = EngineLoop(Dumb)
    with pytest.raises(EngineFault, match="no sound"):
        await loop.start()
    assert loop.state is EngineState.STOPPED


async def test_stop_fails_what_is_live_and_ends_the_thread() -> None:
    loop = EngineLoop(ToneEngine, name="short-lived")
    await loop.start()
    inbox = Inbox()
    loop.subscribe("a", inbox)
    speak(loop, key("a"), "hello" * 1_000, credit=2_400)
    await loop.stop()
    await loop.stop()
    assert isinstance(inbox.events[-1], Failed)
    # Its engine is closed; the thread itself may need a moment to be gone.
    await until(lambda: not any(thread.name == "tts-short-lived" for thread in threading.enumerate()))


async def broken_and_rebuilt(loop: EngineLoop) -> None:
    """Start, let ``poison`` break the engine, wait for its successor, and stop."""
    again = asyncio.Event()
    try:
        await loop.start()
        loop.on_state(lambda state: again.set() if state is EngineState.READY else None)
        speak(loop, key("poison"))
        await again.wait()
    finally:
        await loop.stop()


async def test_a_broken_engine_is_gone_before_its_successor_is_built() -> None:
    """Two of them may not fit on a device, and a frozen heap is not collected."""
    before: list[weakref.ref[ToneEngine]] = []
    alive: list[bool] = []
    poison = ToneSettings(fault=lambda which, chunk: Fault.RAISE if which.session == "poison" else None)

    def factory() -> ToneEngine:
        alive.append(any(engine() is not None for engine in before))
        built = ToneEngine(poison)
        before.append(weakref.ref(built))
        return built

    loop = EngineLoop(factory, restart_backoff_s=(0.0, 0.0))
    gc.disable()
    try:
        await broken_and_rebuilt(loop)
    finally:
        gc.enable()
    assert alive == [False, False]


async def test_an_engine_that_cannot_be_rebuilt_is_lost_until_it_can() -> None:
    """A device whose context is gone is gone for this process: whoever watches over it must start another one."""
    built = 0

    def factory() -> ToneEngine:
        nonlocal built
        built += 1
        lost.append(loop.lost)
        if 1 < built <= 1 + REBUILDS_UNTIL_LOST:
            raise RuntimeError("device-side assert triggered")
        return ToneEngine(ToneSettings(fault=lambda which, chunk: Fault.RAISE if built == 1 else None))

    loop = EngineLoop(factory, restart_backoff_s=(0.0, 0.0))
    lost = list[bool]()
    await broken_and_rebuilt(loop)
    assert lost == [False] * (1 + REBUILDS_UNTIL_LOST) + [True]
    assert not loop.lost, "it came back after all"


class Panic(BaseException):
    """What a panic in a Rust extension becomes: no Exception."""


class Breaking(ToneEngine):
    """Breaks once, in the call that ``where`` names, on the utterance ``poison``."""

    where: str
    how: Callable[[], None]

    def __init__(self, where: str, how: Callable[[], None], broke: list[str]) -> None:
        super().__init__()
        self.where = where
        self.how = how
        self.broke = broke

    def _break(self, where: str) -> None:
        if where == self.where and not self.broke:
            self.broke.append(where)
            self.how()

    def handle(self, command: Command) -> None:
        self._break("handle")
        super().handle(command)

    def step(self, now: float) -> list[Event]:
        self._break("step")
        return super().step(now)


def panic() -> None:
    raise Panic("a lock is poisoned")


@pytest.mark.parametrize("where", ["handle", "step"])
async def test_a_base_exception_is_an_engine_fault(where: str) -> None:
    broke: list[str] = []
    loop = EngineLoop(lambda: Breaking(where, panic, broke), restart_backoff_s=(0.0, 0.0))
    await broken_and_rebuilt(loop)
    assert loop.stats.faults == 1


async def test_system_exit_at_start_is_a_typed_error() -> None:
    class Leaving(ToneEngine):
        def warm_up(self) -> None:
            raise SystemExit(3)

    loop = EngineLoop(Leaving)
    with pytest.raises(EngineFault, match="SystemExit"):
        await loop.start()
    assert loop.state is EngineState.STOPPED


@pytest.mark.parametrize("where", ["handle", "step"])
async def test_an_engine_call_that_hangs_is_a_fault(where: str) -> None:
    go_on = threading.Event()
    broke: list[str] = []
    now_s = 0.0  # stands still, or a busy machine would make a call look as if it hung

    def hang() -> None:
        nonlocal now_s
        now_s += 1.0
        go_on.wait()

    loop = EngineLoop(
        lambda: Breaking(where, hang, broke), restart_backoff_s=(0.0, 0.0), hang_timeout_s=0.2, clock=lambda: now_s
    )
    loop.subscribe("poison", inbox := Inbox())
    try:
        await broken_and_rebuilt(loop)
    finally:
        go_on.set()
    failed = await inbox.until(lambda e: isinstance(e, Failed))
    assert isinstance(failed, Failed)
    assert failed.error.code is ErrorCode.ENGINE_FAULT
    assert loop.stats.faults == 1


@pytest.mark.parametrize("where", ["handle", "step"])
async def test_an_abandoned_engine_is_freed_when_it_returns(where: str) -> None:
    go_on = threading.Event()
    broke: list[str] = []
    engines: list[weakref.ref[ToneEngine]] = []
    now_s = 0.0

    def hang() -> None:
        nonlocal now_s
        now_s += 1.0
        go_on.wait()

    def factory() -> ToneEngine:
        built = Breaking(where, hang, broke)
        engines.append(weakref.ref(built))
        return built

    loop = EngineLoop(factory, name="stalls", restart_backoff_s=(0.0, 0.0), hang_timeout_s=0.2, clock=lambda: now_s)
    await broken_and_rebuilt(loop)
    assert engines[0]() is not None, "it hangs still"
    go_on.set()
    await until(lambda: not any(thread.name == "tts-stalls" for thread in threading.enumerate()))
    assert [engine() for engine in engines] == [None, None]
