"""Voice names of vendors, which their clients send by default, and some of them alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tts_worker.errors import TTSWorkerError, UnknownVoice
from tts_worker.session.hub import SessionHub
from tts_worker.voices.routing import VoiceRequest, choose_voice, matching_voices


def own_voice(hub: SessionHub, name: str | None, is_vendors: Callable[[str], bool]) -> str | None:
    """Return the voice for a name: None, the default voice, for one of the vendor's unless a voice or alias has it."""
    if name is None or not is_vendors(name):
        return name
    try:
        hub.voices.get(name)
    except UnknownVoice:
        return None
    return name


def stand_in(hub: SessionHub, preferred: Sequence[str], request: VoiceRequest) -> str | None:
    """Return the first of ``preferred`` voices that meets a request, among those of the engine that would speak it.

    None leaves the choice to the worker: there is no such voice.
    """
    try:
        engine = choose_voice(hub.voices, request).engine
    except TTSWorkerError:  # the session says what is wrong
        return None
    known = {voice.name for voice in matching_voices(hub.voices, request) if voice.engine == engine}
    return next((name for name in preferred if name in known), None)
