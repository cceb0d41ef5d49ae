from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio.pcm import Floats, fade_in, fade_out
from tts_worker.audio.trim import SpeechTrimmer, TrimOptions, speech_range

RATE = 8_000
OPTIONS = TrimOptions(sample_rate_hz=RATE, pre_roll_ms=10, post_roll_ms=20)
PRE, POST, FADE = 80, 160, 40


def recording(*parts: tuple[int, float]) -> Floats:
    """Noise of given lengths (samples) and levels."""
    rng = np.random.default_rng(7)
    return np.concatenate([rng.uniform(-level, level, samples) for samples, level in parts]).astype(np.float32)


def trim_in_pieces(samples: Floats, cuts: list[int], keep_until_sample: int = 0) -> tuple[Floats, int | None]:
    trimmer = SpeechTrimmer(OPTIONS)
    edges = [0, *sorted(cut % (len(samples) + 1) for cut in cuts), len(samples)]
    out = [trimmer.push(samples[a:b]) for a, b in pairwise(edges)]
    out.append(trimmer.finish(keep_until_sample))
    assert trimmer.pending_samples == 0
    return np.concatenate(out), trimmer.start_sample


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 900), st.sampled_from([0.0, 1e-4, 0.3])), min_size=1, max_size=6),
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_streamed_is_the_range_of_the_whole_with_faded_ends(parts: list[tuple[int, float]], cuts: list[int]) -> None:
    samples = recording(*parts)
    found = speech_range(samples, OPTIONS)
    out, start = trim_in_pieces(samples, cuts)
    if found is None:
        assert start is None
        assert not len(out)
    else:
        assert start == found[0]
        expected = samples[slice(*found)]
        assert len(out) == len(expected)
        if len(out) >= FADE:
            assert np.array_equal(out, fade_out(fade_in(expected, FADE), FADE))
        else:  # shorter than a fade: quieter throughout
            assert np.all(np.abs(out) <= np.abs(expected))


def test_rolls_are_kept_around_the_speech() -> None:
    samples = recording((2000, 1e-4), (1000, 0.3), (400, 1e-4), (1000, 0.3), (3000, 1e-4))
    assert speech_range(samples, OPTIONS) == (2000 - PRE, 4400 + POST)


def test_rolls_end_with_the_recording() -> None:
    assert speech_range(recording((10, 1e-4), (1000, 0.3), (15, 1e-4)), OPTIONS) == (0, 1025)


@pytest.mark.parametrize("samples", [recording((0, 0.0)), recording((4000, 1e-4)), recording((33, 0.0))])
def test_silence_has_no_speech(samples: Floats) -> None:
    assert speech_range(samples, OPTIONS) is None
    assert not len(trim_in_pieces(samples, [5])[0])


def test_a_quiet_tail_can_be_kept_on_demand() -> None:
    samples = recording((1000, 0.3), (3000, 1e-4))
    out, _ = trim_in_pieces(samples, [200, 1500], keep_until_sample=2000)
    assert len(out) == 2000
    out, _ = trim_in_pieces(samples, [200, 1500], keep_until_sample=9000)
    assert len(out) == 4000


def test_speech_leaves_at_once_and_silence_is_held_back_in_bounds() -> None:
    trimmer = SpeechTrimmer(OPTIONS)
    trimmer.push(recording((100_000, 1e-4)))
    assert trimmer.pending_samples < PRE + 40 + 1
    assert trimmer.silent_samples == 100_000
    out = trimmer.push(recording((1000, 0.3)))
    assert len(out) == PRE + 1000 - FADE
    assert not trimmer.silent_samples
    trimmer.push(recording((500, 1e-4)))
    assert trimmer.silent_samples >= 480


def test_a_fade_longer_than_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="fade_ms"):
        TrimOptions(fade_ms=9)
