"""Shared by several commands: the flags that select settings, logging, and the event loop."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Coroutine
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from tts_worker.audio.encoders import AudioFormat, FileSigner
from tts_worker.client.playback import FileSink, PlayerSink, Sink, StdoutSink, find_player
from tts_worker.errors import InvalidRequest
from tts_worker.safe_yaml import RefusedYaml, parse_yaml
from tts_worker.settings import Settings, find_config, load_settings

ENGINES = {
    "cpu": {"hibari": {"kind": "hibari"}},
    "cosyvoice": {"cosyvoice": {"kind": "cosyvoice"}},  # with an installed voice
    "tone": {"tone": {"kind": "tone"}},
}
"""Engines that ``--engine`` selects without a config file."""
_GIVE_OUT = "Give --out FILE to save the speech instead"
"""Advice of a command that plays."""
OFFLINE_ENGINE = "cosyvoice"
"""Engine that takes ``--bundle``, and that ``say`` runs without a worker."""


def add_settings_arguments(parser: argparse.ArgumentParser, *, bundle: bool = False) -> None:
    """Add ``--config``, ``--engine`` and ``--set``.

    Args:
        parser: Parser to extend.
        bundle: Whether to add ``--bundle``, the short form of ``--engine cosyvoice`` with its setting ``bundle``.
    """
    engine_help = (
        "cpu: the built-in voice, and those of the extra voices; "
        "cosyvoice: an installed voice, or that of engines.cosyvoice.bundle; tone: tones, for tests"
    )
    group = parser.add_argument_group("settings (the file, then TTS_WORKER_* in the environment, then flags)")
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file, or the name of a packaged one: worker.yaml"
    )
    group.add_argument("--engine", choices=sorted(ENGINES), help=engine_help)
    if bundle:
        group.add_argument("--bundle", metavar="DIR", help="CosyVoice model directory, as --engine cosyvoice with it")
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
    engine, bundle = args.engine, getattr(args, "bundle", None)
    if bundle is not None:
        if engine not in (None, OFFLINE_ENGINE):
            raise InvalidRequest(f"--bundle is a model directory of CosyVoice: leave out --engine {engine}")
        engine = OFFLINE_ENGINE
    if engine is not None:
        flags["engines"] = deepcopy(ENGINES[engine])
    if bundle is not None:
        flags["engines"][engine]["bundle"] = bundle
    for assignment in args.set:
        _assign(flags, assignment)
    for section, values in sections.items():
        flags.setdefault(section, {}).update(values)
    file = None if args.config is None else find_config(args.config)
    return load_settings(file, flags, replaced=() if engine is None else ("engines",))


def _assign(flags: dict[str, Any], assignment: str) -> None:
    key, equals, value = assignment.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise InvalidRequest(f"--set takes KEY=VALUE, such as session.lead_ms=60; got {assignment[:64]!r}")
    try:
        parsed = parse_yaml(value)
    except RefusedYaml as error:
        raise InvalidRequest(f"--set {key}: {error}") from None
    except yaml.YAMLError:
        raise InvalidRequest(f"--set {key}: the value is not valid YAML") from None
    if isinstance(parsed, dict) and not value.lstrip().startswith("{"):
        parsed = value  # registry.prefix=tts:worker: is a string, not a mapping
    for name in path[:-1]:
        flags = flags.setdefault(name, {})
        if not isinstance(flags, dict):
            raise InvalidRequest(f"--set {key}: {name} is a value, not a section")
    flags[path[-1]] = parsed


def given_text(args: argparse.Namespace) -> str | None:
    """Return the text of the arguments or of ``--file``; None if it is on standard input. Raises InvalidRequest."""
    if args.text:
        return " ".join(args.text)
    if args.file is None or str(args.file) == "-":
        return None
    try:
        text: str = args.file.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise InvalidRequest(f"cannot read {args.file}: {error.strerror}") from None
    return text


async def open_sink(args: argparse.Namespace, signer: FileSigner | None = None) -> tuple[Sink, str]:
    """Open what ``--out`` names, the player without it, or a file where there is no player; return its name, too.

    Args:
        args: The arguments.
        signer: Signs the file once it is whole; None leaves it unsigned.
    """
    if args.out == "-":
        return StdoutSink(), "standard output"
    if args.out is not None:
        return _SignedFileSink(Path(args.out), signer), args.out
    if (player := find_player()) is not None:
        return await PlayerSink.open(player, advice=_GIVE_OUT), player
    return _SignedFileSink(Path("speech.wav"), signer), "speech.wav (no audio player found; use --out FILE)"


class _SignedFileSink(FileSink):
    def __init__(self, path: Path, signer: FileSigner | None) -> None:
        super().__init__(path)
        self._path = path
        self._signer = signer

    async def close(self) -> None:
        await super().close()
        suffix = self._path.suffix.lower()
        audio_format = next((each for each in AudioFormat if suffix == f".{each.extension}"), None)
        if self._signer is not None and audio_format is not None:
            await asyncio.to_thread(self._signer.sign_file, self._path, audio_format)

    abort = close


def quiet_logs() -> None:
    """Log warnings and errors only, for commands with output for a terminal."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def run_event_loop(coroutine: Coroutine[object, object, None]) -> None:
    """Run a coroutine on uvloop if it is installed, else on asyncio's event loop."""
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)
