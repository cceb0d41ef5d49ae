"""Holds back the newest frame of a stream, because only more audio or the end shows whether it is the final one."""

from __future__ import annotations

from dataclasses import dataclass

from tts_worker.types import BYTES_PER_SAMPLE

_UNPACKETIZED_BUFFER_MS = 20


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """Format of an audio stream.

    Attributes:
        sample_rate_hz: Sample rate sent to the client.
        frame_ms: Frame duration if ``packetize``.
        packetize: Send frames of exactly ``frame_ms``, the last one padded with silence; otherwise engine chunks.
        checksums: Send the SHA-256 of each frame.
    """

    sample_rate_hz: int = 48_000
    frame_ms: int = 20
    packetize: bool = True
    checksums: bool = False

    def to_ms(self, samples: int) -> int:
        """Duration of ``samples`` of the stream."""
        return round(samples * 1000 / self.sample_rate_hz)

    @property
    def buffered_ms(self) -> int:
        """Audio that stays in the buffer."""
        return self.frame_ms if self.packetize else _UNPACKETIZED_BUFFER_MS


@dataclass(frozen=True, slots=True)
class ShapedFrame:
    """One frame of the stream.

    Attributes:
        pcm: PCM16LE mono, padded to the frame size where packetized.
        start_sample: Position of its first sample.
        samples: Speech samples, without padding.
    """

    pcm: bytes
    start_sample: int
    samples: int


class FrameShaper:
    """Shapes the audio of one utterance: ``push`` PCM and send the returned frames, then ``finish``."""

    def __init__(self, stream_format: StreamFormat) -> None:
        self._frame_bytes = stream_format.sample_rate_hz * stream_format.frame_ms // 1000 * BYTES_PER_SAMPLE
        self._buffer_bytes = stream_format.sample_rate_hz * _UNPACKETIZED_BUFFER_MS // 1000 * BYTES_PER_SAMPLE
        self._packetize = stream_format.packetize
        self._buffer = b""
        self._start_sample = 0

    @property
    def buffered_samples(self) -> int:
        """Samples in the buffer."""
        return len(self._buffer) // BYTES_PER_SAMPLE

    def push(self, pcm: bytes) -> list[ShapedFrame]:
        """Add PCM16LE of the session. Returns frames that cannot be the final one."""
        self._buffer += pcm
        frames = []
        if self._packetize:
            while len(self._buffer) > self._frame_bytes:
                frames.append(self._take(self._frame_bytes))
        elif len(self._buffer) > self._buffer_bytes:
            frames.append(self._take(len(self._buffer) - self._buffer_bytes))
        return frames

    def finish(self) -> list[ShapedFrame]:
        """Return the remaining frames; the last one is final. Empty if there was no audio."""
        frames = []
        while self._buffer:
            size = min(len(self._buffer), self._frame_bytes if self._packetize else len(self._buffer))
            frames.append(self._take(size))
        if frames and self._packetize and len(frames[-1].pcm) < self._frame_bytes:
            last = frames[-1]
            padded = last.pcm.ljust(self._frame_bytes, b"\0")
            frames[-1] = ShapedFrame(padded, last.start_sample, last.samples)
        return frames

    def _take(self, size: int) -> ShapedFrame:
        pcm = self._buffer[:size]
        self._buffer = self._buffer[size:]
        frame = ShapedFrame(pcm, self._start_sample, size // BYTES_PER_SAMPLE)
        self._start_sample += frame.samples
        return frame
