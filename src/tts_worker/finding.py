"""One line of the report of ``tts-worker doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    OK = "ok"
    OPTIONAL = "optional"  # not installed, and needed only for what the line says
    WARNING = "warning"  # the worker runs, but not as configured
    FAULT = "fault"  # the base install does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``advice`` is what to install or do, empty if there is nothing to do."""

    what: str
    status: Status
    detail: str
    advice: str = ""
