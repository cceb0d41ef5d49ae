"""Windows of source audio: they cover it once, follow from it alone, and are cut where it is quiet."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from itertools import pairwise

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio.window import Window
from tts_worker.errors import InvalidRequest
from tts_worker.features.conversion.windows import (
    LIVE,
    MAX_SOURCE_S,
    MAX_WINDOW_S,
    WHOLE,
    SourceWindows,
    WindowSizes,
    live_windows,
    recording_windows,
)

RATE_HZ = 8_000
UNIT = RATE_HZ // 25


def audio(seconds: float) -> np.ndarray:
    return np.random.default_rng(1).normal(size=int(seconds * RATE_HZ)).astype(np.float32)


def windows_of(samples: np.ndarray, sizes: WindowSizes, *cuts: int) -> list[Window]:
    windows = SourceWindows(RATE_HZ, sizes)
    found = []
    for start, end in pairwise([0, *cuts, len(samples)]):
        found += windows.feed(samples[start:end])
    return [*found, *windows.end()]


def new_audio(window: Window) -> np.ndarray:
    start = window.first_unit * UNIT
    return (
        window.recording.samples[start:]
        if window.units is None
        else window.recording.samples[start:][: window.units * UNIT]
    )


@settings(max_examples=20, deadline=None)
@given(seconds=st.floats(0.01, 70), sizes=st.sampled_from([LIVE, WHOLE]), seed=st.integers(0, 99))
def test_windows_cover_the_audio_once(seconds: float, sizes: WindowSizes, seed: int) -> None:
    samples = audio(seconds)
    cuts = sorted(np.random.default_rng(seed).integers(0, len(samples) + 1, size=4).tolist())
    windows = windows_of(samples, sizes, *cuts)

    assert np.array_equal(np.concatenate([new_audio(window) for window in windows]), samples)
    assert max(window.recording.seconds for window in windows) <= MAX_WINDOW_S
    assert sum(window.new_s for window in windows) == pytest.approx(len(samples) / RATE_HZ)
    for window, alone in zip(windows, windows_of(samples, sizes), strict=True):
        assert np.array_equal(window.recording.samples, alone.recording.samples)


def test_short_recording_is_one_window() -> None:
    (window,) = windows_of(audio(MAX_WINDOW_S), WHOLE)
    assert (window.first_unit, window.units) == (0, None)


def test_cut_is_where_the_audio_is_quiet() -> None:
    samples = audio(3)
    samples[int(0.8 * RATE_HZ) : int(0.84 * RATE_HZ)] = 0
    first = windows_of(samples, LIVE)[0]
    assert first.units == 21


def test_live_parts_may_end_inside_a_sample() -> None:
    pcm = (audio(1.9) * 3_000).astype("<i2").tobytes()

    async def parts(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(pcm), size):
            yield pcm[start : start + size]

    async def heard(size: int) -> list[bytes]:
        return [new_audio(window).tobytes() async for window in live_windows(parts(size), RATE_HZ)]

    assert asyncio.run(heard(777)) == asyncio.run(heard(len(pcm)))


@pytest.mark.parametrize("rate_hz", [7_999, 48_001])
def test_unusual_rates_are_rejected(rate_hz: int) -> None:
    with pytest.raises(InvalidRequest, match="sample rate"):
        SourceWindows(rate_hz, LIVE)


def test_audio_without_samples_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="no samples"):
        SourceWindows(RATE_HZ, LIVE).end()


def test_too_long_audio_is_rejected() -> None:
    windows = SourceWindows(RATE_HZ, LIVE)
    with pytest.raises(InvalidRequest, match="at most 600 s"):
        windows.feed(np.zeros(int(MAX_SOURCE_S * RATE_HZ) + 1, np.float32))


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_recordings_of_every_format_are_read(kind: str) -> None:
    file = io.BytesIO()
    soundfile.write(file, 0.1 * audio(1), RATE_HZ, format=kind)
    (window,) = recording_windows(file.getvalue())
    assert window.new_s == pytest.approx(1, abs=0.2)
