"""What Kokoro's name of a voice says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType

from tts_worker.engine.cpu.hibari.model import AMERICAN, BRITISH, MANDARIN
from tts_worker.errors import ConfigError

_LANGUAGES = MappingProxyType(
    {"a": (AMERICAN, "American English"), "b": (BRITISH, "British English"), "z": (MANDARIN, "Mandarin and English")}
)
_GENDERS = MappingProxyType({"f": "female", "m": "male"})
_NAME = re.compile(r"([abz])([fm])_([a-z]+)")


@dataclass(frozen=True)
class Speaker:
    """What Kokoro's name of a voice says: ``bf_emma``.

    Attributes:
        alias: ``emma``.
        language: BCP-47 tag of the language or accent.
        accent: The same for people.
        gender: ``female`` or ``male``.
    """

    alias: str
    language: str
    accent: str
    gender: str

    @classmethod
    def of(cls, name: str) -> Speaker:
        """Raises ConfigError for a name of another form."""
        if (match := _NAME.fullmatch(name)) is None:
            raise ConfigError(f"{name!r} is not Kokoro's name of an English or Mandarin voice, such as bf_emma")
        return cls(match[3], *_LANGUAGES[match[1]], _GENDERS[match[2]])
