"""Create a model directory with random weights, for tests and benchmarks."""

from __future__ import annotations

import argparse
from pathlib import Path

from tts_worker.commands.progress import Bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="DIR")
    parser.add_argument(
        "--family", default="cosyvoice3", help="cosyvoice1 (CosyVoice-300M), cosyvoice2 or cosyvoice3 (default)"
    )
    parser.add_argument("--size", default="tiny", help="full, mid or tiny (default tiny)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same files (default 0)")


def run(args: argparse.Namespace) -> int:
    from tools.random_bundle.writer import write_random_bundle

    with Bar() as bar:
        bar.update(f"drawing random weights ({args.size})")
        bundle = write_random_bundle(args.bundle, args.family, args.size, args.seed)
    print(f"{args.bundle}: random weights; the output is noise, not speech")
    if not bundle.campplus.is_file():
        print('without prompt models: voices cannot be added; they are written with the extra "export"')
    return 0
