"""The sections ``registry`` and ``ray`` of the settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tts_worker.section import FeatureSection

if TYPE_CHECKING:
    from tts_worker.settings import Settings


def _check_redis_url(url: SecretStr) -> SecretStr:
    """Reject what is no Redis URL, without its text: it may hold a password."""
    value = url.get_secret_value()
    if re.match(r"rediss?\+cluster://", value):
        raise ValueError("Redis Cluster is not supported; use one server, or Sentinel (redis+sentinel://)")
    if not re.match(r"(rediss?|unix)://.|rediss?\+sentinel://[^/]+/.", value):
        raise ValueError(
            "not a Redis URL: use redis://[:password@]host:port[/db], rediss:// for TLS, or "
            "redis+sentinel://host:port,host:port/service"
        )
    return url


RedisUrl = Annotated[SecretStr, AfterValidator(_check_redis_url)]


class RegistrySettings(FeatureSection):
    """Registration of the worker for discovery.

    Attributes:
        url: A Redis URL; None disables registration.
        name: Name of the worker; None derives it from the host name and the port.
        address: ``host:port`` of the gRPC server for clients; None selects the listening address.
        heartbeat_s: Interval of the heartbeat; the entry of a lost worker expires one second after this time.
        quotas_url: The Redis in which workers share the quotas of API keys; None selects ``url``, and without either
            each worker counts for itself. Workers with the same Redis and prefix share.
        secret: Shared by the workers and clients of a fleet. Entries are signed with it, and clients send their API
            key only to workers with a signed entry.
    """

    url: RedisUrl | None = None
    prefix: str = Field("worker:", min_length=1, max_length=64)
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")
    address: str | None = Field(None, pattern=r"^(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")
    heartbeat_s: Annotated[float, Field(ge=0.2, le=300)] = 10.0
    quotas_url: RedisUrl | None = None
    secret: SecretStr | None = Field(None, min_length=16)

    def check_with(self, settings: Settings) -> None:
        """Check that clients reach the worker that is registered. Raises ValueError."""
        grpc = settings.grpc
        if self.url is not None and not grpc.enabled:
            raise ValueError("registry.url: clients reach a registered worker over gRPC: set grpc.enabled: true")
        if self.url is not None and grpc.tls_certificate is not None:
            raise ValueError("registry.url: clients of the registry use gRPC without TLS: unset grpc.tls_*")
        if self.url is not None and self.address is None and grpc.host in ("0.0.0.0", "::"):
            raise ValueError("registry.address: set the address for clients, such as 10.0.0.5:7002")


class RaySettings(FeatureSection):
    """``serve --ray``: replicas of this worker behind one address.

    Attributes:
        address: Address of a running cluster (``auto`` finds it); None starts one on this machine.
        target_sessions: Sessions per replica at which the number of replicas is scaled, between ``min_replicas`` and
            ``max_replicas``; None selects 70 % of ``session.max_sessions``.
        gpus_per_replica: Share of a GPU; 0.5 puts two replicas on one.
    """

    address: str | None = None
    min_replicas: int = Field(1, ge=1, le=1_000)
    max_replicas: int = Field(1, ge=1, le=1_000)
    target_sessions: float | None = Field(None, gt=0)
    cpus_per_replica: float = Field(1.0, ge=0, le=1_024)
    gpus_per_replica: float = Field(0.0, ge=0, le=16)

    @model_validator(mode="after")
    def _order(self) -> RaySettings:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas is below min_replicas = {self.min_replicas}")
        return self


SECTIONS = {"registry": RegistrySettings, "ray": RaySettings}
