"""The stored voices of one engine: a directory that several processes and machines may share.

A deleted voice is hidden, and its files remain as long as a process needs them: each process with an utterance in that
voice renews the time of the hidden ``voice.json``. The one that sees no renewal for a while first removes the files.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tts_worker.atomic_files import remove_remnants
from tts_worker.errors import BundleError
from tts_worker.voices.details import VoiceDetails, read_details
from tts_worker.voices.files import (
    Voice,
    hidden_voices,
    hide_voice,
    load_voice,
    save_voice,
    stored_voices,
    voice_folder,
)

log = logging.getLogger(__name__)

_SETTLING_S = 2.0
"""How long after a change the directory is read although its time is the same: file systems have coarse clocks."""
_REMNANT_S = 3_600.0

_Stat = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    stat: _Stat
    details: VoiceDetails


@dataclass(slots=True)
class _Deleted:
    """A hidden voice: when this process saw its last renewal. Clocks of other machines are not compared."""

    name: str
    stamp_ns: int | None = None
    renewed_at_s: float = 0.0


class VoiceStore:
    """A directory of voices. All methods block and may be called on any thread.

    Args:
        folder: The directory; it is created with the first voice.
        clock: Monotonic, in seconds.
        unused_s: How long the files of a deleted voice remain after the last renewal; several intervals in which
            every process with the directory calls ``scan`` and ``remove_deleted``.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic, *, unused_s: float = 5.0) -> None:
        self.folder = folder
        self._clock = clock
        self._unused_s = unused_s
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._stat: _Stat | None = None
        self._changed_at_s = 0.0
        self._is_clean = False
        self._deleted: dict[Path, _Deleted] = {}

    def scan(self) -> Mapping[str, VoiceDetails]:
        """Return the details of all complete voices, by name.

        Reads the directory only if it has changed, and of the voices only new ones. A voice with damaged details has
        default ones.
        """
        with self._lock:
            stat = _stat_of(self.folder)
            now_s = self._clock()
            if stat != self._stat:
                self._stat = stat
                self._changed_at_s = now_s
            elif now_s - self._changed_at_s > _SETTLING_S:
                return {name: entry.details for name, entry in self._entries.items()}
            if not self._is_clean and stat is not None:
                self._is_clean = True
                remove_remnants(self.folder, _REMNANT_S, datetime.now(timezone.utc).timestamp())
            hidden = hidden_voices(self.folder)
            self._deleted = {path: self._deleted.get(path) or _Deleted(name) for path, name in hidden.items()}
            entries = {}
            for name in stored_voices(self.folder):
                # A voice is stored in a new folder, so its folder's number and time tell whether it is the same voice.
                own = _stat_of(voice_folder(self.folder, name))
                if own is None:
                    continue  # deleted meanwhile
                known = self._entries.get(name)
                entries[name] = known if known is not None and known.stat == own else _Entry(own, self._read(name))
            self._entries = entries
            return {name: entry.details for name, entry in entries.items()}

    def _read(self, name: str) -> VoiceDetails:
        try:
            return read_details(self.folder, name)
        except BundleError as error:
            log.warning("%s", error.message)
            return VoiceDetails()

    def save(self, name: str, voice: Voice, details: VoiceDetails, *, replace: bool = False) -> None:
        """Store a voice. Raises as ``save_voice`` does."""
        save_voice(self.folder, name, voice, details=details.encode(), replace=replace)

    def load(self, name: str) -> Voice:
        """Load a voice. Raises as ``load_voice`` does."""
        return load_voice(self.folder, name)

    def delete(self, name: str) -> None:
        """Hide a voice and its styles; ``remove_deleted`` removes their files. Raises as ``hide_voice`` does."""
        styles = [style for style in stored_voices(self.folder) if style.startswith(f"{name}@")]
        for each in (*styles, name):
            hidden = hide_voice(self.folder, each)
            with self._lock:
                self._deleted[hidden] = _Deleted(each)

    @property
    def has_deleted(self) -> bool:
        """Whether files of deleted voices remain."""
        return bool(self._deleted)

    def remove_deleted(self, in_use: Collection[str]) -> None:
        """Remove the files of deleted voices that no process needs any more.

        Args:
            in_use: Voices of this process's utterances in progress, which may still have to be read.
        """
        with self._lock:
            for folder, deleted in list(self._deleted.items()):
                stamp = folder / "voice.json"
                if deleted.name in in_use:
                    with suppress(OSError):  # removed, if this process was suspended for long
                        os.utime(stamp, ns=(time.time_ns(),) * 2)  # the file system's own clock is coarse
                status = _stat_of(stamp)
                now_s = self._clock()
                if status is not None and status[0] != deleted.stamp_ns:
                    deleted.stamp_ns, deleted.renewed_at_s = status[0], now_s
                elif status is None or now_s - deleted.renewed_at_s >= self._unused_s:
                    shutil.rmtree(folder, ignore_errors=True)
                    del self._deleted[folder]


def _stat_of(path: Path) -> _Stat | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
