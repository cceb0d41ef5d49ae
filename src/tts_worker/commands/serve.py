"""``tts-worker serve``: runs the server until SIGINT or SIGTERM drains it; a second signal ends it at once."""

from __future__ import annotations

import argparse
import logging
import webbrowser

from tts_worker.app import run as run_loop
from tts_worker.app import serve
from tts_worker.commands.common import add_settings_arguments, settings_from
from tts_worker.logs import configure_logs, json_line

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1; others need an API key)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8080; 0 picks a free one)")
    parser.add_argument("--open", action="store_true", help="open the web page in a browser when the server is ready")
    parser.add_argument(
        "--ray",
        action="store_true",
        help="run as Ray Serve replicas (extra ray), see configs/ray.yaml",
    )
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    server = {"host": args.host, "port": args.port}
    settings = settings_from(args, server={key: value for key, value in server.items() if value is not None})
    configure_logs(settings.log_level, settings.log_format, settings.secrets)
    as_json = settings.log_format == "json"

    address = ""

    # On standard output, so that a parent process can read the address (port 0).
    def on_listening(url: str) -> None:
        nonlocal address
        address = url
        print(json_line("listening", url=url) if as_json else f"listening on {url}", flush=True)

    def on_ready() -> None:
        print(json_line("ready") if as_json else "ready", flush=True)
        if args.open and not webbrowser.open(address):
            log.warning("no browser found: open %s", address)

    def on_both(url: str) -> None:
        on_listening(url)
        on_ready()

    if args.ray:
        from tts_worker.server.ray import serve_on_ray

        serve_on_ray(settings, on_both)
        return 0
    run_loop(serve(settings, on_listening, on_ready, ends_process=True))
    return 0
