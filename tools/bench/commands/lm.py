"""``python -m tools.bench lm``: the language model's decoder beside transformers', on the same random weights."""

from __future__ import annotations

import argparse

from tts_worker.commands.progress import measured
from tts_worker.errors import InvalidRequest, MissingExtra
from tts_worker.features.bench.stats import Figure, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, default=24, help="layers of the network (default 24, CosyVoice's)")
    parser.add_argument("--width", type=int, default=896, help="size of its vectors, a multiple of 128 (default 896)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4], help="sequences together (default 1 4)")
    parser.add_argument("--prompt", type=int, default=150, help="vectors before the first step (default 150)")
    parser.add_argument("--steps", type=int, default=50, help="measured steps (default 50)")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    if min(args.layers, args.prompt, args.steps, *args.batches) < 1 or args.width < 128 or args.width % 128:
        raise InvalidRequest("numbers must be at least 1, --width a multiple of 128")
    try:
        from tools.bench.language_model import LanguageModelBench, versions
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("the benchmark of the language model", "cosyvoice") from None
    bench = LanguageModelBench(args.layers, args.width, args.prompt, args.steps, threads=args.threads)
    figures: dict[str, Figure] = {"layers": args.layers, "width": args.width, "prompt": args.prompt, **versions()}
    for batch in measured(args.batches, "batch sizes"):
        figures |= bench.measure(batch)
    show(figures, args.json)
    return 0
