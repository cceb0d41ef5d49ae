from __future__ import annotations

import numpy as np
import pytest
from hibari import dsp
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.engine.hibari.model import Spectra
from tts_worker.engine.hibari.vocoder import Vocoder
from tts_worker.engine.phrases.timing import FRAME_SAMPLES


class NoNoise(np.random.Generator):
    """The noise order differs between blocks and the whole by design; without noise the outputs must agree."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def standard_normal(self, size, dtype=np.float64, out=None):  # type: ignore[no-untyped-def, override]
        return np.zeros(size, dtype)


def spectra(frames: int, seed: int = 0) -> Spectra:
    rng = np.random.default_rng(seed)
    shape = (601, frames)

    def part(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, shape).astype(np.float32)

    pitch_hz = np.where(rng.random(frames) < 0.7, rng.uniform(80, 300, frames), 0).astype(np.float32)
    return Spectra(part(-7, -3), part(-1, 1), part(-9, -6), part(-9, -6), part(-3, 3), pitch_hz, np.array([frames]))


def synthesize_whole(predicted: Spectra) -> np.ndarray:
    return dsp.synth(
        predicted.harmonic,
        predicted.harmonic_phase,
        predicted.noise,
        predicted.free,
        predicted.free_phase,
        predicted.f0_hz,
        NoNoise(),
    )


@settings(deadline=None, max_examples=25)
@given(st.integers(8, 60), st.lists(st.integers(1, 25), min_size=60, max_size=60), st.integers(0, 5))
def test_blocks_join_to_the_library_output(frames: int, blocks: list[int], seed: int) -> None:
    predicted = spectra(frames, seed)
    vocoder = Vocoder(predicted, NoNoise())
    outputs = []
    for block in blocks:
        outputs.append(vocoder.render(block))
        assert vocoder.position_samples == sum(map(len, outputs))
    assert vocoder.finished
    actual = np.concatenate(outputs)
    reference = synthesize_whole(predicted)
    assert len(actual) == (frames - 2) * FRAME_SAMPLES
    inside = slice(2 * FRAME_SAMPLES, len(actual))  # the ends taper differently, but are silent
    np.testing.assert_allclose(actual[inside], reference[inside], atol=2e-6)


@pytest.mark.parametrize("first_frame", [1, 7, 20])
def test_later_first_frame_gives_the_same_samples(first_frame: int) -> None:
    predicted = spectra(50)
    vocoder = Vocoder(predicted, NoNoise(), first_frame)
    start = vocoder.position_samples
    assert start == (first_frame + 1) * FRAME_SAMPLES
    actual = np.concatenate([vocoder.render(9) for _ in range(6)])
    np.testing.assert_allclose(actual, synthesize_whole(predicted)[start : start + len(actual)], atol=2e-6)


def test_noise_depends_on_the_generator_only() -> None:
    predicted = spectra(30)

    def render(seed: int) -> np.ndarray:
        vocoder = Vocoder(predicted, np.random.default_rng(seed))
        return np.concatenate([vocoder.render(10) for _ in range(3)])

    assert np.array_equal(render(1), render(1))
    assert not np.allclose(render(1), render(2), atol=1e-5)


def test_render_after_the_end_is_empty() -> None:
    vocoder = Vocoder(spectra(10), NoNoise())
    vocoder.render(100)
    assert vocoder.finished
    assert not len(vocoder.render(5))


def test_suspending_does_not_change_samples() -> None:
    def render(suspend: bool) -> np.ndarray:
        vocoder = Vocoder(spectra(30), np.random.default_rng(3))
        outputs = []
        for _ in range(3):
            outputs.append(vocoder.render(10))
            if suspend:
                vocoder.suspend()
                assert vocoder.suspended
                vocoder.resume(spectra(30))
        return np.concatenate(outputs)

    assert np.array_equal(render(suspend=True), render(suspend=False))
