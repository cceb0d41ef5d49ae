"""Samples in the encodings and at the rates of vendors, bare or in a WAV file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tts_worker.audio.encoders import WavData, wav_header
from tts_worker.audio.g711 import encode_alaw, encode_mulaw
from tts_worker.audio.pcm import to_float

_ENCODINGS: Mapping[str, tuple[Callable[[bytes], bytes], WavData]] = MappingProxyType(
    {
        "pcm_s16le": (bytes, WavData.PCM_S16LE),
        "pcm_f32le": (lambda pcm: to_float(pcm).astype("<f4").tobytes(), WavData.PCM_F32LE),
        "pcm_mulaw": (encode_mulaw, WavData.MULAW),
        "pcm_alaw": (encode_alaw, WavData.ALAW),
    }
)


class SampleEncoder:
    """An ``Encoder`` of samples at any rate.

    Args:
        encoding: A key of the table above.
        rate_hz: Sample rate.
        is_file: Begin with the header of a WAV file.
    """

    def __init__(self, encoding: str, rate_hz: int, *, is_file: bool = False) -> None:
        self._encode, data = _ENCODINGS[encoding]
        self._header = wav_header(rate_hz, data=data) if is_file else b""
        self.content_type = f"audio/pcm;rate={rate_hz};encoding={encoding};channels=1"
        if is_file:
            self.content_type = "audio/wav"

    def encode(self, pcm: bytes) -> bytes:
        header, self._header = self._header, b""
        return header + self._encode(pcm)

    def finish(self) -> bytes:
        return self.encode(b"")
