"""``tts-worker parity``: starts the developer tool ``tools.parity``, which only a clone has."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import cast

from tts_worker.cli import CommandModule
from tts_worker.errors import ConfigError

CLONE = Path(__file__).resolve().parents[3]
"""Root of the clone, if the package runs from one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the tool.

    Raises:
        ConfigError: The package does not run from a clone.
    """
    _tool().add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return _tool().run(args)


def _tool() -> CommandModule:
    if not (CLONE / "tools" / "parity").is_dir():
        raise ConfigError("parity is not part of the installed package: run `python -m tools.parity` in a clone")
    if str(CLONE) not in sys.path:
        sys.path.insert(0, str(CLONE))
    return cast(CommandModule, importlib.import_module("tools.parity.command"))
