"""What a WebRTC track plays and when, sans-IO: 20 ms at a time at 48 kHz, whatever happens around it.

``TrackClock`` says when a frame is due and which place in time it has; ``Playout`` turns the session's sound into
frames and silence. Both are pure: the clock is a parameter. They know no session, no codec and no connection.
"""

from __future__ import annotations

import numpy as np

from tts_worker.audio.pcm import Floats, fade_curve, fade_in, to_float, to_pcm
from tts_worker.audio.resampler import Resampler
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

TRACK_RATE_HZ = 48_000
"""Opus' own clock."""

FRAME_MS = 20
TRACK_FRAME_SAMPLES = TRACK_RATE_HZ * FRAME_MS // 1000
_FRAME_BYTES = TRACK_FRAME_SAMPLES * BYTES_PER_SAMPLE
_FADE_SAMPLES = TRACK_RATE_HZ * 5 // 1000

_LATE_FRAMES = 2
"""A sender that is late by more gives these frames up: sent all at once they would only fill the listener's buffer,
and every word after them would be heard later."""


class TrackClock:
    """Frames are due at whole multiples of 20 ms after the first, so that nothing adds up: no drift.

    The time stamps of frames that were given up are skipped, so that time in the stream stays time at the listener.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._next = 0  # number of the next frame
        self.skipped_frames = 0

    def due_at_s(self, now_s: float) -> float:
        """When the next frame is to leave; not later than ``now_s`` means now."""
        if self._began_s is None:
            return now_s
        return self._began_s + self._next * FRAME_MS / 1000

    def tick(self, now_s: float) -> int:
        """A frame leaves now. Returns its time stamp in samples at 48 kHz: strictly increasing, whole frames."""
        if self._began_s is None:
            self._began_s = now_s
        late_frames = int((now_s - self.due_at_s(now_s)) * 1000 / FRAME_MS + 1e-6)
        if late_frames > _LATE_FRAMES:
            self._next += late_frames
            self.skipped_frames += late_frames
        stamp = self._next * TRACK_FRAME_SAMPLES
        self._next += 1
        return stamp


class Playout:
    """The frame that is put together. Holds at most two frames: what is about to be played, and one in reserve."""

    def __init__(self) -> None:
        self._resampler = Resampler(SAMPLE_RATE_HZ, TRACK_RATE_HZ)
        self._waiting = b""  # s16le at 48 kHz
        self._last_sample = 0
        self._held = False
        self._ahead_samples = 0  # inside the resampler, at 24 kHz

    @property
    def hungry(self) -> bool:
        """Whether another 20 ms may be pushed."""
        return len(self._waiting) <= _FRAME_BYTES

    @property
    def held_ms(self) -> float:
        """Sound that was taken from the session and not played yet: at most 40 ms."""
        held = len(self._waiting) / BYTES_PER_SAMPLE * 1000 / TRACK_RATE_HZ
        return held + self._ahead_samples * 1000 / SAMPLE_RATE_HZ

    def push(self, pcm: bytes) -> None:
        """More sound of the utterance: s16le at 24 kHz, at most 20 ms."""
        self._ahead_samples = self._resampler.delay_samples
        self._waiting += self._resampler.process(pcm)

    def end(self) -> None:
        """The utterance is complete: what the resampler held back is played too."""
        self._ahead_samples = 0
        self._waiting += self._resampler.flush()

    def clear(self) -> None:
        """STOP: nothing of what waits is played."""
        self._ahead_samples = 0
        self._resampler.flush()
        self._waiting = b""

    def take(self) -> bytes | None:
        """The next frame, 960 samples s16le; None is silence. Where sound breaks off, it fades within 5 ms."""
        frame, self._waiting = self._waiting[:_FRAME_BYTES], self._waiting[_FRAME_BYTES:]
        if self._held and frame:
            frame, self._held = _risen(frame), False
        return self._played(frame)

    def hold(self) -> bytes | None:
        """A frame of a pause: what waits stays where it is, and rises within 5 ms when it goes on."""
        self._held = True
        return self._played(b"")

    def _played(self, frame: bytes) -> bytes | None:
        if len(frame) < _FRAME_BYTES:
            frame = self._ended_softly(frame)
        self._last_sample = int.from_bytes(frame[-BYTES_PER_SAMPLE:], "little", signed=True)
        return frame or None

    def _ended_softly(self, rest: bytes) -> bytes:
        """``rest`` and silence; no step from the last sample to zero, which would be a click."""
        last = int.from_bytes(rest[-BYTES_PER_SAMPLE:], "little", signed=True) if rest else self._last_sample
        if not rest and not last:
            return b""
        ramp: Floats = np.float32(last / 32_768) * fade_curve(_FADE_SAMPLES)[::-1]
        return (rest + to_pcm(ramp)).ljust(_FRAME_BYTES, b"\0")[:_FRAME_BYTES]


def _risen(frame: bytes) -> bytes:
    return to_pcm(fade_in(to_float(frame), _FADE_SAMPLES))
