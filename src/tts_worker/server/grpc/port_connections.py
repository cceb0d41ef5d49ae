"""The TCP connections of a gRPC port: how many there are, and which are closed for others.

gRPC accepts connections itself and tells nothing about them: they are found among the descriptors of this process. A
connection is *waiting* until a call on it has shown a valid key (health checks need none). Waiting connections of one
address, and those of a port that is nearly full, are closed, the oldest first, so that a client without a key cannot
keep others out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from tts_worker.server.rates import ThrottledLog

log = logging.getLogger(__name__)

Peer = tuple[str, int]
"""Address and port of a client."""

_INTERVAL_S = 0.5
_UNSEEN_S = 60.0
"""How long a call's connection is remembered that is not found among the descriptors: it is new, or has ended."""

_DESCRIPTORS = "/dev/fd"
_can_list = os.path.isdir(_DESCRIPTORS)


def parse_peer(peer: str) -> Peer | None:
    """Parse ``ServicerContext.peer()``; None if the client is not connected over TCP."""
    family, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _plain(host.strip("[]")), int(port)


def _plain(host: str) -> str:
    """Return an address that a socket for both families shows as IPv6."""
    return host.removeprefix("::ffff:")


class PortConnections:
    """The connections of one port. All methods run on the event loop.

    Args:
        max_connections: gRPC refuses more.
        on_close: Called for each connection that is closed for others.
    """

    def __init__(self, max_connections: int, on_close: Callable[[], None] = lambda: None) -> None:
        self._max_connections = max_connections
        self._max_of_address = max(4, max_connections // 8)
        self._on_close = on_close
        self._since_s: dict[Peer, float] = {}  # oldest first
        self._with_key: dict[Peer, float] = {}
        self._others: set[int] = set()  # inodes of sockets of other ports
        self._log = ThrottledLog(log, interval_s=60.0)

    @property
    def waiting(self) -> int:
        """Number of connections on which no call has shown a valid key."""
        return sum(peer not in self._with_key for peer in self._since_s)

    @property
    def active(self) -> int:
        return len(self._since_s) - self.waiting

    def has_key(self, peer: str) -> None:
        """Note that a call from ``peer`` (``ServicerContext.peer()``) was authenticated, or needs no key."""
        if (parsed := parse_peer(peer)) is not None:
            self._with_key[parsed] = time.monotonic()

    async def watch(self, port: int) -> None:
        """Watch the connections of ``port`` until cancelled; not where the system cannot list descriptors (Windows)."""
        while _can_list:
            descriptors = await asyncio.to_thread(self._find, port)
            self._update(descriptors)
            for peer in self._surplus():
                if await asyncio.to_thread(_shut_down, descriptors[peer], peer):
                    self._on_close()
            await asyncio.sleep(_INTERVAL_S)

    def _update(self, descriptors: dict[Peer, int]) -> None:
        now_s = time.monotonic()
        for peer in self._since_s.keys() - descriptors.keys():
            del self._since_s[peer]
            self._with_key.pop(peer, None)
        for peer in descriptors:
            self._since_s.setdefault(peer, now_s)
        for peer in [each for each, at_s in self._with_key.items() if now_s - at_s > _UNSEEN_S]:
            if peer not in self._since_s:
                del self._with_key[peer]

    def _surplus(self) -> list[Peer]:
        """The connections to be closed: a quarter of the port stays free of waiting ones."""
        waiting = [peer for peer in self._since_s if peer not in self._with_key]
        of_address = Counter(host for host, _ in waiting)
        surplus = max(0, len(self._since_s) - self._max_connections * 3 // 4)
        closing: list[Peer] = []
        for peer in waiting:
            if len(closing) < surplus or of_address[peer[0]] > self._max_of_address:
                of_address[peer[0]] -= 1
                closing.append(peer)
        if closing or len(self._since_s) >= self._max_connections:
            self._log.warning(
                "%d of %d gRPC connections are taken (%d have shown no key): closing %d of those without one, the "
                "oldest first",
                len(self._since_s),
                self._max_connections,
                len(waiting),
                len(closing),
            )
        return closing

    def _find(self, port: int) -> dict[Peer, int]:
        """Return the descriptors of the connections of ``port``. Runs on a thread."""
        found: dict[Peer, int] = {}
        others: set[int] = set()
        for descriptor in map(int, os.listdir(_DESCRIPTORS)):
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISSOCK(status.st_mode):
                    continue
                if status.st_ino in self._others:
                    others.add(status.st_ino)
                    continue
                with _duplicate(descriptor) as connection:
                    peer = _peer(connection, port)
            except OSError:
                continue  # closed meanwhile, or it listens
            if peer is None:
                others.add(status.st_ino)
            else:
                found[peer] = descriptor
        self._others = others
        return found


def _peer(connection: socket.socket, port: int) -> Peer | None:
    """Return the client of a connection of ``port``, None for another socket. Raises OSError without a client."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
        return None
    host, client_port, *_ = connection.getpeername()
    return _plain(host), client_port


def _shut_down(descriptor: int, peer: Peer) -> bool:
    """Close a connection as its client would; gRPC then releases it. Returns whether it was open."""
    try:
        with _duplicate(descriptor) as connection:
            host, port, *_ = connection.getpeername()
            if (_plain(host), port) != peer:
                return False  # the descriptor is another connection by now
            connection.shutdown(socket.SHUT_RDWR)
            return True
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _duplicate(descriptor: int) -> Iterator[socket.socket]:
    duplicate = os.dup(descriptor)
    try:
        connection = socket.socket(fileno=duplicate)
    except BaseException:
        os.close(duplicate)
        raise
    with connection:
        yield connection
