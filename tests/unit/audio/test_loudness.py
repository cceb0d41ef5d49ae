"""The loudness meter agrees with pyloudnorm; the limiter is what it is defined as, and lets the lock go rarely."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio import limiter as limiter_module
from tts_worker.audio.limiter import CEILING_DBTP, Limiter
from tts_worker.audio.loudness import integrated_lufs, lufs_for_gain
from tts_worker.audio.pcm import to_float, to_pcm
from tts_worker.types import SAMPLE_RATES_HZ

RATES = st.sampled_from(SAMPLE_RATES_HZ)


def speechlike(seconds: float, rate_hz: int, seed: int = 0, level: float = 0.1) -> np.ndarray:
    """Voiced bursts with pauses: harmonics of 120 Hz under a syllable envelope, and a little noise."""
    generator = np.random.default_rng(seed)
    time_s = np.arange(int(seconds * rate_hz)) / rate_hz
    voiced = sum(np.sin(2 * np.pi * 120 * n * time_s + n * n) / n for n in range(1, 25) if 120 * n < rate_hz / 2)
    envelope = np.clip(np.sin(2 * np.pi * 3 * time_s), 0, 1) ** 0.5 * (np.sin(2 * np.pi * 0.35 * time_s + 1) > -0.5)
    return (level * (voiced * envelope + 0.05 * generator.standard_normal(len(time_s)))).astype(np.float32)


def limited(pcm: bytes, gain: float, rate_hz: int, cuts: list[int] = []) -> bytes:  # noqa: B006
    limiter = Limiter(gain, rate_hz)
    edges = [0, *sorted(2 * (cut % (len(pcm) // 2 + 1)) for cut in cuts), len(pcm)]
    return b"".join([*(limiter.process(pcm[a:b]) for a, b in pairwise(edges)), limiter.flush()])


def true_peak_dbtp(samples: np.ndarray) -> float:
    import scipy.signal  # takes a second: not for every process that collects the tests

    return 20 * math.log10(np.abs(scipy.signal.resample_poly(samples.astype(float), 8, 1)).max())


@pytest.mark.parametrize("rate_hz", SAMPLE_RATES_HZ)
def test_integrated_loudness_agrees_with_pyloudnorm(rate_hz: int) -> None:
    import pyloudnorm

    meter = pyloudnorm.Meter(rate_hz, filter_class="DeMan")
    for level in (0.01, 0.1, 0.4):
        samples = speechlike(4, rate_hz, level=level)
        assert integrated_lufs(samples, rate_hz) == pytest.approx(meter.integrated_loudness(samples), abs=0.05)


def test_gain_makes_up_for_what_the_limiter_takes() -> None:
    samples = speechlike(3, 24_000, level=0.05)
    samples[::2_400] += 0.15  # 10 high peaks a second
    pcm = to_pcm(samples)
    plain = integrated_lufs(to_float(pcm), 24_000)
    reached = [
        integrated_lufs(to_float(limited(pcm, 10 ** ((-16 - lufs) / 20), 24_000)), 24_000)
        for lufs in (plain, lufs_for_gain(pcm, 24_000, -16))
    ]
    assert reached[0] < -17
    assert reached[1] == pytest.approx(-16, abs=0.2)
    assert lufs_for_gain(to_pcm(0.02 * samples), 24_000, -60) == pytest.approx(plain - 34, abs=0.1), (
        "no peak is limited"
    )
    assert lufs_for_gain(bytes(48_000), 24_000, -16) == -math.inf


def test_a_full_scale_sine_has_the_standards_loudness() -> None:
    sine = np.sin(2 * np.pi * 997 * np.arange(48_000) / 48_000).astype(np.float32)
    assert integrated_lufs(sine, 48_000) == pytest.approx(-3.01, abs=0.02)


@pytest.mark.parametrize("samples", [0, 1, 2_399, 24_000])
def test_silence_and_short_audio_have_no_loudness(samples: int) -> None:
    assert integrated_lufs(np.zeros(samples, np.float32), 24_000) == -math.inf


@settings(deadline=None, max_examples=40)
@given(RATES, st.integers(0, 4_000), st.floats(0.1, 8), st.lists(st.integers(0, 4_000), max_size=8), st.integers(0, 99))
def test_limiting_does_not_depend_on_the_chunks(
    rate_hz: int, samples: int, gain: float, cuts: list[int], seed: int
) -> None:
    pcm = np.random.default_rng(seed).normal(0, 9_000, samples).clip(-32_768, 32_767).astype("<i2").tobytes()
    whole = limited(pcm, gain, rate_hz)
    assert len(whole) == len(pcm)
    assert limited(pcm, gain, rate_hz, cuts) == whole


@settings(deadline=None, max_examples=40)
@given(RATES, st.integers(1, 10), st.integers(0, 99), st.sampled_from(["speech", "noise", "clicks"]))
def test_no_true_peak_exceeds_the_ceiling(rate_hz: int, gain: int, seed: int, kind: str) -> None:
    generator = np.random.default_rng(seed)
    samples = speechlike(0.3, rate_hz, seed) if kind == "speech" else generator.normal(0, 0.1, rate_hz // 3)
    if kind == "clicks":
        samples[generator.integers(0, len(samples), 5)] = 0.99
    out = to_float(limited(to_pcm(samples), gain, rate_hz))
    assert true_peak_dbtp(out) <= CEILING_DBTP


@settings(deadline=None, max_examples=20)
@given(RATES, st.floats(0.01, 1.0), st.lists(st.integers(0, 4_000), max_size=4))
def test_audio_below_the_ceiling_is_only_multiplied(rate_hz: int, gain: float, cuts: list[int]) -> None:
    values = np.random.default_rng(1).integers(-9_000, 9_000, 3_000)
    out = np.frombuffer(limited(values.astype("<i2").tobytes(), gain, rate_hz, cuts), "<i2")
    assert np.array_equal(out, np.rint(values * gain))


@settings(deadline=None, max_examples=20)
@given(RATES, st.lists(st.integers(0, 900), max_size=12))
def test_the_limiter_holds_back_at_most_its_delay(rate_hz: int, sizes: list[int]) -> None:
    limiter = Limiter(2.0, rate_hz)
    received = sent = 0
    for size in sizes:
        received += size
        sent += len(limiter.process(bytes(2 * size))) // 2
        assert received - sent <= limiter.delay_samples
    assert limiter.delay_samples / rate_hz < 0.004


def test_the_gain_falls_and_recovers_without_a_step() -> None:
    rate_hz = 24_000
    time_s = np.arange(rate_hz) / rate_hz
    loud = np.where((time_s > 0.4) & (time_s < 0.5), 0.9, 0.2) * np.sin(2 * np.pi * 200 * time_s)
    pcm = to_pcm(loud.astype(np.float32))
    gains = np.frombuffer(limited(pcm, 2.0, rate_hz), "<i2") / np.maximum(np.abs(np.frombuffer(pcm, "<i2")), 1)
    heard = np.abs(gains[np.abs(np.frombuffer(pcm, "<i2")) > 3_000])
    assert heard.min() < 1.1
    assert heard[:50] == pytest.approx(2.0, abs=0.01)
    assert heard[-50:] == pytest.approx(2.0, abs=0.05)


def limited_by_definition(pcm: bytes, gain: float, rate_hz: int) -> np.ndarray:
    """Oversample all samples and follow the gain block by block, as the docstrings of the limiter say."""
    block = rate_hz // 2_000
    amplified = np.frombuffer(pcm, "<i2") * gain
    blocks = len(amplified) // block + 1
    padded = np.concatenate((np.zeros(8), amplified, np.zeros(blocks * block + 16 - len(amplified))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, block + 16)[::block][:blocks]
    peaks = np.abs(windows @ limiter_module.oversampling(block)).max(axis=1)
    ceiling = 32_768 * 10 ** ((CEILING_DBTP - 0.5) / 20)
    needed = np.concatenate((np.minimum(1, ceiling / np.maximum(peaks, 1)), np.ones(4)))
    current, targets = 1.0, [1.0] * 4
    for at in range(-4, blocks):
        bound = needed[max(0, at) : at + 5].min()
        current = min(bound, 1 - (1 - current) * math.exp(-1 / 160))
        if current > 0.9999:
            current = bound
        targets.append(current)
    ends = np.convolve(targets, np.full(4, 0.25), "valid")[4:]
    gains = np.interp(np.arange(blocks * block) / block, np.arange(blocks + 1), ends)
    return np.asarray(np.rint(amplified * gains[: len(amplified)]), np.int64)


@settings(deadline=None, max_examples=60)
@given(
    RATES,
    st.floats(0.5, 10),
    st.integers(0, 99),
    st.sampled_from(["speech", "noise", "clicks", "alternating", "clipped"]),
    st.lists(st.integers(0, 9_000), max_size=3),
)
def test_limited_audio_is_the_one_of_the_definition(
    rate_hz: int, gain: float, seed: int, kind: str, cuts: list[int]
) -> None:
    generator = np.random.default_rng(seed)
    samples = speechlike(0.4, rate_hz, seed, 0.2)
    if kind in ("noise", "clipped"):
        samples = generator.normal(0, 0.1 if kind == "noise" else 2.0, len(samples)).astype(np.float32)
    if kind == "clicks":
        samples[generator.integers(0, len(samples), 5)] = 0.99
    if kind == "alternating":  # the highest peaks between samples
        samples = np.float32(0.4) * np.sign(generator.standard_normal(len(samples))).astype(np.float32)
    pcm = to_pcm(samples)
    difference = np.frombuffer(limited(pcm, gain, rate_hz, cuts), "<i2") - limited_by_definition(pcm, gain, rate_hz)
    assert np.abs(difference).max() <= 1  # from halves that are rounded
    assert np.count_nonzero(difference) <= 2


class _Counted(np.ndarray):
    """An array whose operations are counted if numpy releases the interpreter lock: those on more than 500 numbers.

    Those on windows of the few blocks that are oversampled are not.
    """

    operations = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        plain = [np.asarray(value) if isinstance(value, _Counted) else value for value in inputs]
        if out:
            options["out"] = tuple(np.asarray(value) for value in out)
        result = getattr(ufunc, method)(*plain, **options)
        _Counted.operations += max(np.size(value) for value in (*plain, result)) > 500
        return result.view(_Counted) if isinstance(result, np.ndarray) else result


def _counting_numpy() -> SimpleNamespace:
    def counted(name: str) -> Any:
        return lambda *args, **options: getattr(np, name)(*args, **options).view(_Counted)

    made = {name: counted(name) for name in ("frombuffer", "zeros", "ones", "empty", "arange")}
    return SimpleNamespace(**{**vars(np), **made})


def operations_per_chunk(samples: Sequence[float], gain: float, monkeypatch: pytest.MonkeyPatch) -> float:
    pcm = to_pcm(np.asarray(samples, np.float32))
    assert np.abs(limited_by_definition(pcm, gain, 24_000)).max() > 0  # fills the caches of tables
    limiter = Limiter(gain, 24_000)
    limiter.process(pcm[:24_000])
    monkeypatch.setattr(limiter_module, "np", _counting_numpy())
    _Counted.operations = 0
    chunks = range(24_000, len(pcm) - 24_000, 24_000)
    for start in chunks:
        limiter.process(pcm[start : start + 24_000])
    return _Counted.operations / len(chunks)


def test_quiet_audio_takes_four_operations_that_release_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = speechlike(5, 24_000, level=0.05)
    assert operations_per_chunk(samples, 0.7 / np.abs(samples).max() / 2.4, monkeypatch) == 4


def test_limited_audio_takes_few_operations_that_release_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = speechlike(5, 24_000, level=0.05)
    assert operations_per_chunk(samples, 1.2 / np.abs(samples).max(), monkeypatch) <= 20


_LIMIT_BESIDE_CALLS = """
import time
import numpy as np
from tts_worker.audio.limiter import Limiter

pcm = np.random.default_rng(0).normal(0, 8000, 12_000).astype("<i2").tobytes()
limiter = Limiter(2.0, 24_000)
ratios = []
for _ in range(20):
    thread_s, process_s = -time.thread_time(), -time.process_time()
    for _ in range(50):
        limiter.process(pcm)
    ratios.append((process_s + time.process_time()) / (thread_s + time.thread_time()))
print(min(ratios))
"""


def test_limiter_takes_no_time_of_other_threads() -> None:
    # The tests run with one thread of BLAS; a worker does not. Such threads look for work for a while after they begin,
    # whatever the limiter does, but for the limiter they work in every run: so the minimum.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", _LIMIT_BESIDE_CALLS]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert float(done.stdout) < 1.25  # threads of BLAS that wait for work double it
