"""What ``bench gpu`` measures, and the file of its results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.bench.gpu_load import Arrivals
from tools.bench.measure_stages import LIVE
from tts_worker.engine.cosyvoice.loader import LoadOptions

if TYPE_CHECKING:
    from tools.bench.gpu import GpuBench

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


@dataclass(frozen=True)
class Section:
    """One part of the run.

    Attributes:
        name: Its key in the results.
        run: Measures and returns the figures.
        expected_s: Time that the measurement is expected to take, with the engine at hand.
        options: The engine that it needs; None: it takes care of that itself.
        utterances: How many that engine must take. If it takes fewer as served, another one is built.
        takes_any: Whether it takes the engine at hand, and the one as served if there is none.
        engines: Further engines that it builds.
        needs_cuda: Whether it makes sense only on a CUDA device.
        excludes_v1: Whether CosyVoice-300M lacks what it is about: chunks of a fixed size, or fused kernels.
    """

    name: str
    run: Callable[[GpuBench], Figures]
    expected_s: float
    options: LoadOptions | None = None
    utterances: int = 1
    takes_any: bool = False
    engines: int = 0
    needs_cuda: bool = False
    excludes_v1: bool = False


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
