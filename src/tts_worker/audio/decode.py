"""Decoding of WAV, FLAC, Ogg and MP3 recordings to mono samples, with limits checked before and while decoding."""

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

_UNREADABLE = "the audio cannot be read: it must be a complete WAV, FLAC, Ogg or MP3 file"


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
        InvalidRequest: They are not those of a WAV, FLAC, Ogg or MP3 file.
    """
    is_wav = head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:12] == b"WAVE"
    is_mp3 = head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0)
    if not (is_wav or is_mp3 or head[:4] in (b"fLaC", b"OggS")):
        raise InvalidRequest(_UNREADABLE)


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise InvalidRequest(f"{path.name} cannot be read: {error.strerror}") from None


def read_recording(audio: Path | str | bytes, max_s: float = MAX_DECODED_S) -> Recording:
    """Decode a WAV, FLAC, Ogg or MP3 file and average its channels.

    Args:
        audio: A path, or the content of the file.
        max_s: Longest accepted duration; decoding stops there.

    Raises:
        InvalidRequest: The file is missing, not audio, damaged, empty, too long, too large or contains NaN or infinity.
        MissingExtra: soundfile is not installed.
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
    check_container(audio if isinstance(audio, bytes) else _read_head(Path(audio)))
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
    if len(samples) > limit:
        raise InvalidRequest(f"the audio is longer than {max_s:g} s")
    if not len(samples):
        raise InvalidRequest("the audio contains no samples")
    if not np.isfinite(samples).all():
        raise InvalidRequest("the audio contains NaN or infinite samples; export it again as 16-bit WAV")
    return Recording(samples.mean(axis=1, dtype=np.float32), rate_hz)
