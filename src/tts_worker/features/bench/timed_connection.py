"""Connections to a server that know when data reached this machine.

A client shares the processors with the server it measures, so it often runs late. On Linux the kernel stamps arriving
data, and a late client reads the stamps; elsewhere data counts from when it is read. A client that is late by more than
one message gets the stamp of the last one for all of them: messages never seem to arrive too early.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import h11
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from tts_worker.client.http_api import error_of_response
from tts_worker.errors import ConnectionLost, EngineFault, TTSWorkerError

_TIMESTAMP_OPTION = 35
"""SO_TIMESTAMPNS and the type of its control message, SCM_TIMESTAMPNS (asm-generic/socket.h)."""

_TIMESPEC = struct.Struct("@ll")
_READ_BYTES = 65_536


class TimedConnection(ABC):
    """A TCP connection without TLS whose data is passed on with the time of its arrival (``time.monotonic``).

    Args:
        address: The server, ``host:port``.

    Attributes:
        closed: Ends when the connection has ended, with the error unless it ended as it should.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def close(self) -> None:
        """Drop the connection. Closing twice changes nothing."""
        if not self.closed.done():
            self.closed.set_result(None)
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    @abstractmethod
    def _on_data(self, data: bytes, at_s: float) -> None:
        """Take data that arrived; none at the end of the connection."""

    async def _connect(self) -> None:
        host, _, port = self._address.rpartition(":")
        found = await self._loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        connection = self._socket = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        await self._loop.sock_connect(connection, address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sys.platform == "linux":
            connection.setsockopt(socket.SOL_SOCKET, _TIMESTAMP_OPTION, 1)
        self._loop.add_reader(connection, self._on_readable)

    def _write(self, data: bytes) -> None:
        """Send data, which must be small enough for the buffer of the socket; a closed connection sends nothing."""
        if self._socket is not None:
            self._socket.sendall(data)

    def _on_readable(self) -> None:
        assert self._socket is not None
        try:
            data, control, _, _ = self._socket.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_TIMESPEC.size))
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(EngineFault(f"the connection was lost: {error}"))
            return
        at_s = time.monotonic()
        for level, kind, stamp in control:
            if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMP_OPTION):
                seconds, nanoseconds = _TIMESPEC.unpack(stamp[: _TIMESPEC.size])
                # The kernel stamps with this clock; the age of a stamp is the same on every clock.
                age_s = time.clock_gettime(time.CLOCK_REALTIME) - seconds - nanoseconds / 1e9
                at_s -= max(0.0, age_s)
        self._on_data(data, at_s)

    def _fail(self, error: TTSWorkerError) -> None:
        if not self.closed.done():
            self.closed.set_exception(error)
        self.close()


class TimedWebSocket(TimedConnection):
    """A connection to one of the server's WebSockets.

    Args:
        address: The server, ``host:port``.
        on_message: Called with the time of arrival and an event, or audio as bytes.
        path: The path of the WebSocket.
        headers: Further headers of the request.
    """

    def __init__(
        self,
        address: str,
        on_message: Callable[[float, bytes | dict[str, object]], None],
        path: str = "/v1/stream",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(address)
        self._on_message = on_message
        self._headers = headers or {}
        self._protocol = ClientProtocol(parse_uri(f"ws://{address}{path}"))
        self._opened: asyncio.Future[None] = self._loop.create_future()

    async def open(self) -> None:
        """Connect, and wait for the answer of the server: a busy one takes longer than a client may guess.

        Raises:
            TTSWorkerError: The server refuses the connection.
            OSError: It cannot be reached.
        """
        await self._connect()
        request = self._protocol.connect()
        request.headers.update(self._headers)
        self._protocol.send_request(request)
        self._flush()
        await asyncio.wait({self._opened, self.closed}, return_when=asyncio.FIRST_COMPLETED)
        if not self._opened.done():
            await self.closed

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message, which must be small enough for the buffer of the socket."""
        self._protocol.send_text(json.dumps(message).encode())
        self._flush()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            self._write(data)

    def _on_data(self, data: bytes, at_s: float) -> None:
        if not data:
            self._fail(EngineFault(f"the server closed the connection{self._close_reason()}"))
            return
        self._protocol.receive_data(data)
        self._flush()  # answers to pings
        events = self._protocol.events_received()
        if self._protocol.handshake_exc is not None:
            self._fail(_refusal(self._protocol.handshake_exc))
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


def _refusal(error: Exception) -> TTSWorkerError:
    """Return the worker's own error of a refused handshake, or what else is known."""
    if isinstance(error, InvalidStatus):
        with contextlib.suppress(ConnectionLost):  # not a worker's answer
            return error_of_response(bytes(error.response.body or b""), error.response.status_code, None)
    return EngineFault(f"the server refused the connection: {error}")


class TimedRequest(TimedConnection):
    """A POST request with a JSON body, whose streamed answer is timed.

    Args:
        address: The server, ``host:port``.
        path: The path of the request.
        headers: Further headers of the request.
        on_data: Called with the time of arrival and a part of the answer.
    """

    def __init__(
        self, address: str, path: str, headers: Mapping[str, str], on_data: Callable[[float, bytes], None]
    ) -> None:
        super().__init__(address)
        self._path = path
        self._headers = headers
        self._on_part = on_data
        self._http = h11.Connection(h11.CLIENT)
        self._status = 0
        self._refusal = b""

    async def post(self, body: Mapping[str, object]) -> None:
        """Send the request and wait for the end of its answer.

        Raises:
            TTSWorkerError: The server's own error, or EngineFault if the answer was cut off.
            OSError: The server cannot be reached.
        """
        content = json.dumps(body).encode()
        fields = {"host": self._address, "content-type": "application/json", "content-length": str(len(content))}
        request = h11.Request(method="POST", target=self._path, headers=list({**fields, **self._headers}.items()))
        try:
            await self._connect()
            for event in (request, h11.Data(data=content), h11.EndOfMessage()):
                self._write(self._http.send(event) or b"")
            await self.closed
        finally:
            self.close()

    def _on_data(self, data: bytes, at_s: float) -> None:
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                self._on_event(event, at_s)
                if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    return
        except h11.RemoteProtocolError as error:
            self._fail(EngineFault(f"the answer was cut off: {error}"))

    def _on_event(self, event: object, at_s: float) -> None:
        if isinstance(event, h11.Response):
            self._status = event.status_code
        elif isinstance(event, h11.Data):
            if self._status < 300:
                self._on_part(at_s, bytes(event.data))
            else:
                self._refusal += event.data
        elif isinstance(event, h11.EndOfMessage) and self._status >= 300:
            self._fail(error_of_response(self._refusal, self._status, None))
        else:  # informational answers are not sent without a request for them
            self.close()
