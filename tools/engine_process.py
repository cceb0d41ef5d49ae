"""Compare an engine on a thread with one in a separate process: alternating runs of ``tools.bench``.

    python -m tools.record engine-process-tone -- python -m tools.engine_process --engine tone

Every run is a separate process, with ``engine.process`` as the only difference. Runs alternate, so that a change of
the machine's load concerns both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

KINDS = ("thread", "process")


def run_bench(bench: str, kind: str, engine: str, sessions: int, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "tools.bench", bench, "--engine", engine]
    command += ["--sessions", str(sessions), "--seconds", str(seconds), "--json"]
    if bench == "load" and engine == "cpu":
        command += ["--set", f"engines.hibari.max_utterances={sessions}"]
    environment = {**os.environ, "TTS_WORKER_ENGINE__PROCESS": kind}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("tone", "cpu"), default="tone")
    parser.add_argument("--bench", choices=("control", "load"), default="control")
    parser.add_argument("--sessions", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="accepted for tools/record.py; the output is always JSON")
    args = parser.parse_args()
    runs = [
        {
            "sessions": sessions,
            "process": kind,
            "figures": run_bench(args.bench, kind, args.engine, sessions, args.seconds),
        }
        for sessions in args.sessions
        for _ in range(args.rounds)
        for kind in KINDS
    ]
    print(json.dumps({"bench": args.bench, "engine": args.engine, "runs": runs}))


if __name__ == "__main__":
    main()
