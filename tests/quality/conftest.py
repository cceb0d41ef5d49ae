from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.quality.judge import Judge, why_absent
from tts_worker.engine.hibari import VOICE, HibariEngine
from tts_worker.text.pipeline import TextOptions, TextPipeline
from tts_worker.types import (
    Audio,
    Boundary,
    Done,
    EndText,
    Event,
    Open,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
    WordTiming,
)


@dataclass(frozen=True)
class Spoken:
    """What came out for a text: s16le at 24 kHz, and its word times."""

    pcm: bytes
    words: tuple[WordTiming, ...]


Speak = Callable[[str], Spoken]


@pytest.fixture(scope="session")
def judge() -> Judge:
    reason = why_absent()
    if reason:
        pytest.skip(reason)
    return Judge()


@pytest.fixture(scope="session")
def cpu_voice() -> HibariEngine:
    engine = HibariEngine()
    engine.warm_up()
    return engine


@pytest.fixture(scope="session")
def speak(cpu_voice: HibariEngine) -> Speak:
    """The way of a text through segmenter and engine, clause by clause as it streams."""

    def speak(text: str) -> Spoken:
        pipeline = TextPipeline(TextOptions())
        segments = [segment for char in text for segment in pipeline.feed(char)]
        return say(cpu_voice, segments + pipeline.end())

    return speak


@pytest.fixture(scope="session")
def speak_whole(cpu_voice: HibariEngine) -> Speak:
    """The same voice with each text in one piece: what streaming is measured against."""

    def speak(text: str) -> Spoken:
        return say(cpu_voice, [Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END)])

    return speak


def say(engine: HibariEngine, segments: list[Segment]) -> Spoken:
    key = UtteranceKey("quality", 1)
    engine.handle(Open(key, SynthesisParams(VOICE), credit_samples=1 << 40))
    for segment in segments:
        engine.handle(Text(key, segment))
    engine.handle(EndText(key))
    events: list[Event] = []
    while engine.has_work:
        events += engine.step(0.0)
    *audio, end = events
    assert end == Done(key)
    chunks = [chunk for chunk in audio if isinstance(chunk, Audio)]
    return Spoken(b"".join(chunk.pcm for chunk in chunks), tuple(word for chunk in chunks for word in chunk.words))
