"""The address of the page for other devices of the network, such as a telephone."""

from __future__ import annotations

import socket

from starlette.datastructures import Address

from tts_worker.settings import is_loopback

_ELSEWHERE = ("192.0.2.1", 9)
"""An address for documentation: a datagram socket that is connected to it sends nothing, but knows its own address."""


def network_origin(scheme: str, host: str, server: Address | None) -> str | None:
    """Return the origin under which other devices reach this server; None if it is not known.

    Args:
        scheme: ``http`` or ``https``.
        host: The ``Host`` that the browser sent: where it is no name of this machine for itself, others use it, too.
        server: Where the server took the connection.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name and not is_loopback(name.strip("[]")):
        return f"{scheme}://{host}"
    own = _own_address()
    return None if server is None or own is None else f"{scheme}://{own}:{server.port}"


def _own_address() -> str | None:
    """Return the address of this machine in its network; None without one."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_ELSEWHERE)
            address = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if is_loopback(address) else address
