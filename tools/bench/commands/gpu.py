"""``python -m tools.bench gpu``: every figure of a GPU machine in one run; random weights suffice."""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from tts_worker.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from tools.bench.gpu_plan import Plan

# The modules that need torch are imported late: the help does not need it.
FAMILIES = ("cosyvoice1", "cosyvoice2", "cosyvoice3")
SIZES = ("full", "mid", "tiny")
MAX_BUDGET_S = 24 * 3600
MAX_CALLS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--bundle", type=Path, metavar="DIR", help="model directory")
    source.add_argument("--random", choices=FAMILIES, help="random weights of this family, in a temporary directory")
    parser.add_argument("--size", choices=SIZES, default="full", help="size of random weights (default full)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON file, replaced after every section")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, help="time budget in minutes, from the start of the command")
    budget.add_argument("--budget-s", type=float, default=1500.0, help="the same in seconds (default 1500)")
    parser.add_argument("--sections", help="only these, separated by commas: machine,start,first_audio,load_64 ...")
    parser.add_argument(
        "--loads", default="64,128,16,32,96,192", help="mean numbers of live calls (default 64,128,16,32,96,192)"
    )
    parser.add_argument("--load-seconds", type=float, default=40.0, help="measured time of each load (default 40)")
    parser.add_argument("--texts", type=int, default=200, help="different texts for the first audio (default 200)")
    parser.add_argument("--cancels", type=int, default=500, help="utterances to cancel (default 500)")
    parser.add_argument("--speed-seconds", type=float, default=20.0, help="audio length for the speed (default 20)")
    parser.add_argument("--growth-seconds", type=float, default=60.0, help="length of the long turn (default 60)")
    parser.add_argument("--memory-gb", type=float, help="memory for utterances (default: by device)")
    parser.add_argument("--threads", type=int, help="CPU threads")


def run(args: argparse.Namespace) -> int:
    began_s = perf_counter()
    from tools.bench.gpu_process import run_isolated
    from tools.random_bundle.writer import write_random_bundle

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    plan = plan_from(args)  # before random weights are written, which takes time
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        if args.bundle is None:
            bundle = Path(folder) / args.random
            write_random_bundle(bundle, args.random, args.size)
            plan = replace(plan, options=replace(plan.options, bundle=bundle))
        # Imports and random weights take time, too.
        plan = replace(plan, budget_s=plan.budget_s - (perf_counter() - began_s))
        figures = run_isolated(plan, args.output or Path(folder) / "results.json")
    print(json.dumps(figures))
    return 1 if any("error" in section for section in figures.values()) else 0


def plan_from(args: argparse.Namespace) -> Plan:
    """Return the plan that the arguments describe. With ``--random`` its model directory is missing.

    Raises:
        InvalidRequest: A value is out of range, or a section does not exist.
        ConfigError: The output file cannot be written, or the device does not exist.
        BundleError: The model directory cannot be read.
    """
    from tools.bench.engine import MAX_LENGTH_S
    from tools.bench.gpu import sections
    from tools.bench.gpu_plan import Plan
    from tts_worker.engine.cosyvoice.bundle.directory import Bundle
    from tts_worker.engine.cosyvoice.loader import LoadOptions, resolve_device

    _check_range("--texts", args.texts, 2, 100_000)
    _check_range("--cancels", args.cancels, 0, 1_000_000)
    _check_range("--minutes", args.minutes, 0.01, MAX_BUDGET_S // 60)
    _check_range("--budget-s", args.budget_s, 1, MAX_BUDGET_S)
    _check_range("--load-seconds", args.load_seconds, 0.1, 3600)
    _check_range("--speed-seconds", args.speed_seconds, 2, MAX_LENGTH_S)
    _check_range("--growth-seconds", args.growth_seconds, 12, MAX_LENGTH_S)
    _check_range("--memory-gb", args.memory_gb, 0.01, 10_000)
    _check_range("--threads", args.threads, 1, 1024)
    if args.output is not None:
        check_output(args.output)
    resolve_device(args.device)
    if args.bundle is not None:
        Bundle.open(args.bundle)
    plan = Plan(
        LoadOptions(args.bundle or Path(), device=args.device, threads=args.threads, memory_gb=args.memory_gb),
        loads=_loads(args.loads),
        load_seconds=args.load_seconds,
        texts=args.texts,
        speed_seconds=args.speed_seconds,
        growth_seconds=args.growth_seconds,
        cancels=args.cancels,
        budget_s=args.budget_s if args.minutes is None else 60 * args.minutes,
        sections=tuple(part.strip() for part in (args.sections or "").split(",") if part.strip()),
    )
    known = [section.name for section in sections(replace(plan, sections=()))]
    unknown = [name for name in plan.sections if name not in known]
    if unknown:
        raise InvalidRequest(f"--sections: {unknown[0]} does not exist; there are {', '.join(known)}")
    return plan


def _loads(text: str) -> tuple[int, ...]:
    try:
        loads = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InvalidRequest("--loads takes numbers separated by commas, such as 16,64") from None
    for calls in loads:
        _check_range("--loads", calls, 1, MAX_CALLS)
    return loads


def _check_range(option: str, value: float | None, least: float, most: float) -> None:
    """Raise InvalidRequest unless ``value`` is from ``least`` to ``most``, or not given."""
    if value is not None and not least <= value <= most:  # NaN is not
        raise InvalidRequest(f"{option} must be {least:,} to {most:,}, not {value:g}")


def check_output(path: Path) -> None:
    """Raise ConfigError if a file cannot be written at ``path``."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ConfigError(f"--output: the directory {folder} does not exist")
    if path.is_dir():
        raise ConfigError(f"--output: {path} is a directory; give the name of a file")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--output: no file can be written in {folder}")
