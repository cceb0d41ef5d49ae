"""Notes the files that a thread opens, from the interpreter's audit events."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_notes: dict[int, list[str]] = {}  # by thread


@cache
def _install() -> None:
    """Add the audit hook, which cannot be removed."""

    def note(event: str, args: tuple[object, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and (notes := _notes.get(threading.get_ident())) is not None:
            notes.append(str(args[0]))

    sys.addaudithook(note)


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Yield a list to which the files are added that this thread opens, and the directories that it reads."""
    _install()
    notes = _notes[threading.get_ident()] = []
    try:
        yield notes
    finally:
        del _notes[threading.get_ident()]
