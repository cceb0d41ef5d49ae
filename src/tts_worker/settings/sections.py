"""The sections of the settings: their keys, bounds and defaults. They know nothing of files and environment."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from tts_worker.text.urls import UrlMode

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Milliseconds = Annotated[float, Field(ge=0, le=60_000)]


MIN_KEY_CHARS = 8


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(Section):
    """Where the server listens and what it accepts. Sizes are checked before any work is done.

    ``api_keys`` may do everything; ``key_file`` holds keys with names, scopes and quotas, and is read again when it
    changes. ``max_buffered_bytes``: request bodies held at the same time, all requests together. ``max_connections``:
    fewer where the process may not open so many descriptors. ``header_timeout_s`` and ``body_timeout_s``: until the
    head and the body of a request have arrived. ``tls_certificate``: a PEM file with the certificate and its chain;
    with it the server speaks HTTPS only. ``tls_key``: the PEM file of its private key; None where that is in the same
    file."""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65_535)
    api_keys: tuple[SecretStr, ...] = ()
    key_file: Path | None = None
    allow_unauthenticated: bool = False
    allowed_origins: tuple[str, ...] = ()
    max_request_bytes: int = Field(1_048_576, ge=1_024)
    max_upload_bytes: int = Field(12_582_912, ge=1_024)
    max_header_bytes: Annotated[int, Field(ge=4_096, le=1_048_576)] = 32_768
    max_buffered_bytes: int = Field(67_108_864, ge=1_024)
    max_input_chars: int = Field(20_000, ge=1)
    max_connections: int = Field(1_024, ge=8, le=1_000_000)
    header_timeout_s: Seconds = 10.0
    body_timeout_s: Seconds = 60.0
    send_timeout_s: Seconds = 10.0
    heartbeat_s: Seconds = 20.0
    drain_s: Seconds = 30.0
    web_page: bool = True
    tls_certificate: Path | None = None
    tls_key: Path | None = None

    @field_validator("allowed_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """A wildcard would match nothing: origins are compared, and a page with a path has the origin without it."""
        for origin in origins:
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@*\s]+/?", origin):
                raise ValueError(f"{origin!r} is no origin of a page, such as https://app.example.com")
        return origins

    @model_validator(mode="after")
    def _guard(self) -> ServerSettings:
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError("tls_key goes with tls_certificate")
        if not self.needs_key and not self.allow_unauthenticated and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} is reachable from outside: set api_keys or key_file, or allow_unauthenticated: true "
                "if something in front of the worker checks who calls"
            )
        if any(len(key.get_secret_value()) < MIN_KEY_CHARS for key in self.api_keys):
            raise ValueError(f"api_keys need at least {MIN_KEY_CHARS} characters each")
        return self

    @property
    def needs_key(self) -> bool:
        """Whether callers need an API key."""
        return bool(self.api_keys) or self.key_file is not None

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key.get_secret_value() for key in self.api_keys)


class SessionSettings(Section):
    """Bounds of every session. ``max_sessions``: sessions that may speak at the same time; each holds a slot.
    ``max_open_sessions``: sessions that may be open, silent ones included; None allows 16 for each slot. A session that
    has been silent for ``slot_idle_s`` gives its slot to a new caller that needs it, stays open, and takes a slot again
    when its next utterance begins. ``end_idle_s``: at ``max_open_sessions`` a session that has been silent for so long
    ends. ``lead_ms``: how far ahead of real time sound is sent; ``window_ms``: how far the engine
    may be ahead of that. ``flush_after_ms``: silence of the writer after which words without punctuation are spoken;
    0 waits for punctuation."""

    max_sessions: int = Field(64, ge=1, le=100_000)
    max_open_sessions: int | None = Field(None, ge=1, le=1_000_000)
    slot_idle_s: Seconds = 2.0
    end_idle_s: Seconds = 60.0
    lead_ms: Milliseconds = 40.0
    window_ms: Annotated[float, Field(ge=100, le=60_000)] = 1_500.0
    frame_ms: Annotated[int, Field(ge=5, le=200)] = 20
    pause_timeout_s: Seconds = 30.0
    text_idle_timeout_s: Seconds = 300.0
    flush_after_ms: Milliseconds = 400.0
    max_message_chars: int = Field(100_000, ge=1)
    max_messages_per_s: Annotated[float, Field(ge=10, le=1_000_000)] = 1_000.0
    max_utterance_chars: int = Field(200_000, ge=1)
    max_queued_utterances: int = Field(16, ge=0, le=1_000)

    @model_validator(mode="after")
    def _order(self) -> SessionSettings:
        if self.max_open_sessions is not None and self.max_open_sessions < self.max_sessions:
            raise ValueError(f"max_open_sessions is below max_sessions = {self.max_sessions}")
        return self

    @property
    def open_limit(self) -> int:
        """How many sessions may be open."""
        return 16 * self.max_sessions if self.max_open_sessions is None else self.max_open_sessions


class GrpcModelSettings(Section):
    """A model id for clients that have fixed ones. ``engine``: a name in ``engines``; ``voice``: None takes its first;
    ``family, languages``: what the model is listed with, None and empty for what its engine says."""

    engine: str
    voice: str | None = None
    family: str | None = None
    languages: tuple[str, ...] = ()


class GrpcSettings(Section):
    """The gRPC servers. API keys are those of ``server``. ``sample_rate_hz, frame_ms``: what a client gets that asks
    for nothing. ``pause_timeout_s``: None takes the session's. ``session_idle_s``: a session that nobody uses ends.
    ``cosyvoice_port``: also serve CosyVoice's own gRPC service there (its clients' default is 50000).
    ``tls_certificate, tls_key``: PEM files as in ``server``."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: int = Field(7002, ge=0, le=65_535)
    cosyvoice_port: int | None = Field(None, ge=0, le=65_535)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    sample_rate_hz: Literal[8_000, 16_000, 24_000, 32_000, 48_000] = 48_000
    frame_ms: Annotated[int, Field(ge=10, le=100, multiple_of=10)] = 20
    pause_timeout_s: Seconds | None = None
    session_idle_s: Seconds = 600.0
    models: dict[str, GrpcModelSettings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_tls(self) -> GrpcSettings:
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError("tls_key goes with tls_certificate")
        return self


class IceServerSettings(Section):
    """A STUN or TURN server: ``urls`` such as "turn:turn.example.org:3478"."""

    urls: tuple[str, ...] = Field(min_length=1)
    username: str | None = None
    credential: SecretStr | None = None


class WebRtcSettings(Section):
    """``POST /webrtc/offer``, which needs the extra "webrtc". ``connect_timeout_s``: from the answer to a connection;
    ``silence_timeout_s``: a connected peer that sends no reports for so long has vanished. ``ice_servers``: None needed
    where clients reach the worker's own addresses."""

    enabled: bool = True
    max_peers: int = Field(32, ge=1, le=10_000)
    connect_timeout_s: Seconds = 15.0
    silence_timeout_s: Seconds = 10.0
    ice_servers: tuple[IceServerSettings, ...] = ()


class RegistrySettings(Section):
    """Where the worker tells that it is there. ``url``: a Redis, None registers nowhere. ``name``: None is made of the
    host's name and the port. ``address``: ``host:port`` that clients reach the gRPC server at, None where the address
    it listens on will do. ``heartbeat_s``: a worker that is lost is gone from the list after this and a second.
    ``secret``: shared by the workers and clients of a fleet; entries are signed with it, and clients send their API key
    only to workers whose entry is."""

    url: SecretStr | None = None
    prefix: str = Field("worker:", min_length=1, max_length=64)
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")
    address: str | None = Field(None, pattern=r"^(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")
    heartbeat_s: Annotated[float, Field(ge=0.2, le=300)] = 10.0
    secret: SecretStr | None = Field(None, min_length=16)


class RaySettings(Section):
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


class TextSettings(Section):
    """How text is read unless the session says otherwise. ``lexicon``: word -> spelling or /phonemes/. ``normalise``:
    write numbers and dates out before the voice sees them; None: where the extra "normalise" is installed and the
    engine does not do it by itself."""

    markdown: bool = True
    urls: UrlMode = UrlMode.DROP
    normalise: bool | None = None
    lexicon: dict[str, Any] = Field(default_factory=dict)
    lexicon_file: Path | None = None


class VoiceSettings(Section):
    """``default``: voice of requests that name none; None takes the first engine's first voice. ``aliases``: other
    names for voices, so that a client with fixed names can be served on purpose. ``directory``: voice packs; None takes
    those of the package. ``openai_names``: the OpenAI API
    accepts OpenAI's own voice names (alloy, nova, ...) and speaks them with the default voice; an alias goes first."""

    default: str | None = None
    directory: Path | None = None
    aliases: dict[str, str] = Field(default_factory=dict)
    openai_names: bool = True


class ModelSettings(Section):
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
