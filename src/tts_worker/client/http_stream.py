"""A request over HTTP/1.1 whose response is read while its body is still being sent.

``urllib`` sends the whole body before it reads the response, and two threads must not share one TLS connection. This
module therefore speaks HTTP itself, on the event loop.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing, suppress
from http.client import HTTPException, HTTPMessage, parse_headers
from typing import TypeVar
from urllib.parse import urlsplit

from tts_worker.client.settings import ClientSettings
from tts_worker.client.unreachable import unreachable
from tts_worker.errors import DeadlineExceeded
from tts_worker.timeouts import fail_after

T = TypeVar("T")

_READ_BYTES = 64 << 10
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})\b")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?\r\n")
_CONTENT_LENGTH = re.compile(r"[0-9]{1,15}")


class StreamedRequest:
    """A POST request on its own connection, without a proxy.

    Args:
        url: An ``http://`` or ``https://`` URL.
        body: Parts of the body. An error that it raises ends the request, and the reader of the response raises it.
        headers: Headers of the request.
        settings: Time limit of connecting, and client certificate.
        timeout_s: Limit of each wait for data of the response.
    """

    def __init__(
        self,
        url: str,
        body: AsyncIterator[bytes],
        headers: Mapping[str, str],
        settings: ClientSettings,
        timeout_s: float,
    ) -> None:
        self._url = urlsplit(url)
        self._body = body
        self._headers = headers
        self._settings = settings
        self._timeout_s = timeout_s
        self._body_error: Exception | None = None
        self._sending: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> tuple[int, HTTPMessage, AsyncGenerator[bytes, None]]:
        """Begin to send the request; return the status, the headers and the parts of its response.

        Raises:
            ConnectionLost: The worker cannot be reached, or answers no HTTP. The parts raise it as well.
            DeadlineExceeded: It did not answer in time. The parts raise it as well.
        """
        tls = self._settings.tls_context() if self._url.scheme == "https" else None
        port = self._url.port or (80 if tls is None else 443)
        connecting = asyncio.open_connection(self._url.hostname, port, ssl=tls)
        reader, writer = await self._wait_for(connecting, self._settings.connect_timeout_s)
        self._writer = writer
        self._sending = asyncio.create_task(self._send(writer), name="streamed-request")
        status, headers = await self._wait_for(_read_head(reader), self._timeout_s)
        return status, headers, self._parts(reader, headers)

    async def aclose(self) -> None:
        """Disconnect. Idempotent."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})
        if self._writer is not None:
            self._writer.transport.abort()  # to close it would first send what is buffered
            with suppress(OSError):
                await self._writer.wait_closed()

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        target = self._url._replace(scheme="", netloc="").geturl()
        fields = {"host": self._url.netloc, "transfer-encoding": "chunked", **self._headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        with suppress(OSError):  # the connection is lost: its reader tells why, or has the answer already
            writer.write(f"POST {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
            async for part in self._body_parts(writer):
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    async def _body_parts(self, writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
        try:
            async for part in self._body:
                data = bytes(memoryview(part))  # raises for anything but bytes, as an error of the source
                if data:  # an empty chunk would end the body
                    yield data
        except Exception as error:
            self._body_error = error
            writer.transport.abort()
            raise ConnectionAbortedError from None

    async def _parts(self, reader: asyncio.StreamReader, headers: HTTPMessage) -> AsyncGenerator[bytes, None]:
        async with aclosing(_read_body(reader, headers)) as body:
            while part := await self._wait_for(anext(body, b""), self._timeout_s):
                yield part
        if self._body_error is not None:
            raise self._body_error

    async def _wait_for(self, awaitable: Awaitable[T], limit_s: float) -> T:
        try:
            async with fail_after(limit_s):
                return await awaitable
        except TimeoutError:
            raise DeadlineExceeded(f"the worker did not answer within {limit_s:g} s") from None
        except (OSError, EOFError, asyncio.LimitOverrunError, HTTPException, ValueError) as error:
            if self._body_error is not None:
                raise self._body_error from None
            raise unreachable(error) from None


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, HTTPMessage]:
    """Return the status and the headers of the final response. Raises ValueError if it is no HTTP."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        status_line, _, lines = head.partition(b"\r\n")
        match = _STATUS_LINE.match(status_line)
        if match is None:
            raise ValueError("this is no HTTP response")
        if (status := int(match[1])) >= 200:
            return status, parse_headers(io.BytesIO(lines))


async def _read_body(reader: asyncio.StreamReader, headers: HTTPMessage) -> AsyncGenerator[bytes, None]:
    """Yield a body in parts as they arrive. Raises ValueError if it is malformed, EOFError if it is cut off."""
    encoding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if encoding is not None:
        if encoding.lower() != "chunked":
            raise ValueError("this encoding was not asked for")
        while size := await _read_chunk_size(reader):
            async for part in _read_exactly(reader, size):
                yield part
            if await reader.readexactly(2) != b"\r\n":
                raise ValueError("a chunk is longer than its size")
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers
    elif length is not None:
        if _CONTENT_LENGTH.fullmatch(length) is None:
            raise ValueError("the length is no number")
        async for part in _read_exactly(reader, int(length)):
            yield part
    else:
        while part := await reader.read(_READ_BYTES):
            yield part


async def _read_chunk_size(reader: asyncio.StreamReader) -> int:
    match = _CHUNK_SIZE.fullmatch(await reader.readuntil(b"\r\n"))
    if match is None:
        raise ValueError("the size of a chunk is no number")
    return int(match[1], 16)


async def _read_exactly(reader: asyncio.StreamReader, size: int) -> AsyncGenerator[bytes, None]:
    """Yield ``size`` bytes in parts as they arrive: the size may be a lie."""
    while size:
        part = await reader.read(min(size, _READ_BYTES))
        if not part:
            raise EOFError
        size -= len(part)
        yield part
