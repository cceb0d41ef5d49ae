"""The seam between the client and what carries its sessions: one ``Connector`` per URL scheme.

Owns the vocabulary of the client: what can be configured, what a connector promises, which module serves which scheme.
It knows no protocol, no socket and no engine. To add a scheme: write a module with ``connector(url, settings)`` that
returns a ``Connector``, and add its line to ``SCHEMES``; ``tests/behaviour`` then takes it with one line too.
A connector over a network builds its sessions from ``remote.RemoteSession``, which holds all that must not differ
between transports (the deadline, the one terminal event, nothing old after a STOP), and a ``link.Link``.
"""

from __future__ import annotations

import importlib
import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, cast
from urllib.parse import urlsplit

from tts_worker.errors import InvalidRequest
from tts_worker.session.hub import SessionOptions
from tts_worker.session.session import Session

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client behaves towards any worker. Seconds.

    ``api_key``: sent as ``Authorization: Bearer``, never logged; a worker that was found in a registry gets it only if
    its entry is signed with ``registry_secret`` (the workers' ``registry.secret``; None takes the environment's
    TTS_WORKER_REGISTRY__SECRET). ``connect_timeout_s``: from dialling to a session that
    was admitted. ``audio_timeout_s``: how long a worker may owe sound (text was ended or flushed, nobody paused)
    without sending any; then the utterance ends with ``DeadlineExceeded``. ``heartbeat_s``: a worker that answers no
    heartbeat for that long is lost. ``idle_connections``: warm connections kept for the next sessions (each holds a
    session of the worker); ``idle_s``: how long. ``read_ahead_s``: sound that is taken from the network before anyone
    asked for it; beyond it the worker is slowed down.
    """

    api_key: str | None = None
    registry_secret: str | None = None
    connect_timeout_s: float = 5.0
    audio_timeout_s: float = 10.0
    heartbeat_s: float = 10.0
    idle_connections: int = 1
    idle_s: float = 600.0
    read_ahead_s: float = 5.0

    def __repr__(self) -> str:  # a key has no business in logs
        return f"ClientSettings(connect_timeout_s={self.connect_timeout_s}, audio_timeout_s={self.audio_timeout_s})"


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that the worker has admitted. ``connection_reused``: nothing had to be dialled for it."""

    session: Session
    connection_reused: bool


class Connector(Protocol):
    """One worker, or a fleet of them behind one address. Built without an event loop; used on one."""

    async def prewarm(self) -> None:
        """Get ready for the first session: dial, load, warm up. Again is fine. Raises like ``open``."""
        ...

    async def open(self, options: SessionOptions, *, audio_timeout_s: float) -> Opened:
        """A session with these options.

        Raises what the worker says (UnknownVoice, InvalidRequest, OverCapacity, Draining, NotReady, Unauthenticated,
        ...), ConnectionLost if there is no worker, DeadlineExceeded if it does not answer in time.

        Promises of the session beyond ``session.Session``: commands never wait for the network; every utterance ends
        with exactly one ``Ended``, also when the connection is lost or the worker dies (outcome ERROR, code
        "connection_lost", retryable); after ``stop`` returned no frame of an older utterance comes out; while paused
        no frame comes out; ``close`` frees what the worker holds.
        """
        ...

    async def aclose(self) -> None:
        """Close sessions and connections. Again is fine."""
        ...


class SchemeModule(Protocol):
    """What a module named in ``SCHEMES`` has."""

    def connector(self, url: str, settings: ClientSettings) -> Connector:
        """Raises InvalidRequest (the URL), MissingExtra. Dials nothing yet."""
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
    }
)
"""URL scheme -> the module that serves it, imported when it is asked for."""


def _warn_of_clear_text(url: str) -> None:
    try:
        host = urlsplit(url).hostname or ""
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        log.warning(
            "the API key is sent without TLS to a host that is not loopback: use wss://, grpcs:// or a private network"
        )


def connector_for(url: str, settings: ClientSettings) -> Connector:
    """The connector of a URL's scheme. Raises InvalidRequest for a scheme that nobody serves."""
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in SCHEMES:
        known = ", ".join(f"{name}:" if name == "local" else f"{name}://" for name in SCHEMES)
        raise InvalidRequest(f"a worker's URL begins with one of {known}")
    if settings.api_key is not None and scheme in ("ws", "grpc"):
        _warn_of_clear_text(url)
    module = cast(SchemeModule, importlib.import_module(SCHEMES[scheme]))
    return module.connector(url, settings)
