"""Limits on the TCP connections of the HTTP server: number, deadlines and buffer sizes.

Uvicorn parses requests and calls the application; these classes bound the work before and around that. A connection is
*waiting* until a request head has arrived, between requests, and while the rest of an answered request is discarded; it
is *active* while a request or a WebSocket is served. When all connections are taken, the one waiting longest is closed
for a new one. When all are active, a few more are accepted for health probes and metrics only: a full worker does not
fail its liveness probe, and its operator sees that it is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import logging
import os
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Protocol, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from tts_worker.errors import ErrorCode, ErrorInfo
from tts_worker.server.rates import ThrottledLog, TokenBucket
from tts_worker.server.responses import error_body
from tts_worker.server.tls import TlsContext, common_name

log = logging.getLogger(__name__)

PROBE_CONNECTIONS = 8
"""Connections beyond the limit, for health probes and metrics."""

PROBE_PATHS = (b"/health", b"/metrics")

_MAX_HEAD_LINES = 100
_MAX_LINE_BYTES = 8_000
"""Limit on a line of a request head. The WebSocket parser accepts 128 lines of 8 KiB."""

_END_OF_HEAD = re.compile(rb"\n\r?\n")

_TLS_HANDSHAKE = b"\x16\x03"
"""First bytes of a TLS connection (RFC 8446, section 5.1)."""

_PARSE_BYTES = 8_192
"""WebSocket data parsed in one turn of the event loop: at most 1,365 frames, a few milliseconds."""

_MAX_FRAGMENTS = 1_024
_PINGS_PER_S = 50
_MAX_UNREAD_PONG_BYTES = 65_536
_LINGER_S = 2.0
"""How long to discard client data after a last response: closing with unread data would send a reset, which can
destroy the response. It starts again while data arrives, for a client that reads only after it has sent everything."""

_MAX_LINGER_S = 30.0

SEND_NOW = "tts_worker.send_now"
"""Extension of the ASGI scope of a WebSocket: its ``send`` is ``WebSocketProtocol.send_now``."""

ABORT_AFTER = "tts_worker.abort_after"
"""Extension of the ASGI scope of a WebSocket: its ``abort`` is ``WebSocketProtocol.abort_after``."""

_TEXT_MESSAGE = 0x81
_BINARY_MESSAGE = 0x82
"""First byte of a WebSocket frame that is a whole message (RFC 6455, section 5.2)."""

_CLOSE_REASONS = MappingProxyType({400: "invalid", 414: "header_too_large", 431: "header_too_large"})
"""Metric label by status of requests that are rejected before the application."""

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the server's connections.

    Attributes:
        max_connections: Connections besides those for health probes and metrics.
        header_timeout_s: From the connection, or the first byte of a later request, to the end of the request head.
        body_timeout_s: From the end of the head to the end of the body; once the response has begun, between its parts.
        send_timeout_s: How long a client may read nothing of a response.
        max_header_bytes: Size of a request head.
    """

    max_connections: int = 1_024
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    send_timeout_s: float = 10.0
    max_header_bytes: int = 32_768


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


CERTIFICATE = "certificate"
"""Key of the common name of the client's verified certificate in the state of a request's scope."""


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
            options = {"ssl": self._tls.context, "ssl_handshake_timeout": self._table.limits.header_timeout_s}
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


def _write_eof(transport: asyncio.Transport) -> None:
    """Half-close the connection if the transport supports it (TLS does not)."""
    with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
        if transport.can_write_eof():
            transport.write_eof()


class _ResponseTransport:
    """The transport that uvicorn gets for a request with a body, since it would close without reading the rest.

    Args:
        transport: The transport of the connection.
        close: Called instead of its ``close``.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class HttpProtocol(H11Protocol):
    """HTTP/1.1 with deadlines and bounds.

    Pipelining is not supported: data received between a request and its response is discarded, and the connection is
    closed after that response. Request heads are buffered here and passed to the parser when complete, which bounds the
    parser's work by the limits on size and number of lines.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connection: Connection,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.ws_protocol_class = functools.partial(WebSocketProtocol, connection=connection, limits=limits)  # type: ignore[assignment]
        self._connection = connection
        self._limits = limits
        self._head = bytearray()
        self._last_response = False  # the client sent data that is not read: close after this response
        self._lingering = False
        self._linger_until = 0.0
        self._discarded_data = False
        self._body_progress = False  # some of the body has arrived since its deadline was set
        self._deadline: asyncio.TimerHandle | None = None
        self._send_deadline: asyncio.TimerHandle | None = None

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if (certificate := transport.get_extra_info("peercert")) is not None:
            self.app_state = {**self.app_state, CERTIFICATE: common_name(certificate)}
        self._connection.abort = transport.abort
        self._arm(self._limits.header_timeout_s, self._on_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._send_deadline is not None:
            self._send_deadline.cancel()
        self._connection.closed()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._discarded_data = self._discarded_data or self._lingering
        while data and not self._lingering and not self.transport.is_closing():
            their_state = self.conn.their_state
            if their_state is h11.IDLE:
                data = self._receive_head(data)
            elif their_state is h11.SEND_BODY:
                super().data_received(data)
                data = b""
                self._body_progress = True
                if self.conn.their_state is not h11.SEND_BODY:
                    self._disarm()
                    self._last_response = self._last_response or bool(self.conn.trailing_data[0])
            else:
                self._last_response = True
                self.flow.pause_reading()
                return

    def pause_writing(self) -> None:
        super().pause_writing()
        # Longer than the timeout of LiveStream, which ends its own response.
        self._send_deadline = self.loop.call_later(1.5 * self._limits.send_timeout_s, self._abort, "send_timeout")

    def resume_writing(self) -> None:
        if self._send_deadline is not None:
            self._send_deadline.cancel()
            self._send_deadline = None
        super().resume_writing()

    # -- uvicorn's hooks ----------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        if self._last_response or self.conn.their_state is h11.SEND_BODY:
            self.server_state.total_requests += 1
            self._linger()
            return
        super().on_response_complete()
        if not self.transport.is_closing():
            self._connection.set_active(False)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_later()

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()  # an invalid body while the response is being sent
        else:
            self._reject(400, "the request is not valid HTTP")

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._disarm()
        super().handle_websocket_upgrade(event)

    # -- the head of a request ----------------------------------------------------------------------------------------

    def _receive_head(self, data: bytes) -> bytes:
        """Buffer a request head and pass it to the parser when complete. Returns the data that follows it."""
        if not self._head:
            data = data.lstrip(b"\r\n")
            if data and self._deadline is None:
                self._arm(self._limits.header_timeout_s, self._on_head_timeout)
            if data.startswith(_TLS_HANDSHAKE):  # the client would wait for an answer until the time limit
                self._reject(400, "this server does not use TLS: use http:// or ws://")
                return b""
        search_from = max(0, len(self._head) - 2)
        capacity = max(0, self._limits.max_header_bytes + 1 - len(self._head))
        self._head += data[:capacity]
        end = _END_OF_HEAD.search(self._head, search_from)
        if end is None:
            if len(self._head) > self._limits.max_header_bytes:
                self._reject(431, f"a request head may have at most {self._limits.max_header_bytes} bytes")
            return b""
        head = bytes(self._head[: end.end()])
        rest = bytes(self._head[end.end() :]) + data[capacity:]
        self._head.clear()
        self._disarm()
        if not self._check_head(head):
            return b""
        self._connection.set_active(True)
        super().data_received(head)
        protocol = self.transport.get_protocol()
        if protocol is not self:  # upgraded to a WebSocket
            if rest and not self.transport.is_closing():
                cast(asyncio.Protocol, protocol).data_received(rest)
            return b""
        if self.conn.their_state is h11.SEND_BODY:
            self.cycle.transport = cast(asyncio.Transport, _ResponseTransport(self.transport, self._end_connection))
            self._arm_body_timeout()
        return rest

    def _check_head(self, head: bytes) -> bool:
        """Return whether the head is within the limits; answer the request if it is not."""
        lines = head.split(b"\n")
        if len(lines[0]) > _MAX_LINE_BYTES:
            self._reject(414, f"a request line may have at most {_MAX_LINE_BYTES} bytes")
        elif len(lines) > _MAX_HEAD_LINES or max(map(len, lines)) > _MAX_LINE_BYTES:
            self._reject(431, f"a request may have at most {_MAX_HEAD_LINES} header lines of {_MAX_LINE_BYTES} bytes")
        elif self._connection.probe_only and not lines[0].partition(b" ")[2].startswith(PROBE_PATHS):
            self._reject(503, "all connections are taken", ErrorCode.OVER_CAPACITY)
        else:
            return True
        return False

    def _end_connection(self) -> None:
        """End the connection; ``on_response_complete`` discards the rest of the body after a complete response."""
        if self.cycle.response_complete and self.conn.their_state is h11.SEND_BODY:
            self._last_response = True
        else:
            self.transport.close()

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def _arm(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(delay_s, callback)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _arm_body_timeout(self) -> None:
        self._body_progress = False
        self._arm(self._limits.body_timeout_s, self._on_body_timeout)

    def _on_head_timeout(self) -> None:
        self._connection.hit_limit("header_timeout")
        if self._head:
            self._reject(408, "the request head did not arrive in time", ErrorCode.DEADLINE_EXCEEDED)
        else:
            self.transport.close()

    def _on_body_timeout(self) -> None:
        cycle = self.cycle
        if cycle.response_started and self._body_progress:  # live audio, answered while it is being spoken
            self._arm_body_timeout()
            return
        self._connection.hit_limit("body_timeout")
        if cycle.response_started:
            self.transport.abort()
            return
        # Makes the application's receive() return http.disconnect.
        cycle.disconnected = True
        cycle.message_event.set()
        timeout_s = self._limits.body_timeout_s
        self._reject(408, f"the request body did not arrive within {timeout_s:g} s", ErrorCode.DEADLINE_EXCEEDED)

    def _reject(self, status: int, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        """Answer without calling the application, and close the connection."""
        self._connection.hit_limit(_CLOSE_REASONS.get(status, "full"))
        retryable = code in (ErrorCode.OVER_CAPACITY, ErrorCode.DEADLINE_EXCEEDED)
        info = ErrorInfo(code, message, retryable, 1.0 if code is ErrorCode.OVER_CAPACITY else None)
        body = json.dumps(error_body(info, status)).encode()
        head = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(["retry-after: 1"] if info.retry_after_s is not None else []),
            "connection: close\r\n\r\n",
        ]
        self.transport.write("\r\n".join(head).encode() + body)
        self._linger()

    def _linger(self) -> None:
        """Close gracefully: half-close, discard incoming data for a while, then close."""
        self._lingering = True
        self._connection.set_active(False)  # a client that goes on sending must not keep the place of another
        self._linger_until = self.loop.time() + _MAX_LINGER_S
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        _write_eof(self.transport)
        self.flow.resume_reading()
        self._arm(_LINGER_S, self._close)

    def _close(self) -> None:
        if self._discarded_data and self.loop.time() < self._linger_until:
            self._discarded_data = False
            self._arm(_LINGER_S, self._close)
            return
        self.transport.close()
        self._abort_later()

    def _abort_later(self) -> None:
        """Abort after a timeout: a client that does not read would keep a closing transport open forever."""
        self._arm(self._limits.send_timeout_s, self.transport.abort)

    def _abort(self, reason: str) -> None:
        self._connection.hit_limit(reason)
        self.transport.abort()


def message_frame(message: str | bytes) -> bytes:
    """Return a message from a server as one WebSocket frame, which is not masked (RFC 6455, section 5.2)."""
    if isinstance(message, str):
        kind = _TEXT_MESSAGE
        data = message.encode()
    else:
        kind = _BINARY_MESSAGE
        data = message
    if len(data) < 126:
        return struct.pack("!BB", kind, len(data)) + data
    if len(data) < 65_536:
        return struct.pack("!BBH", kind, 126, len(data)) + data
    return struct.pack("!BBQ", kind, 127, len(data)) + data


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket with bounded work per event loop turn.

    Data is parsed in portions, one per turn, and only as fast as the application receives the messages. Fragments and
    pings are bounded.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connection: Connection,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connection = connection
        self._limits = limits
        self._unparsed = bytearray()
        self._parsing: asyncio.Handle | None = None
        self._lingering = False
        self._fragments = 0
        self._pings = TokenBucket(_PINGS_PER_S, 2 * _PINGS_PER_S)
        self._abort_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connection.abort = self.transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.closed()
        self._unparsed.clear()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        if not self.handshake_initiated:
            super().data_received(data)
        elif self._unparsed:
            self._unparsed += data
            self._pause_reading()
        else:
            self._unparsed += data
            self._parse()

    async def receive(self) -> Any:
        message = await super().receive()
        if self._unparsed:
            self._pause_reading()  # super().receive() has resumed it
            if self.queue.empty() and self._parsing is None:
                self._parsing = self.loop.call_soon(self._parse)
        return message

    def send_now(self, message: str | bytes) -> bool:
        """Send a message now, without the way through the application's middleware.

        Returns:
            False if the client is behind or the connection is being closed: ``send`` then waits, or raises.
        """
        is_open = self.handshake_complete and not self.close_sent and not self.transport.is_closing()
        if not is_open or not self.writable.is_set():
            return False
        self.transport.write(message_frame(message))
        return True

    def abort_after(self, delay_s: float) -> None:
        """Close the connection in ``delay_s``, whatever the client does; the earliest time counts."""
        if self.disconnected:
            return
        if self._abort_timer is not None:
            if self._abort_timer.when() <= self.loop.time() + delay_s:
                return
            self._abort_timer.cancel()
        self._abort_timer = self.loop.call_later(delay_s, self._abort)

    async def run_asgi(self) -> None:
        self.scope["extensions"][ABORT_AFTER] = {"abort": self.abort_after}
        if not self.conn.extensions:  # an extension would change the frames
            self.scope["extensions"][SEND_NOW] = {"send": self.send_now}
        try:
            await super().run_asgi()
        finally:
            # A client that does not read would keep a closing transport open forever.
            self.abort_after(self.close_timeout + self._limits.send_timeout_s)

    def _abort(self) -> None:
        self.transport.abort()

    def _parse(self) -> None:
        self._parsing = None
        portion = bytes(self._unparsed[:_PARSE_BYTES])
        del self._unparsed[:_PARSE_BYTES]
        if portion and not self.transport.is_closing():
            super().data_received(portion)
        if self.transport.is_closing():
            self._unparsed.clear()
        elif self._unparsed:
            self._pause_reading()
            if self.queue.empty():
                self._parsing = self.loop.call_soon(self._parse)
        elif self.read_paused and self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self.read_paused and not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()

    # -- bounds -------------------------------------------------------------------------------------------------------

    def handle_text(self, event: Frame) -> None:
        self._fragments = 0
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._fragments = 0
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._fragments += 1
        if self._fragments <= _MAX_FRAGMENTS:
            super().handle_cont(event)
        else:
            self._fail("fragments", f"a message may have at most {_MAX_FRAGMENTS} fragments")

    def handle_ping(self) -> None:
        if not self._pings.take(self.loop.time()):
            self._fail("pings", "too many pings")
        elif self.transport.get_write_buffer_size() > _MAX_UNREAD_PONG_BYTES:
            self.conn.data_to_send()  # drop the pong: the client does not read
        else:
            super().handle_ping()

    def _fail(self, reason: str, message: str) -> None:
        if not self.close_sent:
            self._connection.hit_limit(reason)
            self.conn.fail(1008, message)
            self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """Close gracefully: a reset would destroy the close frame for a client that is still sending."""
        assert self.conn.close_sent is not None
        code = self.conn.close_sent.code
        reason = self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.close_sent = True
        self._lingering = True
        self._unparsed.clear()
        self.transport.write(b"".join(self.conn.data_to_send()))
        _write_eof(self.transport)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(_LINGER_S, self.transport.close)
        self.abort_after(_LINGER_S)  # also if the client does not read
