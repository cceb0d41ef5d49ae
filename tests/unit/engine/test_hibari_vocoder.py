from __future__ import annotations

import numpy as np
import pytest
from hibari import dsp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tts_worker.engine.cpu.hibari import vocoder as vocoder_module
from tts_worker.engine.cpu.hibari.model import FREE, FREE_PHASE, HARMONIC, HARMONIC_PHASE, NOISE, Spectra
from tts_worker.engine.cpu.hibari.vocoder import Vocoder
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES

RNG = np.random.default_rng(1)


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise differs from the library's by design; without noise the outputs must agree."""
    windows = np.broadcast_to(np.complex64(0), vocoder_module.noise_windows().shape)
    monkeypatch.setattr(vocoder_module, "noise_windows", lambda: windows)


def spectra(frames: int, seed: int = 0) -> Spectra:
    rng = np.random.default_rng(seed)
    limits = {HARMONIC: (-7, -3), HARMONIC_PHASE: (-1, 1), NOISE: (-9, -6), FREE: (-9, -6), FREE_PHASE: (-3, 3)}
    parts = np.stack([rng.uniform(*limits[part], (frames, 601)) for part in sorted(limits)], axis=1)
    pitch_hz = np.where(rng.random(frames) < 0.7, rng.uniform(80, 300, frames), 0).astype(np.float32)
    return Spectra(parts.astype(np.float32), pitch_hz, np.array([frames]))


class Silence(np.random.Generator):
    """Draws no noise in the library."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def standard_normal(self, size, dtype=np.float64, out=None):  # type: ignore[no-untyped-def, override]
        return np.zeros(size, dtype)


def synthesize_whole(predicted: Spectra) -> np.ndarray:
    return dsp.synth(*predicted.parts.transpose(1, 2, 0), predicted.f0_hz, Silence())


@pytest.mark.usefixtures("no_noise")
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(8, 60), st.lists(st.integers(1, 25), min_size=60, max_size=60), st.integers(0, 5))
def test_blocks_join_to_the_library_output(frames: int, blocks: list[int], seed: int) -> None:
    predicted = spectra(frames, seed)
    vocoder = Vocoder(predicted, RNG)
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


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("first_frame", [1, 7, 20])
def test_later_first_frame_gives_the_same_samples(first_frame: int) -> None:
    predicted = spectra(50)
    vocoder = Vocoder(predicted, RNG, first_frame)
    start = vocoder.position_samples
    assert start == (first_frame + 1) * FRAME_SAMPLES
    actual = np.concatenate([vocoder.render(9) for _ in range(6)])
    np.testing.assert_allclose(actual, synthesize_whole(predicted)[start : start + len(actual)], atol=2e-6)


PITCHES_HZ = st.one_of(st.just(0.0), st.floats(0, 1, width=32), st.floats(20, 1_100, width=32))


@settings(deadline=None)
@given(st.lists(st.tuples(PITCHES_HZ, st.integers(1, 12)), min_size=1, max_size=40))
@example([(40.0, 2), (20.0, 1)])
def test_pulses_are_those_of_the_library(runs: list[tuple[float, int]]) -> None:
    f0_hz = np.repeat([hz for hz, _ in runs], [frames for _, frames in runs]).astype(np.float32)
    actual, expected = vocoder_module.pulse_train(f0_hz), dsp.pulses(f0_hz)
    assert actual.dtype == expected.dtype
    assert np.array_equal(actual, expected)


def test_frames_without_pulses_have_no_harmonics() -> None:
    predicted = spectra(40)
    predicted.f0_hz[:] = 0
    expected = Vocoder(predicted, np.random.default_rng(3)).render(40)
    predicted.parts[:, HARMONIC] = 7
    assert np.array_equal(Vocoder(predicted, np.random.default_rng(3)).render(40), expected)


def noise_only(frames: int) -> Spectra:
    """Spectra of white noise with the magnitude 1."""
    parts = np.full((frames, 5, 601), -40, np.float32)
    parts[:, NOISE] = 0
    return Spectra(parts, np.zeros(frames, np.float32), np.array([frames]))


def test_noise_depends_on_the_generator_only() -> None:
    predicted = spectra(30)

    def render(seed: int, block: int) -> np.ndarray:
        vocoder = Vocoder(predicted, np.random.default_rng(seed))
        return np.concatenate([vocoder.render(block) for _ in range(30 // block)])

    assert np.array_equal(render(1, 10), render(1, 10))
    np.testing.assert_allclose(render(1, 10), render(1, 3), atol=1e-6)
    assert not np.allclose(render(1, 10), render(2, 10), atol=1e-5)


def test_noise_is_that_of_the_library() -> None:
    """White, normal and of the same level, and what overlaps is as independent."""
    frames = 4_004
    predicted = noise_only(frames)
    ours = Vocoder(predicted, np.random.default_rng(3)).render(frames)
    theirs = dsp.synth(*predicted.parts.transpose(1, 2, 0), predicted.f0_hz, np.random.default_rng(4))
    inside = slice(4 * FRAME_SAMPLES, 4_000 * FRAME_SAMPLES)

    def bands(samples: np.ndarray) -> np.ndarray:
        """Power of 26 bands, each the mean of 22,977 values."""
        power = np.abs(np.fft.rfft(samples[inside].reshape(-1, 1_200), axis=1)) ** 2
        return power[:, 1:599].reshape(-1, 26, 23).mean(axis=(0, 2))

    np.testing.assert_allclose(bands(ours) / bands(theirs), 1, atol=5 * np.sqrt(2 / 22_977))
    ours, theirs = ours[inside], theirs[inside]
    assert np.mean(ours**4) / np.mean(ours**2) ** 2 == pytest.approx(3, abs=0.05)  # of a normal distribution
    for lag in (1, 75, FRAME_SAMPLES, 600, 900, 1_200, 2_400):
        correlations = [np.mean(samples[lag:] * samples[:-lag]) / np.mean(samples**2) for samples in (ours, theirs)]
        assert correlations[0] == pytest.approx(correlations[1], abs=5 * np.sqrt(2 / len(ours)))


def test_render_after_the_end_is_empty() -> None:
    vocoder = Vocoder(spectra(10), RNG)
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
