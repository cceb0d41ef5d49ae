"""The engine contract with real networks: all model families, both text modes."""

from __future__ import annotations

import pytest

from tests.contract.engine_contract import CONTRACT, ContractCheck, EngineCase, segments
from tests.unit.streaming.engines import PROMPTED, engine, settings
from tts_worker.engine.cosyvoice.execution.settings import TextMode
from tts_worker.types import Boundary

WORDS = segments(("Yes, ", Boundary.WORD), ("it is. ", Boundary.WORD), ("Bye!", Boundary.END))
CLAUSES = segments(("Yes, ", Boundary.CLAUSE), ("it.", Boundary.SENTENCE), (" 好!", Boundary.END))
SILENT = segments(("...", Boundary.SENTENCE), ("— 😀", Boundary.END))

CASES = {
    "v1": EngineCase(lambda: engine("cosyvoice1"), PROMPTED, CLAUSES, SILENT),
    "v2-clause": EngineCase(lambda: engine("cosyvoice2"), PROMPTED, CLAUSES, SILENT),
    "v2-overlap": EngineCase(lambda: engine("cosyvoice2", settings(overlap=True)), PROMPTED, CLAUSES, SILENT),
    "v3-interleaved": EngineCase(
        lambda: engine("cosyvoice3", settings(text_mode=TextMode.INTERLEAVED)), PROMPTED, WORDS, SILENT
    ),
}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_streaming_engine_contract(check: ContractCheck, name: str) -> None:
    check(CASES[name])
