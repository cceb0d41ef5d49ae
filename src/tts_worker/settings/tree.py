"""The settings tree, and checks across its sections."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tts_worker.settings.engines import CosyVoiceEngineSettings, EngineSettings, HibariEngineSettings
from tts_worker.settings.sections import (
    BatchSettings,
    EngineLoopSettings,
    GrpcSettings,
    ModelSettings,
    RaySettings,
    RegistrySettings,
    ServerSettings,
    SessionSettings,
    TelephonySettings,
    TextSettings,
    TracingSettings,
    VoiceSettings,
    WebRtcSettings,
    is_loopback,
)

ENV_PREFIX = "TTS_WORKER_"


def _default_engines() -> dict[str, EngineSettings]:
    return {"hibari": HibariEngineSettings()}


def _gpu(engine: EngineSettings) -> str | None:
    """Return the GPU that an engine uses where there is one, as PyTorch names it."""
    if not isinstance(engine, CosyVoiceEngineSettings) or engine.device == "cpu":
        return None
    return "cuda:0" if engine.device in ("auto", "cuda") else engine.device


class Settings(BaseSettings):
    """The settings of a worker. ``engines`` maps names to the engines of this process."""

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
    registry: RegistrySettings = RegistrySettings()
    webrtc: WebRtcSettings = WebRtcSettings()
    telephony: TelephonySettings = TelephonySettings()
    text: TextSettings = TextSettings()
    tracing: TracingSettings = TracingSettings()
    voices: VoiceSettings = VoiceSettings()
    engines: dict[str, EngineSettings] = Field(default_factory=_default_engines, min_length=1)
    engine: EngineLoopSettings = EngineLoopSettings()
    models: ModelSettings = ModelSettings()
    batch: BatchSettings = BatchSettings()
    ray: RaySettings = RaySettings()
    lexicons: Path | None = None
    """Directory of stored lexicons, which workers may share; None stores none."""
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

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must never be logged. The keys of ``server.key_file`` are added when the file is read."""
        credentials = [server.credential for server in self.webrtc.ice_servers]
        telephony = (self.telephony.twilio_auth_token, self.telephony.telnyx_auth_token)
        candidates = (self.registry.url, self.registry.secret, self.registry.quotas_url, *telephony, *credentials)
        others = [secret.get_secret_value() for secret in candidates if secret is not None]
        return (*self.server.keys, *others)

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
        if self.registry.url is not None and not grpc.enabled:
            raise ValueError("registry.url: clients reach a registered worker over gRPC: set grpc.enabled: true")
        if self.registry.url is not None and grpc.tls_certificate is not None:
            raise ValueError("registry.url: clients of the registry use gRPC without TLS: unset grpc.tls_*")
        if self.registry.url is not None and self.registry.address is None and grpc.host in ("0.0.0.0", "::"):
            raise ValueError("registry.address: set the address for clients, such as 10.0.0.5:7002")
        return self
