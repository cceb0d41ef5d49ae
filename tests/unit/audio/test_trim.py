from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio.pcm import Floats
from tts_worker.audio.trim import TrimOptions, speech_range

RATE = 8_000
OPTIONS = TrimOptions(sample_rate_hz=RATE, pre_roll_ms=10, post_roll_ms=20)
PRE = 80
POST = 160
WINDOW = 40


def noise(*parts: tuple[int, float]) -> Floats:
    """Concatenate noise of the given lengths in samples and peak levels."""
    rng = np.random.default_rng(7)
    return np.concatenate([rng.uniform(-level, level, samples) for samples, level in parts]).astype(np.float32)


@settings(deadline=None)
@given(st.integers(0, 3000), st.integers(200, 2000), st.integers(0, 3000))
def test_range_covers_speech_plus_rolls(before: int, speech: int, after: int) -> None:
    found = speech_range(noise((before, 1e-4), (speech, 0.3), (after, 1e-4)), OPTIONS)
    assert found is not None
    start, end = found
    assert max(0, before - PRE - WINDOW) <= start <= before
    assert before + speech <= end <= before + speech + POST + WINDOW


def test_range_includes_pauses_inside_speech() -> None:
    samples = noise((2000, 1e-4), (1000, 0.3), (400, 1e-4), (1000, 0.3), (3000, 1e-4))
    assert speech_range(samples, OPTIONS) == (2000 - PRE, 4400 + POST)


def test_rolls_are_clipped_to_the_recording() -> None:
    assert speech_range(noise((10, 1e-4), (1000, 0.3), (15, 1e-4)), OPTIONS) == (0, 1025)


@pytest.mark.parametrize("samples", [noise((0, 0.0)), noise((4000, 1e-4)), noise((33, 0.0))])
def test_silence_has_no_speech(samples: Floats) -> None:
    assert speech_range(samples, OPTIONS) is None
