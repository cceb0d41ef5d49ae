from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.engine_contract import CONTRACT, ContractCheck, EngineCase, segments
from tts_worker.engine.base import Engine
from tts_worker.engine.cpu.hibari.engine import HibariEngine
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel
from tts_worker.types import Boundary, SynthesisParams


class ThreadedEngine(HibariEngine):
    """Runs the network on its thread, and waits for it where it has nothing else to do."""

    def __init__(self, model: HibariModel, *, max_utterances: int) -> None:
        super().__init__(model, max_utterances=max_utterances)
        self.on_work(lambda: None)

    @property
    def has_work(self) -> bool:
        self.wait_for_work()  # so the run overlaps only with the rest of the step that started it
        return super().has_work


@pytest.mark.parametrize("make", [HibariEngine, ThreadedEngine])
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_hibari_engine_contract(check: ContractCheck, make: Callable[..., Engine], hibari_model: HibariModel) -> None:
    check(
        EngineCase(
            make=lambda: make(hibari_model, max_utterances=10),
            params=SynthesisParams(VOICE, speed=1.5, seed=3),
            segments=segments(("Yes, ", Boundary.CLAUSE), ("it is $5.", Boundary.SENTENCE), (" 好 Bye!", Boundary.END)),
            unspeakable=segments(("你好。", Boundary.SENTENCE), ("… 😀", Boundary.END)),
        )
    )
