"""The ``Connector`` protocol, and the table of URL schemes.

To add a scheme, write a module with ``connector(url, settings)`` that returns a ``Connector`` and add it to
``SCHEMES``; ``tests/behavior`` covers it with one more table entry. Network connectors combine
``remote.RemoteSession`` (deadline, terminal events and STOP semantics, identical for all transports) with
their ``link.Link``.
"""

from __future__ import annotations

import importlib
import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import urlsplit

from tts_worker.client.settings import ClientSettings
from tts_worker.errors import InvalidRequest, MissingServer
from tts_worker.protocol.session import Session
from tts_worker.types import SessionOptions

if TYPE_CHECKING:  # each is imported on first use
    from tts_worker.client.batches import BatchAccess
    from tts_worker.client.conversion import ConversionAccess
    from tts_worker.client.voices import VoiceAccess

log = logging.getLogger(__name__)


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
        "local": "tts_worker.local",
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


HTTP_SCHEMES: Mapping[str, str] = MappingProxyType({"http": "ws", "https": "wss"})
"""What ``serve`` prints -> the scheme of a worker there."""


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
    """Create the connector for a URL; ``http`` means ``ws``.

    Raises:
        InvalidRequest: The scheme is unknown.
        MissingExtra: The scheme needs an extra that is not installed.
        MissingServer: ``local:``, and only the client is installed.
    """
    if not isinstance(url, str):
        raise InvalidRequest(f"a worker's URL must be str, not {type(url).__name__}")
    scheme, colon, rest = url.partition(":")
    if scheme in HTTP_SCHEMES:
        scheme = HTTP_SCHEMES[scheme]
        url = f"{scheme}:{rest}"
    if not colon or scheme not in SCHEMES:
        known = ", ".join(f"{name}:" if name == "local" else f"{name}://" for name in (*SCHEMES, *HTTP_SCHEMES))
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
