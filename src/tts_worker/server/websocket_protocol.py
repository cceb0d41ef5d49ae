"""WebSocket connections with bounds on the work per turn of the event loop.

``WebSocketProtocol`` also sends without ASGI (``SEND_NOW``), since frames are due at their time.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from tts_worker.server.connections import LINGER_S, Connection, ConnectionLimits, write_eof
from tts_worker.server.rates import TokenBucket

SEND_NOW = "tts_worker.send_now"
"""Extension of the ASGI scope of a WebSocket: its ``send`` is ``WebSocketProtocol.send_now``."""

ABORT_AFTER = "tts_worker.abort_after"
"""Extension of the ASGI scope of a WebSocket: its ``abort`` is ``WebSocketProtocol.abort_after``."""

_TEXT_MESSAGE = 0x81
_BINARY_MESSAGE = 0x82
"""First byte of a WebSocket frame that is a whole message (RFC 6455, section 5.2)."""

_PARSE_BYTES = 8_192
"""WebSocket data parsed in one turn of the event loop: at most 1,365 frames, a few milliseconds."""

_MAX_FRAGMENTS = 1_024
_PINGS_PER_S = 50
_MAX_UNREAD_PONG_BYTES = 65_536


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
        if message["type"] == "websocket.disconnect" and self.conn.close_rcvd is None:
            message["code"] = 1006  # uvicorn has the code of a close frame without one for lost connections, too
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
        if code == 1007:  # text that is not UTF-8
            self._connection.hit_limit("invalid")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.close_sent = True
        self._lingering = True
        self._unparsed.clear()
        self.transport.write(b"".join(self.conn.data_to_send()))
        write_eof(self.transport)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.close)
        self.abort_after(LINGER_S)  # also if the client does not read
