"""Commands go to the engine of their utterance, until it has ended; events of all engines reach the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.session.test_flush_after import RecordingEngine
from tts_worker.errors import ErrorCode, ErrorInfo
from tts_worker.session.link import EngineLink
from tts_worker.types import (
    Boundary,
    Cancel,
    Command,
    Credit,
    Done,
    EndText,
    Event,
    Failed,
    Hold,
    Open,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
)

FIRST = UtteranceKey("s", 1)
SECOND = UtteranceKey("s", 2)


class Engine(RecordingEngine):
    """An engine whose text has no time."""

    def post(self, command: Command) -> None:
        self.commands.append(command)


class Engines:
    """Two engines, each with the voice of its name, and a link to both."""

    def __init__(self) -> None:
        self.engines = {"a": RecordingEngine(), "b": RecordingEngine()}
        self.events: list[Event] = []
        self.link = EngineLink(lambda voice: (voice, self.engines[voice]))
        self.link.subscribe("s", self.events.append)


def test_an_utterance_keeps_the_engine_of_its_voice() -> None:
    two = Engines()
    first, second = Open(FIRST, SynthesisParams("a"), 1), Open(SECOND, SynthesisParams("b"), 1)
    for command in (first, second, Hold(FIRST), Credit(SECOND, 5), Cancel(FIRST)):
        two.link.post(command)
    assert two.engines["a"].commands == [first, Hold(FIRST), Cancel(FIRST)]
    assert two.engines["b"].commands == [second, Credit(SECOND, 5)]


@pytest.mark.parametrize("end", [Done(FIRST), Failed(FIRST, ErrorInfo(ErrorCode.SYNTHESIS_FAILED, "no"))])
def test_an_utterance_that_has_ended_gets_no_commands(end: Event) -> None:
    two = Engines()
    two.link.post(Open(FIRST, SynthesisParams("a"), 1))
    two.engines["a"].send(end)
    for command in (Credit(FIRST, 5), Hold(FIRST), Cancel(FIRST)):
        two.link.post(command)
    assert len(two.engines["a"].commands) == 1
    assert two.events == [end]


def test_a_closed_session_gets_no_events_of_any_engine() -> None:
    two = Engines()
    two.link.post(Open(FIRST, SynthesisParams("a"), 1))
    two.link.post(Open(SECOND, SynthesisParams("b"), 1))
    two.link.unsubscribe("s")
    assert [engine.is_subscribed for engine in two.engines.values()] == [False, False]
    two.link.post(Credit(SECOND, 5))
    assert len(two.engines["b"].commands) == 1


class Loudness:
    """Stands for ``VoiceLoudness``: every utterance waits for a measurement, which a test ends."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def is_known(self, engine: str, voice: str) -> bool:
        return False

    def measure(self, name: str, engine: object, params: SynthesisParams, on_known: Callable[[], None]) -> None:
        self.waiting.append(on_known)


STEPS = st.lists(st.sampled_from(("open", "text", "hold", "end", "stop", "done", "measured", "close")), max_size=30)


@given(STEPS)
def test_each_engine_gets_a_well_formed_utterance_whatever_waits(steps: list[str]) -> None:
    """Open first, all text in order, nothing after the end, and no STOP for what the engine does not know."""
    engine = Engine()
    loudness: Any = Loudness()
    link = EngineLink(lambda voice: ("e", engine), loudness)
    link.subscribe("s", lambda event: None)
    posted: dict[UtteranceKey, list[Command]] = {}
    ended: set[UtteranceKey] = set()
    key = UtteranceKey("s", 0)
    for step in steps:
        command: Command | None = None
        if step == "open":
            key = UtteranceKey("s", key.generation + 1)
            posted[key] = []
            command = Open(key, SynthesisParams("v"), 1)
        elif step == "measured" and loudness.waiting:
            loudness.waiting.pop(0)()
        elif step == "close":
            link.unsubscribe("s")
            ended |= posted.keys()
        elif step == "done" and any(known.key == key for known in engine.commands):
            engine.send(Done(key))
            ended.add(key)
        elif step in ("text", "hold", "end", "stop") and key in posted:
            segment = Segment(len(posted[key]), (), 0, 1, Boundary.FLUSH)
            kinds: dict[str, Command] = {
                "text": Text(key, segment),
                "hold": Hold(key),
                "end": EndText(key),
                "stop": Cancel(key),
            }
            command = kinds[step]
        if command is not None:
            if command.key not in ended:
                posted[command.key].append(command)
            ended |= {command.key} if isinstance(command, Cancel) else set()
            link.post(command)
    while loudness.waiting:
        loudness.waiting.pop(0)()
    for each, commands in posted.items():
        got = [command for command in engine.commands if command.key == each]
        assert got == commands[: len(got)] if each in ended else got == commands
        assert not got or isinstance(got[0], Open)
