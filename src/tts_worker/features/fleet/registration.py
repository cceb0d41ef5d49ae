"""What a worker publishes of itself in the registry, from its settings."""

from __future__ import annotations

import logging
import platform
import re

from pydantic import SecretStr

from tts_worker.client.registry.entry import WorkerCapabilities, WorkerEntry
from tts_worker.client.registry.store import RedisStore
from tts_worker.features.fleet.registrar import Registrar
from tts_worker.features.fleet.settings import RegistrySettings
from tts_worker.protocol.messages import PROTOCOL_VERSION
from tts_worker.server.grpc.models import OFFERED_RATES_HZ, ModelCatalog, load_metrics
from tts_worker.session.hub import SessionHub
from tts_worker.settings import Settings

log = logging.getLogger(__name__)


def registrar_of(hub: SessionHub, settings: Settings, models: ModelCatalog, address: str, url: SecretStr) -> Registrar:
    """Return what registers a worker at the Redis at ``url``; its gRPC server listens on ``address``.

    Raises:
        ConfigError: The URL of the registry is invalid.
        MissingExtra: The extra "redis" is not installed.
    """
    registry = settings.section(RegistrySettings)
    name = registry.name or _default_name(address)
    addr = f"grpc://{registry.address or address}"

    def describe() -> WorkerEntry | None:
        if not hub.ready:
            return None
        voices = list(hub.voices)
        return WorkerEntry(
            name=name,
            addr=addr,
            capabilities=WorkerCapabilities(
                zero_shot=hub.library.can_enroll,
                emotive_zero_prompt=any("instruct" in voice.info.capabilities for voice in voices),
                cpu_ok=any(voice.info.device == "cpu" for voice in voices),
                languages=sorted({tag for voice in voices for tag in voice.languages}),
                max_concurrent_sessions=hub.max_sessions,
                voices=[
                    *(name for voice in voices for name in (voice.name, *voice.aliases)),
                    *settings.voices.aliases,
                ],
                sample_rates=list(OFFERED_RATES_HZ),
                protocol_version=PROTOCOL_VERSION,
            ),
            resident_models=models.resident,
            metrics=load_metrics(hub),
            last_heartbeat_ts=0.0,
        )

    secret = None if registry.secret is None else registry.secret.get_secret_value()
    if secret is None and settings.server.keys:
        log.warning(
            "server.api_keys is set without registry.secret: clients send no API key to a worker whose registry entry "
            "is not signed"
        )
    store = RedisStore(url.get_secret_value())
    return Registrar(store, registry.prefix, registry.heartbeat_s, describe, secret)


def _default_name(address: str) -> str:
    host = re.sub(r"[^A-Za-z0-9-]", "-", platform.node())[:48].strip("-") or "worker"
    return f"{host}-{address.rpartition(':')[2]}"
