"""Client settings, the ``Connector`` protocol, and the table of URL schemes.

To add a scheme, write a module with ``connector(url, settings)`` that returns a ``Connector`` and add it to
``SCHEMES``; ``tests/behaviour`` covers it with one more table entry. Network connectors combine
``remote.RemoteSession`` (deadline, terminal events and STOP semantics, identical for all transports) with
their ``link.Link``.
"""

from __future__ import annotations

import importlib
import ipaddress
import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import urlsplit

from tts_worker.client.arguments import check_seconds
from tts_worker.errors import ConfigError, InvalidRequest, MissingServer
from tts_worker.protocol.session import Session
from tts_worker.types import SessionOptions

if TYPE_CHECKING:
    from tts_worker.client.batches import BatchAccess
    from tts_worker.client.conversion import ConversionAccess
    from tts_worker.client.voices import VoiceAccess

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a client, for every scheme. Times are in seconds.

    Raises:
        InvalidRequest: ``api_key`` cannot be sent in a header, or a number is unsuitable.

    Attributes:
        api_key: Sent as ``Authorization: Bearer``, never logged. A worker found in a registry receives it only if its
            entry is signed with ``registry_secret``.
        registry_secret: The workers' ``registry.secret``; None reads TTS_WORKER_REGISTRY__SECRET.
        connect_timeout_s: Limit from connecting to an admitted session.
        audio_timeout_s: Limit without audio after the text has ended, while not paused; then the utterance ends with
            ``DeadlineExceeded``.
        heartbeat_s: Ping interval; a worker that does not answer within it counts as lost.
        idle_connections: Connections kept open for the next sessions. Each holds one session of the worker.
        idle_s: How long an unused connection is kept.
        read_ahead_s: Audio buffered on this side before the client stops reading (backpressure).
        tls_certificate: PEM file of this client's certificate and key, for a worker that requires one.
    """

    api_key: str | None = None
    registry_secret: str | None = None
    connect_timeout_s: float = 5.0
    audio_timeout_s: float = 10.0
    heartbeat_s: float = 10.0
    idle_connections: int = 1
    idle_s: float = 600.0
    read_ahead_s: float = 5.0
    tls_certificate: Path | None = None

    def __post_init__(self) -> None:
        if self.api_key is not None and not (
            isinstance(self.api_key, str) and re.fullmatch("[ -~]*", self.api_key) is not None
        ):
            raise InvalidRequest("api_key: one line of ASCII characters (does it end with a line break?)")
        for name in ("connect_timeout_s", "audio_timeout_s", "heartbeat_s", "read_ahead_s"):
            check_seconds(getattr(self, name), name)
        check_seconds(self.idle_s, "idle_s", or_zero=True)
        count = self.idle_connections
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise InvalidRequest("idle_connections must be a whole number, 0 or more")

    def tls_context(self) -> ssl.SSLContext:
        """Return a context that trusts the system's authorities and shows ``tls_certificate``. Raises ConfigError."""
        context = ssl.create_default_context()
        if self.tls_certificate is not None:
            try:
                context.load_cert_chain(self.tls_certificate, password=lambda: "")
            except OSError as error:  # also ssl.SSLError
                raise ConfigError(f"tls_certificate cannot be used ({error.strerror or 'no PEM file'})") from None
        return context

    def __repr__(self) -> str:  # keeps the key out of logs
        return f"ClientSettings(connect_timeout_s={self.connect_timeout_s}, audio_timeout_s={self.audio_timeout_s})"


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session that the worker has admitted. ``connection_reused``: an open connection was used."""

    session: Session
    connection_reused: bool


class Connector(Protocol):
    """Access to one worker, or to a fleet behind one address. Constructed without an event loop; used on one."""

    async def prewarm(self) -> None:
        """Connect or load in advance. Idempotent. Raises like ``open``."""
        ...

    async def open(self, options: SessionOptions, *, audio_timeout_s: float) -> OpenedSession:
        """Open a session with these options.

        Beyond ``session.Session``, the returned session guarantees:

        - commands never wait for the network;
        - every utterance ends with exactly one ``Ended``, also when the connection or the worker is lost (outcome
          ERROR, code "connection_lost", retryable);
        - after ``stop`` returns, no frame of an earlier utterance is delivered; while paused, no frame is delivered;
        - ``close`` releases the worker's resources.

        Raises:
            TTSWorkerError: The worker's own error (UnknownVoice, InvalidRequest, OverCapacity, Draining, NotReady,
                Unauthenticated, ...).
            ConnectionLost: The worker cannot be reached.
            DeadlineExceeded: The worker did not answer in time.
        """
        ...

    async def voice_access(self) -> VoiceAccess:
        """Return the access to the worker's voices. Raises like ``open``."""
        ...

    async def conversion_access(self) -> ConversionAccess:
        """Return the access to the worker's voice conversion. Raises like ``open``."""
        ...

    async def batch_access(self) -> BatchAccess:
        """Return the access to the worker's batches. Raises like ``open``."""
        ...

    async def aclose(self) -> None:
        """Close sessions and connections. Idempotent."""
        ...


class SchemeModule(Protocol):
    """Interface of the modules named in ``SCHEMES``."""

    def connector(self, url: str, settings: ClientSettings) -> Connector:
        """Create the connector without connecting. Raises InvalidRequest for a bad URL, MissingExtra."""
        ...


SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        "local": "tts_worker.client.local",
        "ws": "tts_worker.client.websocket",
        "wss": "tts_worker.client.websocket",
        "grpc": "tts_worker.client.grpc",
        "grpcs": "tts_worker.client.grpc",
        "redis": "tts_worker.client.fleet",
        "rediss": "tts_worker.client.fleet",
        "redis+sentinel": "tts_worker.client.fleet",
        "rediss+sentinel": "tts_worker.client.fleet",
    }
)
"""URL scheme -> module, imported on first use."""


def _warn_if_clear_text(url: str) -> None:
    try:
        host = urlsplit(url).hostname or ""
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        log.warning(
            "the API key is sent without TLS to a host that is not loopback: use wss://, grpcs:// or a private network"
        )


def connector_for(url: str, settings: ClientSettings) -> Connector:
    """Create the connector for a URL. Raises InvalidRequest for an unknown scheme, MissingExtra, MissingServer."""
    if not isinstance(url, str):
        raise InvalidRequest(f"a worker's URL must be str, not {type(url).__name__}")
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in SCHEMES:
        known = ", ".join(f"{name}:" if name == "local" else f"{name}://" for name in SCHEMES)
        raise InvalidRequest(f"a worker's URL must begin with one of {known}")
    if settings.api_key is not None and scheme in ("ws", "grpc"):
        _warn_if_clear_text(url)
    try:
        module = importlib.import_module(SCHEMES[scheme])
    except ModuleNotFoundError as error:
        if scheme == "local" and (error.name or "").startswith("tts_worker."):
            raise MissingServer("a worker in this process") from None
        raise
    return cast(SchemeModule, module).connector(url, settings)
