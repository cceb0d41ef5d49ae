"""The load benchmark counts utterances with audio, and refused sessions separately."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import tone_settings
from tts_worker.benchmarks import load
from tts_worker.benchmarks.load import measure_load

TWO_SLOTS: dict[str, dict[str, Any]] = {
    "engine": {"engines": {"tone": {"kind": "tone", "max_utterances": 2}}},
    "hub": {"session": {"max_sessions": 2}},
}


@pytest.mark.parametrize("limit", TWO_SLOTS)
async def test_refused_sessions_do_not_count_as_utterances(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_STAGGER_S", 0.0)
    figures = await measure_load(tone_settings(**TWO_SLOTS[limit]), sessions=6, seconds=1.0)
    # A paragraph is 15 s long, so both admitted sessions stay in their first utterance.
    assert (figures["utterances"], figures["sessions_refused"], figures["utterances_failed"]) == (2, 4, 0)


async def test_load_without_audio_has_no_continuity() -> None:
    figures = await measure_load(tone_settings(), sessions=1, seconds=1e-6)
    assert (figures["utterances"], figures["continuity_c50"], figures["sessions_refused"]) == (0, None, 0)
