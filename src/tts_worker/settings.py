"""Every setting, in one tree: YAML file < environment < command-line flags.

Read once, in ``app.py`` or ``cli.py``; everybody else gets the part they need. A wrong value is a ConfigError whose
message names the key. Environment: ``TTS_WORKER_SERVER__PORT=9000`` sets ``server.port``.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from tts_worker.errors import ConfigError
from tts_worker.text.urls import UrlMode

_ENV_PREFIX = "TTS_WORKER_"
_CLIENT_VARIABLES = frozenset({"TTS_WORKER_URL", "TTS_WORKER_API_KEY"})
"""What clients of a worker read; no settings."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Milliseconds = Annotated[float, Field(ge=0, le=60_000)]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(_Section):
    """Where the server listens and what it accepts. Sizes are checked before any work is done."""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65_535)
    api_keys: tuple[SecretStr, ...] = ()
    allow_unauthenticated: bool = False
    allowed_origins: tuple[str, ...] = ()
    max_request_bytes: int = Field(1_048_576, ge=1_024)
    max_upload_bytes: int = Field(12_582_912, ge=1_024)
    max_input_chars: int = Field(20_000, ge=1)
    send_timeout_s: Seconds = 10.0
    heartbeat_s: Seconds = 20.0
    drain_s: Seconds = 30.0
    web_page: bool = True

    @model_validator(mode="after")
    def _guard(self) -> ServerSettings:
        if not self.api_keys and not self.allow_unauthenticated and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} is reachable from outside: set api_keys, or allow_unauthenticated: true if "
                "something in front of the worker checks who calls"
            )
        if any(len(key.get_secret_value()) < 8 for key in self.api_keys):
            raise ValueError("api_keys need at least 8 characters each")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key.get_secret_value() for key in self.api_keys)


class SessionSettings(_Section):
    """Bounds of every session. ``lead_ms``: how far ahead of real time sound is sent; ``window_ms``: how far the engine
    may be ahead of that."""

    max_sessions: int = Field(64, ge=1, le=100_000)
    lead_ms: Milliseconds = 40.0
    window_ms: Annotated[float, Field(ge=100, le=60_000)] = 1_500.0
    frame_ms: Annotated[int, Field(ge=5, le=200)] = 20
    pause_timeout_s: Seconds = 30.0
    text_idle_timeout_s: Seconds = 300.0
    max_message_chars: int = Field(100_000, ge=1)
    max_utterance_chars: int = Field(200_000, ge=1)
    max_queued_utterances: int = Field(16, ge=0, le=1_000)


class GrpcModelSettings(_Section):
    """A model id for clients that have fixed ones. ``engine``: a name in ``engines``; ``voice``: None takes its first;
    ``family, languages``: what the model is listed with, None and empty for what its engine says."""

    engine: str
    voice: str | None = None
    family: str | None = None
    languages: tuple[str, ...] = ()


class GrpcSettings(_Section):
    """The gRPC servers. API keys are those of ``server``. ``sample_rate_hz, frame_ms``: what a client gets that asks
    for nothing. ``pause_timeout_s``: None takes the session's. ``session_idle_s``: a session that nobody uses ends.
    ``cosyvoice_port``: also serve CosyVoice's own gRPC service there (its clients' default is 50000)."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: int = Field(7002, ge=0, le=65_535)
    cosyvoice_port: int | None = Field(None, ge=0, le=65_535)
    sample_rate_hz: Literal[8_000, 16_000, 24_000, 32_000, 48_000] = 48_000
    frame_ms: Annotated[int, Field(ge=10, le=100, multiple_of=10)] = 20
    pause_timeout_s: Seconds | None = None
    session_idle_s: Seconds = 600.0
    models: dict[str, GrpcModelSettings] = Field(default_factory=dict)


class IceServerSettings(_Section):
    """A STUN or TURN server: ``urls`` such as "turn:turn.example.org:3478"."""

    urls: tuple[str, ...] = Field(min_length=1)
    username: str | None = None
    credential: SecretStr | None = None


class WebRtcSettings(_Section):
    """``POST /webrtc/offer``, which needs the extra "webrtc". ``connect_timeout_s``: from the answer to a connection;
    ``silence_timeout_s``: a connected peer that sends no reports for so long has vanished. ``ice_servers``: None needed
    where clients reach the worker's own addresses."""

    enabled: bool = True
    max_peers: int = Field(32, ge=1, le=10_000)
    connect_timeout_s: Seconds = 15.0
    silence_timeout_s: Seconds = 10.0
    ice_servers: tuple[IceServerSettings, ...] = ()


class RegistrySettings(_Section):
    """Where the worker tells that it is there. ``url``: a Redis, None registers nowhere. ``name``: None is made of the
    host's name and the port. ``address``: ``host:port`` that clients reach the gRPC server at, None where the address
    it listens on will do. ``heartbeat_s``: a worker that is lost is gone from the list after this and a second."""

    url: SecretStr | None = None
    prefix: str = Field("worker:", min_length=1, max_length=64)
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")
    address: str | None = Field(None, pattern=r"^(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")
    heartbeat_s: Annotated[float, Field(ge=0.2, le=300)] = 10.0


class RaySettings(_Section):
    """``serve --ray``: replicas of this worker behind one address. ``address``: of a cluster that runs (``auto`` finds
    it), None begins one on this machine. ``gpus_per_replica``: a share, so 0.5 puts two on a GPU. Between
    ``min_replicas`` and ``max_replicas`` there are as many as keep ``target_sessions`` in each (None: 70 % of
    ``session.max_sessions``)."""

    address: str | None = None
    min_replicas: int = Field(1, ge=1, le=1_000)
    max_replicas: int = Field(1, ge=1, le=1_000)
    target_sessions: float | None = Field(None, gt=0)
    cpus_per_replica: float = Field(1.0, ge=0, le=1_024)
    gpus_per_replica: float = Field(0.0, ge=0, le=16)
    look_back_s: Seconds = 10.0
    upscale_delay_s: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    downscale_delay_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0

    @model_validator(mode="after")
    def _order(self) -> RaySettings:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas is below min_replicas = {self.min_replicas}")
        return self


class TextSettings(_Section):
    """How text is read unless the session says otherwise. ``lexicon``: word -> spelling or /phonemes/."""

    markdown: bool = True
    urls: UrlMode = UrlMode.DROP
    normalise: bool = False
    lexicon: dict[str, Any] = Field(default_factory=dict)
    lexicon_file: Path | None = None


class HibariEngineSettings(_Section):
    kind: Literal["hibari"] = "hibari"
    max_utterances: int = Field(64, ge=1)
    threads: int = Field(1, ge=1, le=64)


class ToneEngineSettings(_Section):
    kind: Literal["tone"] = "tone"
    max_utterances: int = Field(256, ge=1)
    ms_per_char: int = Field(60, ge=1, le=1_000)
    chunk_ms: int = Field(100, ge=1, le=5_000)
    cost_per_audio_s: float = Field(0.0, ge=0, le=10)


class CosyVoiceEngineSettings(_Section):
    """``bundle``: the model directory; ``voices``: stored voices (default: inside it). ``device``: ``auto`` is CUDA
    where there is one. ``half``: bfloat16 for the language model and the flow (default: on CUDA). ``threads``: of the
    CPU, None leaves it to PyTorch. ``backend``: what runs flow estimator and vocoder; ``onnx`` takes the graphs that
    ``tts-worker export onnx`` wrote. ``memory_gb``: for the past of all that is being spoken. The others are those of
    ``tts_worker.engine.streaming.config.StreamingConfig``; None takes what suits the device."""

    kind: Literal["cosyvoice"] = "cosyvoice"
    bundle: Path
    voices: Path | None = None
    rl: bool = False
    device: str = Field("auto", pattern=r"auto|cpu|cuda(:\d+)?")
    half: bool | None = None
    threads: int | None = Field(None, ge=1, le=256)
    backend: Literal["torch", "onnx"] = "torch"
    graphs: bool = True
    max_utterances: int | None = Field(None, ge=1, le=4_096)
    text_mode: Literal["clause", "interleaved"] = "clause"
    first_tokens: int = Field(8, ge=1, le=25)
    context_tokens: int = Field(250, ge=0, le=2_000)
    max_passage_s: int = Field(30, ge=4, le=240)
    memory_gb: float | None = Field(None, gt=0)
    cached_voices: int = Field(4, ge=1, le=1_000)
    decode_batch: int | None = Field(None, ge=1, le=512)
    render_batch: int | None = Field(None, ge=1, le=64)
    smooth_start: bool = True


EngineSettings = Annotated[
    HibariEngineSettings | ToneEngineSettings | CosyVoiceEngineSettings, Field(discriminator="kind")
]


def _default_engines() -> dict[str, HibariEngineSettings | ToneEngineSettings | CosyVoiceEngineSettings]:
    return {"hibari": HibariEngineSettings()}


class VoiceSettings(_Section):
    """``default``: voice of requests that name none; None takes the first engine's first voice. ``aliases``: other
    names for voices, so that a client with fixed names can be served on purpose."""

    default: str | None = None
    directory: Path | None = None
    aliases: dict[str, str] = Field(default_factory=dict)


class ModelSettings(_Section):
    """Which engines are in memory. ``preload``: loaded at the start (the default first); None loads all of ``engines``
    and keeps them for ever. ``default``: always there; None takes the first of ``preload`` or of ``engines``.
    ``on_demand``: a session for an engine that is not loaded loads it and waits ``load_wait_s`` at most. An engine that
    is not used, not the default and ``min_residency_s`` old goes after ``ttl_s`` (None: never), or when another needs
    its place under ``resident_cap``."""

    preload: tuple[str, ...] | None = None
    default: str | None = None
    on_demand: bool = False
    load_wait_s: Seconds = 20.0
    ttl_s: Seconds | None = 600.0
    min_residency_s: Annotated[float, Field(ge=0, le=86_400)] = 120.0
    check_interval_s: Seconds = 30.0
    resident_cap: int | None = Field(3, ge=1)
    max_parallel_loads: int = Field(1, ge=1, le=64)


class Settings(BaseSettings):
    """See the module. ``engines``: what runs in this process, by name."""

    model_config = SettingsConfigDict(
        env_prefix=_ENV_PREFIX,
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
    text: TextSettings = TextSettings()
    voices: VoiceSettings = VoiceSettings()
    engines: dict[str, EngineSettings] = Field(default_factory=_default_engines, min_length=1)
    models: ModelSettings = ModelSettings()
    ray: RaySettings = RaySettings()
    hang_timeout_s: Seconds = 30.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @model_validator(mode="after")
    def _check_models(self) -> Settings:
        models = self.models
        for key, names in (("preload", models.preload or ()), ("default", (models.default,))):
            for name in names:
                if name is not None and name not in self.engines:
                    raise ValueError(f"models.{key}: there is no engine {name!r}; there are: {', '.join(self.engines)}")
        preloaded = {self.default_engine, *(models.preload or ())}
        if models.preload is not None and models.resident_cap is not None and len(preloaded) > models.resident_cap:
            raise ValueError(f"models.preload has more than models.resident_cap = {models.resident_cap} engines")
        return self

    @property
    def default_engine(self) -> str:
        """The engine that is always there."""
        return self.models.default or (self.models.preload or tuple(self.engines))[0]

    @model_validator(mode="after")
    def _guard_grpc(self) -> Settings:
        server, grpc = self.server, self.grpc
        if grpc.enabled and not is_loopback(grpc.host) and not server.api_keys and not server.allow_unauthenticated:
            raise ValueError(
                f"grpc.host {grpc.host} is reachable from outside: set server.api_keys, or "
                "server.allow_unauthenticated: true if something in front of the worker checks who calls"
            )
        for name, model in grpc.models.items():
            if model.engine not in self.engines:
                raise ValueError(f"grpc.models.{name}.engine: there is no engine {model.engine!r} in engines")
        if self.registry.url is not None and not grpc.enabled:
            raise ValueError("registry.url: a registered worker is reached over gRPC: set grpc.enabled: true")
        if self.registry.url is not None and self.registry.address is None and grpc.host in ("0.0.0.0", "::"):
            raise ValueError("registry.address: say where clients reach this worker, such as 10.0.0.5:7002")
        return self


_PATHS = (("voices", "directory"), ("text", "lexicon_file"), ("engines", "*", "bundle"), ("engines", "*", "voices"))
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
        raise ConfigError(_explain(error, file)) from None
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
        if name.upper().startswith(_ENV_PREFIX) and name.upper() not in _CLIENT_VARIABLES:
            section = name[len(_ENV_PREFIX) :].split("__")[0].lower()
            if section not in Settings.model_fields:
                raise ConfigError(f"the environment variable {name} sets nothing: there is no setting {section!r}")


def _explain(error: ValidationError, file: Path | None) -> str:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"]) or "(top level)"
        if problem["type"] == "extra_forbidden":
            message = "there is no such setting"
        else:
            message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{key}: {message}")
    where = f" ({file}, environment, flags)" if file is not None else ""
    return f"wrong settings{where}: " + "; ".join(lines)
