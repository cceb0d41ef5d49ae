"""Opens a CosyVoice model directory, for commands that run without its packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tts_worker.errors import MissingExtra

if TYPE_CHECKING:
    from tts_worker.engine.cosyvoice.bundle.directory import Bundle


def open_bundle(path: Path, *, rl: bool = False) -> Bundle:
    """Open a model directory. Raises BundleError, or MissingExtra if torch is not installed."""
    need_torch()
    from tts_worker.engine.cosyvoice.bundle.directory import Bundle

    return Bundle.open(path, rl=rl)


def need_torch() -> None:
    """Raise MissingExtra if torch is not installed."""
    if find_spec("torch") is None:
        raise MissingExtra("CosyVoice", "cosyvoice")
