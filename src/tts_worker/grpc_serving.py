"""The gRPC servers of a worker, from settings.

Separate from ``serving`` because it needs extras; programs that embed a ``Worker`` may use it as well.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tts_worker.errors import MissingExtra
from tts_worker.feature import Registration, features
from tts_worker.server.connections import limit_by_descriptors
from tts_worker.server.tls import expiry_s
from tts_worker.session.hub import SessionHub
from tts_worker.settings import Settings

try:
    from tts_worker.server.grpc import server
    from tts_worker.server.grpc.models import ModelCatalog, ServedModel
except ModuleNotFoundError:
    raise MissingExtra("the gRPC server", "grpc") from None


if TYPE_CHECKING:
    from tts_worker.worker import Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GrpcServers:
    """The running gRPC servers of a worker.

    Attributes:
        address: Address of the worker protocol.
        other_addresses: Those of the ports that features add, by the name of their transport.
    """

    address: str
    other_addresses: Mapping[str, str]
    _servers: Sequence[server.RunningServer]
    _registrations: Sequence[Registration]

    async def announce(self) -> None:
        """Register the ready worker. Returns after the first attempt, whether or not the registry answered."""
        for registration in self._registrations:
            await registration.announce()

    def begin_drain(self) -> None:
        """Deregister and close idle gRPC sessions; the hub accepts no new ones."""
        for running in self._servers:
            running.begin_drain()
        for registration in self._registrations:
            registration.refresh()


@asynccontextmanager
async def running_grpc(worker: Worker) -> AsyncIterator[GrpcServers]:
    """Run the gRPC servers; the health service reports NOT_SERVING until the worker is ready.

    Raises:
        ConfigError: A port is taken or the URL of a registry is invalid.
        MissingExtra: An extra is not installed.
    """
    settings = worker.settings
    models = model_catalog(worker)
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(
            server.running_server(
                worker.hub,
                services(worker.hub, settings, models),
                _port_config(worker, settings.grpc.port),
            )
        )
        others = {}
        for feature in features().values():
            extra = None if feature.grpc_port is None else feature.grpc_port(worker.hub, settings)
            if extra is not None:
                port = replace(_port_config(worker, extra.port), transport=extra.transport)
                opened = server.running_server(worker.hub, [extra.register], port)
                others[extra.transport] = await stack.enter_async_context(opened)
        found = [
            feature.registration(worker.hub, settings, models, running.address)
            for feature in features().values()
            if feature.registration is not None
        ]
        registrations = [registration for registration in found if registration is not None]
        for registration in registrations:
            stack.push_async_callback(registration.stop)
        addresses = {transport: other.address for transport, other in others.items()}
        yield GrpcServers(running.address, addresses, (running, *others.values()), registrations)


def services(hub: SessionHub, settings: Settings, models: ModelCatalog) -> list[server.Register]:
    """Return what adds the services of the features to the port of the worker."""
    return [feature.grpc(hub, settings, models) for feature in features().values() if feature.grpc is not None]


def model_catalog(worker: Worker) -> ModelCatalog:
    engines = worker.settings.engines
    named = {
        name: ServedModel(model.engine, model.family or engines[model.engine].kind, model.voice, model.languages)
        for name, model in worker.settings.grpc.models.items()
    }
    return ModelCatalog(worker, {name: engine.kind for name, engine in engines.items()}, named)


def _port_config(worker: Worker, port: int) -> server.PortConfig:
    settings = worker.settings
    certificate = settings.grpc.tls_certificate
    key = settings.grpc.tls_key
    tls = None
    if certificate is not None:
        tls = server.TlsFiles(certificate, key or certificate, settings.grpc.tls_client_ca)
        worker.metrics.watch_certificate("grpc", partial(expiry_s, certificate))
    limit = settings.server.max_connections
    return server.PortConfig(
        host=settings.grpc.host,
        port=port,
        keys=worker.keys,
        tls=tls,
        max_connections=limit_by_descriptors(limit, settings.grpc.ports * limit),
        max_request_bytes=settings.server.max_request_bytes,
        observer=worker.metrics,
    )
