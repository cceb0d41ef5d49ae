"""Voice selection: the named voice, or the first voice that meets the requirements of the request.

There is no fallback: a named voice that lacks a requirement is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tts_worker.errors import InvalidRequest, UnknownModel
from tts_worker.text.language import primary_tag
from tts_worker.types import SessionOptions
from tts_worker.voices.catalog import VoiceCatalog
from tts_worker.voices.description import VoiceDescription

INSTRUCT = "instruct"
"""Capability: the engine follows a natural-language instruction (``SynthesisParams.instruct``)."""


@dataclass(frozen=True, slots=True)
class VoiceRequest:
    """Requirements for a voice; None accepts any.

    Attributes:
        voice: Name of the voice.
        language: BCP-47 tag of a language the voice must speak.
        model: Engine that the voice must belong to.
        needs: Capabilities that the engine must have.
    """

    voice: str | None = None
    language: str | None = None
    model: str | None = None
    needs: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: SessionOptions) -> VoiceRequest:
        """Return the requirements of a session."""
        return cls(options.voice, options.language, options.model, options.needs)


def choose_voice(voices: VoiceCatalog, request: VoiceRequest) -> VoiceDescription:
    """Choose the voice for a request: the named one, else the default or the first other voice that matches.

    Raises:
        UnknownVoice: The named voice does not exist.
        UnknownModel: The model has no voice.
        InvalidRequest: The named voice, or every voice, fails a requirement; the message says which.
    """
    if request.voice is not None:
        voice = voices.get(request.voice)
        if (mismatch := _mismatch(voice, request)) is not None:
            raise InvalidRequest(f"voice {voice.name} {mismatch}")
        return voice
    default = voices.get(None)  # raises if there is no voice at all
    candidates: Sequence[VoiceDescription] = [default, *voices]
    if request.model is not None:
        candidates = [voice for voice in candidates if voice.engine == request.model]
        if not candidates:
            raise UnknownModel(f'no voice belongs to the model "{request.model[:64]}"')
    for voice in candidates:
        if _mismatch(voice, request) is None:
            return voice
    raise InvalidRequest(f"voice {candidates[0].name} {_mismatch(candidates[0], request)}, and no other voice matches")


def matching_voices(voices: VoiceCatalog, request: VoiceRequest) -> Iterator[VoiceDescription]:
    """Return the listed voices that meet the requirements, in order."""
    return (voice for voice in voices if _mismatch(voice, request) is None)


def supports_language(voice: VoiceDescription, language: str) -> bool:
    """Whether the voice speaks a language, compared by the primary BCP-47 subtag."""
    return "mul" in voice.languages or primary_tag(language) in map(primary_tag, voice.languages)


def _mismatch(voice: VoiceDescription, request: VoiceRequest) -> str | None:
    """Return the first requirement that the voice fails, as a phrase to follow its name, or None."""
    if request.model is not None and voice.engine != request.model:
        return f"belongs to model {voice.engine}, not {request.model[:64]}"
    if request.language is not None and not supports_language(voice, request.language):
        return f"does not speak {request.language[:16]!r}; it speaks {', '.join(voice.languages)}"
    missing = [need for need in request.needs if need not in voice.capabilities]
    return f"lacks the capabilities {', '.join(missing)}" if missing else None
