"""Files and folders that appear whole: written beside their place under a hidden name, then renamed."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path


def write_atomically(file: Path, data: bytes, *, is_flushed: bool = False) -> None:
    """Write a file so that a reader sees the old content or the new, also after a failure.

    Args:
        file: The file; its folder exists.
        data: Its content.
        is_flushed: Whether the content is on the disk when this returns, so that a crash of the machine loses nothing.

    Raises:
        OSError: It cannot be written. The old content is as it was, and nothing else remains.
    """
    partial = file.with_name(f".{file.name}.part")
    try:
        if is_flushed:
            write_flushed(partial, data)
        else:
            partial.write_bytes(data)
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def hidden_path(root: Path, name: str, suffix: str) -> Path:
    """Return a name that no other process uses; its suffix is ``part`` while it is written, ``old`` once deleted."""
    return root / f".{name}.{os.getpid()}.{secrets.token_hex(4)}.{suffix}"


def write_flushed(file: Path, body: bytes) -> None:
    """Write a file, and return once it is on the disk. Raises OSError."""
    with file.open("wb") as stream:
        stream.write(body)
        stream.flush()
        os.fsync(stream.fileno())


def flush_folder(folder: Path) -> None:
    """Return once the names in a folder are on the disk. Raises OSError."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_remnants(root: Path, older_than_s: float, now_s: float) -> None:
    """Delete hidden folders of processes that ended while they wrote or deleted. ``now_s``: time since the epoch."""
    for folder in (*root.glob(".*.part"), *root.glob(".*.old")):
        with suppress(OSError):
            if now_s - folder.stat().st_mtime > older_than_s:
                shutil.rmtree(folder, ignore_errors=True)
