"""Search for the highest load that passes a trial, for trials that take long and vary."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

_TOLERANCE = 0.05
_STEP_BACK = 0.9


class Trial(NamedTuple):
    """A load to try; ``confirms`` the result of the search, so that it should last longer."""

    load: int
    confirms: bool = False


def highest_load(first: int, most: int) -> Generator[Trial, bool, int]:
    """Double the load until a trial fails, halve the interval down to a twentieth, and confirm what passed.

    A load that is not confirmed is reduced by a tenth until one is.

    Args:
        first: Load to begin with, at least 1.
        most: Highest load to try.

    Yields:
        Trials; send whether each passed.

    Returns:
        The highest confirmed load; 0 if none passed.
    """
    passed, failed = 0, most + 1
    load = min(first, most)
    while True:
        if (yield Trial(load)):
            passed = load
        else:
            failed = load
        if failed - passed <= max(1, _TOLERANCE * passed):
            break
        load = min(2 * passed, most) if failed > most else (passed + failed) // 2
    while passed and not (yield Trial(passed, confirms=True)):
        passed = min(passed - 1, int(_STEP_BACK * passed))
    return passed
