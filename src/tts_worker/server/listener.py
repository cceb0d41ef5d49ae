"""Opens the sockets that servers listen on."""

from __future__ import annotations

import errno
import socket

from tts_worker.errors import AddressInUse, ConfigError

_BACKLOG = 1024
"""Connections that may wait to be accepted: a burst of calls is larger than the system's default."""


def listen(host: str, port: int, key: str = "") -> socket.socket:
    """Open a listening socket.

    Args:
        host: Address or name of this machine.
        port: 0 picks a free one.
        key: The setting that has the port, for the message.

    Raises:
        AddressInUse: Another process listens there.
        ConfigError: The address cannot be used for another reason.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        refused = f"{key}: " * bool(key) + f"cannot listen on {host}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(f"{refused}: the port is in use") from None
        raise ConfigError(f"{refused}: {error.strerror}") from None
