"""HTTP answers: errors in one shape, and a stream that notices at once when the client has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping

import anyio
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tts_worker.errors import HTTP_STATUS, ErrorCode, ErrorInfo, SendTimeout, TTSWorkerError


class SafeJSONResponse(JSONResponse):
    """JSON that may repeat a name as a client wrote it, also one that is cut in the middle of a UTF-16 pair."""

    def render(self, content: object) -> bytes:
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


_OVERLOADED = (ErrorCode.OVER_CAPACITY, ErrorCode.QUOTA_EXCEEDED, ErrorCode.DRAINING, ErrorCode.NOT_READY)


def error_response(error: ErrorInfo, status: int | None = None) -> JSONResponse:
    """An error as OpenAI's SDKs read it: ``{"error": {message, type, param, code}}``, with our ``retryable``."""
    status = HTTP_STATUS[error.code] if status is None else status
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    return SafeJSONResponse(error_body(error, status), status, headers)


def error_body(error: ErrorInfo, status: int) -> dict[str, object]:
    """The JSON object of ``error_response``."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    if error.code in _OVERLOADED:
        kind = "overloaded_error"
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": None,
            "code": error.code.value,
            "retryable": error.retryable,
        }
    }


class LiveStream(Response):
    """A streamed body that ends as soon as the client disconnects, whether or not a byte was sent.

    ``body`` yields chunks; when the client leaves, it is closed, so that its ``finally`` frees what it holds. The first
    chunk decides the status: a TTSWorkerError before it becomes an error response (``refuse`` gives it its shape). An
    error after it breaks the connection off without the final chunk, so that the client sees an error and not an end. A
    client that takes nothing for ``send_timeout_s`` is cut off.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str],
        *,
        send_timeout_s: float = 10.0,
        make_error_response: Callable[[ErrorInfo], Response] = error_response,
    ) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.headers["content-type"] = media_type  # Starlette adds a charset to text/*
        for name, value in headers.items():
            self.headers[name] = value
        self._chunks = body
        self._send_timeout_s = send_timeout_s
        self._make_error_response = make_error_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._stream(scope, receive, send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not sending.done():
                sending.cancel()
            await asyncio.wait({sending, leaving})
        if not sending.cancelled():
            sending.result()

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            try:
                first = await anext(self._chunks, None)
            except TTSWorkerError as error:
                await self._make_error_response(error.info)(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if first is not None:
                await self._send(send, first)
                async for chunk in self._chunks:
                    await self._send(send, chunk)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._chunks.aclose()

    async def _send(self, send: Send, chunk: bytes) -> None:
        message = {"type": "http.response.body", "body": chunk, "more_body": True}
        try:
            # Not asyncio.wait_for: before Python 3.12 it swallows a cancellation that comes just as the send is done.
            with anyio.fail_after(self._send_timeout_s):
                await send(message)
        except TimeoutError:
            raise SendTimeout(f"the client took nothing for {self._send_timeout_s:g} s") from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
