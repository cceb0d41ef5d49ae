"""The long run: ``python -m tools.worker_simulator --seeds 1000``. Exit code 1 if a property does not hold."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field

from tools.worker_simulator.mutants import MUTANTS
from tools.worker_simulator.properties import SOMETIMES
from tools.worker_simulator.world import SimulationResult, simulate

REACHES_ALL_FROM = 500
"""A run of so many seeds must reach every state of ``SOMETIMES``."""


def run_seed(seed: int, mutant: str | None = None) -> SimulationResult:
    """Run the world of a seed, with a planted fault."""
    with nullcontext() if mutant is None else MUTANTS[mutant].planted():
        return simulate(seed)


def run_seeds(
    seeds: range, *, jobs: int, minutes: float | None = None, mutant: str | None = None
) -> Iterator[SimulationResult]:
    """Run worlds in ``jobs`` processes, and begin no more after ``minutes``. Yields results as they come."""
    ends_s = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    waiting = iter(seeds)
    with ProcessPoolExecutor(jobs) as pool:
        running: set[Future[SimulationResult]] = set()
        while True:
            while len(running) < 2 * jobs and time.monotonic() < ends_s and (seed := next(waiting, None)) is not None:
                running.add(pool.submit(run_seed, seed, mutant))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (each.result() for each in done)


@dataclass
class Report:
    """What a run of many seeds has shown."""

    seeds: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    seconds: float = 0.0
    failures: list[SimulationResult] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)

    def add(self, result: SimulationResult) -> None:
        """Add the result of a seed."""
        self.seeds += 1
        self.steps += result.steps
        self.virtual_s += result.virtual_s
        if result.violations:
            self.failures.append(result)
        for name in result.reached:
            self.reached[name] += 1
            self.first[name] = min(result.seed, self.first.get(name, result.seed))

    @property
    def missing(self) -> list[str]:
        """The states that no seed has reached."""
        return [name for name in SOMETIMES if name not in self.reached]


def covering_seeds(results: list[SimulationResult], times: int) -> list[int]:
    """Return few seeds that together reach every state ``times`` times, as far as these results do."""
    wanted = Counter(dict.fromkeys(SOMETIMES, times))
    chosen: list[int] = []
    left = sorted(results, key=lambda result: result.seed)
    while left and +wanted:
        best = max(left, key=lambda result: sum(wanted[name] > 0 for name in result.reached))
        if not any(wanted[name] > 0 for name in best.reached):
            break
        left.remove(best)
        chosen.append(best.seed)
        wanted.subtract(best.reached)
    return sorted(chosen)


def replay_command(seed: int, mutant: str | None) -> str:
    """Return the command that repeats one seed."""
    planted = "" if mutant is None else f" --mutant {mutant}"
    return f"python -m tools.worker_simulator --from {seed} --seeds 1{planted}"


def print_report(report: Report, mutant: str | None) -> None:
    """Print a report for people."""
    print(
        f"{report.seeds} seeds, {report.steps} engine steps, {report.virtual_s / 3600:.1f} hours of virtual time "
        f"in {report.seconds:.0f} s; {len(report.reached)} of {len(SOMETIMES)} rare states"
    )
    for name in SOMETIMES:
        first = f"first {report.first[name]}" if name in report.first else "never"
        print(f"  {report.reached[name]:6d}  {first:>12}  {name}")
    for result in report.failures:
        print(f"seed {result.seed}: {result.violations[0]}\n  {replay_command(result.seed, mutant)}")


def search_mutants(seeds: range, jobs: int) -> bool:
    """Print the first seed that finds each planted fault; return whether all are found."""
    found_all = True
    print(f"{'mutant':18} {'seed':>5}  {'property that fails':46} fault")
    for mutant in MUTANTS.values():
        # In order, so that the first one is known.
        step = 4 * jobs
        failing: SimulationResult | None = None
        for start in range(seeds.start, seeds.stop, step):
            part = range(start, min(start + step, seeds.stop))
            failures = [each for each in run_seeds(part, jobs=jobs, mutant=mutant.name) if each.violations]
            failing = min(failures, key=lambda each: each.seed, default=None)
            if failing is not None:
                break
        found_all = found_all and failing is not None
        seed, name = ("-", "not found") if failing is None else (str(failing.seed), failing.violations[0].name)
        print(f"{mutant.name:18} {seed:>5}  {name:46} {mutant.fault}", flush=True)
    return found_all


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.worker_simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds (1000)")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first seed (0)")
    parser.add_argument("--minutes", type=float, help="begin no more seeds after this time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one per processor)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="plant this fault")
    parser.add_argument(
        "--mutants", action="store_true", help="find each planted fault; print the first seed that does"
    )
    parser.add_argument(
        "--cover", type=int, metavar="TIMES", help="also print few seeds that reach each state so often"
    )
    options = parser.parse_args()
    seeds = range(options.start, options.start + options.seeds)
    if options.mutants:
        return 0 if search_mutants(seeds, options.jobs) else 1
    report = Report()
    results: list[SimulationResult] = []
    began_s = time.monotonic()
    for result in run_seeds(seeds, jobs=options.jobs, minutes=options.minutes, mutant=options.mutant):
        report.add(result)
        results.append(result)
        if result.violations and not options.json:
            print(f"seed {result.seed}: {result.violations[0]}", file=sys.stderr, flush=True)
    report.seconds = time.monotonic() - began_s
    if options.json:
        failures = [
            {
                "seed": each.seed,
                "violation": str(each.violations[0]),
                "replay": replay_command(each.seed, options.mutant),
            }
            for each in report.failures
        ]
        print(json.dumps({**asdict(report), "failures": failures, "missing": report.missing}, indent=2))
    else:
        print_report(report, options.mutant)
    if options.cover:
        print("cover:", covering_seeds(results, options.cover))
    is_incomplete = report.seeds >= REACHES_ALL_FROM and bool(report.missing)
    return 1 if report.failures or is_incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
