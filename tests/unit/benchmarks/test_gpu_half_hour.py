"""``scripts/gpu-half-hour``: its sections exist, and its parts fit into what a lent machine gives."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.unit.cosyvoice.bundles import tiny
from tts_worker.benchmarks.gpu import sections
from tts_worker.benchmarks.gpu_plan import Plan
from tts_worker.engine.cosyvoice.loader import LoadOptions

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu-half-hour"
MOST_S = 600
"""Of a command; a machine is lent for half an hour, a part of which it takes to start."""


def test_sections_exist() -> None:
    text = SCRIPT.read_text("utf-8").replace("$few", "64").replace("$many", "128")
    known = {section.name for section in sections(Plan(LoadOptions(tiny("cosyvoice3"), device="cpu")))}
    lists = re.findall(r'--sections "?([\w,]+)', text)

    assert len(lists) == 3
    for names in lists:
        assert set(names.split(",")) <= known
        assert names.startswith("machine,")


def test_parts_fit_into_half_an_hour() -> None:
    limits = [int(seconds) for seconds in re.findall(r"limit=\$\{2:-(\d+)\}", SCRIPT.read_text("utf-8"))]

    assert len(limits) == 3
    assert max(limits) < MOST_S
    assert sum(limits) <= 30 * 60 - 240, "starts and transfers of the machine count, too"


def test_script_is_sound() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
