"""Commands go to the engine of their utterance, until it has ended; events of all engines reach the session."""

from __future__ import annotations

import pytest

from tests.unit.session.test_flush_after import RecordingEngine
from tts_worker.errors import ErrorCode, ErrorInfo
from tts_worker.session.link import EngineLink
from tts_worker.types import Cancel, Credit, Done, Event, Failed, Hold, Open, SynthesisParams, UtteranceKey

FIRST = UtteranceKey("s", 1)
SECOND = UtteranceKey("s", 2)


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
