"""``python -m tools.bench load``: playback continuity of many sessions."""

from __future__ import annotations

import argparse
import asyncio

from tools.bench.load import measure_load
from tts_worker.commands.common import add_settings_arguments, quiet_logs, settings_from
from tts_worker.commands.progress import measuring
from tts_worker.errors import InvalidRequest
from tts_worker.features.bench.stats import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_settings_arguments(parser, bundle=True)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    if args.sessions < 1 or args.seconds <= 0:
        raise InvalidRequest("--sessions must be at least 1 and --seconds above 0")
    settings = settings_from(args, session={"max_sessions": args.sessions})
    with measuring(f"measuring for {args.seconds:g} s"):
        figures = asyncio.run(measure_load(settings, args.sessions, args.seconds))
    show(
        {"engine": ",".join(settings.engines), "sessions": args.sessions, "seconds": args.seconds} | figures, args.json
    )
    return 0
