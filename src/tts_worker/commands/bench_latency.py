"""``tts-worker bench latency``: first-audio latency of one session at a time."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path

from tts_worker.benchmarks.latency import measure_conversions, measure_latency
from tts_worker.benchmarks.stats import show
from tts_worker.commands.common import add_settings_arguments, quiet_logs, settings_from
from tts_worker.commands.progress import measured
from tts_worker.errors import InvalidRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=100, help="sentences to speak, one after another (default 100)")
    parser.add_argument(
        "--source", type=Path, metavar="FILE", help="measure voice conversions of this recording instead of speech"
    )
    parser.add_argument("--voice", help="with --source: the voice to convert to")
    parser.add_argument(
        "--live", action="store_true", help="with --source: it arrives at the pace of speech; from its first sample"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    if args.turns < 1:
        raise InvalidRequest("--turns must be at least 1")
    if args.live and args.source is None:
        raise InvalidRequest("--live needs --source FILE")
    settings = settings_from(args)

    def track(turns: range) -> Iterator[int]:
        return measured(turns, "turns")

    if args.source is None:
        figures = asyncio.run(measure_latency(settings, args.turns, track=track))
    else:
        source = _read(args.source)
        figures = asyncio.run(
            measure_conversions(settings, source, args.voice, args.turns, live=args.live, track=track)
        )
    show({"engine": ",".join(settings.engines)} | figures, args.json)
    return 0


def _read(source: Path) -> bytes:
    try:
        return source.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {source}: {error.strerror}") from None
