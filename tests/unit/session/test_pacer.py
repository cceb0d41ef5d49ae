"""The pacer bounds the lead, counts holes, and forgives the gaps that nobody hears as holes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.session.pacer import Pacer

RATE = 1_000


def test_the_first_frames_fill_the_lead_and_then_follow_the_clock() -> None:
    pacer = Pacer(RATE, lead_s=0.06)
    now_s = 10.0
    left_at = []
    for _ in range(8):
        now_s = max(now_s, pacer.due_at_s(20, now_s))
        left_at.append(now_s)
        pacer.record_sent(20, now_s)
    assert left_at[:3] == [10.0] * 3  # 60 ms of sound
    assert left_at[3:] == pytest.approx([10.02, 10.04, 10.06, 10.08, 10.10])


def test_without_a_lead_everything_is_due_at_once() -> None:
    pacer = Pacer(RATE, lead_s=None)
    for _ in range(100):
        pacer.record_sent(20, 5.0)
        assert pacer.due_at_s(20, 5.0) == 5.0
    assert pacer.lead_at_s(5.0) == pytest.approx(2.0)


def test_a_late_frame_is_an_underrun_as_long_as_the_silence_was() -> None:
    pacer = Pacer(RATE, lead_s=0.06)
    assert pacer.record_sent(100, 0.0) == 0.0
    assert pacer.record_sent(100, 0.25) == pytest.approx(0.15)
    assert pacer.record_sent(100, 0.30) == 0.0
    assert (pacer.underruns, pacer.underrun_s) == (1, pytest.approx(0.15))


@pytest.mark.parametrize("gap", ["expect_gap", "drop"])
def test_silence_after_an_end_a_pause_or_a_stop_is_no_underrun(gap: str) -> None:
    pacer = Pacer(RATE, lead_s=0.06)
    pacer.record_sent(100, 0.0)
    pacer.expect_gap() if gap == "expect_gap" else pacer.drop()
    assert pacer.record_sent(100, 9.0) == 0.0
    assert pacer.underruns == 0


def test_what_was_sent_before_a_pause_still_counts_towards_the_lead() -> None:
    """A listener that holds its buffer while paused must not be given a second lead on top."""
    pacer = Pacer(RATE, lead_s=0.06)
    pacer.record_sent(60, 0.0)
    pacer.expect_gap()
    assert pacer.due_at_s(20, 0.01) == pytest.approx(0.02)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 80), st.floats(0, 0.3)), max_size=60), st.floats(0.0, 0.5))
def test_the_lead_never_exceeds_its_bound(frames: list[tuple[int, float]], lead_s: float) -> None:
    pacer = Pacer(RATE, lead_s)
    now_s = 0.0
    for samples, late_s in frames:
        now_s = max(now_s, pacer.due_at_s(samples, now_s)) + late_s
        pacer.record_sent(samples, now_s)
        assert pacer.lead_at_s(now_s) <= max(lead_s, samples / RATE) + 1e-9
