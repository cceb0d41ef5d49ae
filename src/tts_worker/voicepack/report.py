"""What is wrong with a directory, as data and as a text for people. It must not know how it was found out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tts_worker.errors import BundleError

MAX_EXAMPLES = 5


@dataclass(frozen=True)
class Problem:
    """``fatal``: it cannot be served with this; otherwise worth knowing."""

    file: str
    what: str
    fatal: bool = True


@dataclass(frozen=True)
class Report:
    """Everything that is wrong with a directory. ``str(report)`` is for people."""

    path: Path
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        return not any(problem.fatal for problem in self.problems)

    def __str__(self) -> str:
        head = f"{self.path}: {'complete and sound' if self.ok else 'cannot be served'}"
        lines = [f"  {'error' if p.fatal else 'note '}  {p.file}: {p.what}" for p in self.problems]
        return "\n".join([head, *lines])

    def raise_if_bad(self) -> None:
        """Raises BundleError with the whole report if anything is fatal."""
        if not self.ok:
            raise BundleError(str(self))


def listed(what: str, items: Sequence[str]) -> str:
    """``what (count): first few; and n more``."""
    shown = "; ".join(item[:160] for item in items[:MAX_EXAMPLES])
    more = f"; and {len(items) - MAX_EXAMPLES} more" if len(items) > MAX_EXAMPLES else ""
    return f"{what} ({len(items)}): {shown}{more}"
