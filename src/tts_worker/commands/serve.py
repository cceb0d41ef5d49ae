"""``tts-worker serve``: runs the server until SIGINT or SIGTERM drains it; a second signal ends it at once."""

from __future__ import annotations

import argparse
import logging
import sys
import webbrowser
from collections.abc import Callable

from tts_worker.commands.common import add_settings_arguments, run_event_loop, settings_from
from tts_worker.errors import ConfigError
from tts_worker.feature import Deployment, features
from tts_worker.logs import configure_logs, discard_output, json_line, set_log_level
from tts_worker.serving import serve
from tts_worker.settings import Settings

log = logging.getLogger(__name__)


class LogLevelReload:
    """Sets the log level of settings that are read again; invalid settings change nothing.

    Args:
        read: Reads the settings. Raises ConfigError.
    """

    def __init__(self, read: Callable[[], Settings]) -> None:
        self._read = read

    def __call__(self) -> None:
        try:
            level = self._read().log_level
        except ConfigError as error:
            log.error("the log level is unchanged: %s", error.message)
            return
        set_log_level(level)
        log.info("log level reloaded: %s", level)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1; others need an API key)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8080; 0 picks a free one)")
    parser.add_argument("--open", action="store_true", help="open the web page in a browser when the server is ready")
    for flag, deployment in _deployments().items():
        parser.add_argument(f"--{flag}", action="store_true", help=deployment.help)
    add_settings_arguments(parser, bundle=True)


def run(args: argparse.Namespace) -> int:
    server = {"host": args.host, "port": args.port}
    flags = {key: value for key, value in server.items() if value is not None}
    settings = settings_from(args, server=flags)
    configure_logs(settings.log_level, settings.log_format, settings.secrets)
    as_json = settings.log_format == "json"

    address = ""

    # On standard output, so that a parent process can read the address (port 0).
    def on_listening(url: str) -> None:
        nonlocal address
        address = address or url  # the first one has the page
        _announce(json_line("listening", url=url) if as_json else f"listening on {url}")

    def on_ready() -> None:
        _announce(json_line("ready") if as_json else "ready")
        if args.open and not webbrowser.open(address):
            log.warning("no browser found: open %s", address)

    def on_both(url: str) -> None:
        on_listening(url)
        on_ready()

    for flag, deployment in _deployments().items():
        if getattr(args, flag):
            deployment.run(settings, on_both)
            return 0
    on_reload = None
    if args.config is not None and not sys.stdin.isatty():  # SIGHUP from a closed terminal should end the worker
        on_reload = LogLevelReload(lambda: settings_from(args, server=flags))
    run_event_loop(serve(settings, on_listening, on_ready, ends_process=True, on_reload=on_reload))
    return 0


def _deployments() -> dict[str, Deployment]:
    return {flag: deployment for feature in features().values() for flag, deployment in feature.deployments.items()}


def _announce(line: str) -> None:
    """Print a line for a parent process. A worker serves also when nothing reads it."""
    try:
        print(line, flush=True)
    except OSError as error:  # ``serve | head -1``, a full disk
        log.warning("standard output cannot be written (%s): the worker goes on without it", error.strerror)
        discard_output()
