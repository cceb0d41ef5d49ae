from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from tests.quality.judge import Judge, missing_reason
from tts_worker import create_worker
from tts_worker.adapter import TTSWorker
from tts_worker.engine.cpu.hibari.engine import HibariEngine
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel
from tts_worker.settings import load_settings
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

T = TypeVar("T")


@dataclass(frozen=True)
class Speech:
    """Audio of a text (PCM16LE at 24 kHz) and its word times."""

    pcm: bytes
    words: tuple[WordTiming, ...]


Speak = Callable[[str], Speech]


@pytest.fixture(scope="session")
def judge() -> Judge:
    reason = missing_reason()
    if reason:
        pytest.skip(reason)
    return Judge()


@pytest.fixture(scope="session")
def cpu_voice() -> HibariEngine:
    engine = HibariEngine(HibariModel())
    engine.warm_up()
    return engine


@pytest.fixture(scope="session")
def speak() -> Iterator[Speak]:
    """Synthesize through the whole worker: text letter by letter, session, engine thread, 20 ms frames."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="worker")
    thread.start()

    def on_loop(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        running = create_worker(load_settings())
        worker = on_loop(running.__aenter__())
        try:
            yield lambda text: on_loop(_stream(worker, text))
        finally:
            on_loop(running.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _stream(worker: TTSWorker, text: str) -> Speech:
    async def letters() -> AsyncIterator[str]:
        for letter in text:
            yield letter

    stream = worker.synthesize_chunks(letters())
    chunks = [chunk async for chunk in stream]
    assert stream.receipt is not None
    assert stream.receipt.text_spoken == text
    words = tuple(
        WordTiming(word.start_char, word.end_char, word.start_sample, word.end_sample)
        for chunk in chunks
        for word in chunk.words
    )
    return Speech(b"".join(chunk.pcm for chunk in chunks), words)


@pytest.fixture(scope="session")
def speak_whole(cpu_voice: HibariEngine) -> Speak:
    """Synthesize each text in one piece with the same voice, as the reference for streaming."""

    def speak(text: str) -> Speech:
        return synthesize(cpu_voice, [Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END)])

    return speak


def synthesize(engine: HibariEngine, segments: list[Segment]) -> Speech:
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
    return Speech(b"".join(chunk.pcm for chunk in chunks), tuple(word for chunk in chunks for word in chunk.words))
