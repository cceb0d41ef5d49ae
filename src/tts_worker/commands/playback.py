"""Audio output of a command: a file, standard output or a player program.

Every sink takes 24 kHz PCM16LE mono. ``write`` waits for a slower consumer, which paces playback.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np

from tts_worker.errors import InvalidRequest, TTSWorkerError
from tts_worker.types import SAMPLE_RATE_HZ

_RATE = str(SAMPLE_RATE_HZ)
PLAYERS: dict[str, tuple[str, ...]] = {
    "pw-cat": ("--playback", "--rate", _RATE, "--channels", "1", "--format", "s16", "-"),
    "paplay": ("--raw", f"--rate={_RATE}", "--channels=1", "--format=s16le", "--latency-msec=60"),
    "aplay": ("-q", "-t", "raw", "-f", "S16_LE", "-r", _RATE, "-c", "1", "-"),
    "ffplay": ("-f", "s16le", "-ar", _RATE, "-nodisp", "-autoexit", "-loglevel", "error", "-i", "-"),
    "play": ("-q", "-t", "raw", "-r", _RATE, "-e", "signed", "-b", "16", "-c", "1", "-"),
}
"""Programs that play raw PCM from standard input, in order of preference, with their arguments."""

_UNDRAINED_S = 0.5
"""A program may end while its last buffer is still playing."""

_SAVE_INSTEAD = "Give --out FILE to save the speech instead"

_FILE_FORMATS: dict[str, tuple[str, str]] = {
    ".wav": ("WAV", "PCM_16"),
    ".flac": ("FLAC", "PCM_16"),
    ".mp3": ("MP3", "MPEG_LAYER_III"),
    ".opus": ("OGG", "OPUS"),
    ".ogg": ("OGG", "OPUS"),
    ".pcm": ("RAW", "PCM_16"),
    ".raw": ("RAW", "PCM_16"),
}


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


class FileSink:
    """Writes a file in the format of its suffix.

    Raises:
        InvalidRequest: The format is unknown or the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        import soundfile

        if path.suffix.lower() not in _FILE_FORMATS:
            raise InvalidRequest(f"cannot write {path.name}: the name must end in {', '.join(_FILE_FORMATS)}")
        format_name, subtype = _FILE_FORMATS[path.suffix.lower()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            self._file = soundfile.SoundFile(path, "w", SAMPLE_RATE_HZ, 1, subtype, format=format_name)
        except OSError as error:
            raise InvalidRequest(f"cannot write {path}: {error.strerror}") from None
        except soundfile.LibsndfileError as error:
            raise InvalidRequest(f"cannot write {path}: {error}") from None

    played_samples: int | None = None

    async def write(self, pcm: bytes) -> None:
        self._file.write(np.frombuffer(pcm, "<i2"))

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

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process
        self._written_samples = 0
        self._began_at_s: float | None = None
        self._aborted = False

    @classmethod
    async def open(cls, name: str) -> PlayerSink:
        """Start the program.

        Raises:
            PlayerFailed: The program cannot be started.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                name,
                *PLAYERS[name],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,  # standard output is for --json
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise PlayerFailed(f"{name} cannot be started: {error.strerror}. {_SAVE_INSTEAD}") from None
        return cls(name, process)

    @property
    def played_samples(self) -> int:
        """Upper bound of the samples played so far: the written samples, limited by real time."""
        return min(self._written_samples, int(self._elapsed_s * SAMPLE_RATE_HZ))

    @property
    def _elapsed_s(self) -> float:
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
            self._written_samples += len(pcm) // 2
            await self._process.stdin.drain()
        except ConnectionError:
            if not self._aborted:
                await self._failed("")

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = await self._process.wait()
        if self._aborted:
            return
        if code:
            await self._failed("")
        duration_s = self._written_samples / SAMPLE_RATE_HZ
        if self._elapsed_s < max(duration_s / 2, 0.98 * duration_s - _UNDRAINED_S):
            await self._failed(f"it ended after {self._elapsed_s:.1f} s of {duration_s:.1f} s of speech")

    async def abort(self) -> None:
        self._aborted = True
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _failed(self, reason: str) -> None:
        """Raise ``PlayerFailed`` with the program's error output, else with ``reason``, else with its exit code."""
        assert self._process.stderr is not None
        stderr = (await self._process.stderr.read()).decode(errors="replace").strip().splitlines()
        await self._process.wait()
        reason = stderr[0][:200] if stderr else reason or f"it ended with code {self._process.returncode}"
        raise PlayerFailed(f"{self._name} cannot play: {reason}. {_SAVE_INSTEAD}")
