"""Voice names of vendors, which their clients send by default, and some of them alone."""

from __future__ import annotations

from collections.abc import Callable

from tts_worker.errors import UnknownVoice
from tts_worker.session.hub import SessionHub


def own_voice(hub: SessionHub, name: str | None, is_vendors: Callable[[str], bool]) -> str | None:
    """Return the voice for a name: None, the default voice, for one of the vendor's unless a voice or alias has it."""
    if name is None or not is_vendors(name):
        return name
    try:
        hub.voices.get(name)
    except UnknownVoice:
        return None
    return name
