"""A voice of a worker, and its form for clients: ``protocol.voices.VoiceInfo``, of which every API is a projection."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone

from tts_worker.audio.prompt import NOT_CHECKED
from tts_worker.protocol.voices import StoredVoiceInfo, VoiceInfo
from tts_worker.text.lexicon import Lexicon
from tts_worker.types import EngineInfo
from tts_worker.voices.details import VoiceDetails


@dataclass(frozen=True, slots=True)
class VoiceDescription:
    """A voice and its engine.

    Attributes:
        capabilities: Those of the engine that the voice has, and what its voice pack declares.
        styles: Styles of the voice; each is addressed as ``NAME@STYLE``, the neutral one as ``NAME``.
        aliases: Further names of the voice.
        stored: Details of a stored voice; None for a voice that belongs to its engine.
    """

    name: str
    engine: str
    info: EngineInfo
    languages: tuple[str, ...]
    description: str = ""
    gender: str | None = None
    lexicon: Lexicon = field(default_factory=Lexicon)
    loudness_lufs: float | None = None
    tags: tuple[str, ...] = ()
    styles: tuple[str, ...] = ()
    license: str | None = None
    capabilities: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    stored: VoiceDetails | None = None

    @property
    def title(self) -> str:
        """Name for people."""
        return self.stored.title if self.stored is not None and self.stored.title else self.name

    def for_clients(self, default: str | None) -> VoiceInfo:
        """Return what clients see; ``default`` is the voice of requests without one."""
        return VoiceInfo(
            id=self.name,
            name=self.title,
            engine=self.engine,
            languages=self.languages,
            description=self.description,
            tags=self.tags,
            styles=self.styles,
            capabilities=self.capabilities,
            license=self.license,
            sample_rate=self.info.sample_rate_hz,
            is_default=self.name == default,
            gender=self.gender,
            aliases=self.aliases,
            stored=None if self.stored is None else _stored(self.stored),
        )


def _stored(details: VoiceDetails) -> StoredVoiceInfo:
    created_at = datetime.fromtimestamp(details.created_at_s, timezone.utc).isoformat(timespec="seconds")
    return StoredVoiceInfo(
        source=details.source,
        created_at=created_at if details.created_at_s else None,
        owner=details.owner,
        consent=details.consent,
        figures=details.figures,
        notes=details.notes,
        not_checked=NOT_CHECKED if details.source == "recording" else (),
    )
