"""Which voice answers a request: the one that was asked for, or the first that can do what was asked.

Pure: a request and the voices there are, no clock, no engine. There is no fallback: a voice that was named is that
voice or an error, and one that cannot do what was asked is never taken silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tts_worker.errors import InvalidRequest, UnknownModel
from tts_worker.voices import Voice, VoiceCatalog

INSTRUCT = "instruct"
"""Capability: the engine follows an instruction in words (``SynthesisParams.instruct``)."""


@dataclass(frozen=True, slots=True)
class VoiceRequest:
    """``model``: the engine that must speak. ``needs``: capabilities that it must have."""

    voice: str | None = None
    language: str | None = None
    model: str | None = None
    needs: tuple[str, ...] = ()


def choose_voice(voices: VoiceCatalog, request: VoiceRequest) -> Voice:
    """The voice that was named, if it can do what is request. With no name the default or, where that cannot, the first
    that can.

    Raises UnknownVoice, UnknownModel, and InvalidRequest saying what the voice, or every voice, lacks.
    """
    if request.voice is not None:
        voice = voices.get(request.voice)
        if (mismatch := _mismatch(voice, request)) is not None:
            raise InvalidRequest(f"voice {voice.name} {mismatch}")
        return voice
    default = voices.get(None)  # raises where there is none at all
    candidates: Sequence[Voice] = [default, *voices]
    if request.model is not None:
        candidates = [voice for voice in candidates if voice.engine == request.model]
        if not candidates:
            raise UnknownModel(f'there is no model "{request.model[:64]}" with a voice')
    for voice in candidates:
        if _mismatch(voice, request) is None:
            return voice
    raise InvalidRequest(
        f"voice {candidates[0].name} {_mismatch(candidates[0], request)}, and there is no other that does"
    )


def supports_language(voice: Voice, language: str) -> bool:
    """Whether the voice speaks a language (BCP-47; the primary tag decides)."""
    primary = language.split("-")[0].lower()
    return "mul" in voice.languages or primary in {tag.split("-")[0].lower() for tag in voice.languages}


def _mismatch(voice: Voice, request: VoiceRequest) -> str | None:
    """What is request of the voice and it has not, to be read after its name."""
    if request.model is not None and voice.engine != request.model:
        return f"belongs to model {voice.engine}, not {request.model[:64]}"
    if request.language is not None and not supports_language(voice, request.language):
        return f"does not speak {request.language[:16]!r}; it speaks {', '.join(voice.languages)}"
    missing = [need for need in request.needs if need not in voice.info.capabilities]
    return f"cannot do what is needed: {', '.join(missing)}" if missing else None
