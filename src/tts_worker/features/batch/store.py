"""Batches on disk: a folder with the request, and for each finished item its audio and a record.

An item's record is written last, and files appear by one rename, so what is finished is whole also after a crash. A
process that runs a batch holds a lock on its folder; when the process ends, another one that shares the directory can
claim the folder and continue. A finished batch needs no lock. All functions block.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tts_worker.atomic_files import write_atomically
from tts_worker.audio.encoders import AudioFormat, FileSigner
from tts_worker.errors import ErrorCode, ErrorInfo
from tts_worker.features.batch.request import BatchRequest
from tts_worker.types import Skipped

try:
    import fcntl
except ImportError:  # Windows: a directory must not be shared there
    fcntl = None  # type: ignore[assignment]

FORMAT: Final = 1
"""Of a batch and of the records of its items; another one means that older workers must leave the batch alone."""
_NAME = re.compile(r"[A-Za-z0-9_-]{16}")
_REQUEST, _LOCK = "batch.json", "lock"
_NEW, _DELETED = ".new-", ".deleted-"  # how the names of folders begin that hold no batch yet, or none any more
_TEMPORARY = "tts-worker-batch-"
_ABANDONED_S = 3_600  # a new folder of this age is one whose process crashed


class StoredBatch(BaseModel):
    """A batch as it was accepted.

    Attributes:
        format: ``FORMAT``.
        owner: Name of the API key; None without one.
        created_at_s: Unix time.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    id: str
    owner: str | None
    created_at_s: float
    request: BatchRequest


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What became of an item.

    Attributes:
        index: Number of the item, from 0.
        size: Bytes of its audio; 0 with an error.
        samples: Its length.
        skipped: What the voice has skipped of its text.
        error: Why it has no audio.
    """

    index: int
    size: int = 0
    samples: int = 0
    skipped: tuple[Skipped, ...] = ()
    error: ErrorInfo | None = None


def unix_time_s() -> float:
    """Return the Unix time, by which batches expire also after a restart."""
    return datetime.now(timezone.utc).timestamp()


def new_id() -> str:
    """Return an id that cannot be guessed."""
    return secrets.token_urlsafe(12)


def id_of_key(owner: str | None, key: str) -> str:
    """Return the id of the batch that an API key submits with an idempotency key: workers need not agree on it."""
    digest = hashlib.sha256(json.dumps([owner, key]).encode()).digest()
    return base64.urlsafe_b64encode(digest[:12]).decode()


class UnreadableBatch(ValueError):
    """A stored batch that this version does not understand: it was stored by a newer one, or damaged."""


class BatchFolder:
    """The folder of one batch in ``directory``. Raises FileNotFoundError once the batch was deleted."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name
        self._lock: BinaryIO | None = None
        self._identity: tuple[int, int, int] | None = None  # of the file of the lock

    def create(self, batch: StoredBatch) -> None:
        """Write a new batch and claim it. Raises FileExistsError if there is one with this id.

        The folder appears whole and locked, so that no other process claims it before this one.
        """
        new = BatchFolder(self.path.parent, f"{_NEW}{self.path.name}-{secrets.token_hex(4)}")
        new.path.mkdir(parents=True, mode=0o700)
        try:
            write_atomically(new.path / _REQUEST, batch.model_dump_json().encode(), is_flushed=True)
            if fcntl is None:  # a folder with an open file cannot be renamed there
                new.path.rename(self.path)
                self.claim()
            else:
                new.claim()
                new.path.rename(self.path)
                self._lock, self._identity = new._lock, new._identity
        except OSError as error:
            new.release()
            shutil.rmtree(new.path, ignore_errors=True)
            if error.errno == errno.ENOTEMPTY:
                raise FileExistsError("there is a batch with this id") from None
            raise

    def claim(self) -> bool:
        """Take the lock of the batch; return False if another process has it."""
        lock = open(self.path / _LOCK, "ab")  # noqa: SIM115  (held until ``release``)
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        self._lock = lock
        self._identity = _identity(os.fstat(lock.fileno()))
        return True

    def release(self) -> None:
        """Let another process continue the batch."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def is_lost(self) -> bool:
        """Whether the folder was deleted after it was claimed; another one may have its name by now."""
        if self._identity is None:
            return False
        try:
            return _identity((self.path / _LOCK).stat()) != self._identity
        except FileNotFoundError:
            return True

    def read(self) -> tuple[StoredBatch, dict[int, ItemResult]] | None:
        """Return the batch and its finished items; None if the folder holds none.

        Raises:
            UnreadableBatch: It holds one of another version.
        """
        try:
            content = (self.path / _REQUEST).read_bytes()
        except OSError:
            return None
        try:
            batch = StoredBatch.model_validate_json(content)
        except ValidationError:
            raise UnreadableBatch(f"batch {self.path.name} is not one of format {FORMAT}") from None
        return batch, {index: result for index in range(len(batch.request.items)) if (result := self.result(index))}

    def result(self, index: int) -> ItemResult | None:
        """Return the record of an item; None if it is not finished."""
        try:
            record = json.loads((self.path / f"{index}.json").read_bytes())
            error = record.pop("error")
            if error is not None:
                error = ErrorInfo(**{**error, "code": ErrorCode(error["code"])})
            skipped = tuple(Skipped(**run) for run in record.pop("skipped", ()))  # absent in records of older workers
            return ItemResult(**record, skipped=skipped, error=error)
        except (OSError, ValueError, TypeError, KeyError):
            return None  # not written, or damaged: then the item is synthesized again

    def open_audio(self, index: int) -> BinaryIO:
        """Open the audio of an item for writing, under a name that no reader looks for."""
        return open(self._unfinished(index), "wb")

    def sign(self, index: int, signer: FileSigner, audio_format: AudioFormat) -> int:
        """Sign the audio of an item before it is published; return its size."""
        signer.sign_file(self._unfinished(index), audio_format)
        return self._unfinished(index).stat().st_size

    def finish(self, result: ItemResult) -> None:
        """Publish an item: its audio, then its record."""
        if result.error is None:
            part = self._unfinished(result.index)
            with open(part, "rb") as stream:
                os.fsync(stream.fileno())
            part.replace(self.audio(result.index))
        else:
            self._unfinished(result.index).unlink(missing_ok=True)
        record = asdict(result)
        if result.error is not None:
            record["error"]["code"] = result.error.code.value
        write_atomically(self.path / f"{result.index}.json", json.dumps(record).encode(), is_flushed=True)

    def audio(self, index: int) -> Path:
        """Return the file of a finished item's audio."""
        return self.path / f"{index}.audio"

    def _unfinished(self, index: int) -> Path:
        return self.path / f"{index}.part"

    def delete(self) -> None:
        """Delete the batch at once, also for the process that runs it."""
        doomed = self.path.with_name(f"{_DELETED}{self.path.name}-{secrets.token_hex(4)}")
        with suppress(OSError):  # another process deletes it
            self.path.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        self.release()


class TemporaryFolder:
    """A folder of batches that end with the process, locked while the process lives."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=_TEMPORARY)
        self.path = Path(self._folder.name)
        self._lock = open(self.path / _LOCK, "ab")  # noqa: SIM115  (held until ``remove``)
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove the folder with its batches."""
        self._lock.close()
        self._folder.cleanup()


def remove_abandoned_folders() -> None:
    """Remove the temporary folders of processes that were killed: they hold texts and audio."""
    if fcntl is None:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        with suppress(OSError):  # another process has it, or it belongs to another user
            if not (folder / _LOCK).exists() and not _is_abandoned(folder):
                continue  # it is being made
            with open(folder / _LOCK, "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def _identity(file: os.stat_result) -> tuple[int, int, int]:
    return file.st_dev, file.st_ino, file.st_mtime_ns  # a new file may get the number of a deleted one


def stored_ids(directory: Path) -> list[str]:
    """Return the ids of the batches in a directory; remnants of deleted and of abandoned ones are removed."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    for name in names:
        if name.startswith(_DELETED) or (name.startswith(_NEW) and _is_abandoned(directory / name)):
            shutil.rmtree(directory / name, ignore_errors=True)
    return sorted(name for name in names if is_id(name))


def _is_abandoned(folder: Path) -> bool:
    try:
        return unix_time_s() - folder.stat().st_mtime > _ABANDONED_S
    except FileNotFoundError:
        return False  # its batch was accepted


def is_id(name: str) -> bool:
    """Whether a name can be that of a batch."""
    return _NAME.fullmatch(name) is not None
