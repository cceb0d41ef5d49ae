"""The gain of a voice: measured once before its first utterance, then fixed; commands wait in order."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.conftest import until
from tts_worker.audio.pcm import to_pcm
from tts_worker.engine.handle import EngineStats
from tts_worker.errors import ErrorCode, ErrorInfo
from tts_worker.session.link import EngineLink
from tts_worker.session.loudness import VoiceLoudness
from tts_worker.types import (
    Alignment,
    Audio,
    Boundary,
    Cancel,
    ChunkMeta,
    Command,
    Done,
    EndText,
    EngineInfo,
    Event,
    Failed,
    Open,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
)

TARGET_LUFS = -16.0


class RecordingEngine:
    """Records commands; ``answer`` speaks a sine of a given level for the measurement."""

    lost = False
    stats = EngineStats()
    info = EngineInfo("e", ("a", "b"), ("en",), Alignment.ESTIMATED, 4)

    def __init__(self) -> None:
        self.ready = True
        self.commands: list[Command] = []
        self.callbacks: dict[str, Callable[[Event], None]] = {}

    def post(self, command: Command) -> None:
        self.commands.append(command)

    def subscribe(self, session: str, callback: Callable[[Event], None]) -> None:
        self.callbacks[session] = callback

    def unsubscribe(self, session: str) -> None:
        self.callbacks.pop(session, None)

    @property
    def measurements(self) -> list[UtteranceKey]:
        return [c.key for c in self.commands if isinstance(c, Open) and c.key.session.startswith("loudness-")]

    def emit(self, event: Event) -> None:
        self.callbacks[event.key.session](event)

    def answer(self, level: float = 0.1) -> None:
        key = self.measurements[-1]
        sine = level * np.sin(2 * np.pi * 997 * np.arange(24_000) / 24_000)
        self.emit(Audio(key, to_pcm(sine.astype(np.float32)), ChunkMeta(0, 0, 0, 0, 0.0)))
        self.emit(Done(key))

    def of(self, session: str) -> list[Command]:
        return [command for command in self.commands if command.key.session == session]


def segments(params: SynthesisParams, text: str) -> list[Segment]:
    return [Segment(0, (), 0, len(text), Boundary.END)]


def utterance(session: str, generation: int, voice: str = "a") -> list[Command]:
    key = UtteranceKey(session, generation)
    return [Open(key, SynthesisParams(voice), 100), Text(key, segments(SynthesisParams(voice), "x")[0]), EndText(key)]


def link(engine: RecordingEngine, loudness: VoiceLoudness) -> EngineLink:
    return EngineLink(lambda voice: ("e", engine), loudness)


async def test_an_utterance_waits_until_its_voice_is_measured() -> None:
    engine = RecordingEngine()
    loudness = VoiceLoudness(TARGET_LUFS, segments)
    connections = [link(engine, loudness) for _ in range(2)]
    for index, connection in enumerate(connections):
        for command in utterance(f"s{index}", 1):
            connection.post(command)
    assert len(engine.measurements) == 1
    assert not engine.of("s0")
    engine.answer(level=0.1)
    await until(lambda: engine.of("s1"))
    assert [engine.of(f"s{index}") for index in (0, 1)] == [utterance(f"s{index}", 1) for index in (0, 1)]
    # A sine of 997 Hz with amplitude 0.1 has -23.01 LUFS.
    assert 20 * math.log10(loudness.gain("e", "a")) == pytest.approx(TARGET_LUFS + 23.01, abs=0.05)
    connections[0].post(utterance("s0", 2)[0])
    assert engine.of("s0")[-1] == utterance("s0", 2)[0]
    assert len(engine.measurements) == 1


async def test_the_gain_of_a_voice_never_changes() -> None:
    loudness = VoiceLoudness(TARGET_LUFS, segments)
    loudness.set_loudness("e", "a", -20.0)
    loudness.set_loudness("e", "a", -30.0)
    assert 20 * math.log10(loudness.gain("e", "a")) == pytest.approx(4.0)
    assert loudness.gain("e", "b") == loudness.gain("f", "a") == 1.0
    loudness.forget("e")
    assert not loudness.is_known("e", "a")


@pytest.mark.parametrize(("lufs", "gain_db"), [(-60.0, 20.0), (0.0, -16.0), (-math.inf, 0.0)])
async def test_extreme_levels_have_a_bounded_gain(lufs: float, gain_db: float) -> None:
    loudness = VoiceLoudness(TARGET_LUFS, segments)
    loudness.set_loudness("e", "a", lufs)
    assert 20 * math.log10(loudness.gain("e", "a")) == pytest.approx(gain_db)


async def test_a_cancelled_utterance_never_reaches_the_engine() -> None:
    engine = RecordingEngine()
    connection = link(engine, VoiceLoudness(TARGET_LUFS, segments))
    for command in [*utterance("s", 1), Cancel(UtteranceKey("s", 1)), *utterance("s", 2)]:
        connection.post(command)
    engine.answer()
    await until(lambda: engine.of("s"))
    assert engine.of("s") == utterance("s", 2)


async def test_each_new_voice_of_a_session_is_measured() -> None:
    engine = RecordingEngine()
    connection = link(engine, VoiceLoudness(TARGET_LUFS, segments))
    for generation, voice in enumerate("ab", start=1):
        before = len(engine.of("s"))
        for command in utterance("s", generation, voice):
            connection.post(command)
        assert len(engine.measurements) == generation
        assert len(engine.of("s")) == before
        engine.answer()
        await until(lambda before=before: len(engine.of("s")) > before)
        assert engine.of("s")[before:] == utterance("s", generation, voice)


async def test_a_failed_measurement_is_repeated_and_delays_no_text() -> None:
    engine = RecordingEngine()
    loudness = VoiceLoudness(TARGET_LUFS, segments)
    connection = link(engine, loudness)
    for generation in range(1, 6):
        for command in utterance("s", generation):
            connection.post(command)
        if generation <= 3:
            assert len(engine.measurements) == generation
            engine.emit(Failed(engine.measurements[-1], ErrorInfo(ErrorCode.SYNTHESIS_FAILED, "no audio")))
        assert engine.of("s")[-3:] == utterance("s", generation)
        assert loudness.gain("e", "a") == 1.0
    assert len(engine.measurements) == 3  # then the level stays


async def test_an_engine_that_restarts_measures_later() -> None:
    """Callers who try again during a restart must not use up the attempts, after which a voice keeps its level."""
    engine = RecordingEngine()
    loudness = VoiceLoudness(TARGET_LUFS, segments)
    connection = link(engine, loudness)
    engine.ready = False
    for generation in range(1, 6):
        for command in utterance("s", generation):
            connection.post(command)
        for key in engine.measurements:
            if key.session in engine.callbacks:
                engine.emit(Failed(key, ErrorInfo(ErrorCode.ENGINE_FAULT, "is being restarted")))
        assert engine.of("s")[-3:] == utterance("s", generation)  # the engine refuses it at once
    engine.ready = True
    connection.post(utterance("s", 6)[0])
    assert engine.of("s")[-1] != utterance("s", 6)[0]
    engine.answer(level=0.1)
    await until(lambda: engine.of("s")[-1] == utterance("s", 6)[0])
    assert loudness.gain("e", "a") > 1.0


async def test_deleting_a_voice_ends_the_wait_for_it() -> None:
    engine = RecordingEngine()
    loudness = VoiceLoudness(TARGET_LUFS, segments)
    connection = link(engine, loudness)
    for command in utterance("s", 1):
        connection.post(command)
    loudness.forget("e", "a")
    assert engine.of("s") == utterance("s", 1)  # the engine reports that the voice is gone
    assert Cancel(engine.measurements[0]) in engine.commands
    assert [*engine.callbacks] == ["s"]


async def test_a_measurement_ends_at_its_time_limit() -> None:
    engine = RecordingEngine()
    connection = link(engine, VoiceLoudness(TARGET_LUFS, segments, time_limit_s=0.01))
    for command in utterance("s", 1):
        connection.post(command)
    await until(lambda: engine.of("s"))
    assert Cancel(engine.measurements[0]) in engine.commands
    assert [*engine.callbacks] == ["s"]


async def test_a_closed_session_posts_nothing_later() -> None:
    engine = RecordingEngine()
    connection = link(engine, VoiceLoudness(TARGET_LUFS, segments))
    for command in utterance("s", 1):
        connection.post(command)
    connection.unsubscribe("s")
    engine.answer()
    await until(lambda: not engine.callbacks)
    await asyncio.sleep(0)
    assert not engine.of("s")
