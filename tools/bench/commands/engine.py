"""``python -m tools.bench engine``: the CosyVoice engine by stage, with forced tokens; random weights suffice."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from tts_worker.commands.progress import measured
from tts_worker.errors import InvalidRequest
from tts_worker.features.bench.stats import Figure, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bundle", type=Path, required=True, metavar="DIR", help="model directory; random weights suffice"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="audio length for the real-time factor (default 20)"
    )
    parser.add_argument(
        "--growth-seconds", type=float, default=60.0, help="length of the long turn, at least 12 (default 60)"
    )
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        default=125,
        help="prompt length of the random voice (default 125: 5 s, of CosyVoice-300M 2.5 s)",
    )
    parser.add_argument("--sessions", type=int, default=1, help="concurrent real-time sessions (default 1)")
    parser.add_argument("--session-seconds", type=float, default=6.0, help="audio length of each session (default 6)")
    parser.add_argument("--cancels", type=int, default=0, help="utterances to cancel at random points (default 0)")
    parser.add_argument("--repeats", type=int, default=5, help="runs for medians and minima (default 5)")
    parser.add_argument(
        "--first-tokens", type=int, default=8, help="speech tokens before the first chunk boundary (default 8)"
    )
    parser.add_argument("--stride-chunks", type=int, help="chunks per step after the first ones (default: by device)")
    parser.add_argument("--memory-gb", type=float, help="memory for utterances (default: by device)")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        help="run the flow beside language model and vocoder on a CPU (default: with four cores)",
    )
    parser.add_argument("--half", action="store_true", default=None, help="use bfloat16, also on a CPU")
    parser.add_argument("--no-graphs", action="store_true", help="disable CUDA graphs")
    parser.add_argument("--smooth-start", action="store_true", help="delay a first chunk that an underrun would follow")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    # Imported late: they need torch, the help does not.
    from tools.bench.engine import MAX_LENGTH_S, SENTENCE_S, Bench
    from tts_worker.engine.cosyvoice.loader import LoadOptions

    lengths_s = (args.seconds, args.growth_seconds, args.session_seconds)
    if not all(1.0 <= length_s <= MAX_LENGTH_S for length_s in lengths_s):
        raise InvalidRequest(f"--seconds, --growth-seconds and --session-seconds must be 1 to {MAX_LENGTH_S}")
    if args.growth_seconds < 2 * SENTENCE_S:
        raise InvalidRequest(f"--growth-seconds must be at least {2 * SENTENCE_S} (two sentences)")
    if args.repeats < 1 or args.sessions < 1 or args.prompt_tokens < 0:
        raise InvalidRequest("--repeats and --sessions must be at least 1, --prompt-tokens at least 0")
    options = LoadOptions(
        args.bundle,
        device=args.device,
        half=args.half,
        threads=args.threads,
        overlap=args.overlap,
        graphs=not args.no_graphs,
        max_utterances=max(4, args.sessions),
        first_tokens=args.first_tokens,
        stride_chunks=args.stride_chunks,
        max_segment_s=int(max(lengths_s)) + 2,
        memory_gb=args.memory_gb,
        smooth_start=args.smooth_start,
    )
    bench = Bench(options, args.prompt_tokens)
    figures = bench.describe()
    parts: list[Callable[[], dict[str, Figure]]] = [
        lambda: bench.first_audio(args.repeats),
        lambda: bench.speed(args.seconds, args.repeats),
        lambda: bench.growth(args.growth_seconds, args.repeats),
        lambda: bench.unbroken(args.seconds, args.repeats),
    ]
    if args.cancels > 0:
        parts.append(lambda: bench.cancels(args.cancels))
    if args.sessions > 1:
        parts.append(lambda: bench.sessions(args.sessions, args.session_seconds))
    for measure in measured(parts, "measurements"):
        figures |= measure()
    show(figures, args.json)
    return 0
