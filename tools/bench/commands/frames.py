"""``python -m tools.bench frames``: processor time of the server per frame."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from tts_worker.commands.common import quiet_logs
from tts_worker.commands.progress import measured
from tts_worker.errors import InvalidRequest
from tts_worker.features.bench.stats import show
from tts_worker.features.telephony.settings import TelephonySettings
from tts_worker.settings import Settings

_START_OVER_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=("tone", "cpu"), default="tone")
    parser.add_argument(
        "--protocol",
        choices=("websocket", "twilio"),
        default="websocket",
        help="twilio: telephone calls, with the agents that speak in them (default websocket)",
    )
    parser.add_argument(
        "--voices", type=lambda names: names.split(","), default=(), metavar="A,B", help="voices of the calls"
    )
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a measurement (default 10)")
    parser.add_argument(
        "--start-over",
        type=float,
        default=_START_OVER_S,
        metavar="SECONDS",
        help=f"the calls begin within this time (default {_START_OVER_S:g})",
    )
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each version (default 3)")
    parser.add_argument(
        "--baseline", type=Path, metavar="DIR", help="source folder of another version, measured in turn"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from tools.bench.frames import compare_frames

    quiet_logs()
    if args.sessions < 1 or args.repeats < 1 or args.seconds <= 0 or args.start_over < 0:
        raise InvalidRequest("--sessions and --repeats must be at least 1, --seconds above 0, --start-over at least 0")
    if args.baseline is not None and not (args.baseline / "tts_worker").is_dir():
        raise InvalidRequest(f"{args.baseline} does not contain the package tts_worker")
    kind = "hibari" if args.engine == "cpu" else "tone"
    settings = server_settings(args.engine, kind, args.sessions, args.protocol)
    defaults = Settings()
    lead_ms = defaults.section(TelephonySettings).lead_ms if args.protocol == "twilio" else defaults.session.lead_ms
    figures = asyncio.run(
        compare_frames(
            [word for setting in settings for word in ("--set", setting)],
            args.sessions,
            args.seconds,
            args.repeats,
            lead_s=max(0.0, lead_ms - defaults.session.frame_ms) / 1000,
            baseline=None if args.baseline is None else str(args.baseline.resolve()),
            start_over_s=args.start_over,
            protocol=args.protocol,
            voices=args.voices,
            track=lambda repeats: measured(repeats, "repeats"),
        )
    )
    options = {
        "engine": kind,
        "voices": list(args.voices),
        "sessions": args.sessions,
        "seconds": args.seconds,
        "repeats": args.repeats,
    }
    show(options | {"protocol": args.protocol, "start_over_s": args.start_over} | figures, args.json)
    return 0


def server_settings(engine: str, kind: str, sessions: int, protocol: str) -> list[str]:
    """Return the settings of the measured server. A baseline refuses those that it does not know yet."""
    settings = [f"engines.{engine}.kind={kind}", f"engines.{engine}.max_utterances={sessions + 16}"]
    settings += [f"session.max_sessions={sessions}", "log_level=warning"]
    if protocol == "twilio":
        settings.append(f"telephony.max_calls={sessions}")
    return settings
