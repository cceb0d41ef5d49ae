"""gRPC servers: services of a port, TLS, API keys, health, reflection and shutdown.

``running_server`` runs one port. Its health service reports SERVING while the hub is ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tts_worker.errors import ConfigError
from tts_worker.server import connections as http_connections
from tts_worker.server.file_watch import FileStates, file_states
from tts_worker.server.grpc.calls import KeyGuard
from tts_worker.server.grpc.models import ModelCatalog
from tts_worker.server.grpc.port_connections import PortConnections
from tts_worker.server.keys import KeyRing
from tts_worker.server.listener import listen
from tts_worker.server.tls import load_context
from tts_worker.session.hub import SessionHub
from tts_worker.settings import Settings

log = logging.getLogger(__name__)

_HEALTH_INTERVAL_S = 0.2
_CLOSE_GRACE_S = 1.0
_CALLS_PER_SESSION = 8
_EXTRA_CALLS = 256
"""Concurrent calls beyond those of speaking sessions and open conversations: controls, and calls that wait for clients
that do not read."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a server: certificate chain, private key, and the authorities of clients, if they need any."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Read the files; they are read again for connections that begin after a change.

        Raises:
            ConfigError: A file cannot be used; names the setting.
        """
        loaded_stat = self._stat()
        current = first = self._read()

        def fetch() -> grpc.ServerCertificateConfiguration:
            # Called by gRPC on a thread for each handshake.
            nonlocal loaded_stat, current
            if (stat := self._stat()) != loaded_stat:
                loaded_stat = stat
                try:
                    current = self._read()
                except (ConfigError, OSError) as error:
                    log.error("the TLS certificate of gRPC is unchanged: %s", error)
            return current

        return grpc.dynamic_ssl_server_credentials(first, fetch, require_client_authentication=bool(self.client_ca))

    def _read(self) -> grpc.ServerCertificateConfiguration:
        """Return the content of the files. Raises ConfigError, where gRPC would only fail to listen."""
        load_context("grpc", self.certificate, self.key, self.client_ca)
        authorities = None if self.client_ca is None else self.client_ca.read_bytes()
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], authorities)

    def _stat(self) -> FileStates:
        return file_states((self.certificate, self.key, self.client_ca))


class PortObserver(Protocol):
    """Metrics of the connections (``metrics.Metrics``)."""

    def watch_grpc(self, port: int, active: Callable[[], float], waiting: Callable[[], float]) -> None: ...
    def connection_closed(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class PortConfig:
    """Settings of one port.

    Attributes:
        host: Address to listen on.
        port: Port; 0 picks a free one.
        keys: Keys of the callers.
        transport: Its name in metrics and logs.
        tls: Files of a port with TLS.
        max_connections: Connections beyond it are closed at once: each takes a file descriptor, also before its key is
            checked.
        max_request_bytes: Size of a message.
        idle_s: A connection without a call is closed after this time; a client connects again for its next call.
        observer: Counts the connections; None counts nothing.
    """

    host: str = "127.0.0.1"
    port: int = 7002
    keys: KeyRing = field(default_factory=KeyRing)
    transport: str = "grpc"
    tls: TlsFiles | None = None
    max_connections: int = 1_024
    max_request_bytes: int = 1_048_576
    idle_s: float = 30.0
    observer: PortObserver | None = None


class Drainable(Protocol):
    """A service whose idle sessions close when a drain begins."""

    def close_idle_sessions(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A listening server; ``address`` is the bound ``host:port``."""

    address: str
    services: Sequence[Drainable]

    def begin_drain(self) -> None:
        """Close idle sessions, after the hub has stopped admitting new ones."""
        for service in self.services:
            service.close_idle_sessions()


Register = Callable[[grpc.aio.Server], tuple[Sequence[str], Sequence[Drainable]]]
"""Adds services to a server; returns their full names, and what ends their idle sessions at a drain."""

GrpcServices = Callable[[SessionHub, Settings, ModelCatalog], Register]


@dataclass(frozen=True, slots=True)
class ExtraPort:
    """A port besides that of the worker protocol.

    Attributes:
        port: Its number; 0 picks a free one.
        transport: Its name in metrics and logs.
        register: Adds its services.
    """

    port: int
    transport: str
    register: Register


@asynccontextmanager
async def running_server(
    hub: SessionHub, registers: Iterable[Register], config: PortConfig
) -> AsyncIterator[RunningServer]:
    """Listen on one port with the services of ``registers``. On exit, calls have 1 s to end before they are cancelled.

    Raises:
        AddressInUse: Another process listens on the port.
        ConfigError: The port cannot be bound for another reason, or a TLS file cannot be used.
    """
    observer = config.observer
    if observer is None:
        connections = PortConnections(config.max_connections)
    else:
        connections = PortConnections(config.max_connections, partial(observer.connection_closed, "evicted"))
    server = _new_server(hub, config, connections)
    added = [register(server) for register in registers]
    names = [name for names, _ in added for name in names]
    health_service = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    address = _bind(server, config)
    await _set_health(health_service, names, ready=hub.ready)
    await server.start()
    port = int(address.rpartition(":")[2])
    if observer is not None:
        observer.watch_grpc(port, lambda: connections.active, lambda: connections.waiting)
    watchers = (
        asyncio.create_task(_watch_health(health_service, names, hub), name="grpc-health"),
        asyncio.create_task(connections.watch(port), name="grpc-connections"),
    )
    try:
        yield RunningServer(address, [each for _, drainable in added for each in drainable])
    finally:
        for watcher in watchers:
            watcher.cancel()
        await server.stop(_CLOSE_GRACE_S)


def _new_server(hub: SessionHub, config: PortConfig, connections: PortConnections) -> grpc.aio.Server:
    keepalive_ms = int(1000 * http_connections.HEARTBEAT_S)
    return grpc.aio.server(
        maximum_concurrent_rpcs=_CALLS_PER_SESSION * hub.config.max_sessions
        + hub.config.max_open_sessions
        + _EXTRA_CALLS,
        interceptors=[KeyGuard(config.keys, config.transport, connections.has_key)],
        options=[
            ("grpc.max_receive_message_length", config.max_request_bytes),
            ("grpc.max_allowed_incoming_connections", config.max_connections),
            ("grpc.server_handshake_timeout_ms", int(1000 * http_connections.HEADER_TIMEOUT_S)),
            ("grpc.so_reuseport", 0),  # two workers on one port would split the calls of a session
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", keepalive_ms),
            ("grpc.http2.ping_timeout_ms", keepalive_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_connection_idle_ms", int(1000 * config.idle_s)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.http2.max_ping_strikes", 0),
        ],
    )


def _bind(server: grpc.aio.Server, config: PortConfig) -> str:
    """Bind the port and return its address.

    Raises:
        ConfigError: The port cannot be bound or a TLS file cannot be used.
    """
    listen(config.host, config.port, "grpc").close()  # gRPC would not tell why it cannot
    host = f"[{config.host}]" if ":" in config.host else config.host
    try:
        if config.tls is None:
            port = server.add_insecure_port(f"{host}:{config.port}")
        else:
            port = server.add_secure_port(f"{host}:{config.port}", config.tls.credentials())
    except RuntimeError:
        port = 0
    if port == 0:
        raise ConfigError(f"grpc: cannot listen on {host}:{config.port}")
    return f"{host}:{port}"


async def _watch_health(health_service: health.aio.HealthServicer, names: Sequence[str], hub: SessionHub) -> None:
    """Poll the hub, so that the health status follows engine faults and drains."""
    reported = hub.ready
    while True:
        await asyncio.sleep(_HEALTH_INTERVAL_S)
        if hub.ready is not reported:
            reported = hub.ready
            await _set_health(health_service, names, ready=reported)


async def _set_health(health_service: health.aio.HealthServicer, names: Sequence[str], *, ready: bool) -> None:
    status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", *names):
        await health_service.set(name, status)
