"""Registry entries: JSON with exactly the six keys that orchestrators read.

Existing readers reject further keys, so our own fields are inside ``capabilities`` and ``metrics``. Entries are
validated strictly, because any writer to Redis can forge one.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

from tts_worker.errors import CLIENT_SOURCE, InvalidRequest, MissingExtra

try:
    from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
except ModuleNotFoundError:
    raise MissingExtra("the registry", "redis", CLIENT_SOURCE) from None

MAX_ENTRY_BYTES = 65_536

Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"
Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"

LOOPBACK: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be finite")
    return value


_Finite = Annotated[float, AfterValidator(_finite)]
_Name = Annotated[str, Field(min_length=1, max_length=128)]


class WorkerCapabilities(BaseModel):
    """Capabilities of a worker. All workers have the first seven fields; other implementations lack the rest."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    streaming: bool = True
    zero_shot: bool = False
    lora: bool = False
    cpu_ok: bool = False
    languages: Annotated[list[_Name], Field(max_length=500)] = Field(default_factory=list)
    emotive_zero_prompt: bool = False
    max_concurrent_sessions: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    voices: Annotated[list[_Name], Field(max_length=5_000)] = Field(default_factory=list)
    sample_rates: Annotated[list[int], Field(max_length=100)] = Field(default_factory=list)
    protocol_version: int = 0  # of the Conversation service; 0 if it is not served


class WorkerEntry(BaseModel):
    """One entry. ``last_heartbeat_ts`` is in Unix seconds of the worker's clock."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")
    addr: str = Field(min_length=9, max_length=300)
    capabilities: WorkerCapabilities
    resident_models: Annotated[list[_Name], Field(max_length=1_000)]
    metrics: Annotated[dict[_Name, _Finite], Field(max_length=200)]
    last_heartbeat_ts: _Finite

    def to_json(self) -> bytes:
        """Serialize the entry as UTF-8 JSON."""
        return self.model_dump_json().encode()

    @property
    def load(self) -> float:
        """Fraction of slots in use as reported by the worker; 0 if it reports none."""
        slots = self.capabilities.max_concurrent_sessions
        return max(0.0, self.metrics.get("queue_depth", 0.0)) / slots if slots else 0.0


def parse_entry(raw: bytes) -> WorkerEntry:
    """Parse and validate an entry. Raises InvalidRequest that names the wrong key but never its value."""
    if len(raw) > MAX_ENTRY_BYTES:
        raise InvalidRequest(f"the entry has more than {MAX_ENTRY_BYTES} bytes")
    try:
        return WorkerEntry.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        location = ".".join(str(part)[:40] for part in first["loc"]) or "(top level)"
        raise InvalidRequest(f"the entry is not valid at {location}: {first['type']}") from None


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Address of a worker as stated in its entry; not checked yet."""

    host: str
    port: int


def parse_worker_address(addr: str) -> WorkerAddress:
    """Parse ``grpc://host:port``. Raises InvalidRequest for anything else."""
    try:
        parts = urlsplit(addr)
        host = parts.hostname
        port = parts.port
    except ValueError:
        raise InvalidRequest("addr is not a URL") from None
    is_bare = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme != "grpc" or not is_bare or not host or not port:
        raise InvalidRequest("addr must be grpc://host:port")
    return WorkerAddress(host, port)


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse comma-separated networks in CIDR notation. Raises InvalidRequest."""
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise InvalidRequest("networks must be a list such as 10.0.0.0/8,fd00::/8") from None


def is_allowed(address: str, networks: Sequence[Network]) -> bool:
    """Whether the IP address ``address`` is in one of ``networks``. IPv4-mapped IPv6 addresses count as IPv4."""
    try:
        parsed: Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed.version == network.version and parsed in network for network in networks)
