"""Properties of the vocoder's distances: what a network learns that cannot know the noise of its target."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.train.spectral import AudibleDistance, SpectralDistance

RATE_HZ = 24_000
SAMPLES = 6_000


def noise(seed: int, count: int, level: float) -> torch.Tensor:
    return level * torch.randn(count, SAMPLES, generator=torch.Generator().manual_seed(seed))


def total(draws: torch.Tensor, reference: torch.Tensor) -> float:
    return float(sum(SpectralDistance(RATE_HZ).energy(draws, reference).values()))


@given(seed=st.integers(0, 1000), gain=st.sampled_from([0.0, 0.5, 2.0]))
@settings(max_examples=6, deadline=None)
def test_noise_of_the_same_level_is_closest(seed: int, gain: float) -> None:
    reference = noise(seed, 8, 0.1)
    equal = noise(seed + 10_000, 16, 0.1)
    assert total(equal, reference) < total(gain * equal, reference)


@given(seed=st.integers(0, 1000))
@settings(max_examples=4, deadline=None)
def test_noise_is_closer_than_one_signal_for_all(seed: int) -> None:
    """With the mere distance from the reference a network would say the same at every draw."""
    reference = noise(seed, 8, 0.1)
    first = noise(seed + 10_000, 8, 0.1)
    assert total(torch.cat([first, noise(seed + 20_000, 8, 0.1)]), reference) < total(
        torch.cat([first, first]), reference
    )


def test_what_is_certain_has_no_distance() -> None:
    tone = 0.1 * torch.sin(torch.arange(SAMPLES) * 0.05).repeat(2, 1)
    distances = SpectralDistance(RATE_HZ).energy(tone.repeat(2, 1), tone)
    assert set(distances) == {"magnitude", "log", "mel", "complex"}
    assert all(float(value) < 1e-3 for value in distances.values())


@given(seed=st.integers(0, 1000), gain=st.sampled_from([0.3, 0.7, 1.5]))
@settings(max_examples=6, deadline=None)
def test_audible_distance_grows_with_the_difference(seed: int, gain: float) -> None:
    distance = AudibleDistance(RATE_HZ)
    reference = noise(seed, 2, 0.1)
    assert all(float(value) == 0 for value in distance(reference, reference).values())
    near, far = distance(gain * reference, reference), distance(gain**2 * reference, reference)
    assert all(0 < float(near[name]) < float(far[name]) for name in ("stft", "mel"))


def test_audible_distance_hardly_counts_what_is_inaudible() -> None:
    distance = AudibleDistance(RATE_HZ)
    speech = noise(1, 2, 0.1)
    silence, quiet = torch.zeros(2, SAMPLES), noise(2, 2, 3e-6)
    assert float(distance(quiet, silence)["mel"]) < 0.1 * float(distance(0.7 * speech, speech)["mel"])


def test_power_and_contrast_notice_a_flattened_spectrum() -> None:
    distance = AudibleDistance(RATE_HZ)
    level = 0.01 + 0.3 * torch.sin(torch.arange(SAMPLES) / 300).clamp(min=0)
    reference, another = level * noise(1, 2, 1.0), level * noise(2, 2, 1.0)
    of_draw, of_flat = distance(another, reference), distance(level.log().mean().exp() * noise(3, 2, 1.0), reference)
    for name in ("power", "contrast"):
        assert float(of_flat[name]) > 2 * float(of_draw[name])
