"""Settings from a YAML file, the environment and flags; what is wrong is a ConfigError that names the key."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsError

from tts_worker.errors import ConfigError
from tts_worker.settings.engines import ENGINE_KINDS
from tts_worker.settings.tree import ENV_PREFIX, Settings

_CLIENT_VARIABLES = frozenset({"TTS_WORKER_URL", "TTS_WORKER_API_KEY"})
"""What clients of a worker read; no settings."""

_PATHS = (
    *(("server", "tls_certificate"), ("server", "tls_key"), ("server", "key_file")),
    *(("grpc", "tls_certificate"), ("grpc", "tls_key")),
    *(("voices", "directory"), ("text", "lexicon_file"), ("engines", "*", "bundle"), ("engines", "*", "voices")),
)
"""Settings that are paths: in a file they are relative to that file."""


def load_settings(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, replaced: Collection[str] = ()
) -> Settings:
    """The settings from ``file`` (YAML), then the environment, then ``flags`` (a nested mapping). Sections are merged;
    those in ``replaced`` are not taken from the file at all.

    Raises ConfigError: the file is missing or no YAML, a key is unknown, a value is wrong; the message names the key.
    """
    from_file = read_yaml(file) if file is not None else {}
    from_file = {section: values for section, values in from_file.items() if section not in replaced}
    if file is not None:
        for path in _PATHS:
            _make_absolute(from_file, path, file.parent)
    _check_environment()

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
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=from_file)

    try:
        return _WithFile(**dict(flags or {}))
    except ValidationError as error:
        raise ConfigError(explain(error, file)) from None
    except SettingsError as error:
        raise ConfigError(f"the environment holds a setting that cannot be read: {error}") from None


def _make_absolute(section: object, path: Sequence[str], base: Path) -> None:
    if not isinstance(section, dict):
        return
    name, *rest = path
    for key in list(section) if name == "*" else [name]:
        if rest:
            _make_absolute(section.get(key), rest, base)
        elif isinstance(section.get(key), str):
            section[key] = str(base / section[key])


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. Raises ConfigError naming file, line and column."""
    try:
        data = yaml.safe_load(file.read_text("utf-8"))
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"{file} is not valid YAML{place}") from None
    except OSError as error:
        raise ConfigError(f"the config file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text") from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{file} must hold a mapping of settings, such as 'server: {{port: 8080}}'")
    return data


def _check_environment() -> None:
    """A misspelt variable is an error like a misspelt key: else it is the setting that silently does nothing."""
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in _CLIENT_VARIABLES:
            section = name[len(ENV_PREFIX) :].split("__")[0].lower()
            if section not in Settings.model_fields:
                raise ConfigError(f"the environment variable {name} sets nothing: there is no setting {section!r}")


def explain(error: ValidationError, file: Path | None) -> str:
    """What is wrong, with the names of the keys."""
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"]) or "(top level)"
        if problem["type"] == "extra_forbidden":
            message = "there is no such setting"
        elif problem["type"] == "union_tag_not_found":
            key = f"{key}.kind"
            message = f"an engine needs a kind: {', '.join(ENGINE_KINDS)}"
        else:
            message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{key}: {message}")
    where = f" ({file}, environment, flags)" if file is not None else ""
    return f"wrong settings{where}: " + "; ".join(lines)
