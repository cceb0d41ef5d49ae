"""The settings tree, and checks across its sections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, Field, SecretStr, create_model, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tts_worker.feature_names import modules
from tts_worker.section import FeatureSection
from tts_worker.settings.engines import CosyVoiceEngineSettings, EngineSettings, HibariEngineSettings
from tts_worker.settings.sections import (
    EngineLoopSettings,
    GrpcSettings,
    ModelSettings,
    ServerSettings,
    SessionSettings,
    TextSettings,
    VoiceSettings,
    is_loopback,
)

ENV_PREFIX = "TTS_WORKER_"

SectionT = TypeVar("SectionT", bound=FeatureSection)


def _default_engines() -> dict[str, EngineSettings]:
    return {"hibari": HibariEngineSettings()}


def _gpu(engine: EngineSettings) -> str | None:
    """Return the GPU that an engine uses where there is one, as PyTorch names it."""
    if not isinstance(engine, CosyVoiceEngineSettings) or engine.device == "cpu":
        return None
    return "cuda:0" if engine.device in ("auto", "cuda") else engine.device


def _feature_sections() -> dict[str, type[FeatureSection]]:
    """Return the sections that the features of this installation declare in their module ``settings``, by name."""
    return {name: section for module in modules("settings") for name, section in module.SECTIONS.items()}


_FEATURE_SECTIONS = _feature_sections()


def feature_paths() -> Iterator[tuple[str, str]]:
    """Yield the settings of features that are paths."""
    for section, kind in _FEATURE_SECTIONS.items():
        for name, setting in kind.model_fields.items():
            if Path in (setting.annotation, *get_args(setting.annotation)):
                yield section, name


if TYPE_CHECKING:
    _FeatureSettings = BaseSettings
else:
    _FeatureSettings = create_model(
        "_FeatureSettings",
        __base__=BaseSettings,
        **{name: (kind, kind()) for name, kind in _FEATURE_SECTIONS.items()},
    )


class Settings(_FeatureSettings):
    """The settings of a worker. ``engines`` maps names to the engines of this process.

    It has the sections of the features as well; ``section`` finds them by type.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    server: ServerSettings = ServerSettings()
    session: SessionSettings = SessionSettings()
    grpc: GrpcSettings = GrpcSettings()
    text: TextSettings = TextSettings()
    voices: VoiceSettings = VoiceSettings()
    engines: dict[str, EngineSettings] = Field(default_factory=_default_engines, min_length=1)
    engine: EngineLoopSettings = EngineLoopSettings()
    models: ModelSettings = ModelSettings()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @model_validator(mode="before")
    @classmethod
    def _default_kinds(cls, data: Any) -> Any:
        """Fill in the kind of the default engine, so that single keys of it can be set."""
        engines = data.get("engines") if isinstance(data, dict) else None
        if not isinstance(engines, dict):
            return data
        kinds = {name: engine.kind for name, engine in _default_engines().items()}
        named = {
            name: {"kind": kinds[name], **engine} if name in kinds and isinstance(engine, dict) else engine
            for name, engine in engines.items()
        }
        return {**data, "engines": named}

    @model_validator(mode="after")
    def _check_models(self) -> Settings:
        models = self.models
        preloaded = set(models.preload or ())
        for name in models.preload or ():
            if name not in self.engines:
                raise ValueError(f"models.preload: unknown engine {name!r}; configured: {', '.join(self.engines)}")
        if models.resident_cap is not None and len(preloaded) > models.resident_cap:
            raise ValueError(f"models.preload exceeds models.resident_cap = {models.resident_cap} engines")
        return self

    def section(self, kind: type[SectionT]) -> SectionT:
        """Return the section of a feature."""
        return next(value for name in _FEATURE_SECTIONS if isinstance(value := getattr(self, name), kind))

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must never be logged. The keys of ``server.key_file`` are added when the file is read."""
        return tuple(_secrets(self))

    def memory_share(self, engine: str) -> float:
        """Return the part of its GPU's memory that an engine may use.

        The engines that may be loaded on the same GPU at once divide the part of this worker equally.
        """
        gpus = {name: _gpu(settings) for name, settings in self.engines.items()}
        engines = sum(gpu is not None and gpu == gpus[engine] for gpu in gpus.values())
        if self.models.preload is not None and self.models.resident_cap is not None:
            engines = min(engines, self.models.resident_cap)
        return self.engine.memory_share / max(1, engines)

    @property
    def default_engine(self) -> str:
        """The engine that is always loaded."""
        return (self.models.preload or tuple(self.engines))[0]

    @model_validator(mode="after")
    def _guard_grpc(self) -> Settings:
        server = self.server
        grpc = self.grpc
        if grpc.enabled and not is_loopback(grpc.host) and not server.needs_key and not server.allow_unauthenticated:
            raise ValueError(
                f"grpc.host {grpc.host} is reachable from outside: set server.api_keys, or "
                "server.allow_unauthenticated: true if a proxy in front of the worker authenticates callers"
            )
        for name, model in grpc.models.items():
            if model.engine not in self.engines:
                raise ValueError(f"grpc.models.{name}.engine: unknown engine {model.engine!r}")
        for name in _FEATURE_SECTIONS:
            getattr(self, name).check_with(self)
        return self


def _secrets(value: object) -> Iterator[str]:
    """Yield the secrets in a section, and in the mappings and lists in it."""
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
        return
    if isinstance(value, BaseModel):
        value = vars(value)
    if isinstance(value, dict | tuple):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _secrets(member)
