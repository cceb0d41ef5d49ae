"""Sans-IO playout of a WebRTC track: 20 ms frames at 48 kHz.

``TrackClock`` schedules and timestamps the frames; ``Playout`` turns the session's audio into frames and silence.
"""

from __future__ import annotations

import numpy as np

from tts_worker.audio.pcm import Floats, fade_curve, fade_in, to_float, to_pcm
from tts_worker.audio.resampler import Resampler
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

TRACK_RATE_HZ = 48_000
"""RTP clock rate of Opus (RFC 7587)."""

FRAME_MS = 20
TRACK_FRAME_SAMPLES = TRACK_RATE_HZ * FRAME_MS // 1000
_FRAME_BYTES = TRACK_FRAME_SAMPLES * BYTES_PER_SAMPLE
_FADE_SAMPLES = TRACK_RATE_HZ * 5 // 1000

_MAX_LATE_FRAMES = 2
"""A sender that is later than this skips the missed frames. Sent in a burst they would grow the receiver's jitter
buffer and delay all later audio."""


class TrackClock:
    """Schedules frames at whole multiples of 20 ms after the first, so errors do not accumulate into drift.

    The timestamps of skipped frames are skipped, too: stream time stays aligned with the receiver's time.

    Attributes:
        skipped_frames: Frames skipped so far.
    """

    def __init__(self) -> None:
        self._start_s: float | None = None
        self._next_frame = 0
        self.skipped_frames = 0

    def due_at_s(self, now_s: float) -> float:
        """Return when to send the next frame; ``now_s`` or earlier means now."""
        if self._start_s is None:
            return now_s
        return self._start_s + self._next_frame * FRAME_MS / 1000

    def tick(self, now_s: float) -> int:
        """Count a frame sent now. Returns its timestamp in samples at 48 kHz: strictly increasing, whole frames."""
        if self._start_s is None:
            self._start_s = now_s
        late_frames = int((now_s - self.due_at_s(now_s)) * 1000 / FRAME_MS + 1e-6)
        if late_frames > _MAX_LATE_FRAMES:
            self._next_frame += late_frames
            self.skipped_frames += late_frames
        timestamp = self._next_frame * TRACK_FRAME_SAMPLES
        self._next_frame += 1
        return timestamp


class Playout:
    """Assembles the track's frames. Buffers at most two: the next one, and one in reserve."""

    def __init__(self) -> None:
        self._resampler = Resampler(SAMPLE_RATE_HZ, TRACK_RATE_HZ)
        self._buffer = b""  # s16le at 48 kHz
        self._last_sample = 0
        self._paused = False
        self._resampler_samples = 0  # buffered inside the resampler, at 24 kHz

    @property
    def has_capacity(self) -> bool:
        """Whether another 20 ms may be pushed."""
        return len(self._buffer) <= _FRAME_BYTES

    @property
    def buffered_ms(self) -> float:
        """Audio taken from the session and not played yet: at most 40 ms."""
        buffered_ms = len(self._buffer) / BYTES_PER_SAMPLE * 1000 / TRACK_RATE_HZ
        return buffered_ms + self._resampler_samples * 1000 / SAMPLE_RATE_HZ

    def push(self, pcm: bytes) -> None:
        """Add audio of the utterance: s16le at 24 kHz, at most 20 ms."""
        self._resampler_samples = self._resampler.delay_samples
        self._buffer += self._resampler.process(pcm)

    def end(self) -> None:
        """Complete the utterance: flush the resampler."""
        self._resampler_samples = 0
        self._buffer += self._resampler.flush()

    def clear(self) -> None:
        """Drop all buffered audio, for a STOP."""
        self._resampler_samples = 0
        self._resampler.flush()
        self._buffer = b""

    def take(self) -> bytes | None:
        """Return the next frame: 960 samples s16le, None for silence. Audio that breaks off fades out within 5 ms."""
        frame = self._buffer[:_FRAME_BYTES]
        self._buffer = self._buffer[_FRAME_BYTES:]
        if self._paused and frame:
            frame = _fade_in(frame)
            self._paused = False
        return self._emit(frame)

    def hold(self) -> bytes | None:
        """Return a frame of a pause. The buffer is kept; it fades in within 5 ms when playout resumes."""
        self._paused = True
        return self._emit(b"")

    def _emit(self, frame: bytes) -> bytes | None:
        if len(frame) < _FRAME_BYTES:
            frame = self._pad(frame)
        self._last_sample = int.from_bytes(frame[-BYTES_PER_SAMPLE:], "little", signed=True)
        return frame or None

    def _pad(self, rest: bytes) -> bytes:
        """Complete a frame with a fade to silence; a step from the last sample to zero would click."""
        last = int.from_bytes(rest[-BYTES_PER_SAMPLE:], "little", signed=True) if rest else self._last_sample
        if not rest and not last:
            return b""
        ramp: Floats = np.float32(last / 32_768) * fade_curve(_FADE_SAMPLES)[::-1]
        return (rest + to_pcm(ramp)).ljust(_FRAME_BYTES, b"\0")[:_FRAME_BYTES]


def _fade_in(frame: bytes) -> bytes:
    return to_pcm(fade_in(to_float(frame), _FADE_SAMPLES))
