"""HTTP/1.1 connections with deadlines and bounds.

Uvicorn parses requests and calls the application; ``HttpProtocol`` bounds the work before and around that.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, cast

import h11
import uvicorn
from starlette.types import Message, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tts_worker.errors import ErrorCode, ErrorInfo
from tts_worker.server import connections
from tts_worker.server.connections import LINGER_S, MAX_HEADER_BYTES, Connection, ConnectionLimits, write_eof
from tts_worker.server.responses import error_body
from tts_worker.server.tls import common_name
from tts_worker.server.websocket_protocol import WebSocketProtocol

CERTIFICATE = "certificate"
"""Key of the common name of the client's verified certificate in the state of a request's scope."""

PROBE_PATHS = (b"/health", b"/metrics")
"""Paths that are answered when all connections are taken."""

_MAX_HEAD_LINES = 100
_MAX_LINE_BYTES = 8_000
"""Limit on a line of a request head. The WebSocket parser accepts 128 lines of 8 KiB."""

_END_OF_HEAD = re.compile(rb"\n\r?\n")

_TLS_HANDSHAKE = b"\x16\x03"
"""First bytes of a TLS connection (RFC 8446, section 5.1)."""

_MAX_LINGER_S = 30.0
"""Limit on ``LINGER_S`` with all its repetitions."""

_CLOSE_REASONS = MappingProxyType({400: "invalid", 414: "header_too_large", 431: "header_too_large"})
"""Metric label by status of requests that are rejected before the application."""


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
        self.arm(connections.HEADER_TIMEOUT_S, self._on_head_timeout)

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
                self.arm(connections.HEADER_TIMEOUT_S, self._on_head_timeout)
            if data.startswith(_TLS_HANDSHAKE):  # the client would wait for an answer until the time limit
                self._reject(400, "this server does not use TLS: use http:// or ws://")
                return b""
        search_from = max(0, len(self._head) - 2)
        capacity = max(0, MAX_HEADER_BYTES + 1 - len(self._head))
        self._head += data[:capacity]
        end = _END_OF_HEAD.search(self._head, search_from)
        if end is None:
            if len(self._head) > MAX_HEADER_BYTES:
                self._reject(431, f"a request head may have at most {MAX_HEADER_BYTES} bytes")
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
            self.cycle.send = self._announcing_the_end(cast(Send, self.cycle.send))  # type: ignore[method-assign, assignment]
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

    def _announcing_the_end(self, send: Send) -> Send:
        """Return ``send`` that says so where a response ends the connection because the body is not read to its end.

        Otherwise a client would send its next request on it, and get no answer.
        """

        async def send_or_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self.conn.their_state is h11.SEND_BODY:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        return send_or_close

    def _end_connection(self) -> None:
        """End the connection; ``on_response_complete`` discards the rest of the body after a complete response."""
        if self.cycle.response_complete and self.conn.their_state is h11.SEND_BODY:
            self._last_response = True
        else:
            self.transport.close()

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def arm(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(delay_s, callback)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _arm_body_timeout(self) -> None:
        self._body_progress = False
        self.arm(connections.BODY_TIMEOUT_S, self.on_body_timeout)

    def _on_head_timeout(self) -> None:
        self._connection.hit_limit("header_timeout")
        if self._head:
            self._reject(408, "the request head did not arrive in time", ErrorCode.DEADLINE_EXCEEDED)
        else:
            self.transport.close()

    def on_body_timeout(self) -> None:
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
        timeout_s = connections.BODY_TIMEOUT_S
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
        write_eof(self.transport)
        self.flow.resume_reading()
        self.arm(LINGER_S, self._close)

    def _close(self) -> None:
        if self._discarded_data and self.loop.time() < self._linger_until:
            self._discarded_data = False
            self.arm(LINGER_S, self._close)
            return
        self.transport.close()
        self._abort_later()

    def _abort_later(self) -> None:
        """Abort after a timeout: a client that does not read would keep a closing transport open forever."""
        self.arm(self._limits.send_timeout_s, self.transport.abort)

    def _abort(self, reason: str) -> None:
        self._connection.hit_limit(reason)
        self.transport.abort()
