"""``python -m tools.bench fairness``: the effect of downloads on calls."""

from __future__ import annotations

import argparse
import asyncio

from tools.bench.fairness import measure_fairness
from tts_worker.commands.common import add_settings_arguments, quiet_logs, settings_from
from tts_worker.commands.progress import measured
from tts_worker.errors import InvalidRequest
from tts_worker.features.bench.stats import Figure, show
from tts_worker.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--downloads", type=int, default=6)
    parser.add_argument("--characters", type=int, default=19_000, help="text length of each download (default 19000)")
    parser.add_argument("--callers", type=int, default=4, help="calls that speak throughout (default 4)")
    parser.add_argument("--tries", type=int, default=20, help="new calls, idle and in each round (default 20)")
    parser.add_argument("--rounds", type=int, default=1, help="how often the downloads begin (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_settings_arguments(parser, bundle=True)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    if args.downloads < 0 or args.callers < 0 or min(args.characters, args.tries, args.rounds) < 1:
        raise InvalidRequest(
            "--characters, --tries and --rounds must be at least 1, --downloads and --callers not negative"
        )
    settings = settings_from(args)
    figures = asyncio.run(_measure(args, settings))
    options: dict[str, Figure] = {
        "engine": ",".join(settings.engines),
        "downloads": args.downloads,
        "characters": args.characters,
        "callers": args.callers,
        "tries": args.tries,
        "rounds": args.rounds,
    }
    show(options | figures, args.json)
    return 0


async def _measure(args: argparse.Namespace, settings: Settings) -> dict[str, Figure]:
    from tts_worker.features.bench.server_process import server_process

    arguments = ["--set", "log_level=warning"]
    if args.config is not None:
        arguments += ["--config", str(args.config)]
    if args.engine is not None:
        arguments += ["--engine", args.engine]
    if args.bundle is not None:
        arguments += ["--bundle", args.bundle]
    arguments += [word for assignment in args.set for word in ("--set", assignment)]
    async with server_process(arguments) as (address, _):
        return await measure_fairness(
            address,
            downloads=args.downloads,
            characters=args.characters,
            callers=args.callers,
            tries=args.tries,
            rounds=args.rounds,
            track=lambda rounds: measured(rounds, "rounds"),
            lead_s=max(0.0, settings.session.lead_ms - settings.session.frame_ms) / 1000,
        )
