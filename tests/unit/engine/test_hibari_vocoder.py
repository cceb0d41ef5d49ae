from __future__ import annotations

import numpy as np
import pytest
from hibari import dsp
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.engine.hibari_model import FRAME_SAMPLES, Spectra
from tts_worker.engine.hibari_vocoder import Vocoder


class NoNoise(np.random.Generator):
    """The order of noise differs between a block and the whole on purpose; without noise they must agree."""

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


def whole(said: Spectra) -> np.ndarray:
    return dsp.synth(said.harmonic, said.harmonic_phase, said.noise, said.free, said.free_phase, said.f0_hz, NoNoise())


@settings(deadline=None, max_examples=25)
@given(st.integers(8, 60), st.lists(st.integers(1, 25), min_size=60, max_size=60), st.integers(0, 5))
def test_blocks_join_to_what_the_library_makes_of_the_whole(frames: int, blocks: list[int], seed: int) -> None:
    said = spectra(frames, seed)
    vocoder = Vocoder(said, NoNoise())
    pieces = []
    for block in blocks:
        pieces.append(vocoder.render(block))
        assert vocoder.position_samples == sum(map(len, pieces))
    assert vocoder.finished
    ours = np.concatenate(pieces)
    theirs = whole(said)
    assert len(ours) == (frames - 2) * FRAME_SAMPLES
    inside = slice(2 * FRAME_SAMPLES, len(ours))  # the ends taper differently, in silence
    np.testing.assert_allclose(ours[inside], theirs[inside], atol=2e-6)


@pytest.mark.parametrize("first_frame", [1, 7, 20])
def test_a_later_start_gives_the_same_sound_from_there(first_frame: int) -> None:
    said = spectra(50)
    vocoder = Vocoder(said, NoNoise(), first_frame)
    start = vocoder.position_samples
    assert start == (first_frame + 1) * FRAME_SAMPLES
    ours = np.concatenate([vocoder.render(9) for _ in range(6)])
    np.testing.assert_allclose(ours, whole(said)[start : start + len(ours)], atol=2e-6)


def test_noise_is_the_generators_and_repeats() -> None:
    said = spectra(30)

    def sound(seed: int) -> np.ndarray:
        vocoder = Vocoder(said, np.random.default_rng(seed))
        return np.concatenate([vocoder.render(10) for _ in range(3)])

    assert np.array_equal(sound(1), sound(1))
    assert not np.allclose(sound(1), sound(2), atol=1e-5)


def test_nothing_comes_after_the_end() -> None:
    vocoder = Vocoder(spectra(10), NoNoise())
    vocoder.render(100)
    assert vocoder.finished
    assert not len(vocoder.render(5))


def test_parking_leaves_no_trace() -> None:
    def sound(park: bool) -> np.ndarray:
        vocoder = Vocoder(spectra(30), np.random.default_rng(3))
        pieces = []
        for _ in range(3):
            pieces.append(vocoder.render(10))
            if park:
                vocoder.park()
                assert vocoder.parked
                vocoder.unpark(spectra(30))
        return np.concatenate(pieces)

    assert np.array_equal(sound(park=True), sound(park=False))
