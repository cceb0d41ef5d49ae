"""Steps of the tone engine: one plan, and several chunks only for a listener who is well ahead, at no cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tts_worker.engine.scheduler import Budgets, Candidate, Plan, Scheduler
from tts_worker.engine.tone import ToneEngine, ToneSettings
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Audio,
    Boundary,
    Credit,
    Open,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
)

CHUNK = SAMPLE_RATE_HZ // 10
KEY = UtteranceKey("s", 1)
TEXT = "sing" * 200


def _render(engine: ToneEngine, credit: int) -> list[int]:
    """Return the samples of the steps that use up ``credit``."""
    engine.handle(Credit(KEY, credit))
    steps = []
    while engine.has_work:
        events = engine.step(0.0)
        steps.append(sum(event.samples for event in events if isinstance(event, Audio)))
    return steps


@pytest.mark.parametrize(
    ("window", "cost", "expected"), [(15, 0.0, [3, 1]), (2, 0.0, [1] * 4), (15, 0.01, [1] * 4)], ids=str
)
def test_steps_of_a_listener(window: int, cost: float, expected: list[int]) -> None:
    engine = ToneEngine(ToneSettings(chunk_samples=CHUNK, cost_per_audio_s=cost, spend=lambda seconds: None))
    engine.handle(Open(KEY, SynthesisParams("tone"), window * CHUNK))
    engine.handle(Text(KEY, Segment(0, (Span(TEXT, 0, len(TEXT)),), 0, len(TEXT), Boundary.FORCED)))
    while engine.has_work:
        engine.step(0.0)
    assert _render(engine, 4 * CHUNK) == [chunks * CHUNK for chunks in expected]


def test_a_step_plans_at_most_once() -> None:
    schedule = Scheduler().schedule
    planned_us: list[int] = []

    def policy(candidates: Sequence[Candidate], budgets: Budgets, now_us: int) -> Plan:
        planned_us.append(now_us)
        return schedule(candidates, budgets, now_us)

    engine = ToneEngine(ToneSettings(chunk_samples=CHUNK, policy=policy))
    engine.handle(Open(KEY, SynthesisParams("tone"), 8 * CHUNK))
    engine.handle(Text(KEY, Segment(0, (Span(TEXT, 0, len(TEXT)),), 0, len(TEXT), Boundary.FORCED)))
    for second in range(20):
        engine.step(float(second))

    assert len(planned_us) > 4
    assert len(planned_us) == len(set(planned_us))
