"""``python -m tools.bench control``: latency of STOP, PAUSE and RESUME under load."""

from __future__ import annotations

import argparse
import asyncio

from tools.bench.control import measure_control
from tts_worker.commands.common import quiet_logs
from tts_worker.commands.progress import measuring
from tts_worker.errors import InvalidRequest, MissingExtra
from tts_worker.features.bench.stats import Figure, show
from tts_worker.settings import load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=("tone", "cpu"), default="tone")
    parser.add_argument("--transport", choices=("local", "ws", "grpc"), default="local")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument(
        "--load", type=float, default=0.8, help="load of the tone engine, from 0 to below 1 (default 0.8)"
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    if args.sessions < 1 or not 0 <= args.load < 1 or args.seconds <= 0:
        raise InvalidRequest("--sessions must be at least 1, --load from 0 to below 1, --seconds above 0")
    engine: dict[str, object] = {"kind": "hibari", "max_utterances": args.sessions + 16}
    if args.engine == "tone":
        # N streams need N seconds of audio per second, which takes the share `load` of the engine's time.
        engine = {"kind": "tone", "cost_per_audio_s": args.load / args.sessions, "max_utterances": args.sessions + 16}
    with measuring(f"measuring for {args.seconds:g} s"):
        figures = asyncio.run(_measure(args, engine))
    load = args.load if args.engine == "tone" else None
    show(
        {"engine": args.engine, "transport": args.transport, "sessions": args.sessions, "load": load} | figures,
        args.json,
    )
    return 0


async def _measure(args: argparse.Namespace, engine: dict[str, object]) -> dict[str, Figure]:
    if args.transport == "local":
        flags = {"engines": {args.engine: engine}, "session": {"max_sessions": args.sessions}}
        return await measure_control(load_settings(flags=flags), args.sessions, args.seconds)
    settings = [f"engines.{args.engine}.{key}={value}" for key, value in engine.items()]
    settings += [f"session.max_sessions={args.sessions}", "log_level=warning"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    if args.transport == "grpc":
        try:
            from tools.bench.control_grpc import grpc_server_process, measure_control_grpc
        except ModuleNotFoundError:
            raise MissingExtra("--transport grpc", "grpc") from None
        async with grpc_server_process(arguments) as address:
            return await measure_control_grpc(address, args.sessions, args.seconds)
    from tools.bench.control_websocket import measure_control_websocket
    from tts_worker.features.bench.server_process import server_process

    async with server_process(arguments) as (address, _):
        return await measure_control_websocket(address, args.sessions, args.seconds)
