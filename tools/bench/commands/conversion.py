"""``python -m tools.bench conversion``: first-audio latency of voice conversions."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from tools.bench.conversion import measure_conversions
from tts_worker.commands.common import add_settings_arguments, quiet_logs, settings_from
from tts_worker.commands.progress import measured
from tts_worker.errors import InvalidRequest
from tts_worker.features.bench.stats import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="FILE", help="recording to convert")
    parser.add_argument("--voice", help="voice to convert to")
    parser.add_argument(
        "--live", action="store_true", help="the recording arrives at the pace of speech; times from its first sample"
    )
    parser.add_argument("--turns", type=int, default=20, help="conversions, one after another (default 20)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_settings_arguments(parser, bundle=True)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    if args.turns < 1:
        raise InvalidRequest("--turns must be at least 1")
    settings = settings_from(args)
    try:
        source = args.source.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {args.source}: {error.strerror}") from None
    figures = asyncio.run(
        measure_conversions(
            settings, source, args.voice, args.turns, live=args.live, track=lambda turns: measured(turns, "turns")
        )
    )
    show({"engine": ",".join(settings.engines)} | figures, args.json)
    return 0
