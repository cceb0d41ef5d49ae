"""Measure what only real speech can show, on a bundle with trained weights: one JSON object on standard output.

    python -m tools.speech_study BUNDLE [--sentences 12] [--parts words stop ...]

The recognizer is that of the quality tests (extra ``quality``). ``reference`` are the same parts with the CPU voice,
whose words are understood and whose word times are measured: what the method itself misses.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from tests.quality.judge import Judge, missing_reason

from tools.speech_study.study import OF_ANY_VOICE, PARTS, Study
from tools.train.text import held_out


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="model directory")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sentences", type=int, default=12, help="held-out sentences (default 12)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lost-noise", type=float, default=0.75, help="noise in the model that loses itself")
    parser.add_argument("--no-reference", action="store_true", help="leave out the CPU voice")
    parser.add_argument("--json", action="store_true", help="accepted for tools.record: the output is always JSON")
    args = parser.parse_args()
    if reason := missing_reason():
        parser.error(reason)
    judge = Judge()
    sentences = held_out()[: args.sentences]
    weights = hashlib.sha256((args.bundle / "llm.safetensors").read_bytes()).hexdigest()[:12]
    result: dict[str, Any] = {"bundle": args.bundle.name, "language_model": weights, "sentences": len(sentences)}
    with Study(args.bundle, sentences, judge, args.lost_noise, threads=args.threads) as study:
        result |= {part: study.measure(part) for part in args.parts}
    if not args.no_reference:
        with Study(None, sentences, judge) as reference:
            result["reference"] = {part: reference.measure(part) for part in args.parts if part in OF_ANY_VOICE}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
