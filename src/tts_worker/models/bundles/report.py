"""Report on the problems of a model directory, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tts_worker.errors import BundleError

MAX_EXAMPLES = 5
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True)
class Problem:
    """One problem. ``fatal``: the directory cannot be served; otherwise a note."""

    file: str
    what: str
    fatal: bool = True


@dataclass(frozen=True)
class Report:
    """All problems of a directory. ``str(report)`` is readable text."""

    path: Path
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        return not any(problem.fatal for problem in self.problems)

    def __str__(self) -> str:
        head = f"{self.path}: {'complete and valid' if self.ok else 'cannot be served'}"
        lines = [f"  {'error' if p.fatal else 'note '}  {p.file}: {p.what}" for p in self.problems]
        return "\n".join([head, *lines])

    def raise_if_bad(self) -> None:
        """Raise BundleError with the whole report if any problem is fatal."""
        if not self.ok:
            raise BundleError(str(self))


def missing_content(path: Path) -> str | None:
    """Return the problem of a file that is missing, unreadable or only a Git LFS pointer, or None."""
    if not path.is_file():
        return "is missing"
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError as error:
        return f"cannot be read ({type(error).__name__})"
    return "is a Git LFS pointer, not the file it stands for; run: git lfs pull" if is_pointer else None


def listed(what: str, items: Sequence[str]) -> str:
    """Format a list as ``what (count): first few; and n more``."""
    shown = "; ".join(item[:160] for item in items[:MAX_EXAMPLES])
    more = f"; and {len(items) - MAX_EXAMPLES} more" if len(items) > MAX_EXAMPLES else ""
    return f"{what} ({len(items)}): {shown}{more}"
