"""Decoding of recordings to mono samples, with limits checked before and while decoding.

WAV, FLAC, Ogg (Vorbis, Opus), MP3, AIFF and CAF are decoded by libsndfile; M4A, AAC and WebM by PyAV, where it is
installed.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from tts_worker.audio.pcm import Floats
from tts_worker.errors import InvalidRequest, MissingExtra

MAX_DECODED_S = 600.0
MAX_AUDIO_BYTES = 64 << 20
MAX_RATE_HZ = 192_000
MAX_CHANNELS = 8

RECORDING_FORMATS = "WAV, FLAC, Ogg, MP3, AIFF, CAF, M4A, AAC or WebM"
_FORMATS = frozenset({"WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "MPEG", "AIFF", "CAF"})
"""libsndfile's names of the accepted formats. Its parsers for rare formats are not needed and less well tested."""
_HEAD_BYTES = 12

_UNREADABLE = f"the audio cannot be read: it must be a complete {RECORDING_FORMATS} file"
_BLOCK_SAMPLES = 1 << 16
"""Decoded at a time: silence of many channels at a high rate decodes to ten thousand times the size of its file."""


@dataclass(frozen=True)
class Recording:
    """Decoded mono audio.

    Attributes:
        samples: ``[N] float32``, nominally -1..1.
        rate_hz: Sample rate.
    """

    samples: Floats
    rate_hz: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate_hz


def check_container(head: bytes) -> None:
    """Check the first bytes of a recording before a decoder parses it.

    Args:
        head: At least the first 12 bytes of the file.

    Raises:
        InvalidRequest: They are not those of a file in one of ``RECORDING_FORMATS``.
    """
    is_aiff = head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC")
    is_mp3 = head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0)
    if not (_is_wav(head) or is_aiff or is_mp3 or head[:4] in (b"fLaC", b"OggS", b"caff") or needs_av(head)):
        raise InvalidRequest(_UNREADABLE)


def needs_av(head: bytes) -> bool:
    """Whether a file is M4A (MP4), AAC (ADTS) or WebM (Matroska), which libsndfile does not read."""
    is_aac = len(head) > 1 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0  # MPEG audio of layer 0, which MP3 is not
    return is_aac or head[4:8] == b"ftyp" or head[:4] == b"\x1a\x45\xdf\xa3"


def _is_wav(head: bytes) -> bool:
    return head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:12] == b"WAVE"


def _with_data_size(file: bytes) -> bytes:
    """Return a WAV file whose ``data`` chunk has a size, if none was written: its header was not patched at the end."""
    order: Literal["big", "little"] = "big" if file[:4] == b"RIFX" else "little"
    start = len(b"RIFF----WAVE")
    while file[start : start + 4] not in (b"data", b""):
        size = int.from_bytes(file[start + 4 : start + 8], order)
        start += 8 + size + size % 2
    size_at, data_at = start + 4, start + 8
    if len(file) <= data_at or any(file[size_at:data_at]):
        return file
    return file[:size_at] + (len(file) - data_at).to_bytes(4, order) + file[data_at:]


def _size_bytes(path: Path) -> int:
    if not path.is_file():
        raise InvalidRequest(f"{path.name}: no such audio file")
    return path.stat().st_size


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(max_bytes)
    except OSError as error:
        raise InvalidRequest(f"{path.name} cannot be read: {error.strerror}") from None


def read_recording(
    audio: Path | str | bytes, max_s: float = MAX_DECODED_S, *, max_rate_hz: int = MAX_RATE_HZ
) -> Recording:
    """Decode a file in one of ``RECORDING_FORMATS`` and average its channels.

    Args:
        audio: A path, or the content of the file.
        max_s: Longest accepted duration; decoding stops there.
        max_rate_hz: Highest accepted sample rate, checked before decoding.

    Raises:
        InvalidRequest: The file is missing, not audio, damaged, empty, too long, too large or contains NaN or infinity,
            or its sample rate or channels are out of range.
        MissingExtra: soundfile, or PyAV for M4A, AAC and WebM, is not installed.
    """
    try:
        import soundfile
    except ImportError:
        raise MissingExtra("reading prompt audio (soundfile)", "cosyvoice") from None
    size_bytes = len(audio) if isinstance(audio, bytes) else _size_bytes(Path(audio))
    if size_bytes > MAX_AUDIO_BYTES:
        raise InvalidRequest(f"the audio has {size_bytes >> 20} MiB; the limit is {MAX_AUDIO_BYTES >> 20} MiB")
    head = audio[:_HEAD_BYTES] if isinstance(audio, bytes) else _read(Path(audio), _HEAD_BYTES)
    check_container(head)
    if _is_wav(head):
        audio = _with_data_size(audio if isinstance(audio, bytes) else _read(Path(audio), MAX_AUDIO_BYTES))
    source = io.BytesIO(audio) if isinstance(audio, bytes) else str(audio)
    mono = _Mono(max_s, max_rate_hz)
    if needs_av(head):
        _read_with_av(source, mono)
        return mono.recording()
    try:
        with soundfile.SoundFile(source) as file:
            if file.format not in _FORMATS:
                raise InvalidRequest(_UNREADABLE)
            mono.begin(int(file.samplerate), file.channels)
            file.seekable = lambda: False  # it asks for the position, which fails in a FLAC stream of unknown length
            while len(block := file.read(_BLOCK_SAMPLES, dtype="float32", always_2d=True)):
                mono.add(block)
    except (soundfile.LibsndfileError, ValueError, RuntimeError):
        raise InvalidRequest(_UNREADABLE) from None
    return mono.recording()


class _Mono:
    """Averages the channels of audio block by block, within limits that do not trust the header. Raises InvalidRequest.

    Args:
        max_s: Longest accepted duration.
        max_rate_hz: Highest accepted sample rate.
    """

    def __init__(self, max_s: float, max_rate_hz: int) -> None:
        self._max_s = max_s
        self._max_rate_hz = max_rate_hz
        self._rate_hz = 0
        self._samples = 0
        self._blocks: list[Floats] = []

    def begin(self, rate_hz: int, channels: int) -> None:
        """Check what the header says."""
        if rate_hz > self._max_rate_hz or channels > MAX_CHANNELS:
            raise InvalidRequest(
                f"the audio may have at most {MAX_CHANNELS} channels and {self._max_rate_hz} Hz; "
                f"it has {channels} and {rate_hz} Hz"
            )
        self._rate_hz = rate_hz

    def add(self, block: Floats) -> None:
        """Add ``block [n, channels]``."""
        self._samples += len(block)
        if self._samples > int(self._max_s * self._rate_hz):
            raise InvalidRequest(f"the audio is longer than {self._max_s:g} s")
        mean = block.mean(axis=1, dtype=np.float32)
        if not np.isfinite(mean).all():
            raise InvalidRequest("the audio contains NaN or infinite samples; export it again as 16-bit WAV")
        self._blocks.append(mean)

    def recording(self) -> Recording:
        """Return what was added."""
        if not self._samples:
            raise InvalidRequest("the audio contains no samples")
        return Recording(np.concatenate(self._blocks), self._rate_hz)


def _read_with_av(source: io.BytesIO | str, mono: _Mono) -> None:
    """Decode the first audio stream of a file."""
    try:
        import av
    except ImportError:
        raise MissingExtra("reading M4A, AAC and WebM recordings (PyAV)", "media") from None
    try:
        with av.open(source, mode="r") as container:
            if not container.streams.audio:
                raise InvalidRequest("the file has no audio")
            stream = container.streams.audio[0]
            rate_hz = int(stream.codec_context.sample_rate or 0)
            if not rate_hz or not stream.codec_context.channels:
                raise InvalidRequest(_UNREADABLE)
            mono.begin(rate_hz, stream.codec_context.channels)
            resampler = av.AudioResampler(format="fltp", rate=rate_hz)
            for frame in container.decode(stream):
                for block in resampler.resample(frame):
                    mono.add(block.to_ndarray().T.astype(np.float32))  # [n, channels]
    except (av.FFmpegError, ValueError, RuntimeError, EOFError):
        raise InvalidRequest(_UNREADABLE) from None
