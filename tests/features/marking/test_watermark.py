"""The watermark: what it changes in a stream, and what its pattern says."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_worker.features.marking import watermark
from tts_worker.features.marking.pattern import decode, encode, pattern
from tts_worker.features.marking.settings import MAX_ID
from tts_worker.features.marking.watermark import Watermark, filter_by_fft, filter_by_loops, watermark_gains

GAINS = watermark_gains(1)


def noise(samples: int, scale: float = 3_000) -> bytes:
    values = np.random.default_rng(samples).normal(0, scale, samples)
    return np.clip(values, -32_768, 32_767).astype("<i2").tobytes()


def mark(pcm: bytes, cuts: list[int] | None = None) -> bytes:
    marker = Watermark(GAINS)
    bounds = [0, *sorted(cuts or []), len(pcm) // 2]
    parts = [marker.process(pcm[2 * a : 2 * b]) for a, b in itertools.pairwise(bounds)]
    return b"".join(parts) + marker.flush()


@given(samples=st.integers(0, 6_000), data=st.data())
def test_output_does_not_depend_on_division(samples: int, data: st.DataObject) -> None:
    pcm = noise(samples)
    whole = mark(pcm)
    assert len(whole) == len(pcm)
    assert mark(pcm, data.draw(st.lists(st.integers(0, samples), max_size=8))) == whole


def test_slow_filter_does_the_same_and_is_independent_of_division(monkeypatch: pytest.MonkeyPatch) -> None:
    pcm = noise(60_000)  # more than a period
    marked = mark(pcm)
    monkeypatch.setattr(watermark, "filter_frames", filter_by_fft)
    whole = mark(pcm)
    assert mark(pcm, [*range(1, 60_000, 1_237)]) == whole
    difference = np.frombuffer(marked, "<i2").astype(int) - np.frombuffer(whole, "<i2")
    assert np.abs(difference).max() <= 1


def test_fast_filter_is_used_where_numpy_has_it() -> None:
    is_new = np.lib.NumpyVersion(np.__version__) >= "2.0.0"
    assert watermark.filter_frames is (filter_by_loops if is_new else filter_by_fft)


@given(parts=st.lists(st.integers(1, 1_500), min_size=1, max_size=20))
def test_at_most_20_ms_are_held_back(parts: list[int]) -> None:
    marker = Watermark(GAINS)
    received = emitted = 0
    for part in parts:
        emitted += len(marker.process(noise(part))) // 2
        received += part
        assert 0 <= received - emitted <= 480


def test_silence_stays_silent() -> None:
    assert mark(bytes(48_000)) == bytes(48_000)


def test_loud_audio_does_not_wrap() -> None:
    tone = np.round(32_767 * np.sin(np.arange(24_000) * 2 * np.pi * 1_000 / 24_000)).astype("<i2")
    out = np.frombuffer(mark(tone.tobytes()), "<i2").astype(int)
    assert np.abs(out - tone.astype(int)).max() < 8_000


def test_change_is_small_and_between_300_and_3300_hz() -> None:
    pcm = noise(240_000)
    before, after = (np.frombuffer(data, "<i2").astype(float) for data in (pcm, mark(pcm)))
    power = np.square(np.abs(np.fft.rfft(after - before)))
    hz = np.fft.rfftfreq(len(before), 1 / 24_000)
    inside = (hz > 250) & (hz < 3_350)
    assert power[inside].sum() > 0.95 * power.sum()
    band = np.square(np.abs(np.fft.rfft(before)))[inside].sum()
    assert 17 < 10 * np.log10(band / power[inside].sum()) < 22


@given(st.integers(0, MAX_ID))
def test_ids_survive_a_tenth_of_wrong_bits(deployment_id: int) -> None:
    evidence = encode(deployment_id).copy()
    evidence.reshape(8, 32)[:, :7] *= -1
    assert decode(evidence) == deployment_id


@given(st.integers(0, MAX_ID), st.permutations(range(8)))
def test_ids_survive_three_words_that_look_like_others(deployment_id: int, words: list[int]) -> None:
    evidence, other = encode(deployment_id).reshape(8, 32), encode(deployment_id ^ MAX_ID).reshape(8, 32)
    for word in words[:3]:
        evidence[word] += 1.05 * other[word]
    assert decode(evidence.ravel()) == deployment_id


def test_chance_has_no_id() -> None:
    rng = np.random.default_rng(3)
    assert [decode(rng.normal(size=256).astype(np.float32)) for _ in range(200)].count(None) >= 199


def test_pattern_is_the_same_in_every_release() -> None:
    digest = hashlib.sha256(pattern(0x5EED1234).astype(np.int8).tobytes()).hexdigest()
    assert digest == "941605626c2bfb0f6ae54a0eb6bdbd0fb1ceb75e2f030d87584d326616ea02c0"
