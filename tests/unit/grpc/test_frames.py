"""Sound in frames: nothing lost, nothing added but padding, and the last one known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio.resampler import Resampler
from tts_worker.transports.grpc.frames import FrameShaper, StreamFormat

FORMS = st.builds(
    StreamFormat, st.sampled_from([8_000, 16_000, 24_000, 32_000, 48_000]), st.sampled_from([10, 20, 40]), st.booleans()
)
SIZES = st.lists(st.integers(1, 3_000), max_size=8)


def noise(samples: int) -> bytes:
    return np.random.default_rng(samples).integers(-9_000, 9_000, samples).astype("<i2").tobytes()


@settings(deadline=None, max_examples=60)
@given(FORMS, SIZES)
def test_frames_joined_are_the_sound_resampled_at_once(stream_format: StreamFormat, sizes: list[int]) -> None:
    pieces = [noise(size) for size in sizes]
    whole = Resampler(24_000, stream_format.sample_rate_hz)
    expected = whole.process(b"".join(pieces)) + whole.flush()
    shaper = FrameShaper(stream_format)
    early = [frame for piece in pieces for frame in shaper.push(piece)]
    late = shaper.finish()
    frames = early + late
    assert b"".join(frame.pcm[: 2 * frame.samples] for frame in frames) == expected
    assert bool(late) is bool(expected), "the final frame is among those of the end"
    assert [frame.start_sample for frame in frames] == [
        sum(frame.samples for frame in frames[:index]) for index in range(len(frames))
    ]
    if stream_format.packetize:
        size = stream_format.sample_rate_hz * stream_format.frame_ms // 1000
        assert {len(frame.pcm) for frame in frames} <= {2 * size}
        assert all(frame.samples == size for frame in frames[:-1])
        assert not any(frame.pcm[2 * frame.samples :].strip(b"\0") for frame in frames), "padding is silence"


@settings(deadline=None, max_examples=60)
@given(FORMS, SIZES)
def test_no_more_is_held_back_than_it_says(stream_format: StreamFormat, sizes: list[int]) -> None:
    shaper = FrameShaper(stream_format)
    received = sent = 0
    for size in sizes:
        received += size
        sent += sum(frame.samples for frame in shaper.push(noise(size)))
        held_s = received / 24_000 - sent / stream_format.sample_rate_hz
        ahead_s = 48 / min(24_000, stream_format.sample_rate_hz)  # what the resampler looks ahead for
        longest_ms = stream_format.frame_ms if stream_format.packetize else 20
        assert held_s <= longest_ms / 1000 + ahead_s + 1e-9


@pytest.mark.parametrize("rate_hz", [24_000, 48_000])
def test_the_first_frame_leaves_with_as_many_frames_as_it_says(rate_hz: int) -> None:
    stream_format = StreamFormat(rate_hz)
    shaper = FrameShaper(stream_format)
    pushed = 0
    while not shaper.push(noise(480)):
        pushed += 1
    assert pushed * 20 <= stream_format.buffered_ms


def test_positions_go_both_ways() -> None:
    stream_format = StreamFormat(48_000)
    assert (stream_format.to_stream(24_000), stream_format.to_engine(48_000), stream_format.to_ms(960)) == (
        48_000,
        24_000,
        20,
    )
