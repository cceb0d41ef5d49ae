from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio.pcm import fade_curve, fade_in, fade_out, samples_of_ms, silence, to_float, to_pcm


@settings(deadline=None)
@given(st.lists(st.integers(-32768, 32767)))
def test_float_round_trip_is_exact(values: list[int]) -> None:
    pcm = np.array(values, "<i2").tobytes()
    assert to_pcm(to_float(pcm)) == pcm


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_out_of_range_floats_are_clipped(values: list[float]) -> None:
    samples = np.array(values, np.float32)
    out = to_float(to_pcm(samples))
    assert np.all(np.abs(out - np.clip(samples, -1, 1)) <= 1 / 32768)


def test_overload_stays_at_full_scale() -> None:
    pcm = to_pcm(np.array([1.0, 1.5, np.inf, -1.0, -1.5, -np.inf], np.float32))
    assert np.frombuffer(pcm, "<i2").tolist() == [32767, 32767, 32767, -32768, -32768, -32768]


def test_nan_becomes_silence() -> None:
    assert to_pcm(np.array([np.nan], np.float32)) == b"\0\0"


def test_half_a_sample_is_rejected() -> None:
    with pytest.raises(ValueError, match="buffer size"):
        to_float(b"\0\0\0")


def test_input_is_not_modified() -> None:
    samples = np.ones(8, np.float32)
    for function in (lambda x: fade_in(x, 4), lambda x: fade_out(x, 4), to_pcm):
        function(samples)
    assert samples.tolist() == [1.0] * 8


@pytest.mark.parametrize("length", [0, 1, 7, 100])
@pytest.mark.parametrize("fade", [0, 1, 16, 200])
def test_fades_mirror_and_change_only_their_range(length: int, fade: int) -> None:
    samples = np.linspace(0.5, 1.0, length, dtype=np.float32)
    faded = fade_in(samples, fade)
    assert np.array_equal(fade_out(samples[::-1], fade), faded[::-1])
    assert np.array_equal(faded[fade:], samples[fade:])
    assert np.all(np.abs(faded[:fade]) < np.abs(samples[:fade]))


def test_fade_curve_rises_without_a_step() -> None:
    curve = fade_curve(120)
    assert np.all(np.diff(curve) > 0)
    assert curve[0] < 0.001
    assert curve[-1] > 0.999


def test_durations_convert_to_samples() -> None:
    assert samples_of_ms(20, 24_000) == 480
    assert samples_of_ms(20, 44_100) == 882
    assert silence(3) == b"\0" * 6
