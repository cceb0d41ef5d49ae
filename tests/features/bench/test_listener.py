"""The playback model, beside one that plays sample by sample."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_worker.features.bench.listener import AUDIBLE, UNDERRUN_S, Listener, first_audible
from tts_worker.types import SAMPLE_RATE_HZ

parts = st.lists(
    st.tuples(st.integers(0, 4_000), st.integers(0, 2_400), st.booleans()), max_size=12
)  # milliseconds * 10 since the part before, samples, whether they are audible


def pcm(samples: int, level: int) -> bytes:
    return np.full(samples, level, "<i2").tobytes()


@given(parts=parts, due_ms=st.integers(-500, 0))
def test_listener_agrees_with_playing_sample_by_sample(parts: list[tuple[int, int, bool]], due_ms: int) -> None:
    listener = Listener(due_ms / 1000)
    at_s = 0.0
    free_s = None  # when the next sample can be played
    first_s = None
    gaps = 0
    for wait, samples, is_audible in parts:
        at_s += wait / 10_000
        listener.receive(pcm(samples, AUDIBLE + 1 if is_audible else AUDIBLE), at_s)
        for _ in range(samples):
            if free_s is None or at_s > free_s + (0 if first_s is None else UNDERRUN_S):
                gaps += first_s is not None and free_s is not None
                free_s = at_s
            if is_audible and first_s is None:
                first_s = free_s
            free_s += 1 / SAMPLE_RATE_HZ
    if first_s is None:
        assert listener.first_audible_s is None
    else:
        assert listener.first_audible_s == pytest.approx(first_s - due_ms / 1000)
    assert len(listener.underruns_s) == gaps
    assert listener.audio_s == pytest.approx(sum(samples for _, samples, _ in parts) / SAMPLE_RATE_HZ)


@given(data=st.binary(max_size=64), cuts=st.lists(st.integers(0, 64)))
def test_parts_may_end_inside_a_sample(data: bytes, cuts: list[int]) -> None:
    whole, parted = Listener(0.0), Listener(0.0)
    whole.receive(data, 1.0)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in pairwise(places):
        parted.receive(data[begin:end], 1.0)
    assert parted.audio_s == pytest.approx(whole.audio_s)
    assert parted.first_audible_s == pytest.approx(whole.first_audible_s)


def test_silence_before_the_first_audible_sample_counts() -> None:
    listener = Listener(1.0)
    listener.receive(pcm(240, 0), 1.05)
    listener.receive(pcm(240, 1_000), 1.051)
    assert listener.first_audible_s == pytest.approx(0.06)
    assert first_audible(pcm(10, 0) + pcm(1, -32_768)) == 10


def test_gap_is_an_underrun_only_after_something_was_audible() -> None:
    listener = Listener(0.0)
    listener.receive(pcm(240, 0), 0.0)
    listener.receive(pcm(240, 1_000), 0.5)  # plays until 0.51
    assert listener.underruns_s == []
    listener.receive(pcm(240, 0), 0.56)
    assert listener.underruns_s == [pytest.approx(0.05)]


def test_small_delays_add_up_to_an_underrun() -> None:
    """Frames of 20 ms every 24 ms: no output of a machine holds enough for that."""
    listener = Listener(0.0)
    for frame in range(50):
        listener.receive(pcm(SAMPLE_RATE_HZ // 50, 1_000), 0.024 * frame)
    assert sum(listener.underruns_s) == pytest.approx(49 * 0.004, abs=UNDERRUN_S)
