"""Where speech goes on this machine: a file, standard output or a player program.

Every sink takes PCM16LE mono, at 24 kHz unless it is told another rate. ``write`` waits for a slower consumer, which
paces playback.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import sys
import wave
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from tts_worker.errors import InvalidRequest, MissingPackage, TTSWorkerError
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

PLAYERS: dict[str, tuple[str, ...]] = {
    "pw-cat": ("--playback", "--rate", "{rate}", "--channels", "1", "--format", "s16", "-"),
    "paplay": ("--raw", "--rate={rate}", "--channels=1", "--format=s16le", "--latency-msec=60"),
    "aplay": ("-q", "-t", "raw", "-f", "S16_LE", "-r", "{rate}", "-c", "1", "-"),
    "ffplay": ("-f", "s16le", "-ar", "{rate}", "-nodisp", "-autoexit", "-loglevel", "error", "-i", "-"),
    "play": ("-q", "-t", "raw", "-r", "{rate}", "-e", "signed", "-b", "16", "-c", "1", "-"),
}
"""Programs that play raw PCM from standard input, in order of preference, with their arguments."""

_NO_DEVICE = ("audio open failed", "Could not initialize SDL")
"""What ffplay says without an audio device, before it exits with code 0."""

_UNDRAINED_S = 0.5
"""A program may end while its last buffer is still playing."""

SAVE_INSTEAD = "Speech.save(path) writes a file instead"

_FILE_FORMATS: dict[str, tuple[str, str]] = {
    ".flac": ("FLAC", "PCM_16"),
    ".mp3": ("MP3", "MPEG_LAYER_III"),
    ".opus": ("OGG", "OPUS"),
    ".ogg": ("OGG", "OPUS"),
    ".pcm": ("RAW", "PCM_16"),
    ".raw": ("RAW", "PCM_16"),
}
"""Formats and subtypes of soundfile. WAV is written by the standard library, so that a client needs no soundfile."""


class PlayerFailed(TTSWorkerError):
    """The player program failed to play the audio."""


class Sink(Protocol):
    """Takes audio.

    ``close`` waits until all audio is written or played; ``abort`` does not.

    Attributes:
        played_samples: Upper bound of the samples played so far; None if written audio counts as played.
    """

    @property
    def played_samples(self) -> int | None: ...
    async def write(self, pcm: bytes) -> None: ...
    async def close(self) -> None: ...
    async def abort(self) -> None: ...


def find_player() -> str | None:
    """Return the preferred player program on this machine, or None."""
    return next((name for name in PLAYERS if shutil.which(name)), None)


class AudioFile(Protocol):
    """A file that audio is appended to. Both methods raise InvalidRequest if it cannot be written."""

    def write(self, pcm: bytes) -> None: ...
    def close(self) -> None: ...


def open_audio_file(path: Path, sample_rate_hz: int = SAMPLE_RATE_HZ) -> AudioFile:
    """Create a file in the format of its suffix, in a folder that exists.

    Raises:
        InvalidRequest: The format is unknown or does not support the rate, there is no such folder, or the file cannot
            be written.
        MissingPackage: The format needs soundfile, which is not installed.
    """
    suffix = path.suffix.lower()
    if suffix != ".wav" and suffix not in _FILE_FORMATS:
        raise InvalidRequest(f"cannot write {path.name}: the name must end in {', '.join(('.wav', *_FILE_FORMATS))}")
    try:
        if not path.parent.exists():
            raise InvalidRequest(f"cannot write {path}: there is no folder {path.parent}")
        path.touch()
        return _WavFile(path, sample_rate_hz) if suffix == ".wav" else _EncodedFile(path, sample_rate_hz)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> InvalidRequest:
    return InvalidRequest(f"cannot write {path}: {error.strerror}")


class _WavFile:
    def __init__(self, path: Path, sample_rate_hz: int) -> None:
        self._path = path
        self._file = wave.open(str(path), "wb")  # noqa: SIM115 - closed by ``close``
        self._file.setnchannels(1)
        self._file.setsampwidth(BYTES_PER_SAMPLE)
        self._file.setframerate(sample_rate_hz)

    def write(self, pcm: bytes) -> None:
        try:
            self._file.writeframes(pcm)
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise _unwritable(self._path, error) from None


class _CheckedFile(io.FileIO):
    """A file for libsndfile, which tells neither what went wrong in a write nor that the last one has failed.

    Attributes:
        error: The first error of a write, which the library takes for a success.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        unwritten = memoryview(data)
        try:
            while unwritten:
                unwritten = unwritten[super().write(unwritten) :]
        except OSError as error:
            self.error = self.error or error
        return len(data)


class _EncodedFile:
    def __init__(self, path: Path, sample_rate_hz: int) -> None:
        try:
            import soundfile
        except ImportError:
            raise MissingPackage(f"writing {path.suffix}", "soundfile") from None
        format_name, subtype = _FILE_FORMATS[path.suffix.lower()]
        self._path = path
        self._output = _CheckedFile(path, "w+")
        try:
            self._file = soundfile.SoundFile(self._output, "w", sample_rate_hz, 1, subtype, format=format_name)
        except soundfile.LibsndfileError as error:
            self._output.close()
            raise InvalidRequest(f"cannot write {path}: {error}") from None
        self._check()

    def write(self, pcm: bytes) -> None:
        self._file.buffer_write(pcm, "int16")
        self._check()

    def close(self) -> None:
        self._file.close()
        self._output.close()
        self._check()

    def _check(self) -> None:
        if self._output.error is not None:
            raise _unwritable(self._path, self._output.error) from None


class FileSink:
    """Writes a file. Raises like ``open_audio_file``."""

    def __init__(self, path: Path) -> None:
        self._file = open_audio_file(path)

    played_samples: int | None = None

    async def write(self, pcm: bytes) -> None:
        self._file.write(pcm)

    async def close(self) -> None:
        self._file.close()

    abort = close  # the audio so far stays, as a valid file


class StdoutSink:
    """Writes raw PCM to standard output, for a pipe."""

    def __init__(self) -> None:
        if sys.stdout.isatty():
            raise InvalidRequest("raw audio cannot be written to a terminal: pipe it, or give --out FILE")

    played_samples: int | None = None

    async def write(self, pcm: bytes) -> None:
        def put() -> None:
            sys.stdout.buffer.write(pcm)
            sys.stdout.buffer.flush()

        await asyncio.to_thread(put)  # a slow reader must not block the event loop

    async def close(self) -> None:
        pass

    abort = close


class PlayerSink:
    """Plays through a player program; create it with ``open``.

    The program runs in a separate session, so that Ctrl-C on the terminal reaches only this process, which stops the
    speech and then ends the program. A program that ends much earlier than real time allows has not played the audio:
    that is an error even with exit code 0 (ffplay without an audio device).
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, sample_rate_hz: int, advice: str) -> None:
        self._name = name
        self._advice = advice
        self._process = process
        self._sample_rate_hz = sample_rate_hz
        self._written_samples = 0
        self._began_at_s: float | None = None
        self._aborted = False

    @classmethod
    async def open(cls, name: str, sample_rate_hz: int = SAMPLE_RATE_HZ, *, advice: str = SAVE_INSTEAD) -> PlayerSink:
        """Start the program ``name``, one of ``PLAYERS``.

        Args:
            name: The program.
            sample_rate_hz: Sample rate of the audio.
            advice: What its errors recommend instead.

        Raises:
            PlayerFailed: The program cannot be started.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                name,
                *(argument.format(rate=sample_rate_hz) for argument in PLAYERS[name]),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,  # standard output is for --json
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise PlayerFailed(f"{name} cannot be started: {error.strerror}. {advice}") from None
        return cls(name, process, sample_rate_hz, advice)

    @property
    def played_samples(self) -> int:
        """Upper bound of the samples played so far: the written samples, limited by real time."""
        return min(self._written_samples, int(self.elapsed_s * self._sample_rate_hz))

    @property
    def elapsed_s(self) -> float:
        return 0.0 if self._began_at_s is None else perf_counter() - self._began_at_s

    async def write(self, pcm: bytes) -> None:
        if self._aborted:
            return
        assert self._process.stdin is not None
        if self._began_at_s is None:
            self._began_at_s = perf_counter()
        try:
            if self._process.stdin.is_closing():
                raise BrokenPipeError
            self._process.stdin.write(pcm)
            self._written_samples += len(pcm) // BYTES_PER_SAMPLE
            await self._process.stdin.drain()
        except ConnectionError:
            if not self._aborted:
                assert self._process.stderr is not None
                await self._failed("", (await self._process.stderr.read()).decode(errors="replace"))

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = await self._process.wait()
        if self._aborted:
            return
        assert self._process.stderr is not None
        told = (await self._process.stderr.read()).decode(errors="replace")
        if code or any(message in told for message in _NO_DEVICE):
            await self._failed("", told)
        duration_s = self._written_samples / self._sample_rate_hz
        if self.elapsed_s < max(duration_s / 2, 0.98 * duration_s - _UNDRAINED_S):
            await self._failed(f"it ended after {self.elapsed_s:.1f} s of {duration_s:.1f} s of speech", told)

    async def abort(self) -> None:
        self._aborted = True
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _failed(self, reason: str, told: str) -> None:
        """Raise ``PlayerFailed`` with what the program ``told``, else with ``reason``, else with its exit code."""
        stderr = told.strip().splitlines()
        await self._process.wait()
        reason = stderr[0][:200] if stderr else reason or f"it ended with code {self._process.returncode}"
        raise PlayerFailed(f"{self._name} cannot play: {reason}. {self._advice}")
