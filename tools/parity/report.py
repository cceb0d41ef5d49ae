"""Result of a parity run: one ``Check`` per tensor or fact, and the overall verdict. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum


class Status(str, Enum):
    """Result of a check. ``info``: compared, but not binding."""

    PASS = "pass"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        file: Golden file.
        name: Tensor or fact.
        status: Result.
        error: Measured difference (for ``unit`` dB, the measured ratio); None if nothing is measured.
        limit: Largest allowed error (for dB, the smallest allowed ratio).
        unit: Unit of ``error`` and ``limit``.
        note: Why the check failed or is not binding.
    """

    file: str
    name: str
    status: Status
    error: float | None = None
    limit: float | None = None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class ParityReport:
    """All checks of a run. Passes if nothing failed and at least one binding check passed."""

    family: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        statuses = {check.status for check in self.checks}
        return Status.FAIL not in statuses and Status.PASS in statuses

    @property
    def exit_code(self) -> int:
        return 0 if self.passed else 1

    def count(self, status: Status) -> int:
        return sum(check.status is status for check in self.checks)

    def to_json(self) -> str:
        """Format as one JSON object; non-finite numbers become strings."""
        rows = [{**asdict(c), "status": c.status.value, "error": _plain(c.error)} for c in self.checks]
        counts = {status.value: self.count(status) for status in Status}
        return json.dumps({"family": self.family, "passed": self.passed, **counts, "checks": rows}, allow_nan=False)

    def lines(self, *, every: bool = True) -> Iterable[str]:
        """Format as a table: one line per check (with ``every=False`` only failures), then the verdict."""
        wide = max((len(f"{c.file}/{c.name}") for c in self.checks), default=0)
        for check in self.checks:
            if every or check.status is Status.FAIL:
                yield f"{check.status.value:4}  {check.file + '/' + check.name:{wide}}  {_measured(check)}".rstrip()
        counts = ", ".join(f"{self.count(status)} {status.value}" for status in Status)
        yield f"{self.family}: {'PASS' if self.passed else 'FAIL'} ({counts})"


def _measured(check: Check) -> str:
    if check.error is None:
        return check.note
    sign = ">" if check.unit == "dB" else "<="
    limit = f"  ({sign} {check.limit:g} {check.unit})".replace(" )", ")") if check.limit is not None else ""
    return f"{check.error:.3g}{limit}  {check.note}"


def _plain(value: float | None) -> float | str | None:
    return value if value is None or abs(value) < float("inf") else str(value)
