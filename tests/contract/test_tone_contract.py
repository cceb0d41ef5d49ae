from __future__ import annotations

import pytest

from tests.contract.engine_contract import CONTRACT, Promise, Subject, segments
from tts_worker.engine.tone import ToneEngine, ToneSettings
from tts_worker.types import Boundary, SynthesisParams

SUBJECT = Subject(
    make=lambda: ToneEngine(ToneSettings(max_utterances=10)),
    params=SynthesisParams("tone", seed=3),
    segments=segments(("Yes, ", Boundary.CLAUSE), ("it is $5.", Boundary.SENTENCE), (" 好 Bye!", Boundary.END)),
    unspeakable=segments(("...", Boundary.SENTENCE), ("— 😀", Boundary.END)),
)


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_the_tone_engine_keeps(promise: Promise) -> None:
    promise(SUBJECT)
