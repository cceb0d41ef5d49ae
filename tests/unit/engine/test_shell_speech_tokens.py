"""Speech tokens are rejected by engines that cannot render them."""

from __future__ import annotations

import pytest

from tools.engine_simulator.engine import SimulatedEngine
from tools.engine_simulator.stage_times import Execution, StageTime, StageTimes
from tts_worker.engine.shell import EngineShell
from tts_worker.engine.tone import ToneEngine
from tts_worker.errors import ErrorCode
from tts_worker.types import Failed, Open, Speech, SynthesisParams, UtteranceKey

TIME = StageTime.linear(1_000)


@pytest.mark.parametrize(
    ("subject", "voice"),
    [(ToneEngine(), "tone"), (SimulatedEngine(StageTimes(Execution.SERIAL, TIME, TIME, TIME, TIME)), "simulated")],
)
def test_text_engines_reject_speech_tokens(subject: EngineShell, voice: str) -> None:  # type: ignore[type-arg]
    key = UtteranceKey("test", 1)
    subject.handle(Open(key, SynthesisParams(voice), 1_000))
    subject.handle(Speech(key, (1, 2, 3)))
    (event,) = subject.step(0.0)
    assert isinstance(event, Failed)
    assert event.error.code is ErrorCode.INVALID_REQUEST
    assert not subject.sequences
