"""Tells how many samples an encoded message of audio has, which clients need to count positions."""

from __future__ import annotations

from tts_worker.types import BYTES_PER_SAMPLE, Encoding

WAV_HEADER_BYTES = 44
_OPUS_FRAMES_US = (
    *((10_000, 20_000, 40_000, 60_000) * 3),  # SILK
    *((10_000, 20_000) * 2),  # hybrid
    *((2_500, 5_000, 10_000, 20_000) * 4),  # CELT
)


def count_samples(encoding: Encoding, audio: bytes, sample_rate_hz: int, *, is_first: bool) -> int:
    """Return the samples in a message.

    Args:
        encoding: Encoding of the session.
        audio: The message.
        sample_rate_hz: Rate of the session.
        is_first: It is the first message of its utterance.
    """
    match encoding:
        case Encoding.MULAW | Encoding.ALAW:
            return len(audio)
        case Encoding.OPUS:
            return _opus_us(audio) * sample_rate_hz // 1_000_000
        case Encoding.WAV if is_first:
            return max(0, len(audio) - WAV_HEADER_BYTES) // BYTES_PER_SAMPLE
        case _:
            return len(audio) // BYTES_PER_SAMPLE


def _opus_us(packet: bytes) -> int:
    """Duration of an Opus packet, from its first two bytes. Source: RFC 6716, section 3.1."""
    if not packet:
        return 0
    frames = (1, 2, 2, packet[1] & 0x3F if len(packet) > 1 else 0)[packet[0] & 3]
    return frames * _OPUS_FRAMES_US[packet[0] >> 3]
