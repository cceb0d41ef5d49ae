"""What ``tools.bench gpu`` measures, and the file of its results."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.bench.gpu_load import Arrivals
from tools.bench.measure_stages import LIVE
from tts_worker.engine.cosyvoice.loader import LoadOptions

Figures = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        options: How the engine is loaded; its bundle has the family and size to measure.
        loads: Mean numbers of live calls, in the order of measurement.
        load_seconds: Measured time of each load.
        call_s: Shortest and longest call of a load, in seconds.
        texts: Number of different texts for the first-audio latency.
        speed_seconds: Audio length for the real-time factor.
        growth_seconds: Length of the long turn.
        correct_tokens: Lengths of the utterances that are compared with the CPU.
        stage_batches: Numbers of utterances for the stage times.
        stage_live: Calls for the stage times; None for none.
        cancels: Utterances to cancel.
        budget_s: A section starts only while the time it is expected to take is left.
        sections: Names of the sections to run; empty for all.
    """

    options: LoadOptions
    loads: tuple[int, ...] = (64, 128, 16, 32, 96, 192)
    load_seconds: float = 40.0
    call_s: tuple[float, float] = (4.0, 12.0)
    texts: int = 200
    speed_seconds: float = 20.0
    growth_seconds: float = 60.0
    correct_tokens: tuple[int, ...] = (40, 110, 250)
    stage_batches: tuple[int, ...] = (1, 4, 16)
    stage_live: Arrivals | None = LIVE
    cancels: int = 500
    budget_s: float = 1500.0
    sections: tuple[str, ...] = ()


@dataclass
class Results:
    """Figures by section, written to a file after each one.

    Attributes:
        path: The file; None writes nothing.
        figures: What has been measured so far.
    """

    path: Path | None
    figures: Figures = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return the results in a file."""
        return cls(path, json.loads(path.read_text("utf-8")))

    @property
    def running(self) -> str | None:
        """The section that had begun when the file was written."""
        return next((name for name, figures in self.figures.items() if "running" in figures), None)

    def begin(self, section: str) -> None:
        """Note that a section begins, so that the file tells what the process was lost in."""
        self.add(section, {"running": True})

    def add(self, section: str, figures: Figures) -> None:
        """Add the figures of a section and replace the file."""
        self.figures[section] = figures
        self.write()

    def write(self) -> None:
        """Replace the file, so that it is complete at any time."""
        if self.path is not None:
            new = self.path.with_name(f"{self.path.name}.part")
            new.write_text(json.dumps(self.figures, indent=2) + "\n", "utf-8")
            os.replace(new, self.path)
