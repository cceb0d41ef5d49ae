"""The voice catalog, and reading of voice packs.

A voice pack is a folder ``voicepacks/<family>/<name>/`` with a ``metadata.yaml``, validated against ``VoicePack``. An
unknown voice name is an error; there is no fallback voice.
"""

from __future__ import annotations

import difflib
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tts_worker.errors import ConfigError, InvalidRequest, UnknownVoice
from tts_worker.text.lexicon import Lexicon
from tts_worker.types import EngineInfo

log = logging.getLogger(__name__)

MAX_METADATA_BYTES = 1 << 20


class VoicePack(BaseModel):
    """The content of ``metadata.yaml``.

    Attributes:
        name: Name of the voice.
        family: Kind of the engine.
        lexicon: Word -> spelling or /phonemes/.
        loudness_lufs: Integrated loudness of its speech; None has it measured when the voice is first used.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[^\W_][\w.-]{0,63}$")  # letters and digits of any script
    family: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")
    description: str = Field("", max_length=500)
    languages: tuple[str, ...] = ()
    gender: str | None = Field(None, max_length=32)
    license: str | None = Field(None, max_length=200)
    lexicon: dict[str, Any] = Field(default_factory=dict)
    loudness_lufs: float | None = Field(None, ge=-60, le=0)


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice and its engine."""

    name: str
    engine: str
    info: EngineInfo
    languages: tuple[str, ...]
    description: str = ""
    gender: str | None = None
    lexicon: Lexicon = field(default_factory=Lexicon)
    loudness_lufs: float | None = None


class VoiceCatalog:
    """The voices of all engines.

    Args:
        packs: Voice packs, for descriptions and lexicons.
        default: Voice of requests without one; None selects the first voice.
        aliases: Alternative name -> voice.
        on_demand: List the voices of engines that are not loaded.

    Voices of an engine that is not loaded (``add_unloaded``, ``mark_unloaded``) are known, and listed if ``on_demand``:
    a session for one loads the engine. Enrolled voices are unlisted but can be addressed by name.
    """

    def __init__(
        self,
        packs: Iterable[VoicePack] = (),
        *,
        default: str | None = None,
        aliases: Mapping[str, str] | None = None,
        on_demand: bool = False,
    ) -> None:
        self._packs = {(pack.family, pack.name): pack for pack in packs}
        self._voices: dict[str, Voice] = {}
        self._unloaded: dict[str, Voice] = {}
        self._enrolled: dict[str, Voice] = {}
        self._on_demand = on_demand
        self._wanted_default = default
        self._aliases = dict(aliases or {})

    def add(self, engine: str, family: str, info: EngineInfo) -> None:
        """Add the voices of a started engine. Raises ConfigError if another engine has a voice of the same name."""
        voices = self._described(engine, family, info)
        self.remove(engine)
        self._voices.update(voices)

    def add_unloaded(self, engine: str, family: str, info: EngineInfo) -> None:
        """Add the known voices of an engine that is not loaded. Raises ConfigError as ``add`` does."""
        self._unloaded.update(self._described(engine, family, info))

    def mark_unloaded(self, engine: str) -> None:
        """Mark an engine as unloaded: its voices stay known, enrolled voices are removed."""
        voices = {name: voice for name, voice in self._voices.items() if voice.engine == engine}
        self.remove(engine)
        self._unloaded.update(voices)

    def remove(self, engine: str) -> None:
        """Remove an engine and all its voices."""
        for voices in (self._voices, self._unloaded, self._enrolled):
            for name in [name for name, voice in voices.items() if voice.engine == engine]:
                del voices[name]

    def add_enrolled(self, name: str, engine: str, info: EngineInfo) -> None:
        """Add an enrolled voice of a loaded engine; it is never listed."""
        self._enrolled[name] = Voice(name, engine, info, info.languages)

    def remove_enrolled(self, name: str) -> None:
        self._enrolled.pop(name, None)

    def _described(self, engine: str, family: str, info: EngineInfo) -> dict[str, Voice]:
        voices = {}
        for name in info.voices:
            other = self._voices.get(name) or self._unloaded.get(name)
            if other is not None and other.engine != engine:
                raise ConfigError(f"engines.{engine}: engine {other.engine} already has a voice named {name}")
            pack = self._packs.get((family, name), VoicePack(name=name, family=family))
            voices[name] = Voice(
                name=name,
                engine=engine,
                info=info,
                languages=pack.languages or info.languages,
                description=pack.description,
                gender=pack.gender,
                lexicon=Lexicon.from_mapping(pack.lexicon, name=f"voicepack {name}: lexicon"),
                loudness_lufs=pack.loudness_lufs,
            )
        return voices

    def check(self) -> None:
        """Check the default and the aliases once all engines are added. Raises ConfigError naming an unknown voice."""
        voices = {**self._unloaded, **self._voices}
        known = ", ".join(sorted(voices)) or "none"
        if self._wanted_default is not None and self._wanted_default not in voices:
            raise ConfigError(f"voices.default: unknown voice {self._wanted_default!r}; available: {known}")
        for alias, name in self._aliases.items():
            if name not in voices:
                raise ConfigError(f"voices.aliases.{alias}: unknown voice {name!r}; available: {known}")
            if alias in voices:
                raise ConfigError(f"voices.aliases.{alias}: a voice already has that name")

    @property
    def default(self) -> str | None:
        return self._wanted_default or next(iter(self._voices or self._unloaded), None)

    def __iter__(self) -> Iterator[Voice]:
        return iter((*self._voices.values(), *(self._unloaded.values() if self._on_demand else ())))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, name: str | None) -> Voice:
        """Return the voice named ``name`` (None: the default). Raises UnknownVoice."""
        requested = name if name is not None else self.default
        if requested is None:
            raise UnknownVoice("no engine with a voice is running")
        resolved = self._aliases.get(requested, requested)
        voice = self._voices.get(resolved) or self._enrolled.get(resolved) or self._unloaded.get(resolved)
        if voice is None:
            known = sorted({*self._voices, *self._unloaded})
            similar = difflib.get_close_matches(requested[:64], known, n=1)
            hint = f'did you mean "{similar[0]}"?' if similar else f"available: {', '.join(known[:20])}"
            raise UnknownVoice(f'unknown voice "{requested[:64]}"; {hint}')
        return voice


def read_voicepacks(directory: Path) -> tuple[VoicePack, ...]:
    """Read all ``<family>/<name>/metadata.yaml`` below ``directory``.

    Raises:
        ConfigError: A file is invalid; the message names the file and the key.
    """
    packs = []
    for file in sorted(directory.glob("*/*/metadata.yaml")):
        try:
            pack = VoicePack.model_validate(yaml.safe_load(_read_metadata(file)))
            Lexicon.from_mapping(pack.lexicon)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"]) or "(top level)"
            raise ConfigError(f"{file}: {key}: {first['msg']}") from None
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError):  # RecursionError: nested too deeply
            raise ConfigError(f"{file} is not valid YAML") from None
        except InvalidRequest as error:
            raise ConfigError(f"{file}: {error.message}") from None
        if (pack.family, pack.name) != (file.parent.parent.name, file.parent.name):
            raise ConfigError(f"{file}: name and family must match the folder names")
        packs.append(pack)
    return tuple(packs)


def _read_metadata(file: Path) -> str:
    """Read a regular file of limited size; a device may never end and a FIFO may block. Raises ConfigError."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"{file} is not a regular file")
            raw = opened.read(MAX_METADATA_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_METADATA_BYTES:
        raise ConfigError(f"{file} is larger than {MAX_METADATA_BYTES} bytes")
    return raw.decode("utf-8")
