"""``python -m tools.bench text``: processor time of the text pipeline and of wetext per character."""

from __future__ import annotations

import argparse
from pathlib import Path

from tts_worker.commands.progress import measured
from tts_worker.errors import InvalidRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chars", type=int, default=100_000, help="length of a text (default 100000)")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each version (default 3)")
    parser.add_argument(
        "--baseline", type=Path, metavar="DIR", help="source folder of another version, measured in turn"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    import tts_worker
    from tools.bench.text import compare_text
    from tts_worker.features.bench.stats import show

    if args.chars < 1 or args.repeats < 1:
        raise InvalidRequest("--chars and --repeats must be at least 1")
    sources = {"this": str(Path(tts_worker.__file__).parent.parent)}
    if args.baseline is not None:
        if not (args.baseline / "tts_worker").is_dir():
            raise InvalidRequest(f"{args.baseline} does not contain the package tts_worker")
        sources["baseline"] = str(args.baseline.resolve())
    found = compare_text(args.chars, args.repeats, sources, lambda repeats: measured(repeats, "repeats"))
    figures = {f"{version}_{key}": value for version, runs in found.items() for key, value in runs.items()}
    show({"chars": args.chars, "repeats": args.repeats} | figures, args.json)
    return 0
