"""The pace and the frames of a WebRTC track, in virtual time: no drift, no hole, no click, never much in hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio.resampler import Resampler
from tts_worker.transports.webrtc_playout import TRACK_FRAME_SAMPLES, Playout, TrackClock

FRAME_S = 0.020


def play(late_s: list[float]) -> tuple[list[float], list[int], TrackClock]:
    """A sender that sleeps until each frame is due and then wakes so much too late."""
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
    chance = np.random.default_rng(1)
    late_s = np.minimum(chance.exponential(0.003, 30_000), 0.018)
    sent_s, stamps, clock = play([0.0, *late_s.tolist()])
    for sent, stamp in zip(sent_s, stamps, strict=True):
        assert abs(sent - sent_s[0] - stamp / 48_000) < 0.018 + 1e-6
    assert stamps[-1] == 30_000 * TRACK_FRAME_SAMPLES, "ten minutes of time stamps"
    drift_s = np.mean(sent_s[-100:]) - np.mean(sent_s[:100]) - (stamps[-50] - stamps[50]) / 48_000
    assert abs(drift_s) < 0.005
    assert clock.skipped_frames == 0


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(0, 0.5), max_size=60))
def test_timestamps_follow_time_through_stalls(late_s: list[float]) -> None:
    sent_s, stamps, clock = play([0.0, *late_s])
    steps = np.diff(stamps)
    assert (steps > 0).all()
    assert (steps % TRACK_FRAME_SAMPLES == 0).all()
    for sent, stamp in zip(sent_s, stamps, strict=True):
        behind_s = sent - sent_s[0] - stamp / 48_000
        assert -1e-6 <= behind_s < 3 * FRAME_S, "time in the stream is time at the listener"
    assert stamps[-1] // TRACK_FRAME_SAMPLES == len(late_s) + clock.skipped_frames


def test_short_delay_is_caught_up_and_long_one_skipped() -> None:
    _, stamps, clock = play([0.0, 0.030, 0.0, 0.0])
    assert np.diff(stamps).tolist() == [TRACK_FRAME_SAMPLES] * 3
    assert clock.skipped_frames == 0
    _, stamps, clock = play([0.0, 0.205, 0.0])
    assert clock.skipped_frames == 10
    assert stamps[-1] == 12 * TRACK_FRAME_SAMPLES


# -- frames -----------------------------------------------------------------------------------------------------------


def tone(samples: int) -> bytes:
    wave = 8_000 * np.sin(2 * np.pi * 440 * np.arange(samples) / 24_000 + 1.0)
    return wave.astype("<i2").tobytes()


def drained(playout: Playout) -> bytes:
    frames = []
    while (frame := playout.take()) is not None:
        frames.append(frame)
    return b"".join(frames)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20), st.integers(0, 479), st.data())
def test_all_audio_is_played_once_in_order(frames: int, rest: int, data: st.DataObject) -> None:
    sound = tone(480 * frames + rest)
    pieces = [sound[i : i + 960] for i in range(0, len(sound), 960)]
    playout = Playout()
    heard = b""
    while pieces:
        while playout.has_capacity and pieces:
            playout.push(pieces.pop(0))
            assert playout.buffered_ms <= 40.0
        if not pieces:
            playout.end()  # the end comes with the last of the sound
            assert playout.buffered_ms <= 40.0
        if data.draw(st.booleans()):
            buffered_ms = playout.buffered_ms
            playout.hold()
            assert playout.buffered_ms == buffered_ms, "a pause takes nothing"
            continue
        frame = playout.take()
        assert frame is not None
        assert len(frame) == 2 * TRACK_FRAME_SAMPLES
        heard += frame
    heard += drained(playout)
    resampler = Resampler(24_000, 48_000)
    whole = np.frombuffer(resampler.process(sound) + resampler.flush(), "<i2").astype(int)
    played = np.frombuffer(heard, "<i2").astype(int)
    # Whatever was held rose again within 5 ms; everything else is the sound itself.
    same = played[: len(whole)] == whole
    risen = np.abs(played[: len(whole)]) <= np.abs(whole)
    assert (same | risen).all()
    assert same.mean() > 0.7 or len(whole) < 2_000
    assert not played[len(whole) + 480 :].any(), "silence, after a fade of 5 ms, or two where a frame ended in it"
    assert playout.take() is None


@pytest.mark.parametrize("how", ["stop", "pause", "underrun"])
def test_interrupted_audio_does_not_click(how: str) -> None:
    playout = Playout()
    for _ in range(3):
        playout.push(tone(480))
        frame = playout.take()
    assert frame is not None
    if how == "stop":
        playout.clear()
    after = playout.hold() if how == "pause" else playout.take()
    assert after is not None
    signal = np.frombuffer(frame + after, "<i2").astype(float)
    inside = np.abs(np.diff(np.frombuffer(tone(480) * 1, "<i2").astype(float))).max()
    assert np.abs(np.diff(signal[TRACK_FRAME_SAMPLES - 100 :])).max() <= inside + 100
    if how != "underrun":
        assert not signal[TRACK_FRAME_SAMPLES + 240 :].any()
        assert (playout.hold() if how == "pause" else playout.take()) is None


def test_stopped_audio_does_not_leak_into_next_utterance() -> None:
    playout = Playout()
    playout.push(tone(480))
    playout.push(tone(480))
    playout.clear()
    assert playout.buffered_ms == 0
    drained(playout)
    playout.push(bytes(960))
    playout.end()
    assert not any(drained(playout))
