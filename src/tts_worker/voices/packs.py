"""Voice packs: folders ``voicepacks/<family>/<name>/`` with a ``metadata.yaml`` and, for cloned voices, recordings.

``family`` is the kind of the engine, or a family of its models (``cosyvoice2``, ``cosyvoice3``). Each style has a
recording and its transcript, by default ``prompts/<style>.wav`` (or another audio format) and ``prompts/<style>.txt``.
Files of older schemas, with ``model_id`` or ``model_info``, are read too. Nothing in a pack is executed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from tts_worker.errors import ConfigError, InvalidRequest
from tts_worker.safe_yaml import RefusedYaml, parse_yaml
from tts_worker.text.lexicon import Lexicon
from tts_worker.voices.details import NEUTRAL, Tag, VoiceMetadata
from tts_worker.voices.enrollment import MAX_PROMPT_BYTES

METADATA = "metadata.yaml"
MAX_METADATA_BYTES = 1 << 20
MAX_TRANSCRIPT_BYTES = 16 << 10
PROMPTS = "prompts"
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".m4a", ".webm")
VoiceName = Annotated[str, StringConstraints(pattern=r"^[^\W_][\w.-]{0,63}$")]  # letters and digits of any script
_STYLE = r"^\w[\w-]{0,31}$"


class PackStyle(BaseModel):
    """The recording of a style, as a path inside the pack, and its words; empty for the default files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str = Field("", max_length=200, validation_alias=AliasChoices("prompt", "audio", "file"))
    text: str = Field("", max_length=1_000, validation_alias=AliasChoices("text", "transcript"))


class VoicePack(VoiceMetadata):
    """The content of ``metadata.yaml``. See docs/models.md. ``language`` may name one language.

    Attributes:
        name: Name of the voice; that of the folder if it is missing.
        family: Family of the engine; that of the folder if it is missing.
        capabilities: What the voice can do beyond its engine; a mapping to booleans is read too.
        styles: Recordings by style; a list names those with the default files.
        loudness_lufs: Integrated loudness of its speech; None has it measured when the voice is first used.
        lexicon: Word -> spelling or /phonemes/.
        aliases: Further names of the voice; a voice with such a name goes first.
        model_sha256: Hash of the voice's model, for a pack with one.
        performance: What was measured of the voice, for people.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: VoiceName
    family: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")
    capabilities: tuple[Tag, ...] = Field((), max_length=32)
    sample_rate: int | None = Field(None, ge=8_000, le=192_000)
    styles: dict[str, PackStyle] = Field(default_factory=dict, max_length=32)
    loudness_lufs: float | None = Field(None, ge=-60, le=0)
    lexicon: dict[str, Any] = Field(default_factory=dict)
    aliases: tuple[VoiceName, ...] = Field((), max_length=8)
    model_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    performance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _one_language(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and isinstance(language := data.get("language"), str):
            return {"languages": [language], **{key: value for key, value in data.items() if key != "language"}}
        return data

    @field_validator("capabilities", mode="before")
    @classmethod
    def _capability_names(cls, value: Any) -> Any:
        return [name for name, given in value.items() if given] if isinstance(value, Mapping) else value

    @field_validator("styles", mode="before")
    @classmethod
    def _style_names(cls, value: Any) -> Any:
        return {name: {} for name in value} if isinstance(value, list | tuple) else value

    @field_validator("styles")
    @classmethod
    def _check_styles(cls, styles: dict[str, PackStyle]) -> dict[str, PackStyle]:
        for name in styles:
            if not re.fullmatch(_STYLE, name):
                raise ValueError(f"{name[:40]!r} is not a name of up to 32 letters, digits, _ or -")
        return styles


@dataclass(frozen=True, slots=True)
class PackPrompt:
    """The recording of one style of a pack."""

    style: str
    file: Path
    text: str

    def read(self) -> bytes:
        """Return the recording. Raises ConfigError."""
        return _read_regular(self.file, MAX_PROMPT_BYTES)

    @property
    def source_hash(self) -> str:
        """SHA-256 of recording and transcript."""
        return hashlib.sha256(self.read() + b"\0" + self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class InstalledPack:
    """A voice pack and its folder."""

    pack: VoicePack
    folder: Path

    def prompts(self) -> tuple[PackPrompt, ...]:
        """Return the recordings of all styles, the neutral one first; none for a pack that only describes a voice.

        Raises:
            ConfigError: A file is missing or outside the pack.
        """
        styles = dict(self.pack.styles)
        for suffix in AUDIO_SUFFIXES:
            for file in sorted((self.folder / PROMPTS).glob(f"*{suffix}")):
                styles.setdefault(file.stem, PackStyle())
        if styles and NEUTRAL not in styles:
            raise ConfigError(f"{self.folder / METADATA}: styles: a voice needs the style {NEUTRAL}")
        return tuple(self._prompt(name, styles[name]) for name in sorted(styles, key=lambda s: (s != NEUTRAL, s)))

    def _prompt(self, name: str, style: PackStyle) -> PackPrompt:
        where = f"{self.folder / METADATA}: styles.{name}"
        candidates = [style.prompt] if style.prompt else [f"{PROMPTS}/{name}{suffix}" for suffix in AUDIO_SUFFIXES]
        root = self.folder.resolve()
        for candidate in candidates:
            file = (self.folder / candidate).resolve()
            if not file.is_relative_to(root):
                raise ConfigError(f"{where}: {candidate} is outside the voice pack")
            if file.is_file():
                text_file = file.with_suffix(".txt")
                text = style.text
                if not text and text_file.is_file():
                    text = _decode(text_file, _read_regular(text_file, MAX_TRANSCRIPT_BYTES)).strip()
                return PackPrompt(name, file, text)
        raise ConfigError(f"{where}: there is no recording {candidates[0]}")


def read_voicepacks(directory: Path) -> tuple[InstalledPack, ...]:
    """Read all ``<family>/<name>/metadata.yaml`` below ``directory``.

    Raises:
        ConfigError: A file is invalid; the message names the file and the key.
    """
    return tuple(read_voicepack(file.parent) for file in sorted(directory.glob(f"*/*/{METADATA}")))


def read_voicepack(folder: Path) -> InstalledPack:
    """Read the voice pack in ``folder``. Raises ConfigError as ``read_voicepacks`` does."""
    file = folder / METADATA
    try:
        data = parse_yaml(_decode(file, _read_regular(file, MAX_METADATA_BYTES)))
        pack = VoicePack.model_validate(_named_by_folder(data, folder.resolve()))
        Lexicon.from_mapping(pack.lexicon)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "(top level)"
        raise ConfigError(f"{file}: {key}: {first['msg']}") from None
    except RefusedYaml as error:
        raise ConfigError(f"{file}, {error}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{file} is not valid YAML") from None
    except InvalidRequest as error:
        raise ConfigError(f"{file}: {error.message}") from None
    if (pack.family, pack.name) != (folder.resolve().parent.name, folder.resolve().name):
        raise ConfigError(f"{file}: name and family must match the folder names")
    return InstalledPack(pack, folder)


def _named_by_folder(data: Any, folder: Path) -> Any:
    """Fill in name and family."""
    if not isinstance(data, Mapping):
        return data
    if isinstance(info := data.get("model_info"), Mapping):
        data = {"model_id": folder.name, **info, **data}
    if "model_id" in data:
        data = _from_older(dict(data), folder.name)
    return {"name": folder.name, "family": folder.parent.name, **data}


def _from_older(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Convert metadata of an older schema, which describe a model: ``name`` is a title, many keys have no use here."""
    if data.get("name") != name:
        data.setdefault("title", data.pop("name", ""))
    if isinstance(audio := data.get("audio"), Mapping) and "sample_rate" in audio:
        data.setdefault("sample_rate", audio["sample_rate"])
    if isinstance(reference := data.get("reference_audio"), Mapping) and "default_reference" in reference:
        data.setdefault("prompts", {NEUTRAL: reference["default_reference"]})
    if isinstance(prompts := data.get("prompts"), Mapping):
        styles = {style: {"prompt": prompt} if isinstance(prompt, str) else prompt for style, prompt in prompts.items()}
        data.setdefault("styles", styles)
    known = {*VoicePack.model_fields, "language"}
    return {key: value for key, value in data.items() if key in known}


def _decode(file: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not valid YAML" if file.name == METADATA else f"{file} is not UTF-8") from None


def _read_regular(file: Path, max_bytes: int) -> bytes:
    """Read a regular file of limited size; a device may never end and a FIFO may block. Raises ConfigError."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"{file} is not a regular file")
            raw = opened.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    if len(raw) > max_bytes:
        raise ConfigError(f"{file} is larger than {max_bytes} bytes")
    return raw
