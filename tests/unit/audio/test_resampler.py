from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio.pcm import to_float, to_pcm
from tts_worker.audio.resampler import Resampler
from tts_worker.errors import InvalidRequest

RATES = [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000]


def resample(pcm: bytes, source_hz: int, target_hz: int, cuts: list[int]) -> bytes:
    resampler = Resampler(source_hz, target_hz)
    edges = [0, *sorted(2 * (cut % (len(pcm) // 2 + 1)) for cut in cuts), len(pcm)]
    outputs = [resampler.process(pcm[a:b]) for a, b in pairwise(edges)]
    return b"".join([*outputs, resampler.flush()])


def sine(hz: float, rate_hz: int, duration_s: float = 0.5) -> bytes:
    return to_pcm(0.5 * np.sin(2 * np.pi * hz * np.arange(int(rate_hz * duration_s)) / rate_hz).astype(np.float32))


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(RATES),
    st.sampled_from(RATES),
    st.integers(0, 5000),
    st.lists(st.integers(0, 5000), max_size=20),
    st.integers(0, 9),
)
def test_output_is_independent_of_input_cuts(source: int, target: int, length: int, cuts: list[int], seed: int) -> None:
    noise = np.random.default_rng(seed).integers(-32768, 32767, length, "<i2", endpoint=True).tobytes()
    whole = np.frombuffer(resample(noise, source, target, []), "<i2").astype(int)
    in_parts = np.frombuffer(resample(noise, source, target, cuts), "<i2").astype(int)
    assert len(in_parts) == len(whole)
    assert np.all(np.abs(in_parts - whole) <= 1)
    assert len(whole) == -(-length * target // source)


@pytest.mark.parametrize("target_hz", [rate for rate in RATES if rate != 24_000])
def test_pitch_and_level_are_preserved(target_hz: int) -> None:
    out = to_float(resample(sine(1000, 24_000), 24_000, target_hz, []))
    expected = to_float(sine(1000, target_hz))
    middle = slice(len(out) // 4, len(out) * 3 // 4)
    assert np.max(np.abs(out[middle] - expected[: len(out)][middle])) < 0.001


@pytest.mark.parametrize("target_hz", [rate for rate in RATES if rate != 24_000])
def test_constant_input_gives_constant_output(target_hz: int) -> None:
    """Phases of unequal weight would be audible as a tone."""
    out = np.frombuffer(resample(np.full(4800, 20_000, "<i2").tobytes(), 24_000, target_hz, []), "<i2")
    assert set(out[len(out) // 4 : len(out) * 3 // 4]) == {20_000}


def test_frequencies_above_target_nyquist_are_removed() -> None:
    out = to_float(resample(sine(7000, 24_000), 24_000, 8_000, []))
    middle = out[len(out) // 4 : len(out) * 3 // 4]
    assert np.sqrt(np.mean(middle**2)) < 1e-4


def test_equal_rates_pass_through() -> None:
    resampler = Resampler(24_000, 24_000)
    assert resampler.process(b"abcd") == b"abcd"
    assert resampler.flush() == b""


def test_flush_starts_a_new_stream() -> None:
    resampler = Resampler(24_000, 8_000)
    tone = sine(300, 24_000)
    first = resampler.process(tone) + resampler.flush()
    assert resampler.process(tone) + resampler.flush() == first


@pytest.mark.parametrize(("target_hz", "delay_ms"), [(8_000, 6), (16_000, 3), (44_100, 2), (48_000, 2)])
def test_delay_is_the_filters_look_ahead_only(target_hz: int, delay_ms: int) -> None:
    """Block-based resamplers delay 20 ms frames by 40 to 80 ms."""
    resampler = Resampler(24_000, target_hz)
    assert resampler.delay_samples == delay_ms * 24
    output_samples = 0
    for frame in range(1, 20):
        output_samples += len(resampler.process(sine(300, 24_000, 0.02))) // 2
        assert output_samples >= (frame * 20 - delay_ms) * target_hz // 1000 - 1


@pytest.mark.parametrize(
    ("source_hz", "target_hz"),
    [(24_000, 8_000), (24_000, 44_100), (24_000, 48_000), (48_000, 24_000), (44_100, 16_000)],
)
def test_output_agrees_with_soxr(source_hz: int, target_hz: int) -> None:
    """Reference: soxr's best quality on the whole signal, within the pass band of both."""
    rng = np.random.default_rng(3)
    time_s = np.arange(source_hz // 2) / source_hz
    top_hz = min(source_hz, target_hz) / 2 * 0.85
    parts = [
        np.sin(2 * np.pi * (f * time_s + p)) for f, p in zip(rng.uniform(50, top_hz, 12), rng.random(12), strict=True)
    ]
    pcm = to_pcm((np.sum(parts, axis=0) / 14).astype(np.float32))
    actual = to_float(resample(pcm, source_hz, target_hz, [1000, 2000]))
    reference = soxr.resample(to_float(pcm), source_hz, target_hz, quality="VHQ")
    assert abs(len(actual) - len(reference)) <= 1
    middle = slice(1000, min(len(actual), len(reference)) - 1000)
    assert np.max(np.abs(actual[middle] - reference[middle])) < 3e-4


@pytest.mark.parametrize("rates", [(24_000, 7_975), (24_000, 48_025), (24_000, 16_001), (0, 24_000), (-1, 8_000)])
def test_unsupported_rates_are_rejected(rates: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest, match="sample rate"):
        Resampler(*rates)
