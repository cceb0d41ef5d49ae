from __future__ import annotations

import pytest

from tests.contract.engine_contract import CONTRACT, ContractCheck, EngineCase, segments
from tts_worker.engine.hibari.engine import VOICE, HibariEngine, HibariSettings
from tts_worker.engine.hibari.model import HibariModel
from tts_worker.types import Boundary, SynthesisParams


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_hibari_engine_contract(check: ContractCheck, hibari_model: HibariModel) -> None:
    check(
        EngineCase(
            make=lambda: HibariEngine(HibariSettings(max_utterances=10), hibari_model),
            params=SynthesisParams(VOICE, speed=1.5, seed=3),
            segments=segments(("Yes, ", Boundary.CLAUSE), ("it is $5.", Boundary.SENTENCE), (" 好 Bye!", Boundary.END)),
            unspeakable=segments(("你好。", Boundary.SENTENCE), ("… 😀", Boundary.END)),
        )
    )
