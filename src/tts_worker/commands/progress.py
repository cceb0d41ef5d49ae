"""Progress of a long step on standard error: a bar on a terminal, otherwise plain lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


_T = TypeVar("_T")


class Bar:
    """Shows a label and the share of ``total`` that is done, as a context manager.

    Without a terminal or without rich, each new label is printed as one line.

    Args:
        shown: Whether to show anything.
        unit: Unit of the counts; "bytes" shows a download.
        still: Draw at updates only, so that nothing runs beside a measurement.
    """

    def __init__(self, *, shown: bool = True, unit: str = "", still: bool = False) -> None:
        self._shown = shown
        self._label = ""
        self._bar = _rich_bar(unit, still) if shown and sys.stderr.isatty() else None
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
        if self._bar is not None and not self._bar.live.auto_refresh:
            self._bar.refresh()
        self._label = label


def measured(items: Sequence[_T], label: str) -> Iterator[_T]:
    """Yield the steps of a measurement; a terminal shows how many are done. It is drawn between steps only."""
    with Bar(shown=sys.stderr.isatty(), unit=f"of {len(items)}", still=True) as bar:
        for done, item in enumerate(items):
            bar.update(label, done, len(items))
            yield item


@contextmanager
def measuring(label: str) -> Iterator[None]:
    """Show a label on a terminal during a measurement. It is drawn once: drawing would disturb the measurement."""
    with Bar(shown=sys.stderr.isatty(), still=True) as bar:
        bar.update(label)
        yield


def _rich_bar(unit: str, still: bool) -> Progress | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    amount = DownloadColumn() if unit == "bytes" else TextColumn("{task.completed:.0f} " + unit if unit else "")
    columns = TextColumn("{task.description}"), BarColumn(), amount
    moving = () if still else (SpinnerColumn(), TimeElapsedColumn())
    return Progress(
        *moving[:1], *columns, *moving[1:], console=Console(stderr=True), transient=True, auto_refresh=not still
    )
