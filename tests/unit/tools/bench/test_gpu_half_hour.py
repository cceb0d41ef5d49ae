"""``scripts/gpu-half-hour``: its sections exist, and its parts fit into what a lent machine gives."""

from __future__ import annotations

import re
import subprocess
from configparser import ConfigParser
from pathlib import Path

from tests.gpu.test_graphs import COMPILE_S
from tests.unit.cosyvoice.bundles import tiny
from tools.bench.gpu import ENGINE_S, sections
from tools.bench.gpu_plan import Plan
from tts_worker.engine.cosyvoice.loader import LoadOptions

SCRIPT = Path(__file__).parents[4] / "scripts" / "gpu-half-hour"
QUICK_BENCH_S = 560 - 120  # what the quick part gives to ``tools.bench gpu``
MOST_S = 600
"""Of a command; a machine is lent for half an hour, a part of which it takes to start."""


def test_sections_exist() -> None:
    text = SCRIPT.read_text("utf-8").replace("$few", "64").replace("$many", "128")
    known = {section.name for section in sections(Plan(LoadOptions(tiny("cosyvoice3"), device="cpu")))}
    lists = re.findall(r'--sections "?([\w,]+)', text)

    assert len(lists) == 4
    for names in lists:
        assert set(names.split(",")) <= known
        assert names.startswith("machine,")


def test_parts_fit_into_half_an_hour() -> None:
    limits = [int(seconds) for seconds in re.findall(r"limit=\$\{2:-(\d+)\}", SCRIPT.read_text("utf-8"))]

    *parts, quick = limits
    assert len(parts) == 3
    assert max(limits) < MOST_S
    assert sum(parts) <= 30 * 60 - 240, "starts and transfers of the machine count, too"
    assert quick <= 15 * 60 - 240


def test_quick_part_measures_what_is_promised() -> None:
    """The first engine takes up to two minutes, the one for the loads as long as any."""
    names = re.findall(r'--sections "(machine,start,first_audio[\w,$]+)', SCRIPT.read_text("utf-8"))[-1]
    chosen = tuple(names.replace("$few", "64").replace("$many", "128").split(","))
    plan = Plan(LoadOptions(tiny("cosyvoice3"), device="cpu"), loads=(64, 128), sections=chosen)

    assert {"first_audio", "speed", "growth", "cancels", "load_64", "load_128"} <= set(chosen)
    assert sum(section.expected_s for section in sections(plan)) <= QUICK_BENCH_S - 120 - ENGINE_S


def test_weights_are_written_before_a_budget_is_set() -> None:
    """Two gigabytes take most of a minute. In a budget of what is left before, a part would exceed its limit."""
    lines = [line.strip() for line in SCRIPT.read_text("utf-8").splitlines()]
    measured = [line for line in lines if "measure $((" in line]

    assert len(measured) == 4
    assert all(line.startswith("weights cosyvoice3 && measure $((") for line in measured)


def test_compiling_ends_before_its_test_is_ended() -> None:
    """A computation that exceeds the budget is compiled to its end."""
    (limit_s,) = re.findall(r"--timeout (\d+)", SCRIPT.read_text("utf-8"))

    assert int(limit_s) > 2 * COMPILE_S


def test_log_shows_where_a_test_hangs() -> None:
    """A bare machine has no pytest-timeout."""
    settings = ConfigParser()
    settings.read(SCRIPT.parents[1] / "tests" / "gpu" / "pytest.ini")

    assert 2 * COMPILE_S < settings.getint("pytest", "faulthandler_timeout") < QUICK_BENCH_S


def test_script_is_valid() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
