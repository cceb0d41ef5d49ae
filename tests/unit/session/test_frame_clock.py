"""The frame clock: one timer wakes the readers of all sessions when their frames are due."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.clock import run_in_virtual_time
from tests.unit.session.test_flush_after import OBSERVER, RecordingEngine
from tts_worker.session.frame_clock import MAX_WOKEN_AT_ONCE, TICK_S, TIMER_RESOLUTION_S, FrameClock
from tts_worker.session.machine import MachineConfig, SessionMachine
from tts_worker.session.session import LocalSession
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import FRAME_SAMPLES, SAMPLE_RATE_HZ, Audio, ChunkMeta, Credit, PcmFrame, SynthesisParams

FRAME_S = FRAME_SAMPLES / SAMPLE_RATE_HZ


class CountingLoop:
    """The event loop, with a count of the timers set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.timers = 0

    def time(self) -> float:
        return self._loop.time()

    def call_at(self, *args: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return self._loop.call_at(*args)

    def call_soon(self, *args: Any) -> asyncio.Handle:
        return self._loop.call_soon(*args)


@settings(max_examples=30)
@given(st.lists(st.floats(0.0, 0.1), min_size=1, max_size=20))
def test_readers_wake_at_their_ticks(delays_s: list[float]) -> None:
    async def run() -> None:
        loop: Any = CountingLoop()
        clock = FrameClock(loop)
        woken: dict[int, float] = {}
        due_s = [loop.time() + delay_s for delay_s in delays_s]
        for reader, at_s in sorted(enumerate(due_s), key=lambda item: item[1]):
            clock.call_at(clock.tick_at(at_s), lambda reader=reader: woken.setdefault(reader, loop.time()))
        await asyncio.sleep(0.2)
        for reader, at_s in enumerate(due_s):
            assert at_s - TIMER_RESOLUTION_S <= woken[reader] <= at_s + TICK_S + TIMER_RESOLUTION_S
        assert loop.timers <= len({clock.tick_at(at_s) for at_s in due_s})

    run_in_virtual_time(run())


def test_commands_overtake_the_frames_of_a_crowd() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        clock = FrameClock(loop)
        woken: list[int] = []
        woken_before_command: list[int] = []

        def wake(reader: int) -> None:
            woken.append(reader)
            if reader == 0:
                loop.call_soon(lambda: woken_before_command.extend(woken))

        for reader in range(5 * MAX_WOKEN_AT_ONCE):
            clock.call_at(clock.tick_at(0.1), lambda reader=reader: wake(reader))
        await asyncio.sleep(0.2)
        assert woken == list(range(5 * MAX_WOKEN_AT_ONCE))
        assert len(woken_before_command) == MAX_WOKEN_AT_ONCE

    run_in_virtual_time(run())


def _begin(config: MachineConfig) -> tuple[LocalSession, RecordingEngine]:
    machine = SessionMachine("s", SynthesisParams("v"), lambda params: TextPipeline(), config)
    engine = RecordingEngine()
    session = LocalSession(machine, engine, lead_s=2 * FRAME_S, observe=lambda engine, voice: OBSERVER)
    session.speak("A few words. And more of them.")
    return session, engine


def _audio(session: LocalSession, samples: int, *, start_sample: int = 0) -> Audio:
    key = session.writing
    assert key is not None
    return Audio(key, bytes(2 * samples), ChunkMeta(0, 0, 5, start_sample, 0.0))


async def _frames(session: LocalSession, count: int) -> list[float]:
    """Return when the next frames were taken."""
    times_s = []
    while len(times_s) < count:
        if isinstance(await session.next(), PcmFrame):
            times_s.append(asyncio.get_running_loop().time())
    return times_s


def test_frames_leave_one_frame_apart() -> None:
    async def run() -> None:
        session, engine = _begin(MachineConfig())
        engine.send(_audio(session, SAMPLE_RATE_HZ))
        times_s = (await _frames(session, 40))[1:]  # the first one fills the lead
        for index, at_s in enumerate(times_s):
            late_s = at_s - times_s[0] - index * FRAME_S
            assert abs(late_s) <= TICK_S + TIMER_RESOLUTION_S

    run_in_virtual_time(run())


def test_chunk_does_not_wake_a_reader_that_waits_for_time() -> None:
    async def run() -> None:
        session, engine = _begin(MachineConfig())
        engine.send(_audio(session, 4 * FRAME_SAMPLES))
        await _frames(session, 2)
        began_s = asyncio.get_running_loop().time()
        waiting = asyncio.ensure_future(session.wait())
        await asyncio.sleep(0)
        engine.send(_audio(session, FRAME_SAMPLES, start_sample=4 * FRAME_SAMPLES))
        await waiting
        assert asyncio.get_running_loop().time() > began_s

    run_in_virtual_time(run())


def test_full_buffer_returns_credit_in_large_portions() -> None:
    async def run() -> None:
        window = SAMPLE_RATE_HZ
        config = MachineConfig(window_samples=window, large_credit_samples=window // 4)
        session, engine = _begin(config)
        engine.send(_audio(session, window))
        sent = window // FRAME_SAMPLES // 2
        await _frames(session, sent)
        credits = [command.samples for command in engine.commands if isinstance(command, Credit)]
        assert credits
        assert min(credits) >= window // 4
        await _frames(session, sent - 4)  # now the engine is behind
        credits = [command.samples for command in engine.commands if isinstance(command, Credit)]
        assert credits[-1] < window // 4

    run_in_virtual_time(run())


def test_one_timer_per_tick_for_readers_that_come_back() -> None:
    async def run() -> None:
        loop: Any = CountingLoop()
        clock = FrameClock(loop)
        ticks: set[int] = set()

        def wake(reader: int, frame: int) -> None:
            tick = clock.tick_at(loop.time() + FRAME_S)
            ticks.add(tick)
            if frame:
                clock.call_at(tick, lambda: wake(reader, frame - 1))

        for reader in range(5):
            clock.call_at(clock.tick_at(0.003 * reader), lambda reader=reader: wake(reader, 10))
        await asyncio.sleep(1.0)
        assert loop.timers <= len(ticks) + 5

    run_in_virtual_time(run())


def test_delivery_sends_frames_without_waking_the_reader() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        session, engine = _begin(MachineConfig())
        engine.send(_audio(session, SAMPLE_RATE_HZ))
        times_s: list[float] = []

        def deliver() -> bool:
            while (item := session.poll()) is not None:
                if isinstance(item, PcmFrame):
                    times_s.append(loop.time())
            return True

        deliver()
        waiting = asyncio.ensure_future(session.wait(deliver))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        for index, at_s in enumerate(times_s[1:]):
            assert abs(at_s - times_s[1] - index * FRAME_S) <= TICK_S + TIMER_RESOLUTION_S
        assert len(times_s) >= 0.45 / FRAME_S
        session.stop()
        await waiting
        assert not isinstance(session.poll(), PcmFrame)

    run_in_virtual_time(run())


def test_reader_wakes_for_what_the_delivery_leaves() -> None:
    async def run() -> None:
        session, engine = _begin(MachineConfig())
        engine.send(_audio(session, SAMPLE_RATE_HZ))
        await _frames(session, 2)

        def fail() -> bool:
            raise ConnectionError

        await session.wait(lambda: False)
        assert isinstance(session.poll(), PcmFrame)
        assert session.poll() is None
        with pytest.raises(ConnectionError):
            await session.wait(fail)
        assert isinstance(session.poll(), PcmFrame)
        assert session.poll() is None
        await session.wait()
        assert isinstance(session.poll(), PcmFrame)

        def close() -> bool:
            session.close()
            return session.poll() is not None

        await session.wait(close)

    run_in_virtual_time(run())
