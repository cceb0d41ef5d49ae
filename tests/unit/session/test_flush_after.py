"""``flush_after_s``: complete words are spoken after a text pause, the last word later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.clock import run_in_virtual_time
from tts_worker.engine.handle import EngineStats
from tts_worker.session.machine import SessionMachine
from tts_worker.session.session import LocalSession
from tts_worker.session.timers import SessionTimeouts
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import (
    Alignment,
    Audio,
    ChunkMeta,
    Command,
    Ended,
    EndText,
    EngineInfo,
    Event,
    SynthesisParams,
    Text,
)

OBSERVER: Any = SimpleNamespace(
    first_audio=lambda seconds: None,
    queue_wait=lambda seconds: None,
    underrun=lambda seconds: None,
    frame=lambda *timing: None,
    control=lambda command, seconds: None,
    ended=lambda event, rate_hz: None,
)


class RecordingEngine:
    """Records the text to speak and its time."""

    ready = True
    lost = False
    stats = EngineStats()
    info = EngineInfo("e", ("v",), (), Alignment.ESTIMATED, 4)

    def __init__(self) -> None:
        self.spoken: list[tuple[float, str]] = []
        self.commands: list[Command] = []

    def post(self, command: Command) -> None:
        self.commands.append(command)
        if isinstance(command, Text):
            self.spoken.append((round(asyncio.get_running_loop().time(), 2), command.segment.text))

    def subscribe(self, session: str, callback: Callable[[Event], None]) -> None:
        self.send = callback
        self.is_subscribed = True

    def unsubscribe(self, session: str) -> None:
        self.is_subscribed = False


def begin(flush_after_s: float = 0.4) -> tuple[LocalSession, RecordingEngine]:
    machine = SessionMachine("s", SynthesisParams("v"), lambda params: TextPipeline())
    engine = RecordingEngine()
    timeouts = SessionTimeouts(flush_after_s=flush_after_s)
    return LocalSession(machine, engine, lead_s=0.04, observe=lambda engine, voice: OBSERVER, timeouts=timeouts), engine


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        run_in_virtual_time(test())

    del run.__wrapped__  # else pytest-asyncio would run it on its own loop
    return run


@virtual
async def test_unpunctuated_words_are_flushed() -> None:
    session, engine = begin()
    session.speak("I would like to book a table for two ")
    await asyncio.sleep(0.39)
    assert engine.spoken == []
    await asyncio.sleep(0.02)
    assert engine.spoken == [(0.4, "I would like to book a table for two")]
    session.close()


@virtual
async def test_steady_text_is_not_flushed_early() -> None:
    session, engine = begin()
    for _ in range(10):
        session.speak("word ")
        await asyncio.sleep(0.3)
    assert engine.spoken == []
    await asyncio.sleep(0.4)
    assert [text for _, text in engine.spoken] == ["word word word word word word word word word word"]
    session.close()


@virtual
async def test_split_word_is_not_flushed_in_halves() -> None:
    session, engine = begin()
    session.speak("I say hel")
    await asyncio.sleep(1.0)
    session.speak("lo ")
    await asyncio.sleep(1.0)
    assert [text for _, text in engine.spoken] == ["I say", "hello"]
    session.close()


@virtual
async def test_last_word_is_flushed_after_a_longer_pause() -> None:
    session, engine = begin()
    session.speak("only this and then")
    await asyncio.sleep(10)
    assert engine.spoken == [(0.4, "only this and"), (2.0, "then")]
    session.close()


@virtual
async def test_unfinished_markup_is_flushed_after_a_longer_pause() -> None:
    session, engine = begin()
    session.speak("look at [the docs")
    await asyncio.sleep(10)
    assert engine.spoken == [(0.4, "look at"), (2.0, "[the docs")]
    session.close()


@virtual
async def test_zero_disables_the_flush() -> None:
    session, engine = begin(flush_after_s=0)
    session.speak("I would like to book a table for two ")
    await asyncio.sleep(200)
    assert engine.spoken == []
    session.close()


@virtual
async def test_no_flush_while_audio_is_buffered() -> None:
    session, engine = begin()
    key = session.speak("First this. And then some ")
    engine.send(Audio(key, bytes(48_000), ChunkMeta(0, 0, 11, 0, 1.0)))  # one second
    await asyncio.sleep(0.5)
    assert [text for _, text in engine.spoken] == ["First this."]
    playing = asyncio.ensure_future(_take(session))
    await asyncio.sleep(2)
    assert [text for _, text in engine.spoken] == ["First this.", "And then some"]
    assert engine.spoken[-1][0] == pytest.approx(0.5 + 1.0 - 0.4, abs=0.1)
    playing.cancel()
    session.close()


@virtual
async def test_no_flush_while_paused() -> None:
    session, engine = begin()
    session.speak("some words ")
    session.pause()
    await asyncio.sleep(5)
    assert engine.spoken == []
    session.resume()
    await asyncio.sleep(0.5)
    assert [text for _, text in engine.spoken] == ["some words"]
    session.close()


@virtual
async def test_stop_cancels_the_flush() -> None:
    session, engine = begin()
    key = session.speak("some words ")
    session.stop()
    await asyncio.sleep(5)
    assert engine.spoken == []
    ended = [item for item in iter(session.poll, None) if isinstance(item, Ended)]
    assert [(item.key, item.receipt.text_remaining) for item in ended] == [(key, "some words ")]
    session.close()


@virtual
async def test_flushed_utterance_accepts_more_text() -> None:
    session, engine = begin()
    session.speak("some words ")
    await asyncio.sleep(1)
    session.speak("and the rest")
    session.end_text()
    await asyncio.sleep(1)
    assert [text for _, text in engine.spoken] == ["some words", "and the rest"]
    assert isinstance(engine.commands[-1], EndText)
    session.close()


async def _take(session: LocalSession) -> None:
    while await session.next() is not None:
        pass
