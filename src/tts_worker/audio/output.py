"""Output stage of a session: the engine's audio at the loudness, sample rate and encoding that the client gets.

Marking, resampling and the gain of the voice are applied where audio arrives, encoding where a frame leaves. So a frame
is cut at the client's rate and has its exact duration, and an encoder sees only frames that are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.audio.limiter import Limiter
from tts_worker.audio.pcm import silence
from tts_worker.audio.resampler import Resampler, check_rate
from tts_worker.errors import InvalidRequest, MissingExtra
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Encoding

OPUS_FRAME_MS = (10, 20, 40, 60)
_RATES_HZ = {
    Encoding.MULAW: (8_000,),
    Encoding.ALAW: (8_000,),
    Encoding.OPUS: (8_000, 16_000, 24_000, 48_000),
}
_STREAM_FORMATS = {
    Encoding.PCM: AudioFormat.PCM,
    Encoding.MULAW: AudioFormat.MULAW,
    Encoding.ALAW: AudioFormat.ALAW,
    Encoding.WAV: AudioFormat.WAV,
}
_OPUS_DELAY_MS = 6.5  # look-ahead of the encoder (RFC 7845 calls it pre-skip)
_OPUS_BITS_PER_S = {8_000: 16_000, 16_000: 24_000, 24_000: 32_000, 48_000: 40_000}
_OPUS_COMPLEXITY = "5"  # of 10: half the time of 10, for a difference that speech at these rates does not show


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Sample rate and encoding of a session's audio, mono.

    Raises:
        InvalidRequest: The resampler or the encoding does not support the rate.
    """

    sample_rate_hz: int = SAMPLE_RATE_HZ
    encoding: Encoding = Encoding.PCM

    def __post_init__(self) -> None:
        check_rate(self.sample_rate_hz)
        rates_hz = _RATES_HZ.get(self.encoding)
        if rates_hz is not None and self.sample_rate_hz not in rates_hz:
            supported = ", ".join(map(str, rates_hz))
            raise InvalidRequest(
                f"encoding {self.encoding.value} does not support a sample_rate of {self.sample_rate_hz} Hz; "
                f"use {supported}"
            )

    @classmethod
    def of(cls, sample_rate_hz: int | None, encoding: str | None) -> OutputFormat:
        """Build a format; None selects PCM and 24 kHz, or 8 kHz with a telephone encoding. Raises InvalidRequest."""
        try:
            known = Encoding.PCM if encoding is None else Encoding(encoding)
        except ValueError:
            names = ", ".join(item.value for item in Encoding)
            raise InvalidRequest(f"encoding must be one of {names}") from None
        if sample_rate_hz is None:
            sample_rate_hz = 8_000 if known in (Encoding.MULAW, Encoding.ALAW) else SAMPLE_RATE_HZ
        return cls(sample_rate_hz, known)

    def frame_samples(self, frame_ms: int) -> int:
        """Samples of a frame, rounded down. Raises InvalidRequest if the encoding has no such frame."""
        if self.encoding is Encoding.OPUS and frame_ms not in OPUS_FRAME_MS:
            raise InvalidRequest(f"encoding opus needs a frame_ms of {', '.join(map(str, OPUS_FRAME_MS))}")
        return frame_ms * self.sample_rate_hz // 1000

    @property
    def is_native(self) -> bool:
        """Whether the engine's audio is sent as it is."""
        return self.sample_rate_hz == SAMPLE_RATE_HZ and self.encoding is Encoding.PCM


class Marker(Protocol):
    """Marks the audio of one utterance as synthetic: s16le at 24 kHz, one sample out for each sample in.

    The concatenated output must not depend on how the input is divided into calls.
    """

    def process(self, pcm: bytes) -> bytes:
        """Mark the next audio; up to 20 ms may be held back until more or the end comes."""
        ...

    def flush(self) -> bytes:
        """Return the rest. It is called once."""
        ...


class OutputStage:
    """Converts the audio of one utterance.

    The concatenated output of ``process`` and ``flush`` does not depend on how the input is divided into calls: frames
    and segments have no seams.

    Args:
        output_format: Format of the session.
        frame_ms: Duration of a frame; an Opus packet holds one.
        gain: Returns the linear gain of the voice, which is fixed with the first audio; the true peak is then limited.
            None leaves the level as it is.
        marker: Marks the audio; None leaves it unmarked.

    Raises:
        MissingExtra: The library of the encoding is not installed.
    """

    def __init__(
        self,
        output_format: OutputFormat,
        frame_ms: int = 20,
        gain: Callable[[], float] | None = None,
        marker: Marker | None = None,
    ) -> None:
        rate_hz = output_format.sample_rate_hz
        self.sample_rate_hz = rate_hz
        self._resampler = Resampler(SAMPLE_RATE_HZ, rate_hz)
        self._gain = gain
        self._marker = marker
        self._limiter: Limiter | None = None
        self._samples = 0
        self._packet_samples = 0
        if output_format.encoding is Encoding.OPUS:
            self._packet_samples = output_format.frame_samples(frame_ms)
        self._encode = _open_frame_encoder(output_format, frame_ms)

    def process(self, pcm: bytes) -> bytes:
        """Convert s16le audio of the engine. What is within the look-ahead follows with a later call."""
        out = self._resampler.process(pcm if self._marker is None else self._marker.process(pcm))
        if self._gain is not None:
            if self._limiter is None:
                self._limiter = Limiter(self._gain(), self.sample_rate_hz)
            out = self._limiter.process(out)
        self._samples += len(out) // BYTES_PER_SAMPLE
        return out

    def flush(self) -> bytes:
        """Return the rest of the utterance, for Opus with silence up to a whole packet. Call it once."""
        held = b"" if self._marker is None else self._resampler.process(self._marker.flush())
        out = held + self._resampler.flush()
        if self._limiter is not None:
            out = self._limiter.process(out) + self._limiter.flush()
        self._samples += len(out) // BYTES_PER_SAMPLE
        if self._packet_samples and self._samples:
            # The last packet contains everything only if silence follows for as long as the encoder looks ahead.
            needed = self._samples + round(_OPUS_DELAY_MS * self.sample_rate_hz / 1000)
            packets = -(-needed // self._packet_samples)
            out += silence(packets * self._packet_samples - self._samples)
        return out

    def encode(self, pcm: bytes) -> bytes:
        """Encode a frame of s16le at the output rate, in the order in which frames are sent."""
        return self._encode(pcm)

    def from_engine(self, samples: int) -> int:
        """Convert a position in the engine's audio to one in the output."""
        return samples * self.sample_rate_hz // SAMPLE_RATE_HZ

    def to_engine(self, samples: int) -> int:
        """Convert a position in the output to one in the engine's audio."""
        return samples * SAMPLE_RATE_HZ // self.sample_rate_hz


def _open_frame_encoder(output_format: OutputFormat, frame_ms: int) -> Callable[[bytes], bytes]:
    if output_format.encoding is Encoding.OPUS:
        return _OpusEncoder(output_format.sample_rate_hz, frame_ms).encode
    return open_encoder(_STREAM_FORMATS[output_format.encoding], output_format.sample_rate_hz).encode


class _OpusEncoder:
    """Encodes frames as Opus packets (RFC 6716) without a container, one each.

    libsndfile offers Opus only in Ogg pages; PyAV, which the extra "media" installs, has the packets.
    """

    def __init__(self, sample_rate_hz: int, frame_ms: int) -> None:
        try:
            import av  # imported late: few sessions need it
        except ImportError:
            raise MissingExtra("the encoding opus", "media") from None
        self._new_frame = av.AudioFrame
        self._rate_hz = sample_rate_hz
        self._position = 0
        self._codec: Any = av.CodecContext.create("libopus", "w")
        self._codec.sample_rate = sample_rate_hz
        self._codec.layout = "mono"
        self._codec.format = "s16"
        self._codec.bit_rate = _OPUS_BITS_PER_S[sample_rate_hz]
        self._codec.options = {
            "application": "audio",
            "frame_duration": str(frame_ms),
            "compression_level": _OPUS_COMPLEXITY,
        }
        self._codec.open()

    def encode(self, pcm: bytes) -> bytes:
        frame = self._new_frame(format="s16", layout="mono", samples=len(pcm) // BYTES_PER_SAMPLE)
        frame.planes[0].update(pcm)
        frame.sample_rate = self._rate_hz
        frame.pts = self._position
        self._position += frame.samples
        return b"".join(bytes(packet) for packet in self._codec.encode(frame))
