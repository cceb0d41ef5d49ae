"""Run a benchmark and store its figures with the command and the hardware, as a JSON file in bench/results.

    python -m tools.record NAME -- python -m tools.bench load --engine cpu --sessions 40
    python -m tools.record NAME --runs 6 -- python -m tools.bench fairness

The last line of its output must be one JSON object; ``--json`` is added to the command if it is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tts_worker.features.bench.machine import hardware

RESULTS = Path(__file__).parents[1] / "bench" / "results"


def run(command: Sequence[str]) -> Any:
    """Run a benchmark and return its figures."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> int:
    words = sys.argv[1:]
    if "--" not in words:
        print(__doc__, file=sys.stderr)
        return 2
    separator = words.index("--")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args(words[:separator])
    command = words[separator + 1 :]
    if "--json" not in command:
        command.append("--json")
    load_before = os.getloadavg()[0]
    results = [run(command) for _ in range(options.runs)]
    record = {
        "command": " ".join(command),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "hardware": hardware(),
        "python": platform.python_version(),
        "load_average_before": round(load_before, 2),
        **({"result": results[0]} if len(results) == 1 else {"runs": results}),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{options.name}.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
