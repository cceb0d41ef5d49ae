"""The fairness benchmark against a real server."""

from __future__ import annotations

import pytest

from tools.bench import fairness
from tools.bench.fairness import jain_index, measure_fairness
from tts_worker.features.bench.server_process import server_process


def test_share_index_is_one_for_equal_shares() -> None:
    assert jain_index([3, 3, 3]) == pytest.approx(1.0)
    assert jain_index([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain_index([0, 0]) == 0.0


async def test_calls_and_downloads_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "ALONE_S", 0.5)
    async with server_process(["--engine", "tone", "--set", "log_level=warning"]) as (address, _):
        figures = await measure_fairness(
            address, downloads=2, characters=19_000, callers=1, tries=2, rounds=2, lead_s=0.02
        )
    assert figures["downloads_started"] == 4
    assert isinstance(figures["call_audio_s"], float)
    assert figures["call_audio_s"] > 0
    verdicts = {value for name, value in figures.items() if name.startswith("promise_")}
    assert verdicts <= {"pass", "fail"}
    assert isinstance(figures["step_mean_ms"], float)
