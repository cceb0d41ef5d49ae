from __future__ import annotations

import pytest

from tests.contract.engine_contract import CONTRACT, ContractCheck, EngineCase, segments
from tts_worker.engine.tone import ToneEngine, ToneSettings
from tts_worker.types import Boundary, SynthesisParams

CASE = EngineCase(
    make=lambda: ToneEngine(ToneSettings(max_utterances=10)),
    params=SynthesisParams("tone", seed=3),
    segments=segments(("Yes, ", Boundary.CLAUSE), ("it is $5.", Boundary.SENTENCE), (" 好 Bye!", Boundary.END)),
    unspeakable=segments(("...", Boundary.SENTENCE), ("— 😀", Boundary.END)),
)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_tone_engine_contract(check: ContractCheck) -> None:
    check(CASE)
