"""What a parity run found: one ``Check`` per tensor or fact, and the verdict over all of them.

Plain data, standard library only. It must not know how anything is computed or compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum


class Status(str, Enum):
    """``info``: looked at, not binding, and said so."""

    PASS = "pass"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True)
class Check:
    """One comparison. ``error`` is the largest (for ``unit`` ``dB`` the smallest tolerable) against ``limit``, None
    where there is nothing to measure; ``note`` says why a check failed or is not binding."""

    file: str
    name: str
    status: Status
    error: float | None = None
    limit: float | None = None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class ParityReport:
    """Every check of a run. Passes if nothing failed and something binding was compared."""

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
        """One JSON object; numbers that are not finite become texts."""
        rows = [{**asdict(c), "status": c.status.value, "error": _plain(c.error)} for c in self.checks]
        counts = {status.value: self.count(status) for status in Status}
        return json.dumps({"family": self.family, "passed": self.passed, **counts, "checks": rows}, allow_nan=False)

    def lines(self, *, every: bool = True) -> Iterable[str]:
        """The table for people: one line per check (or only what failed), then the verdict."""
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
