"""Runs the sections of ``tools.bench gpu`` in a process of their own, the rest of them in another one if it dies.

After some errors, such as a read beyond the memory of a tensor, a CUDA device refuses everything that its process asks
for. A process can also be killed, or hang in the driver. The file with the results tells which section it was in.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter

from tools.bench.gpu import run_sections, sections
from tools.bench.gpu_plan import Figures, Plan, Results

log = logging.getLogger(__name__)

RunPart = Callable[[Plan, Path], int]
"""Runs the sections of a plan, adds their figures to a file, and returns an exit code, 0 if all have run."""


def run_isolated(
    plan: Plan, path: Path, *, run_part: RunPart | None = None, clock: Callable[[], float] = perf_counter
) -> Figures:
    """Run the sections of ``plan`` and return their figures.

    Args:
        plan: What to measure.
        path: The file for the figures, replaced after every section.
        run_part: Runs them; None: in another process.
        clock: Returns the time in seconds.
    """
    began_s = clock()
    results = Results(path)
    results.write()
    names = [section.name for section in sections(plan)]
    while left := [name for name in names if name not in results.figures]:
        part = replace(plan, sections=tuple(left), budget_s=plan.budget_s - (clock() - began_s))
        code = (run_part or _in_process)(part, path)
        done = len(results.figures)
        results = Results.read(path)
        if code == 0:
            break
        log.warning("the process of the measurements has ended with exit code %d", code)
        if results.running is not None:
            results.add(results.running, {"error": f"the process was lost: exit code {code}"})
        elif len(results.figures) == done:  # it has not even begun
            results.add(left[0], {"error": f"no process could begin with it: exit code {code}"})
    return results.figures


def _in_process(plan: Plan, path: Path) -> int:
    process = multiprocessing.get_context("spawn").Process(
        target=run_sections_of_process, args=(plan, path, monotonic()), daemon=True
    )
    process.start()
    process.join()
    return process.exitcode or 0


def run_sections_of_process(plan: Plan, path: Path, started_s: float) -> None:
    """Run the sections of ``plan`` in this process, which was started at ``started_s`` by the clock of the machine."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    plan = replace(plan, budget_s=plan.budget_s - (monotonic() - started_s))  # imports take time, too
    run_sections(plan, Results.read(path), watch=_ends_after)


@contextmanager
def _ends_after(seconds: float) -> Iterator[None]:
    """End the process with a traceback of all threads if the block takes longer, even in a call of the driver."""
    if seconds < math.inf:
        faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
