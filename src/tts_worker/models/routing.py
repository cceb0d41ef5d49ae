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
class Wanted:
    """``model``: the engine that must speak. ``needs``: capabilities that it must have."""

    voice: str | None = None
    language: str | None = None
    model: str | None = None
    needs: tuple[str, ...] = ()


def choose(voices: VoiceCatalog, wanted: Wanted) -> Voice:
    """The voice that was named, if it can do what is wanted. With no name the default or, where that cannot, the first
    that can.

    Raises UnknownVoice, UnknownModel, and InvalidRequest saying what the voice, or every voice, lacks.
    """
    if wanted.voice is not None:
        voice = voices.get(wanted.voice)
        if (lack := _lack(voice, wanted)) is not None:
            raise InvalidRequest(f"voice {voice.name} {lack}")
        return voice
    default = voices.get(None)  # raises where there is none at all
    candidates: Sequence[Voice] = [default, *voices]
    if wanted.model is not None:
        candidates = [voice for voice in candidates if voice.engine == wanted.model]
        if not candidates:
            raise UnknownModel(f'there is no model "{wanted.model[:64]}" with a voice')
    for voice in candidates:
        if _lack(voice, wanted) is None:
            return voice
    raise InvalidRequest(f"voice {candidates[0].name} {_lack(candidates[0], wanted)}, and there is no other that does")


def speaks(voice: Voice, language: str) -> bool:
    """Whether the voice speaks a language (BCP-47; the primary tag decides)."""
    primary = language.split("-")[0].lower()
    return "mul" in voice.languages or primary in {tag.split("-")[0].lower() for tag in voice.languages}


def _lack(voice: Voice, wanted: Wanted) -> str | None:
    """What is wanted of the voice and it has not, to be read after its name."""
    if wanted.model is not None and voice.engine != wanted.model:
        return f"belongs to model {voice.engine}, not {wanted.model[:64]}"
    if wanted.language is not None and not speaks(voice, wanted.language):
        return f"does not speak {wanted.language[:16]!r}; it speaks {', '.join(voice.languages)}"
    missing = [need for need in wanted.needs if need not in voice.info.capabilities]
    return f"cannot do what is needed: {', '.join(missing)}" if missing else None
