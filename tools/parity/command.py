"""Compares every stage of a model directory with the reference figures of a golden folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from tts_worker.commands.model_directory import need_torch
from tts_worker.commands.progress import Bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="model directory")
    parser.add_argument(
        "--golden",
        type=Path,
        required=True,
        metavar="DIR",
        help="golden folder of one model family; text/ lies beside it",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the networks run")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the language model and the flow estimator; errors in bfloat16 are relative",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--failures", action="store_true", help="list only failures")


def run(args: argparse.Namespace) -> int:
    need_torch()
    from tools.parity.runner import run_parity

    with Bar(shown=not args.json) as bar:
        report = run_parity(
            args.bundle,
            args.golden,
            lambda file: bar.update(f"comparing {file}"),
            device=args.device,
            half=args.dtype == "bfloat16",
        )
    if args.json:
        print(report.to_json())
    else:
        for line in report.lines(every=not args.failures):
            print(line)
    return report.exit_code
