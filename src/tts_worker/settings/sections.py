"""The sections of the core's settings: keys, bounds and defaults. Features declare theirs."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from tts_worker.section import Milliseconds, Seconds, Section
from tts_worker.types import DropReasoning, UrlMode

MIN_KEY_CHARS = 8


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TlsSection(Section):
    """TLS of a server.

    Attributes:
        tls_certificate: PEM file of the certificate and its chain; the server then speaks TLS only.
        tls_key: PEM file of the private key; None if it is in the certificate file.
        tls_client_ca: PEM file of the authorities of clients: every client then needs a certificate from one.
    """

    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None

    @model_validator(mode="after")
    def _check_tls(self) -> TlsSection:
        for name in ("tls_key", "tls_client_ca"):
            if self.tls_certificate is None and getattr(self, name) is not None:
                raise ValueError(f"{name} requires tls_certificate")
        return self


class ServerSettings(TlsSection):
    """The HTTP server: address, authentication and limits. Sizes are checked before a request is processed.

    Attributes:
        api_keys: Keys with all scopes.
        key_file: A file of keys with names, scopes and quotas; reloaded when it changes.
        trusted_proxies: Addresses or networks of proxies whose ``X-Forwarded-For`` names the client; "*" trusts all.
        max_connections: Limit of connections; lower if the process may not open as many file descriptors.
    """

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65_535)
    api_keys: tuple[SecretStr, ...] = ()
    key_file: Path | None = None
    allow_unauthenticated: bool = False
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    max_request_bytes: int = Field(1_048_576, ge=1_024)
    max_upload_bytes: int = Field(12_582_912, ge=1_024)
    max_input_chars: int = Field(20_000, ge=1)
    max_connections: int = Field(1_024, ge=8, le=1_000_000)
    send_timeout_s: Seconds = 10.0
    drain_s: Seconds = 30.0
    web_page: bool = True

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        """Reject names, which would match no address."""
        for proxy in proxies:
            try:
                ipaddress.ip_network("0.0.0.0/0" if proxy == "*" else proxy)
            except ValueError:
                raise ValueError(f"{proxy!r} is not an address or a network, such as 10.0.0.0/8") from None
        return proxies

    @field_validator("allowed_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Reject wildcards and paths, which would match no origin."""
        for origin in origins:
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@*\s]+/?", origin):
                raise ValueError(f"{origin!r} is not an origin, such as https://app.example.com")
        return origins

    @model_validator(mode="after")
    def _guard(self) -> ServerSettings:
        if not self.needs_key and not self.allow_unauthenticated and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} is reachable from outside: set api_keys or key_file, or allow_unauthenticated: true "
                "if a proxy in front of the worker authenticates callers"
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


class EngineLoopSettings(Section):
    """How engines run.

    Attributes:
        process: ``thread`` of this process, or a separate ``process`` for each engine.
        memory_share: Part of a GPU's memory that the engines of this worker may use, weights included; they divide it
            equally. Processes that share a GPU divide it, too; ``up --gpus`` and shares of Ray replicas set it.
        start_timeout_s: An engine that is not built and warm after this time has failed: weights are read, kernels
            compiled, graphs captured.
    """

    process: Literal["thread", "process"] = "thread"
    memory_share: float = Field(1.0, gt=0, le=1)
    start_timeout_s: Seconds = 600.0


class SessionSettings(Section):
    """Admission and bounds of sessions.

    Attributes:
        max_sessions: Slots: sessions that may speak at the same time; no more than the engines take utterances.
        max_open_sessions: Sessions that may be open, idle ones included; None allows 16 per slot.
        slot_idle_s: A session that has been idle for this long may lose its slot to a new caller. It stays open and
            takes a slot again when its next utterance begins.
        lead_ms: Playout lead: audio sent ahead of playback.
        flush_after_ms: Text pause after which words without punctuation are spoken; 0 waits for punctuation.
        loudness: Integrated loudness of every voice in LUFS (EBU R 128); ``off`` (None) leaves the level alone.
    """

    max_sessions: int = Field(64, ge=1, le=100_000)
    max_open_sessions: int | None = Field(None, ge=1, le=1_000_000)
    slot_idle_s: Seconds = 2.0
    lead_ms: Milliseconds = 40.0
    frame_ms: Annotated[int, Field(ge=5, le=200)] = 20
    pause_timeout_s: Seconds = 30.0
    text_idle_timeout_s: Seconds = 300.0
    flush_after_ms: Milliseconds = 400.0
    loudness: Annotated[float, Field(ge=-36, le=-10)] | None = -16.0
    max_utterance_chars: int = Field(200_000, ge=1)

    @field_validator("loudness", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return None if value is False or value == "off" else value  # YAML reads off as false

    @model_validator(mode="after")
    def _order(self) -> SessionSettings:
        if self.max_open_sessions is not None and self.max_open_sessions < self.max_sessions:
            raise ValueError(f"max_open_sessions is below max_sessions = {self.max_sessions}")
        return self

    @property
    def open_limit(self) -> int:
        """Number of sessions that may be open."""
        return 16 * self.max_sessions if self.max_open_sessions is None else self.max_open_sessions


class GrpcModelSettings(Section):
    """An additional model id, for clients with fixed model ids.

    Attributes:
        engine: A name in ``engines``.
        voice: Its voice; None selects the first voice of the engine.
        family: Family in the model list; None selects the kind of the engine.
        languages: Languages in the model list; empty for those of the engine.
    """

    engine: str
    voice: str | None = None
    family: str | None = None
    languages: tuple[str, ...] = ()


class GrpcSettings(TlsSection):
    """The gRPC servers. API keys are those of ``server``.

    Attributes:
        cosyvoice_port: Port of the service of CosyVoice's own gRPC clients, which default to 50000; None disables it.
        sample_rate_hz: Default sample rate.
        pause_timeout_s: None selects ``session.pause_timeout_s``.
        session_idle_s: An unused session ends after this time.
        models: Additional model ids.
    """

    enabled: bool = False
    host: str = "127.0.0.1"
    port: int = Field(7002, ge=0, le=65_535)
    cosyvoice_port: int | None = Field(None, ge=0, le=65_535)
    sample_rate_hz: Literal[8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000] = 48_000
    pause_timeout_s: Seconds | None = None
    session_idle_s: Seconds = 600.0
    models: dict[str, GrpcModelSettings] = Field(default_factory=dict)

    @property
    def ports(self) -> int:
        """Number of ports."""
        return (1 if self.cosyvoice_port is None else 2) if self.enabled else 0


class TextSettings(Section):
    """Defaults of text processing; sessions may override them.

    Attributes:
        drop_reasoning: Skip reasoning and tool text of language models: ``<think>``, ``<tool_call>`` and the like.
            "from_start": each text begins within reasoning, as of a model whose template has the opening tag.
        reading: How CosyVoice's Chinese and English text becomes words: "own" as for every other voice, "reference" by
            CosyVoice's own front end, with wetext where the extra "normalize" is installed.
        lexicon: Word -> spelling or /phonemes/, or the YAML file with that.
    """

    markdown: bool = True
    urls: UrlMode = UrlMode.DROP
    drop_reasoning: DropReasoning = True
    reading: Literal["own", "reference"] = "own"
    lexicon: dict[str, Any] | Path = Field(default_factory=dict)

    @field_validator("lexicon", mode="before")
    @classmethod
    def _check_lexicon(cls, lexicon: object) -> object:
        if not isinstance(lexicon, dict | Path | str) or (isinstance(lexicon, str) and lexicon.startswith("{")):
            raise ValueError("must be a mapping of words, or the path of a YAML file")
        return lexicon


class VoiceSettings(Section):
    """Voices.

    Attributes:
        default: Voice of requests without one; None selects the first voice of the first engine.
        directory: Voice packs; None selects those of the package.
        aliases: Alternative name -> voice, for clients with fixed voice names.
        route_by_language: An utterance in a language that the default voice does not speak is spoken by the first voice
            that does, unless the client names a voice or a language. The script of its first letters decides.
        max_stored: Stored voices of an engine, those of all API keys together.
    """

    default: str | None = None
    directory: Path | None = None
    aliases: dict[str, str] = Field(default_factory=dict)
    route_by_language: bool = True
    max_stored: int = Field(1_000, ge=0, le=100_000)


class ModelSettings(Section):
    """Loading and eviction of engines.

    An unused engine that is not the default is evicted after ``ttl_s``, or when another engine needs its place under
    ``resident_cap``, but not in the first two minutes.

    Attributes:
        preload: Engines loaded at start; the first is the default, which is never evicted. None loads all ``engines``,
            of which the first is the default, and never evicts them.
        on_demand: A session for an unloaded engine loads it and waits up to ``load_wait_s``.
        ttl_s: None never evicts unused engines.
        resident_cap: Engines that may be loaded; None for no limit.
    """

    preload: tuple[str, ...] | None = None
    on_demand: bool = False
    load_wait_s: Seconds = 20.0
    ttl_s: Seconds | None = 600.0
    resident_cap: int | None = Field(3, ge=1)
