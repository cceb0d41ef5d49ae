"""Sound in the shape that a client asked for: its sample rate, its frames, and a last frame that is known to be last.

Sans-IO. The newest 20 ms are held back, because only with the next sound (or the end) is it known whether a frame is
the final one. Owns the count of samples; knows no message, no session and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from tts_worker.audio.resampler import Resampler
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

_HELD_MS = 20


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """``packetize``: frames of exactly ``frame_ms``, the last one padded with silence; else the engine's own chunks."""

    sample_rate_hz: int = 48_000
    frame_ms: int = 20
    packetize: bool = True

    def to_stream(self, samples: int) -> int:
        """A position in samples of the engine's rate, in samples of the stream."""
        return samples * self.sample_rate_hz // SAMPLE_RATE_HZ

    def to_engine(self, samples: int) -> int:
        """The reverse."""
        return samples * SAMPLE_RATE_HZ // self.sample_rate_hz

    def to_ms(self, samples: int) -> int:
        return round(samples * 1000 / self.sample_rate_hz)

    @property
    def buffered_ms(self) -> int:
        """How much later than it was made sound leaves: the frame that is held back, out of which also comes what a
        resampler looks ahead for."""
        return self.frame_ms if self.packetize else _HELD_MS


@dataclass(frozen=True, slots=True)
class ShapedFrame:
    """``pcm``: s16le mono. ``start_sample, samples``: the speech in it, at the stream's rate, without padding."""

    pcm: bytes
    start_sample: int
    samples: int


class FrameShaper:
    """One utterance. ``push`` what the session gave, send what comes back; ``finish`` at the end."""

    def __init__(self, stream_format: StreamFormat) -> None:
        self._resampler = Resampler(SAMPLE_RATE_HZ, stream_format.sample_rate_hz)
        self._frame_bytes = stream_format.sample_rate_hz * stream_format.frame_ms // 1000 * BYTES_PER_SAMPLE
        self._held_bytes = stream_format.sample_rate_hz * _HELD_MS // 1000 * BYTES_PER_SAMPLE
        self._packetize = stream_format.packetize
        self._waiting = b""
        self._start_sample = 0

    @property
    def buffered_samples(self) -> int:
        """At the stream's rate: taken from the session and not given out yet."""
        return len(self._waiting) // BYTES_PER_SAMPLE

    def push(self, pcm: bytes) -> list[ShapedFrame]:
        """The next sound (s16le, the engine's rate). Returns frames that are certainly not the final one."""
        self._waiting += self._resampler.process(pcm)
        frames = []
        if self._packetize:
            while len(self._waiting) > self._frame_bytes:
                frames.append(self._take(self._frame_bytes))
        elif len(self._waiting) > self._held_bytes:
            frames.append(self._take(len(self._waiting) - self._held_bytes))
        return frames

    def finish(self) -> list[ShapedFrame]:
        """The end: what is left. The last one is final; none if there was no sound at all."""
        self._waiting += self._resampler.flush()
        frames = []
        while self._waiting:
            size = min(len(self._waiting), self._frame_bytes if self._packetize else len(self._waiting))
            frames.append(self._take(size))
        if frames and self._packetize and len(frames[-1].pcm) < self._frame_bytes:
            last = frames[-1]
            padded = last.pcm.ljust(self._frame_bytes, b"\0")
            frames[-1] = ShapedFrame(padded, last.start_sample, last.samples)
        return frames

    def _take(self, size: int) -> ShapedFrame:
        pcm = self._waiting[:size]
        self._waiting = self._waiting[size:]
        frame = ShapedFrame(pcm, self._start_sample, size // BYTES_PER_SAMPLE)
        self._start_sample += frame.samples
        return frame
