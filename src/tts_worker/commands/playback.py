"""Where the sound of a command goes: a file, standard output, or a program that plays it.

Every sink takes 24 kHz s16le mono as it comes. ``write`` waits where the other side is slower, which is what paces a
loudspeaker. It knows no session and no text.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
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
"""Programs that play raw sound from standard input, best first, with their arguments."""

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
    """The program that should play the sound did not."""


class Sink(Protocol):
    """Takes sound. ``close`` waits until all of it is written or heard; ``abort`` does not."""

    async def write(self, pcm: bytes) -> None: ...
    async def close(self) -> None: ...
    async def abort(self) -> None: ...


def find_player() -> str | None:
    """The best program on this machine that plays sound, None if there is none."""
    return next((name for name in PLAYERS if shutil.which(name)), None)


class FileSink:
    """Writes a file of the format its name asks for. Raises InvalidRequest for a format or place that cannot be."""

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

    async def write(self, pcm: bytes) -> None:
        self._file.write(np.frombuffer(pcm, "<i2"))

    async def close(self) -> None:
        self._file.close()

    abort = close  # what was said until now is kept, as a valid file


class StdoutSink:
    """Raw sound on standard output, for a pipe."""

    def __init__(self) -> None:
        if sys.stdout.isatty():
            raise InvalidRequest("raw sound does not go to a terminal: pipe it on, or give --out FILE")

    async def write(self, pcm: bytes) -> None:
        def put() -> None:
            sys.stdout.buffer.write(pcm)
            sys.stdout.buffer.flush()

        await asyncio.to_thread(put)  # a slow reader must not stop the event loop

    async def close(self) -> None:
        pass

    abort = close


class PlayerSink:
    """A program that plays. Build it with ``open``."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process

    @classmethod
    async def open(cls, name: str) -> PlayerSink:
        process = await asyncio.create_subprocess_exec(
            name, *PLAYERS[name], stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        return cls(name, process)

    async def write(self, pcm: bytes) -> None:
        assert self._process.stdin is not None
        try:
            if self._process.stdin.is_closing():
                raise BrokenPipeError
            self._process.stdin.write(pcm)
            await self._process.stdin.drain()
        except ConnectionError:
            await self._failed()

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if await self._process.wait():
            await self._failed()

    async def abort(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _failed(self) -> None:
        assert self._process.stderr is not None
        said = (await self._process.stderr.read()).decode(errors="replace").strip().splitlines()
        await self._process.wait()
        reason = said[0][:200] if said else f"it ended with code {self._process.returncode}"
        raise PlayerFailed(f"{self._name} cannot play: {reason}. Give --out FILE to save the speech instead")
