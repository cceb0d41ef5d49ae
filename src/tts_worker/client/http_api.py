"""Requests to the HTTP interface of the worker of a ``ws://`` URL."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from http.client import HTTPException, HTTPResponse
from typing import Any, TypeVar, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from tts_worker.client.http_stream import StreamedRequest
from tts_worker.client.settings import ClientSettings
from tts_worker.client.unreachable import unreachable
from tts_worker.errors import ConnectionLost, DeadlineExceeded, TTSWorkerError, as_exception
from tts_worker.protocol.messages import parse_error

T = TypeVar("T")

CHANGE_TIMEOUT_S = 60.0
"""Limit of a request that changes something: the models that analyze a recording may have to be loaded."""

_MAX_READ_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 32 << 20


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: the API key is for this host only."""

    def redirect_request(self, *_: object) -> None:
        return None


def error_of_response(body: bytes, status: int, retry_after: str | None) -> TTSWorkerError:
    """Return the error of a worker's HTTP response. Raises ConnectionLost if no worker answered."""
    error = _json(body, status).get("error")
    if not isinstance(error, dict):
        raise _no_worker(status)
    info = parse_error(error)
    after_s = float(retry_after) if retry_after is not None and retry_after.isdigit() else info.retry_after_s
    return as_exception(replace(info, retry_after_s=after_s))


class HttpApi:
    """The routes of a worker below ``path``. Each request opens a connection on a thread.

    Args:
        url: The WebSocket URL of the worker, which may be behind a proxy under a path.
        path: Such as ``/v1/voices``.
        settings: API key, time limits and client certificate.
        error_of: Makes the error of a refusal from its body, status and ``Retry-After``.
    """

    def __init__(
        self,
        url: str,
        path: str,
        settings: ClientSettings,
        error_of: Callable[[bytes, int, str | None], TTSWorkerError] = error_of_response,
    ) -> None:
        parts = urlsplit(url)
        path = parts.path.removesuffix("/v1/stream").rstrip("/") + path
        scheme = parts.scheme.replace("ws", "http", 1)
        self._address = parts._replace(scheme=scheme, path=path, query="", fragment="").geturl()
        self._settings = settings
        self._error_of = error_of
        handlers = [] if settings.tls_certificate is None else [HTTPSHandler(context=settings.tls_context())]
        # With the proxies of the environment, as for the WebSocket.
        self._opener = build_opener(_NoRedirect, *handlers)

    async def request(
        self, method: str, path: str = "", body: dict[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the JSON object that the worker answers.

        Raises:
            TTSWorkerError: The worker's own error.
            ConnectionLost: The worker cannot be reached, or is no tts-worker.
            DeadlineExceeded: The worker did not answer in time.
        """
        return await asyncio.to_thread(self._request, method, path, body, headers)

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None, headers: Mapping[str, str] | None
    ) -> dict[str, Any]:
        timeout_s = CHANGE_TIMEOUT_S
        if method == "GET":
            timeout_s = min(self._settings.connect_timeout_s, _MAX_READ_TIMEOUT_S)
        with self.open(method, path, body, timeout_s, headers=headers) as response:
            try:
                return _json(response.read(MAX_BODY_BYTES), response.status)
            except (OSError, HTTPException) as error:
                raise connection_error(error, timeout_s) from None

    def open(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | bytes | None,
        timeout_s: float,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> HTTPResponse:
        """Send a request and return the response, to be read and closed. Blocks. Raises as ``request`` does.

        Args:
            method: Of HTTP.
            path: Path and query below that of this object.
            body: An object is sent as JSON, bytes as they are.
            timeout_s: Limit of connecting, and of each wait for data.
            content_type: Of the body.
            headers: Further headers.
        """
        all_headers = self._headers(content_type) | dict(headers or {})
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        request = Request(self._address + path, content, all_headers, method=method)
        try:
            return cast(HTTPResponse, self._opener.open(request, timeout=timeout_s))
        except HTTPError as error:
            with error:
                answer = error.read(MAX_BODY_BYTES)
                raise self._error_of(answer, error.code, error.headers.get("retry-after")) from None
        except (OSError, HTTPException) as error:
            raise connection_error(error, timeout_s) from None

    async def exchange(
        self, path: str, body: AsyncIterator[bytes], content_type: str, timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Send a POST request whose body comes in parts; yield its response while the body is still being sent.

        Args:
            path: Path and query below that of this object.
            body: Parts of the body; an error that it raises is raised here.
            content_type: Of the body.
            timeout_s: Limit of each wait for data of the response.

        Raises:
            TTSWorkerError: As ``request``.
        """
        url = self._address + path
        async with aclosing(
            StreamedRequest(url, body, self._headers(content_type), self._settings, timeout_s)
        ) as request:
            status, headers, parts = await request.open()
            if status >= 300:
                answer = bytearray()
                async for part in parts:
                    answer += part
                    if len(answer) > MAX_BODY_BYTES:
                        break
                raise self._error_of(bytes(answer), status, headers.get("retry-after"))
            async with aclosing(parts):
                async for part in parts:
                    yield part

    def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"content-type": content_type}
        if self._settings.api_key is not None:
            headers["authorization"] = f"Bearer {self._settings.api_key}"
        return headers


async def read_parts(response: HTTPResponse, read: Callable[[], T | None]) -> AsyncGenerator[T, None]:
    """Yield what ``read`` returns until that is nothing, then close the response. A consumer that stops disconnects it.

    Args:
        response: An open response.
        read: Blocks until the next part of it has arrived.
    """
    loop = asyncio.get_running_loop()
    reading: asyncio.Future[T | None] | None = None
    try:
        while True:
            reading = loop.run_in_executor(None, read)
            part = await asyncio.shield(reading)
            if not part:
                return
            yield part
    finally:
        if reading is not None and not reading.done():
            _disconnect(response)
            await asyncio.wait({reading})
            reading.exception()  # retrieved, because nothing awaits it any more
        response.close()


def _disconnect(response: HTTPResponse) -> None:
    """Wake the thread that reads: closing a stream does not, and would wait for it."""
    with (
        suppress(OSError, ValueError, AttributeError),  # the response has ended meanwhile
        socket.fromfd(response.fileno(), socket.AF_INET, socket.SOCK_STREAM) as connection,
    ):
        connection.shutdown(socket.SHUT_RDWR)


def connection_error(error: OSError | HTTPException, timeout_s: float) -> TTSWorkerError:
    """Return the typed error of a failed connection."""
    if isinstance(getattr(error, "reason", error), TimeoutError):
        return DeadlineExceeded(f"the worker did not answer within {timeout_s:g} s")
    return unreachable(error)


def _json(raw: bytes, status: int) -> dict[str, Any]:
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _no_worker(status)
    return answer


def _no_worker(status: int) -> ConnectionLost:
    return ConnectionLost(f"the server at this URL is no tts-worker (HTTP status {status})")
