"""An entry of the registry: JSON with exactly six keys, as orchestrators read it.

Their readers take no seventh key, so everything of our own is inside ``capabilities`` and ``metrics``. What is read is
checked: anybody who can write to Redis can forge an entry, and no entry can make a reader do more than look at it.
Knows no Redis and no clock.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tts_worker.errors import InvalidRequest

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
    """What a worker can do. The first seven are everybody's; a worker without the rest is one of another make."""

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
    protocol_version: int = 0  # of the conversation that tts_worker.connect speaks


class WorkerEntry(BaseModel):
    """See the module. ``last_heartbeat_ts``: seconds since 1970, by the worker's clock."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")
    addr: str = Field(min_length=9, max_length=300)
    capabilities: WorkerCapabilities
    resident_models: Annotated[list[_Name], Field(max_length=1_000)]
    metrics: Annotated[dict[_Name, _Finite], Field(max_length=200)]
    last_heartbeat_ts: _Finite

    def to_json(self) -> bytes:
        return self.model_dump_json().encode()

    @property
    def load(self) -> float:
        """Share of its places that are taken, as it says itself; 0 if it says nothing."""
        places = self.capabilities.max_concurrent_sessions
        return max(0.0, self.metrics.get("queue_depth", 0.0)) / places if places else 0.0


def parse_entry(raw: bytes) -> WorkerEntry:
    """Raises InvalidRequest, naming the key that is wrong but never its value."""
    if len(raw) > MAX_ENTRY_BYTES:
        raise InvalidRequest(f"the entry has more than {MAX_ENTRY_BYTES} bytes")
    try:
        return WorkerEntry.model_validate_json(raw)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part)[:40] for part in problem["loc"]) or "(the whole)"
        raise InvalidRequest(f"the entry is not valid at {place}: {problem['type']}") from None


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where an entry says that its worker is."""

    host: str
    port: int


def parse_worker_address(addr: str) -> WorkerAddress:
    """``grpc://host:port`` and nothing else. Raises InvalidRequest."""
    try:
        parts = urlsplit(addr)
        host = parts.hostname
        port = parts.port
    except ValueError:
        raise InvalidRequest("addr is no URL") from None
    plain = parts.scheme == "grpc" and not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    if not plain or not host or not port:
        raise InvalidRequest("addr must be grpc://host:port")
    return WorkerAddress(host, port)


def parse_networks(text: str) -> tuple[Network, ...]:
    """Networks in CIDR notation, separated by commas. Raises InvalidRequest."""
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise InvalidRequest("networks must be a list such as 10.0.0.0/8,fd00::/8") from None


def is_allowed(address: str, networks: Sequence[Network]) -> bool:
    """Whether ``address`` (an IP address) lies in one of ``networks``. An IPv4 address in IPv6 clothes is judged as
    what it is."""
    try:
        parsed: Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed.version == network.version and parsed in network for network in networks)
