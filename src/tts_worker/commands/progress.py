"""Progress of a long step on standard error: a bar on a terminal, otherwise plain lines."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Shows a label and the share of ``total`` that is done, as a context manager.

    Without a terminal or without rich, each new label is printed as one line.

    Args:
        shown: Whether to show anything.
        unit: Unit of the counts; "bytes" shows a download.
    """

    def __init__(self, *, shown: bool = True, unit: str = "") -> None:
        self._shown = shown
        self._label = ""
        self._bar = _rich_bar(unit) if shown and sys.stderr.isatty() else None
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, label: str, done: float = 0.0, total: float | None = None) -> None:
        if not self._shown:
            return
        if self._bar is None:
            if label != self._label:
                print(label, file=sys.stderr, flush=True)
        elif self._task is None:
            self._task = self._bar.add_task(label, total=total, completed=int(done))
        else:
            self._bar.update(self._task, description=label, total=total, completed=done)
        self._label = label


def _rich_bar(unit: str) -> Progress | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    amount = DownloadColumn() if unit == "bytes" else TextColumn("{task.completed:.0f} " + unit if unit else "")
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)
