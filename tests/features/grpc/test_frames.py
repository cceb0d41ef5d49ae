"""Frame shaping: all samples are sent once, only padding is added, and the final frame is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.features.grpc.frames import FrameShaper, StreamFormat

FORMATS = st.builds(
    StreamFormat, st.sampled_from([8_000, 16_000, 24_000, 32_000, 48_000]), st.sampled_from([10, 20, 40]), st.booleans()
)
SIZES = st.lists(st.integers(1, 3_000), max_size=8)


def noise(samples: int) -> bytes:
    return np.random.default_rng(samples).integers(-9_000, 9_000, samples).astype("<i2").tobytes()


@settings(deadline=None, max_examples=60)
@given(FORMATS, SIZES)
def test_joined_frames_equal_the_whole_audio(stream_format: StreamFormat, sizes: list[int]) -> None:
    chunks = [noise(size) for size in sizes]
    expected = b"".join(chunks)
    shaper = FrameShaper(stream_format)
    pushed = [frame for chunk in chunks for frame in shaper.push(chunk)]
    finished = shaper.finish()
    frames = pushed + finished
    assert b"".join(frame.pcm[: 2 * frame.samples] for frame in frames) == expected
    assert bool(finished) is bool(expected), "finish() must return the final frame"
    assert [frame.start_sample for frame in frames] == [
        sum(frame.samples for frame in frames[:index]) for index in range(len(frames))
    ]
    if stream_format.packetize:
        size = stream_format.sample_rate_hz * stream_format.frame_ms // 1000
        assert {len(frame.pcm) for frame in frames} <= {2 * size}
        assert all(frame.samples == size for frame in frames[:-1])
        assert not any(frame.pcm[2 * frame.samples :].strip(b"\0") for frame in frames), "padding must be silence"


@settings(deadline=None, max_examples=60)
@given(FORMATS, SIZES)
def test_the_buffer_holds_at_most_one_frame(stream_format: StreamFormat, sizes: list[int]) -> None:
    shaper = FrameShaper(stream_format)
    received = sent = 0
    for size in sizes:
        received += size
        sent += sum(frame.samples for frame in shaper.push(noise(size)))
        buffered_s = (received - sent) / stream_format.sample_rate_hz
        max_ms = stream_format.frame_ms if stream_format.packetize else 20
        assert buffered_s <= max_ms / 1000 + 1e-9


@pytest.mark.parametrize("rate_hz", [24_000, 48_000])
def test_the_first_frame_comes_within_the_buffered_time(rate_hz: int) -> None:
    stream_format = StreamFormat(rate_hz)
    shaper = FrameShaper(stream_format)
    pushed = 0
    while not shaper.push(noise(rate_hz // 50)):
        pushed += 1
    assert pushed * 20 <= stream_format.buffered_ms
