"""A WebSocket client that knows when each message reached its machine.

A client shares the processors with the server it measures, so it often runs late. On Linux the kernel stamps arriving
data, and a late client reads the stamps; elsewhere a message counts from when it is read. A client that is late by
more than one message gets the stamp of the last one for all of them: messages never seem to arrive too early.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from tts_worker.errors import EngineFault

_TIMESTAMP_OPTION = 35
"""SO_TIMESTAMPNS and the type of its control message, SCM_TIMESTAMPNS (asm-generic/socket.h)."""

_TIMESPEC = struct.Struct("@ll")
_READ_BYTES = 65_536


class TimedWebSocket:
    """A connection to one of the server's WebSockets.

    Args:
        address: The server, ``host:port``.
        on_message: Called with the time of arrival (``time.monotonic``) and an event, or audio as bytes.
        path: The path of the WebSocket.

    Attributes:
        closed: Ends when the connection has ended, with an EngineFault unless ``close`` was called.
    """

    def __init__(
        self, address: str, on_message: Callable[[float, bytes | dict[str, object]], None], path: str = "/v1/stream"
    ) -> None:
        self._address = address
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._protocol = ClientProtocol(parse_uri(f"ws://{address}{path}"))
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()

    async def open(self) -> None:
        """Connect, and wait for the answer of the server: a busy one takes longer than a client may guess.

        Raises:
            EngineFault: The server refuses the connection.
        """
        host, _, port = self._address.rpartition(":")
        await self._loop.sock_connect(self._socket, (host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sys.platform == "linux":
            self._socket.setsockopt(socket.SOL_SOCKET, _TIMESTAMP_OPTION, 1)
        self._protocol.send_request(self._protocol.connect())
        self._flush()
        self._loop.add_reader(self._socket, self._on_readable)
        await asyncio.wait({self._opened, self.closed}, return_when=asyncio.FIRST_COMPLETED)
        if not self._opened.done():
            await self.closed

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message, which must be small enough for the buffer of the socket."""
        self._protocol.send_text(json.dumps(message).encode())
        self._flush()

    def close(self) -> None:
        """Drop the connection. Closing twice changes nothing."""
        if not self.closed.done():
            self.closed.set_result(None)
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            self._socket.sendall(data)

    def _on_readable(self) -> None:
        try:
            data, control, _, _ = self._socket.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_TIMESPEC.size))
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"the connection was lost: {error}")
            return
        at_s = time.monotonic()
        for level, kind, stamp in control:
            if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMP_OPTION):
                seconds, nanoseconds = _TIMESPEC.unpack(stamp[: _TIMESPEC.size])
                # The kernel stamps with this clock; the age of a stamp is the same on every clock.
                age_s = time.clock_gettime(time.CLOCK_REALTIME) - seconds - nanoseconds / 1e9
                at_s -= max(0.0, age_s)
        if not data:
            self._fail(f"the server closed the connection{self._close_reason()}")
            return
        self._protocol.receive_data(data)
        self._flush()  # answers to pings
        events = self._protocol.events_received()
        if self._protocol.handshake_exc is not None:
            self._fail(f"the server refused the connection: {self._protocol.handshake_exc}")
            return
        for event in events:
            if isinstance(event, Response):
                self._opened.set_result(None)
            elif isinstance(event, Frame):
                self._on_frame(event, at_s)

    def _on_frame(self, frame: Frame, at_s: float) -> None:
        if frame.opcode is Opcode.BINARY:
            self._on_message(at_s, bytes(frame.data))
        elif frame.opcode is Opcode.TEXT:
            self._on_message(at_s, json.loads(bytes(frame.data)))

    def _close_reason(self) -> str:
        close = self._protocol.close_rcvd
        return "" if close is None else f": {close.code} {close.reason}"

    def _fail(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_exception(EngineFault(reason))
        self.close()
