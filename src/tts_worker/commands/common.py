"""Shared by several commands: the flags that select settings, logging, and the event loop."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import yaml

from tts_worker.errors import InvalidRequest
from tts_worker.settings import Settings, find_config, load_settings, parse_yaml

ENGINES = {
    "cpu": {"hibari": {"kind": "hibari"}},
    "kokoro": {"kokoro": {"kind": "kokoro"}},
    "cosyvoice": {"cosyvoice": {"kind": "cosyvoice"}},  # with an installed voice
    "tone": {"tone": {"kind": "tone"}},
}
"""Engines that ``--engine`` selects without a config file."""
GIVE_OUT = "Give --out FILE to save the speech instead"
"""Advice of a command that plays."""
OFFLINE_ENGINE = "cosyvoice"
"""Engine that ``say`` runs without a worker."""


def add_settings_arguments(parser: argparse.ArgumentParser, *, offline: bool = False) -> None:
    """Add ``--config``, ``--engine`` and ``--set``.

    Args:
        parser: Parser to extend.
        offline: Whether the command has an engine that runs without a worker, which takes a model directory.
    """
    bundle_help = ", or --bundle DIR" if offline else ""
    engine_help = (
        "cpu: the built-in voice; kokoro: English and Mandarin (extra: voices); "
        f"cosyvoice: an installed voice{bundle_help}; tone: tones, for tests"
    )
    group = parser.add_argument_group("settings (the file, then TTS_WORKER_* in the environment, then flags)")
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file, or the name of a packaged one: worker.yaml"
    )
    group.add_argument("--engine", choices=sorted(ENGINES), help=engine_help)
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, such as session.lead_ms=60"
    )


def settings_from(args: argparse.Namespace, **sections: dict[str, Any]) -> Settings:
    """Return the settings selected by the flags of ``add_settings_arguments``, overridden by ``sections``.

    Raises:
        ConfigError: A setting is invalid.
        InvalidRequest: A flag is invalid.
    """
    flags: dict[str, Any] = {}
    if args.engine is not None:
        flags["engines"] = ENGINES[args.engine]
    for assignment in args.set:
        _assign(flags, assignment)
    for section, values in sections.items():
        flags.setdefault(section, {}).update(values)
    file = None if args.config is None else find_config(args.config)
    return load_settings(file, flags, replaced=() if args.engine is None else ("engines",))


def _assign(flags: dict[str, Any], assignment: str) -> None:
    key, equals, value = assignment.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise InvalidRequest(f"--set takes KEY=VALUE, such as session.lead_ms=60; got {assignment[:64]!r}")
    try:
        parsed = parse_yaml(value)
    except yaml.YAMLError:
        raise InvalidRequest(f"--set {key}: the value is not valid YAML") from None
    if isinstance(parsed, dict) and not value.lstrip().startswith("{"):
        parsed = value  # registry.prefix=tts:worker: is a string, not a mapping
    for name in path[:-1]:
        flags = flags.setdefault(name, {})
        if not isinstance(flags, dict):
            raise InvalidRequest(f"--set {key}: {name} is a value, not a section")
    flags[path[-1]] = parsed


def quiet_logs(level: int = logging.WARNING) -> None:
    """Log warnings and errors only, for commands with output for a terminal."""
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")


def run_event_loop(coroutine: Coroutine[object, object, None]) -> None:
    """Run a coroutine on uvloop if it is installed, else on asyncio's event loop."""
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)
