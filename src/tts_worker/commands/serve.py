"""``tts-worker serve``: the server, until SIGINT or SIGTERM drains it. A second signal ends it at once."""

from __future__ import annotations

import argparse
import json
import logging
import time
from typing import Any

from tts_worker.app import run as run_loop
from tts_worker.app import serve
from tts_worker.commands.common import add_settings_arguments, settings_from
from tts_worker.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1; others need an API key)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8080; 0 takes a free one)")
    parser.add_argument(
        "--ray",
        action="store_true",
        help="as replicas of Ray Serve (extra ray), see configs/ray.yaml",
    )
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    given = {"host": args.host, "port": args.port}
    settings = settings_from(args, server={key: value for key, value in given.items() if value is not None})
    configure_logs(settings)

    def on_listening(url: str) -> None:
        # On standard output, so that a program that starts us (with port 0) can read it.
        print(f"listening on {url}", flush=True)

    if args.ray:
        from tts_worker.transports.ray import serve_on_ray

        serve_on_ray(settings, lambda url: print(f"listening on {url}\nready", flush=True))
        return 0
    run_loop(serve(settings, on_listening, lambda: print("ready", flush=True), ends_process=True))
    return 0


def configure_logs(settings: Settings) -> None:
    """Logs to standard error, as lines for people or one JSON object each."""
    handler = logging.StreamHandler()
    if settings.log_format == "json":
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    server = logging.getLogger("uvicorn.error")
    if settings.log_level == "info":
        server.setLevel(logging.WARNING)  # a line per connection helps nobody
    # uvicorn takes a refused WebSocket handshake for a mistake of the application, and says so each time.
    server.addFilter(lambda record: "without completing handshake" not in record.getMessage())


class _JsonLines(logging.Formatter):
    """One object per record: time (UTC), level, logger, message, and the exception if there is one."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        data: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            data["exception"] = self.formatException(record.exc_info)
        return json.dumps(data, ensure_ascii=False)
