"""Speak forced tokens on request, with the version of the worker that is on the Python path.

Started by ``tools.compare_upstream``, once for each version that it compares. Prints a line when the engine is ready;
then reads a list of tokens per line and prints the times of each utterance, both in JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

SWITCH_INTERVAL_S = 0.0005
"""As in the server: a thread of the engine that waits for the interpreter lock would wait for up to 5 ms."""


def load(args: argparse.Namespace) -> Any:
    """Return the ``Bench`` of the version on the path."""
    try:
        bench = import_module("tts_worker.benchmarks.engine")
        loader = import_module("tts_worker.engine.cosyvoice.loader")
    except ModuleNotFoundError:  # versions before 23 November 2026
        bench = import_module("tts_worker.commands.bench_engine")
        loader = import_module("tts_worker.engine.streaming.load")
    names = [field.name for field in fields(loader.LoadOptions)]
    length = next(name for name in names if name.startswith("max_") and name.endswith("_s"))  # has had other names
    options = loader.LoadOptions(
        args.bundle,
        device="cpu",
        threads=args.threads,
        overlap=bool(args.overlap),
        first_tokens=args.first_tokens,
        smooth_start=False,
        max_utterances=4,
        **{length: args.max_segment_s},
    )
    return bench.Bench(options, args.prompt_tokens)


def speak(bench: Any, tokens: list[int]) -> dict[str, float]:
    """Speak ``tokens`` alone and return the times, as ``compare_upstream.StreamTimes`` has them."""
    began_cpu_s = time.process_time()
    times = bench.speak(np.array(tokens, np.int32))
    return {
        "first_s": times.first_s,
        "first_samples": times.first_samples,
        "wall_s": times.wall_s,
        "cpu_s": time.process_time() - began_cpu_s,
        "chunks": len(times.chunks_ms),
        "samples": len(times.pcm) // 2,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    for name in ("prompt-tokens", "threads", "overlap", "first-tokens", "max-segment-s"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    bench = load(args)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(speak(bench, json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
