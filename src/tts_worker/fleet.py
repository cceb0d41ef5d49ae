"""The gRPC servers of a worker and its registration in a registry, from settings.

Separate from ``serving`` because it needs extras; programs that embed a ``Worker`` may use it as well.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tts_worker.errors import MissingExtra
from tts_worker.registry.entry import WorkerCapabilities, WorkerEntry
from tts_worker.registry.registrar import Registrar
from tts_worker.registry.store import RedisStore
from tts_worker.server.connections import limit_by_descriptors
from tts_worker.server.limits import ApiLimits
from tts_worker.server.tls import expiry_s
from tts_worker.settings import Settings

try:
    from tts_worker.protocol.messages import PROTOCOL_VERSION
    from tts_worker.server.grpc import server
    from tts_worker.server.grpc.frames import StreamFormat
    from tts_worker.server.grpc.models import ModelCatalog, ServedModel
    from tts_worker.server.grpc.service import SAMPLE_RATES_HZ, ServiceConfig, load_metrics
except ModuleNotFoundError:
    raise MissingExtra("the gRPC server", "grpc") from None


if TYPE_CHECKING:
    from tts_worker.worker import Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FleetMember:
    """A worker with running gRPC servers.

    Attributes:
        address: Address of the worker protocol.
        cosyvoice_address: Address of the CosyVoice service, if enabled.
        name: Name of the worker in the registry.
    """

    address: str
    cosyvoice_address: str | None
    name: str
    _servers: Sequence[server.RunningServer]
    _registrar: Registrar | None

    async def announce(self) -> None:
        """Register the ready worker. Returns after the first attempt, whether or not the registry answered."""
        if self._registrar is not None:
            self._registrar.start()
            await self._registrar.wait_first_attempt()

    def begin_drain(self) -> None:
        """Deregister and close idle gRPC sessions; the hub accepts no new ones."""
        for running in self._servers:
            running.begin_drain()
        if self._registrar is not None:
            self._registrar.refresh()


@asynccontextmanager
async def join_fleet(worker: Worker) -> AsyncIterator[FleetMember]:
    """Run the gRPC servers; the health service reports NOT_SERVING until the worker is ready.

    Raises:
        ConfigError: A port is taken or the registry URL is invalid.
        MissingExtra: An extra is not installed.
    """
    settings = worker.settings
    models = _models(worker)
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(
            server.running_server(
                worker.hub,
                server.worker_services(worker.hub, models, _service_config(settings)),
                _port_config(worker, settings.grpc.port),
            )
        )
        servers = [running]
        if settings.grpc.cosyvoice_port is not None:
            register = server.cosyvoice_service(worker.hub, ApiLimits.of(settings))
            port = _port_config(worker, settings.grpc.cosyvoice_port)
            servers.append(await stack.enter_async_context(server.running_server(worker.hub, register, port)))
        name = settings.registry.name or _default_name(running.address)
        registrar = _registrar(worker, models, name, running.address)
        if registrar is not None:
            stack.push_async_callback(registrar.stop)
        yield FleetMember(
            running.address, servers[1].address if len(servers) > 1 else None, name, tuple(servers), registrar
        )


def _models(worker: Worker) -> ModelCatalog:
    engines = worker.settings.engines
    named = {
        name: ServedModel(model.engine, model.family or engines[model.engine].kind, model.voice, model.languages)
        for name, model in worker.settings.grpc.models.items()
    }
    return ModelCatalog(worker, {name: engine.kind for name, engine in engines.items()}, named)


def _service_config(settings: Settings) -> ServiceConfig:
    grpc = settings.grpc
    session = settings.session
    return ServiceConfig(
        stream_format=StreamFormat(grpc.sample_rate_hz),
        pause_timeout_s=session.pause_timeout_s if grpc.pause_timeout_s is None else grpc.pause_timeout_s,
        session_idle_s=grpc.session_idle_s,
        limits=ApiLimits.of(settings),
    )


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


def _default_name(address: str) -> str:
    host = re.sub(r"[^A-Za-z0-9-]", "-", platform.node())[:48].strip("-") or "worker"
    return f"{host}-{address.rpartition(':')[2]}"


def _registrar(worker: Worker, models: ModelCatalog, name: str, address: str) -> Registrar | None:
    registry = worker.settings.registry
    hub = worker.hub
    if registry.url is None:
        return None
    addr = f"grpc://{registry.address or address}"

    def describe() -> WorkerEntry | None:
        if not hub.ready:
            return None
        voices = list(hub.voices)
        return WorkerEntry(
            name=name,
            addr=addr,
            capabilities=WorkerCapabilities(
                zero_shot=hub.library.can_enrol,
                emotive_zero_prompt=any("instruct" in voice.info.capabilities for voice in voices),
                cpu_ok=any(voice.info.device == "cpu" for voice in voices),
                languages=sorted({tag for voice in voices for tag in voice.languages}),
                max_concurrent_sessions=hub.max_sessions,
                voices=[*(voice.name for voice in voices), *worker.settings.voices.aliases],
                sample_rates=list(SAMPLE_RATES_HZ),
                protocol_version=PROTOCOL_VERSION,
            ),
            resident_models=models.resident,
            metrics=load_metrics(hub),
            last_heartbeat_ts=0.0,
        )

    secret = None if registry.secret is None else registry.secret.get_secret_value()
    if secret is None and worker.settings.server.keys:
        log.warning(
            "server.api_keys is set without registry.secret: clients send no API key to a worker whose registry entry "
            "is not signed"
        )
    return Registrar(
        RedisStore(registry.url.get_secret_value()), registry.prefix, registry.heartbeat_s, describe, secret
    )
