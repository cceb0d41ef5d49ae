"""HTTP responses: errors in OpenAI's format, and streams that end as soon as the client disconnects."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import ChainMap
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict

import anyio
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tts_worker.errors import HTTP_STATUS, ErrorCode, ErrorInfo, SendTimeout, TTSWorkerError
from tts_worker.server.limits import ApiLimits
from tts_worker.voices.description import VoiceDescription

log = logging.getLogger(__name__)


class SafeJSONResponse(JSONResponse):
    """JSON that escapes lone surrogates, which a name chosen by a client may contain."""

    def render(self, content: object) -> bytes:
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


_OVERLOADED = (ErrorCode.OVER_CAPACITY, ErrorCode.QUOTA_EXCEEDED, ErrorCode.DRAINING, ErrorCode.NOT_READY)


def error_response(error: ErrorInfo, status: int | None = None) -> JSONResponse:
    """Build an error response in OpenAI's format with the extra field ``retryable``.

    Args:
        error: The error.
        status: HTTP status; None uses the status of the error's code.
    """
    status = HTTP_STATUS[error.code] if status is None else status
    return SafeJSONResponse(error_body(error, status), status, retry_after(error))


def retry_after(error: ErrorInfo) -> dict[str, str]:
    """Return the header with the time after which to retry, if it is known."""
    return {} if error.retry_after_s is None else {"Retry-After": str(max(1, round(error.retry_after_s)))}


def error_body(error: ErrorInfo, status: int) -> dict[str, object]:
    """Return the JSON object of ``error_response``."""
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


def voice_json(voice: VoiceDescription, default: str | None) -> dict[str, object]:
    """Encode a voice for ``GET /v1/voices``."""
    fields = asdict(voice.for_clients(default))
    stored, is_default = fields.pop("stored"), fields.pop("is_default")
    return {
        **fields,
        "voice_id": voice.name,  # read by ElevenLabs clients, as is "category"
        "category": "premade" if stored is None else "cloned",
        "default": is_default,
        "alignment": voice.info.alignment.value,
        "speed_range": voice.info.speed_range,
        "control_tags": voice.info.control_tags,
        "moods": voice.info.moods,
        "phonemes": bool(voice.info.phonemes),
        **({} if stored is None else {"stored": stored}),
    }


_MAX_PARTS = 16
"""Parts of an upload that wait to be read; a part has up to 64 KiB."""


class Upload:
    """The body of a request that is read while the response is sent; the client waits when it is not read."""

    def __init__(self) -> None:
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_PARTS)

    async def put(self, part: bytes, *, is_last: bool) -> None:
        if part:
            await self._parts.put(part)
        if is_last:
            await self._parts.put(None)

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the parts of the body as they arrive."""
        while (part := await self._parts.get()) is not None:
            yield part


class LiveStream(Response):
    """A streamed body that ends as soon as the client disconnects, even before the first byte.

    An error before the first chunk is raised, so that the application answers it. A later error aborts the connection
    without the final chunk, so the client sees an error instead of a complete body.

    Args:
        body: Yields chunks. It is closed when the client disconnects, so its ``finally`` frees its resources.
        media_type: Content type, sent without a charset.
        headers: Additional headers. They are read when the body has begun, which may add some.
        send_timeout_s: How long the client may read nothing.
        upload: Takes what arrives of the request's body meanwhile, if the application has not read it.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str],
        *,
        send_timeout_s: float = 10.0,
        upload: Upload | None = None,
    ) -> None:
        super().__init__(media_type=media_type)
        self._has_started = False
        del self.headers["content-length"]
        self.headers["content-type"] = media_type  # Starlette adds a charset to text/*
        self._late_headers = headers
        self._chunks = body
        self._send_timeout_s = send_timeout_s
        self._upload = upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._stream(send))
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive, self._upload))
        try:
            await asyncio.wait({sending, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnected.cancel()
            if not sending.done():
                sending.cancel()
            await asyncio.wait({sending, disconnected})
        if sending.cancelled():
            return
        try:
            sending.result()
        except TTSWorkerError as error:
            if not self._has_started:
                raise
            log.warning("a response was cut off: %s", error.message)  # the server closes the connection

    async def _stream(self, send: Send) -> None:
        try:
            first = await anext(self._chunks, None)
            self.headers.update(self._late_headers)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._has_started = True
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
            # Not asyncio.wait_for: before Python 3.12 it drops a cancellation that coincides with the end of the send.
            with anyio.fail_after(self._send_timeout_s):
                await send(message)
        except TimeoutError:
            raise SendTimeout(f"the client read nothing for {self._send_timeout_s:g} s") from None


def speech_stream(
    body: AsyncGenerator[bytes, None],
    media_type: str,
    limits: ApiLimits,
    *,
    rate_hz: int | None = None,
    headers: dict[str, str] | None = None,
    upload: Upload | None = None,
) -> LiveStream:
    """Stream generated speech, which is marked as synthetic.

    Args:
        body: See ``LiveStream``, as for ``media_type``, ``headers`` and ``upload``.
        media_type: Content type.
        limits: Limits of the API.
        rate_hz: Sample rate that the headers state; None for none.
        headers: Additional headers.
        upload: Takes the body of the request.
    """
    own = {"x-synthetic": "true"} if rate_hz is None else {"x-sample-rate": str(rate_hz), "x-synthetic": "true"}
    marked = ChainMap(own, {} if headers is None else headers)  # the body may still add some
    return LiveStream(body, media_type, marked, send_timeout_s=limits.send_timeout_s, upload=upload)


async def _wait_for_disconnect(receive: Receive, upload: Upload | None) -> None:
    while (message := await receive())["type"] != "http.disconnect":
        if upload is not None:
            await upload.put(message.get("body", b""), is_last=not message.get("more_body", False))
