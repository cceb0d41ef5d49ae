"""``tts-worker bench latency``: first-audio latency of one session at a time."""

from __future__ import annotations

import argparse
import asyncio

from tts_worker.commands.common import add_settings_arguments, quiet_logs, settings_from
from tts_worker.commands.progress import measured
from tts_worker.errors import InvalidRequest
from tts_worker.features.bench.latency import measure_latency
from tts_worker.features.bench.stats import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=100, help="sentences to speak, one after another (default 100)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    if args.turns < 1:
        raise InvalidRequest("--turns must be at least 1")
    settings = settings_from(args)
    figures = asyncio.run(measure_latency(settings, args.turns, track=lambda turns: measured(turns, "turns")))
    show({"engine": ",".join(settings.engines)} | figures, args.json)
    return 0
