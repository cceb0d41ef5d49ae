"""Loads settings from a YAML file, the environment and flags; a ConfigError names the invalid key."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsError

from tts_worker.errors import ConfigError, InvalidRequest
from tts_worker.safe_yaml import RefusedYaml, parse_yaml
from tts_worker.settings.problems import invalid_settings
from tts_worker.settings.sections import TextSettings
from tts_worker.settings.tree import ENV_PREFIX, Settings, feature_paths
from tts_worker.text.lexicon import Lexicon
from tts_worker.voices.installed import installed_voices

_CLIENT_VARIABLES = frozenset(
    {
        "TTS_WORKER_URL",
        "TTS_WORKER_API_KEY",
        "TTS_WORKER_CHAT_URL",
        "TTS_WORKER_CHAT_MODEL",
        "TTS_WORKER_CHAT_KEY",
    }
)
"""Environment variables of clients and of commands, which are not settings."""

_PATHS = (
    ("server", "tls_certificate"),
    ("server", "tls_key"),
    ("server", "tls_client_ca"),
    ("server", "key_file"),
    ("grpc", "tls_certificate"),
    ("grpc", "tls_key"),
    ("grpc", "tls_client_ca"),
    ("voices", "directory"),
    ("text", "lexicon"),
    ("engines", "*", "bundle"),
    ("engines", "*", "voices"),
)
"""Settings that are paths. In a file they are relative to that file."""


def _settings_over(from_file: Mapping[str, Any]) -> type[Settings]:
    """Settings whose lowest source is ``from_file``. Making the class takes as long as loading them."""

    class _WithFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=dict(from_file))

    return _WithFile


def load_settings(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, replaced: Collection[str] = ()
) -> Settings:
    """Load settings from a YAML file, the environment and flags, in increasing priority. Sections are merged.

    Args:
        file: The YAML file, if any.
        flags: A nested mapping.
        replaced: Sections that are not read from the file.

    Raises:
        ConfigError: The file is missing or not YAML, a key is unknown or a value invalid; the message names the key.
    """
    from_file = read_yaml(file) if file is not None else {}
    # A section whose keys are all comments is None: it has its defaults.
    from_file = {
        section: values for section, values in from_file.items() if section not in replaced and values is not None
    }
    if file is not None:
        for path in (*_PATHS, *feature_paths()):
            _make_absolute(from_file, path, file.parent)
    _check_environment()

    kind = Settings if not from_file else _settings_over(from_file)
    try:
        return kind(**dict(flags or {}))
    except ValidationError as error:
        raise invalid_settings(error, Settings, f" ({file}, environment, flags)" if file is not None else "") from None
    except SettingsError as error:
        names = ", ".join(_variables_without_json())
        if not names:
            raise ConfigError(f"a setting in the environment cannot be parsed: {error}") from None
        raise ConfigError(
            f'environment variable {names}: not valid JSON; a list is \'["one"]\', a mapping \'{{"name": "value"}}\''
        ) from None


def _make_absolute(section: object, path: Sequence[str], base: Path) -> None:
    if not isinstance(section, dict):
        return
    name, *rest = path
    for key in list(section) if name == "*" else [name]:
        if rest:
            _make_absolute(section.get(key), rest, base)
        elif isinstance(value := section.get(key), str) and not (key == "bundle" and _is_installed_voice(value, base)):
            section[key] = str(base / value)


def _is_installed_voice(bundle: str, base: Path) -> bool:
    """Whether ``bundle`` is the name of an installed voice and not of a directory beside the file."""
    return not (base / bundle).exists() and bundle in installed_voices()


def check_directory(setting: str, directory: Path, *, must_exist: bool) -> None:
    """Check that a directory can be used.

    Args:
        setting: The setting that names it.
        directory: The directory.
        must_exist: Whether it must exist; otherwise it is created when it is needed.

    Raises:
        ConfigError: It does not exist, or it or a folder above it is a file.
    """
    if not must_exist:
        directory = next((each for each in (directory, *directory.parents) if each.exists()), directory)
    if not directory.is_dir():
        raise ConfigError(f"{setting}: {directory} is not a directory")


def read_yaml(file: Path, prefix: str = "", example: str = "server: {port: 8080}") -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Args:
        file: The file.
        prefix: Begins every message, such as the setting that names the file.
        example: What such a file contains, for the message about another one.

    Raises:
        ConfigError: It cannot be read; names file, line and column.
    """
    try:
        data = parse_yaml(file.read_text("utf-8"))
    except RefusedYaml as error:
        raise ConfigError(f"{prefix}{file}, {error}") from None
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"{prefix}{file} is not valid YAML{place}") from None
    except OSError as error:
        raise ConfigError(f"{prefix or 'the config file '}{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{prefix}{file} is not UTF-8 text") from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{prefix}{file} must contain a mapping, such as '{example}'")
    return data


def read_lexicon(text: TextSettings) -> Lexicon:
    """Return the lexicon of the worker. Raises ConfigError."""
    entries = text.lexicon if isinstance(text.lexicon, dict) else read_yaml(text.lexicon, "text.lexicon: ")
    try:
        return Lexicon.from_mapping(entries, name="text.lexicon")
    except InvalidRequest as error:
        raise ConfigError(error.message) from None


def _variables_without_json() -> Iterator[str]:
    """Yield the environment variables of lists, mappings and whole sections whose values are not JSON."""
    for name, value in os.environ.items():
        if not name.upper().startswith(ENV_PREFIX) or name.upper() in _CLIENT_VARIABLES:
            continue
        kind: Any = Settings
        for part in name[len(ENV_PREFIX) :].lower().split("__"):
            is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
            kind = kind.model_fields[part].annotation if is_model and part in kind.model_fields else None
        holds_others = isinstance(kind, type) and issubclass(kind, BaseModel)
        if holds_others or get_origin(kind) in (tuple, dict):
            try:
                json.loads(value)
            except ValueError:
                yield name


def _check_environment() -> None:
    """Reject misspelled environment variables, as misspelled keys are."""
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in _CLIENT_VARIABLES:
            path = name[len(ENV_PREFIX) :].lower().split("__")
            if path[0] not in Settings.model_fields:
                raise ConfigError(f"environment variable {name}: unknown setting {path[0]!r}")
