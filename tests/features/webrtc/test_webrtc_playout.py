"""Timing and frames of a WebRTC track in virtual time: no drift, no gap, no click, a bounded buffer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio.resampler import Resampler
from tts_worker.errors import InvalidRequest
from tts_worker.features.webrtc.playout import TRACK_FRAME_SAMPLES, Playout, TrackClock
from tts_worker.types import SessionOptions

FRAME_S = 0.020


def simulate_sender(late_s: list[float]) -> tuple[list[float], list[int], TrackClock]:
    """Simulate a sender that sleeps until each frame is due and wakes late.

    Args:
        late_s: How late it wakes for each frame.

    Returns:
        Send times in seconds, timestamps, and the clock.
    """
    clock = TrackClock()
    now_s = 100.0
    sent_s = []
    stamps = []
    for late in late_s:
        now_s = max(now_s, clock.due_at_s(now_s)) + late
        stamps.append(clock.tick(now_s))
        sent_s.append(now_s)
    return sent_s, stamps, clock


def test_ten_minutes_drift_by_less_than_5_ms() -> None:
    rng = np.random.default_rng(1)
    late_s = np.minimum(rng.exponential(0.003, 30_000), 0.018)
    sent_s, stamps, clock = simulate_sender([0.0, *late_s.tolist()])
    for sent, stamp in zip(sent_s, stamps, strict=True):
        assert abs(sent - sent_s[0] - stamp / 48_000) < 0.018 + 1e-6
    assert stamps[-1] == 30_000 * TRACK_FRAME_SAMPLES, "ten minutes of timestamps"
    drift_s = np.mean(sent_s[-100:]) - np.mean(sent_s[:100]) - (stamps[-50] - stamps[50]) / 48_000
    assert abs(drift_s) < 0.005
    assert clock.skipped_frames == 0


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(0, 0.5), max_size=60))
def test_timestamps_follow_time_through_stalls(late_s: list[float]) -> None:
    sent_s, stamps, clock = simulate_sender([0.0, *late_s])
    steps = np.diff(stamps)
    assert (steps > 0).all()
    assert (steps % TRACK_FRAME_SAMPLES == 0).all()
    for sent, stamp in zip(sent_s, stamps, strict=True):
        behind_s = sent - sent_s[0] - stamp / 48_000
        assert -1e-6 <= behind_s < 3 * FRAME_S, "stream time follows real time"
    assert stamps[-1] // TRACK_FRAME_SAMPLES == len(late_s) + clock.skipped_frames


def test_short_delay_is_caught_up_and_long_one_skipped() -> None:
    _, stamps, clock = simulate_sender([0.0, 0.030, 0.0, 0.0])
    assert np.diff(stamps).tolist() == [TRACK_FRAME_SAMPLES] * 3
    assert clock.skipped_frames == 0
    _, stamps, clock = simulate_sender([0.0, 0.205, 0.0])
    assert clock.skipped_frames == 10
    assert stamps[-1] == 12 * TRACK_FRAME_SAMPLES


# -- frames -----------------------------------------------------------------------------------------------------------


def tone(samples: int) -> bytes:
    wave = 8_000 * np.sin(2 * np.pi * 440 * np.arange(samples) / 24_000 + 1.0)
    return wave.astype("<i2").tobytes()


def drain(playout: Playout) -> bytes:
    frames = []
    while (frame := playout.take()) is not None:
        frames.append(frame)
    return b"".join(frames)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20), st.integers(0, 479), st.data())
def test_all_audio_is_played_once_in_order(frames: int, rest: int, data: st.DataObject) -> None:
    pcm = tone(480 * frames + rest)
    chunks = [pcm[i : i + 960] for i in range(0, len(pcm), 960)]
    playout = Playout()
    output = b""
    while chunks:
        while playout.has_capacity and chunks:
            playout.push(chunks.pop(0))
            assert playout.buffered_ms <= 40.0
        if not chunks:
            playout.end()  # the utterance ends with its last chunk
            assert playout.buffered_ms <= 40.0
        if data.draw(st.booleans()):
            buffered_ms = playout.buffered_ms
            playout.hold()
            assert playout.buffered_ms == buffered_ms, "a pause consumes nothing"
            continue
        frame = playout.take()
        assert frame is not None
        assert len(frame) == 2 * TRACK_FRAME_SAMPLES
        output += frame
    output += drain(playout)
    resampler = Resampler(24_000, 48_000)
    expected = np.frombuffer(resampler.process(pcm) + resampler.flush(), "<i2").astype(int)
    played = np.frombuffer(output, "<i2").astype(int)
    # Audio fades in within 5 ms after a pause; all other samples are unchanged.
    unchanged = played[: len(expected)] == expected
    faded_in = np.abs(played[: len(expected)]) <= np.abs(expected)
    assert (unchanged | faded_in).all()
    assert unchanged.mean() > 0.7 or len(expected) < 2_000
    assert not played[len(expected) + 480 :].any(), "silence after a fade of 5 ms, or two if a frame ended in it"
    assert playout.take() is None


@pytest.mark.parametrize("cause", ["stop", "pause", "underrun"])
def test_interrupted_audio_does_not_click(cause: str) -> None:
    playout = Playout()
    for _ in range(3):
        playout.push(tone(480))
        frame = playout.take()
    assert frame is not None
    if cause == "stop":
        playout.clear()
    after = playout.hold() if cause == "pause" else playout.take()
    assert after is not None
    signal = np.frombuffer(frame + after, "<i2").astype(float)
    max_step = np.abs(np.diff(np.frombuffer(tone(480), "<i2").astype(float))).max()
    assert np.abs(np.diff(signal[TRACK_FRAME_SAMPLES - 100 :])).max() <= max_step + 100
    if cause != "underrun":
        assert not signal[TRACK_FRAME_SAMPLES + 240 :].any()
        assert (playout.hold() if cause == "pause" else playout.take()) is None


def test_stopped_audio_does_not_leak_into_next_utterance() -> None:
    playout = Playout()
    playout.push(tone(480))
    playout.push(tone(480))
    playout.clear()
    assert playout.buffered_ms == 0
    drain(playout)
    playout.push(bytes(960))
    playout.end()
    assert not any(drain(playout))


def test_track_options_are_those_of_its_clock() -> None:
    peer = pytest.importorskip("tts_worker.features.webrtc.peer", reason="needs the extra 'webrtc'")
    options = peer.track_options(SessionOptions(raw_chunks=True, lead_ms=500.0, frame_ms=100, speed=1.1))
    assert options == SessionOptions(realtime=False, own_clock=True, frame_ms=20, speed=1.1)


def test_webrtc_track_rejects_a_format() -> None:
    pytest.importorskip("aiortc", reason="needs the extra 'webrtc'")
    from tts_worker.features.webrtc.peer import track_options

    assert track_options(SessionOptions(sample_rate=24_000)).own_clock
    for options in (SessionOptions(sample_rate=8_000), SessionOptions(encoding="opus")):
        with pytest.raises(InvalidRequest, match="WebRTC"):
            track_options(options)
