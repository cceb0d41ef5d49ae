"""The TCP connections of the HTTP server: how many are accepted, and which are closed for others.

A connection is *waiting* until a request head has arrived, between requests, and while the rest of an answered request
is discarded; it is *active* while a request or a WebSocket is served. When all connections are taken, the one waiting
longest is closed for a new one. When all are active, a few more are accepted for health probes and metrics only: a full
worker does not fail its liveness probe, and its operator sees that it is full.

``http_protocol`` and ``websocket_protocol`` bound the work of a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tts_worker.server.rates import ThrottledLog
from tts_worker.server.tls import TlsContext

log = logging.getLogger(__name__)

PROBE_CONNECTIONS = 8
"""Connections beyond the limit, for health probes and metrics."""

HEADER_TIMEOUT_S = 10.0
"""From the connection, or the first byte of a later request, to the end of the request head; also for handshakes."""

BODY_TIMEOUT_S = 60.0
"""From the end of the head to the end of the body; once the response has begun, between its parts."""

MAX_HEADER_BYTES = 32_768
"""Size of a request head."""

HEARTBEAT_S = 20.0
"""Interval of pings; the connection of a client that answers none for this long is closed."""

LINGER_S = 2.0
"""How long to discard client data after a last response: closing with unread data would send a reset, which can
destroy the response. It starts again while data arrives, for a client that reads only after it has sent everything."""

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the server's connections.

    Attributes:
        max_connections: Connections besides those for health probes and metrics.
        send_timeout_s: How long a client may read nothing of a response.
    """

    max_connections: int = 1_024
    send_timeout_s: float = 10.0


class ConnectionObserver(Protocol):
    """Counts connections that the worker closes."""

    def connection_closed(self, reason: str) -> None:
        """Count a connection closed because of a limit."""
        ...


class Connection:
    """One accepted connection in the table.

    Attributes:
        probe_only: Accepted beyond the limit, for health probes and metrics.
        is_active: A request or a WebSocket is being served.
        abort: Closes the connection immediately in any state.
    """

    __slots__ = ("_limit_counted", "_table", "abort", "is_active", "probe_only")

    def __init__(self, table: ConnectionTable, probe_only: bool) -> None:
        self._table = table
        self._limit_counted = False
        self.probe_only = probe_only
        self.is_active = False
        self.abort: Callable[[], None] = lambda: None

    def set_active(self, active: bool) -> None:
        """Set whether a request or a WebSocket is being served."""
        self.is_active = active
        self._table.update(self)

    def hit_limit(self, reason: str) -> None:
        """Count that the connection is closed because of a limit; the first reason counts."""
        if not self._limit_counted:
            self._limit_counted = True
            self._table.observer.connection_closed(reason)

    def closed(self) -> None:
        """Remove the closed connection from the table."""
        self._table.remove(self)


class ConnectionTable:
    """All connections of a server. Runs on one event loop."""

    def __init__(self, limits: ConnectionLimits, observer: ConnectionObserver) -> None:
        self.limits = limits
        self.observer = observer
        self._all: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # ordered, longest waiting first
        self._probes: dict[Connection, None] = {}
        self._full_log = ThrottledLog(log, interval_s=60.0)

    @property
    def active(self) -> int:
        """Number of connections being served."""
        return len(self._all) - self.waiting

    @property
    def waiting(self) -> int:
        """Number of connections waiting for a request."""
        return len(self._waiting) + sum(not connection.is_active for connection in self._probes)

    def admit(self) -> Connection:
        """Add a new connection; at the limit, close the longest waiting one or accept for probes only."""
        limit = self.limits.max_connections
        full = len(self._all) - len(self._probes) >= limit
        if full:
            self._full_log.warning(
                "all %d connections are taken (%d wait for a request): closing the longest waiting; "
                "if all are active, only health probes and metrics are answered",
                limit,
                len(self._waiting),
            )
            full = not self.evict()
        connection = Connection(self, probe_only=full)
        self._all.add(connection)
        if full:
            if len(self._probes) >= PROBE_CONNECTIONS:
                self._close(next(iter(self._probes)), "evicted")
            self._probes[connection] = None
        else:
            self._waiting[connection] = None
        return connection

    def evict(self) -> bool:
        """Close the connection that waits longest. Returns whether there was one."""
        if not self._waiting:
            return False
        self._close(next(iter(self._waiting)), "evicted")
        return True

    def _close(self, connection: Connection, reason: str) -> None:
        connection.hit_limit(reason)
        connection.abort()
        self.remove(connection)

    def update(self, connection: Connection) -> None:
        """Move a connection after a state change."""
        if connection in self._probes or connection not in self._all:
            return
        self._waiting.pop(connection, None)
        if not connection.is_active:
            self._waiting[connection] = None

    def remove(self, connection: Connection) -> None:
        """Forget a connection."""
        self._all.discard(connection)
        self._waiting.pop(connection, None)
        self._probes.pop(connection, None)


def limit_by_descriptors(max_connections: int, others: int = 0) -> int:
    """Reduce a connection limit to leave file descriptors for health probes, models, files and the other servers.

    Args:
        max_connections: The limit of one server.
        others: Connections that the other servers of this process may have; they give way in the same proportion.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return max_connections
    max_descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if max_descriptors == resource.RLIM_INFINITY:
        return max_connections
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 32
    available = max_descriptors - used - PROBE_CONNECTIONS - max(24, max_descriptors // 8)
    available = available * max_connections // (max_connections + others)
    if available < max_connections:
        log.warning(
            "%d file descriptors allow %d connections, not %d: raise the limit with ulimit -n",
            max_descriptors,
            max(8, available),
            max_connections,
        )
    return min(max_connections, max(8, available))


class Listener:
    """Accepts connections on a listening socket. Implements the part of ``asyncio.Server`` that uvicorn uses."""

    def __init__(
        self,
        listening_socket: socket.socket,
        table: ConnectionTable,
        make_protocol: Callable[[Connection], asyncio.Protocol],
        tls: TlsContext | None = None,
    ) -> None:
        listening_socket.setblocking(False)
        self._socket = listening_socket
        self._table = table
        self._make_protocol = make_protocol
        self._tls = tls
        self._accept_task = asyncio.create_task(self._accept(), name="accept")
        self._handshakes: set[asyncio.Task[None]] = set()
        self._descriptor_log = ThrottledLog(log, interval_s=60.0)

    def close(self) -> None:
        """Stop accepting and cancel pending handshakes."""
        self._accept_task.cancel()
        for task in list(self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until the listener's tasks have ended."""
        await asyncio.wait({self._accept_task, *self._handshakes})

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._descriptor_log.warning("cannot accept a connection: %s", error.strerror)
                    self._table.evict()
                    await asyncio.sleep(0.05)
                continue  # other errors: the client disconnected before it was accepted
            connection = self._table.admit()
            task = loop.create_task(self._serve(accepted, connection), name="handshake")
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            connection.abort = functools.partial(_cancel, task)
            await asyncio.sleep(0)  # a burst of connections must not delay the sessions

    async def _serve(self, accepted: socket.socket, connection: Connection) -> None:
        """Build the transport, including the TLS handshake. The connection counts as waiting meanwhile."""
        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {"ssl": self._tls.context, "ssl_handshake_timeout": HEADER_TIMEOUT_S}
        is_open = False
        try:
            with contextlib.suppress(OSError):  # a Unix socket has no such option
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                functools.partial(self._make_protocol, connection), accepted, **options
            )
            is_open = True
        except (OSError, TimeoutError, asyncio.CancelledError):  # also ssl.SSLError: a failed handshake
            pass
        finally:
            if not is_open:
                accepted.close()
                if self._tls is not None:
                    connection.hit_limit("handshake")
                connection.closed()


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def write_eof(transport: asyncio.Transport) -> None:
    """Half-close the connection if the transport supports it (TLS does not)."""
    with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
        if transport.can_write_eof():
            transport.write_eof()
