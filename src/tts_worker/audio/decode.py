"""Decoding of recordings to mono samples, with limits checked before and while decoding.

WAV, FLAC, Ogg (Vorbis, Opus) and MP3 are decoded by libsndfile; M4A and WebM by PyAV, where it is installed.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tts_worker.audio.pcm import Floats
from tts_worker.errors import InvalidRequest, MissingExtra

MAX_DECODED_S = 600.0
MAX_AUDIO_BYTES = 64 << 20

_FORMATS = frozenset({"WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "MPEG"})
"""libsndfile's names of the accepted formats. Its parsers for rare formats are not needed and less well tested."""
_HEAD_BYTES = 12

_UNREADABLE = "the audio cannot be read: it must be a complete WAV, FLAC, Ogg, MP3, M4A or WebM file"
_MAX_CHANNELS = 8


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
        InvalidRequest: They are not those of a WAV, FLAC, Ogg, MP3, M4A or WebM file.
    """
    is_wav = head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:12] == b"WAVE"
    is_mp3 = head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0)
    if not (is_wav or is_mp3 or head[:4] in (b"fLaC", b"OggS") or needs_av(head)):
        raise InvalidRequest(_UNREADABLE)


def needs_av(head: bytes) -> bool:
    """Whether a file is M4A (MP4) or WebM (Matroska), which libsndfile does not read."""
    return head[4:8] == b"ftyp" or head[:4] == b"\x1a\x45\xdf\xa3"


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise InvalidRequest(f"{path.name} cannot be read: {error.strerror}") from None


def read_recording(audio: Path | str | bytes, max_s: float = MAX_DECODED_S) -> Recording:
    """Decode a WAV, FLAC, Ogg, MP3, M4A or WebM file and average its channels.

    Args:
        audio: A path, or the content of the file.
        max_s: Longest accepted duration; decoding stops there.

    Raises:
        InvalidRequest: The file is missing, not audio, damaged, empty, too long, too large or contains NaN or infinity.
        MissingExtra: soundfile, or PyAV for M4A and WebM, is not installed.
    """
    try:
        import soundfile
    except ImportError:
        raise MissingExtra("reading prompt audio (soundfile)", "cosyvoice") from None
    source: io.BytesIO | str
    if isinstance(audio, bytes):
        source = io.BytesIO(audio)
        size_bytes = len(audio)
    else:
        path = Path(audio)
        if not path.is_file():
            raise InvalidRequest(f"{path.name}: no such audio file")
        source = str(path)
        size_bytes = path.stat().st_size
    if size_bytes > MAX_AUDIO_BYTES:
        raise InvalidRequest(f"the audio has {size_bytes >> 20} MiB; the limit is {MAX_AUDIO_BYTES >> 20} MiB")
    head = audio[:_HEAD_BYTES] if isinstance(audio, bytes) else _read_head(Path(audio))
    check_container(head)
    if needs_av(head):
        return _checked(*_read_with_av(source, max_s), max_s)
    try:
        with soundfile.SoundFile(source) as file:
            if file.format not in _FORMATS:
                raise InvalidRequest(_UNREADABLE)
            rate_hz = int(file.samplerate)
            limit = int(max_s * rate_hz)
            # Reading one sample more than allowed detects "too long" without trusting the header or decoding the rest.
            samples = file.read(limit + 1, dtype="float32", always_2d=True)  # [n, channels]
    except (soundfile.LibsndfileError, ValueError, RuntimeError):
        raise InvalidRequest(_UNREADABLE) from None
    return _checked(samples, rate_hz, max_s)


def _checked(samples: Floats, rate_hz: int, max_s: float) -> Recording:
    """Return ``samples [n, channels]`` as mono audio. Raises InvalidRequest."""
    if len(samples) > int(max_s * rate_hz):
        raise InvalidRequest(f"the audio is longer than {max_s:g} s")
    if not len(samples):
        raise InvalidRequest("the audio contains no samples")
    if not np.isfinite(samples).all():
        raise InvalidRequest("the audio contains NaN or infinite samples; export it again as 16-bit WAV")
    return Recording(samples.mean(axis=1, dtype=np.float32), rate_hz)


def _read_with_av(source: io.BytesIO | str, max_s: float) -> tuple[Floats, int]:
    """Decode the first audio stream of a file to ``[n, channels]``, at most one block more than ``max_s``."""
    try:
        import av
    except ImportError:
        raise MissingExtra("reading M4A and WebM recordings (PyAV)", "webrtc") from None
    try:
        with av.open(source, mode="r") as container:
            if not container.streams.audio:
                raise InvalidRequest("the file has no audio")
            stream = container.streams.audio[0]
            rate_hz = int(stream.codec_context.sample_rate or 0)
            if not rate_hz or not 1 <= stream.codec_context.channels <= _MAX_CHANNELS:
                raise InvalidRequest(_UNREADABLE)
            resampler = av.AudioResampler(format="fltp", rate=rate_hz)
            blocks: list[Floats] = []
            samples = 0
            for frame in container.decode(stream):
                for block in resampler.resample(frame):
                    blocks.append(block.to_ndarray().T.astype(np.float32))  # [n, channels]
                    samples += len(blocks[-1])
                if samples > max_s * rate_hz:
                    break
            return (np.concatenate(blocks) if blocks else np.zeros((0, 1), np.float32)), rate_hz
    except (av.FFmpegError, ValueError, RuntimeError, EOFError):
        raise InvalidRequest(_UNREADABLE) from None
