"""The pacer: bounded lead, counted underruns, expected gaps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.session.pacer import Pacer

RATE = 1_000


def test_first_frames_fill_the_lead_then_follow_the_clock() -> None:
    pacer = Pacer(RATE, lead_s=0.06)
    now_s = 10.0
    left_at = []
    for _ in range(8):
        now_s = max(now_s, pacer.due_at_s(20, now_s))
        left_at.append(now_s)
        pacer.record_sent(20, now_s)
    assert left_at[:3] == [10.0] * 3  # 60 ms of audio
    assert left_at[3:] == pytest.approx([10.02, 10.04, 10.06, 10.08, 10.10])


@given(lates=st.lists(st.floats(0, 0.03), min_size=1, max_size=20), lead_s=st.sampled_from((0.03, 0.06, 0.2)))
def test_timing_tells_lateness_and_lead(lates: list[float], lead_s: float) -> None:
    pacer = Pacer(RATE, lead_s)
    assert pacer.timing(20, 10.0) is None  # nothing was due before the first frame
    pacer.record_sent(20, 10.0)
    now_s = 10.0
    for late_s in lates:
        due_at_s = max(10.0, pacer.due_at_s(20, now_s))
        now_s = max(now_s, due_at_s + late_s)
        assert pacer.timing(20, now_s) == pytest.approx((now_s - due_at_s, pacer.lead_at_s(now_s)), abs=1e-9)
        pacer.record_sent(20, now_s)
    pacer.expect_gap()
    assert pacer.timing(20, now_s) is None
    assert Pacer(RATE, None).timing(20, now_s) is None


def test_unpaced_frames_are_always_due() -> None:
    pacer = Pacer(RATE, lead_s=None)
    for _ in range(100):
        pacer.record_sent(20, 5.0)
        assert pacer.due_at_s(20, 5.0) == 5.0
    assert pacer.lead_at_s(5.0) == pytest.approx(2.0)


def test_blocked_pacer_has_no_frame_due() -> None:
    pacer = Pacer(RATE, lead_s=0.06)
    pacer.is_blocked = True
    assert pacer.due_at_s(20, 1.0) == float("inf")
    pacer.is_blocked = False
    assert pacer.due_at_s(20, 1.0) == 1.0


def test_late_frame_counts_the_gap_as_underrun() -> None:
    pacer = Pacer(RATE, lead_s=0.06)
    assert pacer.record_sent(100, 0.0) == 0.0
    assert pacer.record_sent(100, 0.25) == pytest.approx(0.15)
    assert pacer.record_sent(100, 0.30) == 0.0
    assert (pacer.underruns, pacer.underrun_s) == (1, pytest.approx(0.15))


@pytest.mark.parametrize("gap", ["expect_gap", "drop"])
def test_expected_gap_is_not_an_underrun(gap: str) -> None:
    pacer = Pacer(RATE, lead_s=0.06)
    pacer.record_sent(100, 0.0)
    pacer.expect_gap() if gap == "expect_gap" else pacer.drop()
    assert pacer.record_sent(100, 9.0) == 0.0
    assert pacer.underruns == 0


def test_audio_sent_before_a_pause_counts_toward_the_lead() -> None:
    """A client that keeps its buffer while paused must not receive a second lead."""
    pacer = Pacer(RATE, lead_s=0.06)
    pacer.record_sent(60, 0.0)
    pacer.expect_gap()
    assert pacer.due_at_s(20, 0.01) == pytest.approx(0.02)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 80), st.floats(0, 0.3)), max_size=60), st.floats(0.0, 0.5))
def test_lead_never_exceeds_its_bound(frames: list[tuple[int, float]], lead_s: float) -> None:
    pacer = Pacer(RATE, lead_s)
    now_s = 0.0
    for samples, late_s in frames:
        now_s = max(now_s, pacer.due_at_s(samples, now_s)) + late_s
        pacer.record_sent(samples, now_s)
        assert pacer.lead_at_s(now_s) <= max(lead_s, samples / RATE) + 1e-9
