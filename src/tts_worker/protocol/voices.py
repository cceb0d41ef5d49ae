"""Voices as clients see them: descriptions, and what a new voice is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class StoredVoiceInfo:
    """What is known of a voice that was added.

    Attributes:
        source: ``recording``, ``mix`` or ``pack``.
        created_at: ISO 8601; None if unknown.
        owner: Name of the API key that added it.
        consent: Whether the consent of the speaker was stated.
        figures: What was measured of the recording, or the shares of a mix.
        notes: Remarks about a doubtful recording.
        not_checked: What the figures do not tell.
    """

    source: str = "recording"
    created_at: str | None = None
    owner: str | None = None
    consent: bool = False
    figures: Mapping[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VoiceInfo:
    """A voice of a worker.

    Attributes:
        id: What requests name.
        name: Name for people.
        styles: Each is addressed as ``ID@STYLE``.
        gender: What its maker says, mostly ``female`` or ``male``.
        aliases: Further names that requests may use.
        stored: None for a voice that belongs to its engine.
    """

    id: str
    name: str = ""
    engine: str = ""
    languages: tuple[str, ...] = ()
    description: str = ""
    tags: tuple[str, ...] = ()
    styles: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    license: str | None = None
    sample_rate: int = 0
    is_default: bool = False
    gender: str | None = None
    aliases: tuple[str, ...] = ()
    stored: StoredVoiceInfo | None = None

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> VoiceInfo:
        """Read an object of ``GET /v1/voices``. Unknown keys are ignored. Raises ValueError."""
        return msgspec.convert({**data, "is_default": data.get("default", False)}, cls)


@dataclass(frozen=True, slots=True)
class VoiceUpload:
    """A voice to be added; the fields of ``POST /v1/voices``. ``mix``: voice -> weight, instead of a recording."""

    name: str
    transcript: str = ""
    consent: bool = False
    style: str = ""
    languages: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    description: str = ""
    gender: str = ""
    license: str = ""
    title: str = ""
    engine: str = ""
    mix: Mapping[str, float] = field(default_factory=dict)
    prompt: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the fields that are set, as ``POST /v1/voices`` takes them."""
        given = {key: value for key, value in asdict(self).items() if value not in ("", (), False, {})}
        if self.mix:
            given["mix"] = [{"voice": voice, "weight": weight} for voice, weight in self.mix.items()]
        return given
