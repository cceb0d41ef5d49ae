"""Files that are read again when they change or on request, without a restart."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import anyio

INTERVAL_S = 1.0

FileStates = tuple[tuple[int, int, int] | None, ...]


def file_states(files: Iterable[Path | None]) -> FileStates:
    """Return what changes with the content of the files that are given; None for a file that does not exist."""
    return tuple(_state(file) for file in files if file is not None)


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class FileWatch(ABC):
    """Reads files again once a second if they have changed, or when ``reload`` is called.

    Args:
        files: The files; None for one that is not used.
    """

    def __init__(self, *files: Path | None) -> None:
        self._files = files
        self._read_states = file_states(files)
        self._reload_requested = asyncio.Event()

    def reload(self) -> None:
        """Read the files now."""
        self._reload_requested.set()

    async def run(self) -> None:
        """Watch the files until cancelled."""
        while True:
            with anyio.move_on_after(INTERVAL_S):
                await self._reload_requested.wait()
            states = await asyncio.to_thread(file_states, self._files)
            if states != self._read_states or self._reload_requested.is_set():
                self._reload_requested.clear()
                self._read_states = states
                await asyncio.to_thread(self.read_again)

    @abstractmethod
    def read_again(self) -> None:
        """Take over what the files hold now, on another thread. Unusable ones are logged and change nothing."""
