"""Files that appear whole: written beside their place, then renamed."""

from __future__ import annotations

import os
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
        with partial.open("wb") as stream:
            stream.write(data)
            if is_flushed:
                stream.flush()
                os.fsync(stream.fileno())
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
