"""Normalization before the engine: order, threading, STOP and the time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.clock import run_in_virtual_time
from tests.unit.session.test_flush_after import RecordingEngine, virtual
from tts_worker.errors import ErrorCode, ErrorInfo
from tts_worker.front_end.rules import FrontEnd
from tts_worker.session.link import EngineLink
from tts_worker.session.normalizing import TIME_LIMIT_S, SegmentNormalizer, SegmentReader
from tts_worker.types import (
    Boundary,
    Cancel,
    Command,
    EndText,
    Failed,
    Hold,
    Open,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
)

KEY = UtteranceKey("s", 1)
NEXT = UtteranceKey("s", 2)
PARAMS = SynthesisParams("v")


class ManualExecutor(Executor):
    """An executor that a test steps manually."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    async def work(self) -> None:
        future, call = self.waiting.pop(0)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)
        for _ in range(3):
            await asyncio.sleep(0)


def spell(text: str, language: str | None) -> str:
    if "boom" in text:
        raise RuntimeError("boom")
    return text.replace("5", {"en": "Five", "zh": "五"}.get(language or "", "5"))


def text_of(key: UtteranceKey, text: str, index: int = 0) -> Text:
    return Text(key, Segment(index, (Span(text, 0, len(text)),), 0, len(text), Boundary.FLUSH))


def link(
    engine: RecordingEngine, executor: Executor, *languages: str, time_limit_s: float = TIME_LIMIT_S
) -> EngineLink:
    normalizer = SegmentNormalizer(spell, executor)
    return EngineLink(
        lambda voice: ("e", engine),
        reader_of=lambda engine, params: SegmentReader(normalizer, FrontEnd(languages), time_limit_s),
    )


def begin() -> tuple[EngineLink, RecordingEngine, ManualExecutor]:
    engine = RecordingEngine()
    executor = ManualExecutor()
    connection = link(engine, executor, "zh", "en")
    connection.subscribe("s", lambda event: None)
    connection.post(Open(KEY, PARAMS, 1))
    return connection, engine, executor


def texts(commands: list[Command]) -> list[str]:
    return [command.segment.text for command in commands if isinstance(command, Text)]


@virtual
async def test_segments_are_normalized_in_their_language() -> None:
    connection, engine, executor = begin()
    for text in ("take 5", "我有5元"):
        connection.post(text_of(KEY, text))
        await executor.work()
    assert texts(engine.commands) == ["take Five", "我有五元"]


@virtual
async def test_segments_keep_their_order_before_end_of_text() -> None:
    connection, engine, executor = begin()
    for command in (text_of(KEY, "take 5"), text_of(KEY, "plain"), EndText(KEY)):
        connection.post(command)
    assert texts(engine.commands) == []
    await executor.work()
    assert texts(engine.commands) == ["take Five", "plain"]
    assert engine.commands[-1] == EndText(KEY)


@virtual
async def test_many_segments_that_wait_need_no_deep_recursion() -> None:
    connection, engine, executor = begin()
    connection.post(text_of(KEY, "take 5"))
    for _ in range(2_000):
        connection.post(text_of(KEY, "plain"))
    await executor.work()
    assert len(texts(engine.commands)) == 2_001


@virtual
async def test_one_segment_per_session_is_on_the_thread() -> None:
    connection, _, executor = begin()
    for _ in range(10):
        connection.post(text_of(KEY, "take 5"))
    assert len(executor.waiting) == 1


@virtual
async def test_stop_overtakes_and_drops_queued_segments() -> None:
    connection, engine, executor = begin()
    connection.post(text_of(KEY, "take 5"))
    connection.post(text_of(KEY, "and 5"))
    connection.post(Cancel(KEY))
    assert engine.commands[-1] == Cancel(KEY)
    connection.post(Open(NEXT, PARAMS, 1))
    connection.post(text_of(NEXT, "new 5"))
    await executor.work()
    assert texts(engine.commands) == []
    await executor.work()
    assert [c.key for c in engine.commands if isinstance(c, Text)] == [NEXT]


@virtual
async def test_pause_overtakes_queued_segments() -> None:
    connection, engine, _ = begin()
    connection.post(text_of(KEY, "take 5"))
    connection.post(Hold(KEY))
    assert engine.commands[-1] == Hold(KEY)


@virtual
async def test_failed_utterance_drops_queued_segments() -> None:
    connection, engine, executor = begin()
    for _ in range(3):
        connection.post(text_of(KEY, "take 5"))
    engine.send(Failed(KEY, ErrorInfo(ErrorCode.SYNTHESIS_FAILED, "no")))
    await executor.work()
    assert (texts(engine.commands), executor.waiting) == ([], [])


@virtual
async def test_segment_over_the_time_limit_goes_without_wetext() -> None:
    connection, engine, executor = begin()
    connection.post(text_of(KEY, "take 5"))
    connection.post(text_of(KEY, "then"))
    await asyncio.sleep(1.01)
    assert texts(engine.commands) == ["take five", "then"]
    await executor.work()
    assert texts(engine.commands) == ["take five", "then"]


@virtual
async def test_normalizer_error_leaves_the_other_rules() -> None:
    connection, engine, executor = begin()
    connection.post(text_of(KEY, "boom 5"))
    await executor.work()
    assert texts(engine.commands) == ["boom five"]


@virtual
async def test_unsubscribe_drops_all_state() -> None:
    connection, engine, executor = begin()
    connection.post(text_of(KEY, "take 5"))
    connection.unsubscribe("s")
    await executor.work()
    assert texts(engine.commands) == []


STEPS = st.lists(st.sampled_from(("text", "plain", "end", "stop", "work", "wait")), max_size=40)


@given(STEPS)
def test_text_is_never_lost_or_reordered(steps: list[str]) -> None:
    async def play() -> None:
        engine = RecordingEngine()
        executor = ManualExecutor()
        connection = link(engine, executor, "en", time_limit_s=0.5)
        generation = 1
        number = 0
        stopped = set()
        connection.post(Open(UtteranceKey("s", 1), PARAMS, 1))
        sent: dict[int, list[int]] = {1: []}

        def renew() -> None:
            nonlocal generation
            generation += 1
            sent[generation] = []
            connection.post(Open(UtteranceKey("s", generation), PARAMS, 1))

        for step in steps:
            key = UtteranceKey("s", generation)
            if step in ("text", "plain"):
                number += 1
                sent[generation].append(number)
                connection.post(text_of(key, "take 5" if step == "text" else "word", number))
            elif step == "end":
                connection.post(EndText(key))
                renew()
            elif step == "stop":
                connection.post(Cancel(key))
                stopped.add(generation)
                renew()
            elif step == "work" and executor.waiting:
                await executor.work()
            elif step == "wait":
                await asyncio.sleep(0.3)
        while executor.waiting:
            await executor.work()
        await asyncio.sleep(2 * len(steps))
        for which, numbers in sent.items():
            commands = [command for command in engine.commands if command.key == UtteranceKey("s", which)]
            arrived = [command.segment.index for command in commands if isinstance(command, Text)]
            assert arrived == numbers[: len(arrived)]
            if which not in stopped:
                assert arrived == numbers
            for last in (EndText, Cancel):
                places = [place for place, command in enumerate(commands) if isinstance(command, last)]
                assert places in ([], [len(commands) - 1])
        connection.unsubscribe("s")

    run_in_virtual_time(play())


@pytest.mark.parametrize("text", ["", "5", "boom"])
async def test_close_ends_the_thread(text: str) -> None:
    normalizer = SegmentNormalizer(spell)
    normalizer.prepare()
    normalizer.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        normalizer.submit(text_of(KEY, text).segment, "en")
