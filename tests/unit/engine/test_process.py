"""An engine in a process of its own: crashes, hangs, orphans, leaks, errors, logs and shared state."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import until
from tests.fakes.redis import eventually
from tests.fakes.tone_factory import (
    BreakingFactory,
    FaultAt,
    IntervalEngine,
    PitchedFactory,
    Pitches,
    StartFault,
    TalkingEngine,
    ToneFactory,
    build_without_extra,
)
from tests.unit.engine.test_loop import EventLog, expect_replacement, key, lose, speak, started
from tts_worker.engine.engine_thread import SWITCH_INTERVAL_S
from tts_worker.engine.loop import EngineLoop, EngineState
from tts_worker.engine.pipe import Events, MessageDecoder, encode
from tts_worker.engine.tone import Fault, ToneEngine
from tts_worker.errors import ConfigError, DeviceLost, EngineFault, MissingExtra
from tts_worker.types import (
    Audio,
    ChunkMeta,
    Done,
    Event,
    Failed,
    UtteranceKey,
    WordTiming,
)


def engine_processes() -> list[psutil.Process]:
    """The engine processes of this process. Other tests may have left children (a Redis)."""
    return [child for child in psutil.Process().children() if not is_gone(child) and is_engine(child)]


def is_engine(process: psutil.Process) -> bool:
    try:
        return "tts-engine" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def engine_process() -> psutil.Process:
    """The engine process of this process; fails unless there is exactly one."""
    (child,) = engine_processes()
    return child


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Fault.RAISE, Fault.HANG, Fault.DEVICE_LOST])
async def test_broken_engine_process_is_replaced(kind: Fault, tmp_path: Path) -> None:
    """Also after the loss of a device: another process has another context."""
    factory = ToneFactory(FaultAt(kind, session="poison"), count=tmp_path / "builds", faulty=(1,))
    async with started(factory, in_process=True, hang_timeout_s=1.0) as loop:
        broken = engine_process()
        await expect_replacement(loop)
        assert is_gone(broken)
        assert engine_process().pid != broken.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
async def test_killed_or_frozen_process_is_replaced(number: signal.Signals, caplog: pytest.LogCaptureFixture) -> None:
    await expect_replacement_after(number, caplog)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_process_is_replaced_on_uvloop(number: signal.Signals, caplog: pytest.LogCaptureFixture) -> None:
    """``serve`` runs on uvloop, whose transports are no classes of asyncio."""
    pytest.importorskip("uvloop").run(expect_replacement_after(number, caplog))
    assert not engine_processes(), "the second process ends with its loop"


async def expect_replacement_after(number: signal.Signals, caplog: pytest.LogCaptureFixture) -> None:
    """Send a signal to the process while its engine generates, and wait for the next one."""
    async with started(ToneEngine, in_process=True, hang_timeout_s=1.0) as loop:
        ready_again = asyncio.Event()
        loop.on_state(lambda state: ready_again.set() if state is EngineState.READY else None)
        loop.subscribe("a", log := EventLog())
        speak(loop, key("a"), "hello" * 1_000, credit=2_400)
        await log.until(lambda e: isinstance(e, Audio))
        broken = engine_process()
        broken.send_signal(number)
        await log.until(lambda e: isinstance(e, Failed))
        await ready_again.wait()
        assert is_gone(broken)
    message = "killed by SIGKILL" if number is signal.SIGKILL else "longer than 1 s"
    assert any(message in str(record.exc_info) for record in caplog.records if record.exc_info)


async def test_hanging_start_of_a_process_is_killed() -> None:
    loop = EngineLoop(ToneFactory(start=StartFault.HANG), in_process=True, hang_timeout_s=0.4, start_timeout_s=2.0)
    with pytest.raises(EngineFault, match="start took longer than 2 s"):
        await loop.start()
    await until(lambda: not engine_processes())


async def test_crash_at_start_is_an_error() -> None:
    loop = EngineLoop(ToneFactory(start=StartFault.CRASH), in_process=True)
    with pytest.raises(EngineFault, match="killed by SIGSEGV"):
        await loop.start()


async def test_device_lost_at_start_keeps_its_type() -> None:
    loop = EngineLoop(ToneFactory(start=StartFault.DEVICE_LOST), in_process=True)
    with pytest.raises(DeviceLost, match="illegal memory access") as caught:
        await loop.start()
    assert "_lose_device" in str(caught.value.__cause__), "the log shows where it was raised"


async def test_missing_extra_in_the_process_says_what_to_install() -> None:
    loop = EngineLoop(build_without_extra, in_process=True)
    with pytest.raises(Exception, match="pip install") as caught:
        await loop.start()
    assert getattr(caught.value, "code", None) is MissingExtra.code


async def test_engine_that_cannot_be_pickled_is_a_config_error() -> None:
    loop = EngineLoop(lambda: ToneEngine(), in_process=True)
    with pytest.raises(ConfigError, match=r"engine\.process.*cannot be pickled"):
        await loop.start()


async def test_process_that_cannot_be_rebuilt_is_lost(tmp_path: Path) -> None:
    factory = BreakingFactory(ToneFactory(start=StartFault.DEVICE_LOST, count=tmp_path / "builds"))
    loop = EngineLoop(factory, restart_backoff_s=(0.0, 0.0), in_process=True)
    assert await lose(loop) == [EngineState.FAULTED, EngineState.LOST, EngineState.STOPPED]


# -- life of the process ----------------------------------------------------------------------------------------------

ORPHAN = """
import asyncio
from tests.fakes.tone_factory import FaultAt, ToneFactory
from tts_worker.engine.loop import EngineLoop
from tts_worker.engine.tone import Fault
from tts_worker.types import *

async def main():
    loop = EngineLoop(ToneFactory(FaultAt(Fault.HANG)), in_process=True)
    await loop.start()
    key = UtteranceKey("a", 1)
    loop.post(Open(key, SynthesisParams("tone"), 10**9))
    loop.post(Text(key, Segment(0, (Span("hello", 0, 5),), 0, 5, Boundary.END)))  # the engine hangs
    await asyncio.sleep(0)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_engine_process_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        (child,) = psutil.Process(parent.pid).children()
        parent.kill()
        parent.wait()
        psutil.wait_procs([child], timeout=30)
        assert is_gone(child)


async def test_signals_to_the_process_group_do_not_end_the_engine() -> None:
    """Ctrl-C and a SIGTERM to every process of a service start a drain, which needs the engine."""
    async with started(ToneEngine, in_process=True) as loop:
        child = engine_process()
        for number in (signal.SIGINT, signal.SIGTERM):
            child.send_signal(number)
        loop.subscribe("a", log := EventLog())
        speak(loop, key("a"))
        await log.until(lambda e: isinstance(e, Done))
        assert loop.stats.faults == 0


async def test_engine_processes_leak_nothing() -> None:
    async def run() -> None:
        async with started(ToneEngine, in_process=True) as loop:
            loop.subscribe("a", log := EventLog())
            speak(loop, key("a"))
            await log.until(lambda e: isinstance(e, Done))

    def held() -> tuple[int, int, int]:
        process = psutil.Process()
        return process.num_fds(), process.num_threads(), len(asyncio.all_tasks())

    await run()
    before = held()
    for _ in range(3):
        await run()
    assert not engine_processes()
    # The thread that waits for the exit of a process may end a moment later.
    await until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


async def test_stop_while_starting_kills_the_process() -> None:
    loop = EngineLoop(ToneFactory(start=StartFault.HANG), in_process=True)
    starting = asyncio.ensure_future(loop.start())
    await until(engine_processes)
    starting.cancel()
    await loop.stop()
    assert not engine_processes()


async def test_stop_ends_a_hanging_process(tmp_path: Path) -> None:
    async with started(ToneFactory(FaultAt(Fault.HANG)), in_process=True) as loop:
        child = engine_process()
        speak(loop, key("a"))
        await loop.stop(timeout_s=0.2)
        assert is_gone(child)


# -- what crosses the pipe --------------------------------------------------------------------------------------------


async def events_of(in_process: bool) -> list[Event]:
    async with started(ToneEngine, in_process=in_process) as loop:
        loop.subscribe("a", log := EventLog())
        speak(loop, key("a"), "Hello there, my friend. How are you today?")
        await log.until(lambda e: isinstance(e, Done))
        return log.events


async def test_process_emits_the_same_events_as_a_thread() -> None:
    def without_times(events: list[Event]) -> list[Event]:
        return [replace(e, meta=replace(e.meta, wall_ms=0.0)) if isinstance(e, Audio) else e for e in events]

    assert without_times(await events_of(True)) == without_times(await events_of(False))


positions = st.integers(0, 1 << 40)
audio = st.builds(
    Audio,
    st.builds(UtteranceKey, st.text(max_size=8), positions),
    st.binary(max_size=64),
    st.builds(ChunkMeta, positions, positions, positions, positions, st.floats(0, 1e9), st.just((("flow", 1.5),))),
    st.lists(st.builds(WordTiming, positions, positions, positions, positions), max_size=3).map(tuple),
)


@settings(max_examples=50)
@given(st.lists(st.lists(audio, max_size=3), max_size=4), st.integers(1, 97))
def test_messages_survive_any_division(batches: list[list[Event]], size: int) -> None:
    messages = [Events(batch, index, 0.5) for index, batch in enumerate(batches)]
    data = b"".join(map(encode, messages))
    decoder = MessageDecoder()
    received = [m for begin in range(0, len(data), size) for m in decoder.feed(data[begin : begin + size])]
    assert received == messages


async def test_log_of_the_process_reaches_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async with started(TalkingEngine, in_process=True) as loop:
        loop.subscribe("a", log := EventLog())
        speak(loop, key("a", 7))
        await log.until(lambda e: isinstance(e, Done))
    (record,) = [record for record in caplog.records if record.name == TalkingEngine.LOGGER]
    assert (record.getMessage(), record.levelname) == ("utterance 7", "WARNING")


async def test_process_follows_the_log_level(caplog: pytest.LogCaptureFixture) -> None:
    """SIGHUP changes it in the server only."""
    async with started(TalkingEngine, in_process=True) as loop:
        loop.subscribe("a", EventLog())
        caplog.set_level(logging.DEBUG, "tts_worker")
        utterances = itertools.count()

        async def details_are_logged() -> bool:
            speak(loop, key("a", next(utterances)))
            return "details" in caplog.messages

        await eventually(details_are_logged)


async def test_crash_dump_of_the_process_is_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with started(ToneEngine, in_process=True) as loop:
        ready_again = asyncio.Event()
        loop.on_state(lambda state: ready_again.set() if state is EngineState.READY else None)
        engine_process().send_signal(signal.SIGSEGV)
        await ready_again.wait()
    dump = "\n".join(record.getMessage() for record in caplog.records if "process of engine" in record.getMessage())
    assert "Segmentation fault" in dump
    assert "read_message" in dump, "where it happened"
    assert not capfd.readouterr().err


async def test_process_reads_commands_between_short_intervals(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise a STOP waits for the interpreter lock for up to 5 ms."""
    async with started(IntervalEngine, in_process=True) as loop:
        loop.subscribe("a", log := EventLog())
        speak(loop, key("a"))
        await log.until(lambda e: isinstance(e, Done))
    (record,) = [record for record in caplog.records if record.name == IntervalEngine.LOGGER]
    assert float(record.getMessage()) == pytest.approx(SWITCH_INTERVAL_S)


async def test_changes_of_shared_state_precede_later_commands() -> None:
    """As a voice that is enrolled on another thread while the engine runs; a new process knows it too."""
    pitches = Pitches({"early": "tone-low"})
    async with started(PitchedFactory(pitches), in_process=True, shared=pitches) as loop:
        loop.subscribe("a", log := EventLog())

        async def speaks_with(voice: str, generation: int) -> bool:
            speak(loop, key("a", generation), voice=voice)
            end = await log.until(lambda e: e.key.generation == generation and isinstance(e, Done | Failed))
            return isinstance(end, Done)

        assert await speaks_with("early", 1)
        assert not await speaks_with("late", 2)
        await asyncio.get_running_loop().run_in_executor(None, pitches.apply, ("late", "tone-high"))
        assert await speaks_with("late", 3)
        ready_again = asyncio.Event()
        loop.on_state(lambda state: ready_again.set() if state is EngineState.READY else None)
        engine_process().kill()
        await ready_again.wait()
        assert await speaks_with("late", 4)
    assert pitches.callback is None
