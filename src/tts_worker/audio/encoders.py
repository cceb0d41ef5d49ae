"""Streaming encoders for the audio formats that a client can request.

Output latency when fed 20 ms at a time at 24 kHz: pcm, wav, mulaw and alaw emit at once; mp3 emits with the first 20 ms
and then about every 24 ms (the format itself delays the audio by 50 ms); opus emits every 100 ms (libsndfile's default
is one second); flac every 48 ms; aac every 43 ms. A FLAC stream declares an unknown length, which playing decoders
accept.

Encoders do not resample: the session does (``audio.output``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tts_worker.audio.g711 import encode_alaw, encode_mulaw
from tts_worker.audio.pcm import samples_of_ms
from tts_worker.audio.resampler import check_rate
from tts_worker.errors import InvalidRequest, MissingExtra
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ


class AudioFormat(str, Enum):
    """A wire or file format of synthesized audio."""

    PCM = "pcm"  # s16le, no header
    WAV = "wav"  # s16le
    MP3 = "mp3"
    OPUS = "opus"  # in Ogg
    FLAC = "flac"
    AAC = "aac"  # in ADTS; needs the extra "media"
    MULAW = "mulaw"  # 8 kHz, no header
    ALAW = "alaw"  # 8 kHz, no header

    @property
    def extension(self) -> str:
        """The usual extension of its files, without a dot."""
        return "ulaw" if self is AudioFormat.MULAW else self.value

    @property
    def default_rate_hz(self) -> int:
        """Sample rate of requests that choose none."""
        return 8_000 if self in (AudioFormat.MULAW, AudioFormat.ALAW) else SAMPLE_RATE_HZ


class FileSigner(Protocol):
    """Signs the provenance of whole files. A file of a format that cannot be signed stays as it is.

    Both methods raise SynthesisFailed.
    """

    def sign(self, data: bytes, audio_format: AudioFormat) -> bytes:
        """Return the signed file."""
        ...

    def sign_file(self, path: Path, audio_format: AudioFormat) -> None:
        """Replace a file by the signed one, at once."""
        ...


class Encoder(Protocol):
    """Encodes mono s16le; the concatenated output is one complete stream, even with no samples.

    Input must be whole samples; half a sample raises ValueError.
    """

    @property
    def content_type(self) -> str: ...

    def encode(self, pcm: bytes) -> bytes:
        """Encode samples and return the bytes that are complete; may be empty."""
        ...

    def finish(self) -> bytes:
        """Return the last bytes of the stream. Call it once, after the last ``encode``."""
        ...


def open_encoder(audio_format: AudioFormat, sample_rate_hz: int = SAMPLE_RATE_HZ) -> Encoder:
    """Create an encoder for one stream.

    Raises:
        InvalidRequest: The format does not support the sample rate; the message lists the supported ones.
        MissingExtra: The format needs a package that is not installed.
    """
    check_rate(sample_rate_hz)
    _check_format_rate(audio_format, sample_rate_hz)
    if audio_format is AudioFormat.PCM:
        return _RawEncoder(f"audio/pcm;rate={sample_rate_hz};channels=1", _whole_samples)
    if audio_format is AudioFormat.MULAW:
        return _RawEncoder("audio/PCMU;rate=8000", encode_mulaw)
    if audio_format is AudioFormat.ALAW:
        return _RawEncoder("audio/PCMA;rate=8000", encode_alaw)
    if audio_format is AudioFormat.WAV:
        return _WavEncoder(sample_rate_hz)
    if audio_format is AudioFormat.AAC:
        return _AacEncoder(sample_rate_hz)
    return _LibsndfileEncoder(audio_format, sample_rate_hz)


_MPEG_RATES_HZ = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_RATES_HZ: dict[AudioFormat, tuple[int, ...]] = {
    AudioFormat.MP3: _MPEG_RATES_HZ,
    AudioFormat.AAC: _MPEG_RATES_HZ,
    AudioFormat.OPUS: (8_000, 12_000, 16_000, 24_000, 48_000),
    AudioFormat.MULAW: (8_000,),
    AudioFormat.ALAW: (8_000,),
}


def _check_format_rate(audio_format: AudioFormat, sample_rate_hz: int) -> None:
    rates_hz = _RATES_HZ.get(audio_format)
    if rates_hz is not None and sample_rate_hz not in rates_hz:
        supported = ", ".join(map(str, rates_hz))
        raise InvalidRequest(f"{audio_format.value} does not support {sample_rate_hz} Hz; use one of {supported}")


# -- formats without a container --------------------------------------------------------------------------------------


def _whole_samples(pcm: bytes) -> bytes:
    np.frombuffer(pcm, "<i2")  # raises ValueError for half a sample, as every encoder does
    return pcm


class _RawEncoder:
    """Encodes a format without header and container."""

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


class WavData(Enum):
    """How the samples of a WAV file are stored: format tag and bytes per sample."""

    PCM_S16LE = (1, BYTES_PER_SAMPLE)
    PCM_F32LE = (3, 4)
    ALAW = (6, 1)
    MULAW = (7, 1)


def wav_header(sample_rate_hz: int, data_bytes: int | None = None, data: WavData = WavData.PCM_S16LE) -> bytes:
    """Build the 44-byte WAV header.

    Args:
        sample_rate_hz: Sample rate of the mono data.
        data_bytes: Size of the data. None (a stream) sets both sizes to 0xFFFFFFFF, which players read as "until the
            end".
        data: How the samples are stored.
    """
    format_tag, sample_bytes = data.value
    data_size = _UNKNOWN_SIZE if data_bytes is None else data_bytes
    riff_size = _UNKNOWN_SIZE if data_bytes is None else data_bytes + _WAV_HEADER_BYTES - 8
    byte_rate = sample_rate_hz * sample_bytes
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff_size, b"WAVE"),
        *(b"fmt ", 16, format_tag, 1, sample_rate_hz, byte_rate, sample_bytes, 8 * sample_bytes),
        *(b"data", data_size),
    )


def wav_file(pcm: bytes, sample_rate_hz: int = SAMPLE_RATE_HZ) -> bytes:
    """Build a complete WAV file with its sizes set."""
    return wav_header(sample_rate_hz, len(pcm)) + pcm


class _WavEncoder:
    content_type = "audio/wav"

    def __init__(self, sample_rate_hz: int) -> None:
        self._header = wav_header(sample_rate_hz)

    def encode(self, pcm: bytes) -> bytes:
        header = self._header
        self._header = b""
        return header + _whole_samples(pcm)

    def finish(self) -> bytes:
        return self.encode(b"")


# -- formats of libsndfile --------------------------------------------------------------------------------------------

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
"""On libsndfile's scale of 0 to 1. FLAC at 0.25 has blocks of 1152 samples instead of 4096: audio arrives sooner, and a
player that drops the last block (LiveKit's decoder does) loses a quarter as much."""
_OGG_PAGE_LATENCY_MS = 100.0
_SFC_SET_OGG_PAGE_LATENCY_MS = 0x1302  # from sndfile.h


class _StreamFile:
    """A writable file object whose content is drained while libsndfile writes it.

    libsndfile patches lengths into the header when it closes the file. Those writes hit bytes that have been sent and
    are dropped; every format here is valid without them.
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._drained_bytes = 0
        self._position = 0

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        writable = chunk[max(0, self._drained_bytes - self._position) :]
        offset = max(0, self._position - self._drained_bytes)
        self._pending[offset : offset + len(writable)] = writable
        self._position += len(chunk)
        return len(chunk)

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._drained_bytes + len(self._pending))[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def drain(self) -> bytes:
        out = bytes(self._pending)
        self._drained_bytes += len(out)
        self._pending.clear()
        return out


def _shortest(sample_rate_hz: int) -> bytes:
    """20 ms of silence for a file without samples, which most players reject."""
    return bytes(BYTES_PER_SAMPLE * samples_of_ms(20, sample_rate_hz))


class _LibsndfileEncoder:
    def __init__(self, audio_format: AudioFormat, sample_rate_hz: int) -> None:
        import soundfile  # imported late: most sessions request plain PCM

        name, subtype = _LIBSNDFILE_NAMES[audio_format]
        self.content_type = _CONTENT_TYPES[audio_format]
        self._output = _StreamFile()
        self._silence = _shortest(sample_rate_hz)
        self._is_empty = True
        # MP3 at a constant 80 kbit/s: a stream has no index, and players estimate a wrong length from a variable rate.
        self._file = soundfile.SoundFile(
            self._output,
            "w",
            sample_rate_hz,
            1,
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
            self._is_empty = False
        return self._output.drain()

    def finish(self) -> bytes:
        data = self.encode(self._silence) if self._is_empty else b""
        self._file.close()
        return data + self._output.drain()


def _shorten_ogg_pages(soundfile: Any, file: Any) -> None:
    """Make libsndfile write an Ogg page every 100 ms instead of every second.

    libsndfile has the setting since 1.0.29; soundfile exposes it only through private names. Where those are missing,
    only the latency is worse.
    """
    try:
        latency = soundfile._ffi.new("double *", _OGG_PAGE_LATENCY_MS)
        size = soundfile._ffi.sizeof("double")
        soundfile._snd.sf_command(file._file, _SFC_SET_OGG_PAGE_LATENCY_MS, latency, size)
    except AttributeError:
        return


# -- AAC --------------------------------------------------------------------------------------------------------------

_AAC_BIT_RATE = 64_000


class _AacEncoder:
    content_type = "audio/aac"

    def __init__(self, sample_rate_hz: int) -> None:
        try:
            import av
        except ModuleNotFoundError:
            raise MissingExtra("the format aac", "media") from None
        self._frame_of = av.AudioFrame.from_ndarray
        self._sample_rate_hz = sample_rate_hz
        self._is_empty = True
        self._output = _StreamFile()
        self._container = av.open(self._output, "w", format="adts")
        self._stream = self._container.add_stream("aac", rate=sample_rate_hz, layout="mono", bit_rate=_AAC_BIT_RATE)

    def encode(self, pcm: bytes) -> bytes:
        samples = np.frombuffer(pcm, "<i2")
        if len(samples):
            frame = self._frame_of(samples[np.newaxis], format="s16", layout="mono")
            frame.sample_rate = self._sample_rate_hz
            self._container.mux(self._stream.encode(frame))
            self._is_empty = False
        return self._output.drain()

    def finish(self) -> bytes:
        data = self.encode(_shortest(self._sample_rate_hz)) if self._is_empty else b""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return data + self._output.drain()
