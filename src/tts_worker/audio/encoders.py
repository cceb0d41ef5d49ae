"""Sound as the bytes of a file or stream format, while the sound is still being made.

Owns the formats a client can ask for and one small encoder for each behind ``Encoder``. Knows bytes in and bytes out:
no transport, no clock; the caller resamples to a rate the format has.

How soon bytes come out, fed 20 ms at a time at 24 kHz: pcm, wav, mulaw, alaw at once; mp3 with the first 20 ms (then
about every 24 ms; the sound in them is 50 ms late, as the format has it); opus every 100 ms (the library's own default
is one second); flac every 48 ms. A flac stream says that its length is unknown, which decoders that play accept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import numpy as np

from tts_worker.audio.g711 import encode_alaw, encode_mulaw
from tts_worker.audio.pcm import samples_of_ms
from tts_worker.errors import InvalidRequest
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ


class AudioFormat(str, Enum):
    """What a client can ask for."""

    PCM = "pcm"  # s16le, no header
    WAV = "wav"  # s16le
    MP3 = "mp3"
    OPUS = "opus"  # in Ogg
    FLAC = "flac"
    MULAW = "mulaw"  # 8 kHz, no header
    ALAW = "alaw"  # 8 kHz, no header


class Encoder(Protocol):
    """Takes s16le mono, gives bytes of the format. The bytes joined are one complete stream, also without any sound.

    Feed whole samples; half a sample raises ValueError.
    """

    @property
    def content_type(self) -> str: ...

    def encode(self, pcm: bytes) -> bytes:
        """The bytes that are ready after this sound; may be empty."""
        ...

    def finish(self) -> bytes:
        """The last bytes. Call once; encode no more."""
        ...


def open_encoder(audio_format: AudioFormat, sample_rate_hz: int = SAMPLE_RATE_HZ) -> Encoder:
    """An encoder for one stream. Raises InvalidRequest if the format does not have that rate; the message names those
    it has."""
    _check_rate(audio_format, sample_rate_hz)
    if audio_format is AudioFormat.PCM:
        return _PassThrough(f"audio/pcm;rate={sample_rate_hz};channels=1", _as_is)
    if audio_format is AudioFormat.MULAW:
        return _PassThrough("audio/PCMU;rate=8000", encode_mulaw)
    if audio_format is AudioFormat.ALAW:
        return _PassThrough("audio/PCMA;rate=8000", encode_alaw)
    if audio_format is AudioFormat.WAV:
        return _WavEncoder(sample_rate_hz)
    return _LibsndfileEncoder(audio_format, sample_rate_hz)


_MPEG_RATES_HZ = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_RATES_HZ: dict[AudioFormat, tuple[int, ...]] = {
    AudioFormat.MP3: _MPEG_RATES_HZ,
    AudioFormat.OPUS: (8_000, 12_000, 16_000, 24_000, 48_000),
    AudioFormat.MULAW: (8_000,),
    AudioFormat.ALAW: (8_000,),
}


def _check_rate(audio_format: AudioFormat, sample_rate_hz: int) -> None:
    rates_hz = _RATES_HZ.get(audio_format)
    if rates_hz is not None and sample_rate_hz not in rates_hz:
        known = ", ".join(map(str, rates_hz))
        raise InvalidRequest(f"{audio_format.value} has no sample rate of {sample_rate_hz} Hz; use one of {known}")


# -- without a container ----------------------------------------------------------------------------------------------


def _as_is(pcm: bytes) -> bytes:
    np.frombuffer(pcm, "<i2")  # raises for half a sample, as every encoder does
    return pcm


class _PassThrough:
    """A format that is nothing but its samples."""

    def __init__(self, content_type: str, convert: Callable[[bytes], bytes]) -> None:
        self.content_type = content_type
        self._convert = convert

    def encode(self, pcm: bytes) -> bytes:
        return self._convert(pcm)

    def finish(self) -> bytes:
        return b""


# -- WAV --------------------------------------------------------------------------------------------------------------

_UNKNOWN_SIZE = 0xFFFF_FFFF
_WAV_HEADER_BYTES = 44


def wav_header(sample_rate_hz: int, data_bytes: int | None = None) -> bytes:
    """The 44 bytes before the samples. Without ``data_bytes`` (a stream) both sizes are 0xFFFFFFFF, which players read
    as "until the end"."""
    data_size = _UNKNOWN_SIZE if data_bytes is None else data_bytes
    riff_size = _UNKNOWN_SIZE if data_bytes is None else data_bytes + _WAV_HEADER_BYTES - 8
    byte_rate = sample_rate_hz * BYTES_PER_SAMPLE
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff_size, b"WAVE"),
        *(b"fmt ", 16, 1, 1, sample_rate_hz, byte_rate, BYTES_PER_SAMPLE, 8 * BYTES_PER_SAMPLE),
        *(b"data", data_size),
    )


def wav_file(pcm: bytes, sample_rate_hz: int = SAMPLE_RATE_HZ) -> bytes:
    """A whole WAV file, sizes filled in."""
    return wav_header(sample_rate_hz, len(pcm)) + pcm


class _WavEncoder:
    content_type = "audio/wav"

    def __init__(self, sample_rate_hz: int) -> None:
        self._header = wav_header(sample_rate_hz)

    def encode(self, pcm: bytes) -> bytes:
        header = self._header
        self._header = b""
        return header + _as_is(pcm)

    def finish(self) -> bytes:
        return self.encode(b"")


# -- through libsndfile -----------------------------------------------------------------------------------------------

_CONTENT_TYPES = {
    AudioFormat.MP3: "audio/mpeg",
    AudioFormat.OPUS: "audio/ogg;codecs=opus",
    AudioFormat.FLAC: "audio/flac",
}
_LIBSNDFILE_NAMES = {
    AudioFormat.MP3: ("MP3", "MPEG_LAYER_III"),
    AudioFormat.OPUS: ("OGG", "OPUS"),
    AudioFormat.FLAC: ("FLAC", "PCM_16"),
}
_COMPRESSION_LEVELS = {AudioFormat.MP3: 0.5, AudioFormat.FLAC: 0.25}
"""libsndfile's scale of 0 to 1. FLAC at 0.25 has blocks of 1152 samples instead of 4096: audio arrives sooner, and a
player that drops the last block (LiveKit's decoder does) loses a quarter as much."""
_OGG_PAGE_LATENCY_MS = 100.0
_SFC_SET_OGG_PAGE_LATENCY_MS = 0x1302  # from sndfile.h


class _Sink:
    """A file that only grows. What libsndfile patches into the beginning when it closes (lengths) comes too late for a
    stream and is dropped; every format here is valid without it."""

    def __init__(self) -> None:
        self._fresh = bytearray()
        self._drained = 0  # bytes given away
        self._position = 0

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        kept = chunk[max(0, self._drained - self._position) :]
        place = max(0, self._position - self._drained)
        self._fresh[place : place + len(kept)] = kept
        self._position += len(chunk)
        return len(chunk)

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._drained + len(self._fresh))[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def drain(self) -> bytes:
        out = bytes(self._fresh)
        self._drained += len(out)
        self._fresh.clear()
        return out


class _LibsndfileEncoder:
    def __init__(self, audio_format: AudioFormat, sample_rate_hz: int) -> None:
        import soundfile  # late: most sessions want plain PCM

        name, subtype = _LIBSNDFILE_NAMES[audio_format]
        self.content_type = _CONTENT_TYPES[audio_format]
        self._sink = _Sink()
        self._silence = np.zeros(samples_of_ms(20, sample_rate_hz), np.int16)
        self._empty = True
        # MP3 at a constant 80 kbit/s: a stream has no index, and from a changing bit rate players guess a wrong length.
        self._file = soundfile.SoundFile(
            *(self._sink, "w", sample_rate_hz, 1),
            format=name,
            subtype=subtype,
            compression_level=_COMPRESSION_LEVELS.get(audio_format),
            bitrate_mode="CONSTANT" if audio_format is AudioFormat.MP3 else None,
        )
        if audio_format is AudioFormat.OPUS:
            _shorten_ogg_pages(soundfile, self._file)

    def encode(self, pcm: bytes) -> bytes:
        samples = np.frombuffer(pcm, "<i2")
        if len(samples):
            self._file.write(samples)
            self._empty = False
        return self._sink.drain()

    def finish(self) -> bytes:
        if self._empty:
            # A file without a single sample is malformed to most players: say nothing for 20 ms instead.
            self._file.write(self._silence)
        self._file.close()
        return self._sink.drain()


def _shorten_ogg_pages(soundfile: Any, file: Any) -> None:
    """libsndfile gathers a second of sound before it writes an Ogg page. The setting for it exists since 1.0.29, but
    soundfile has no public name for it, hence the private one; without it only the latency is worse."""
    try:
        latency = soundfile._ffi.new("double *", _OGG_PAGE_LATENCY_MS)
        size = soundfile._ffi.sizeof("double")
        soundfile._snd.sf_command(file._file, _SFC_SET_OGG_PAGE_LATENCY_MS, latency, size)
    except AttributeError:
        return
