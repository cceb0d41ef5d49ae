"""``client.voices``: the voices of a worker: listing, adding, mixing and deleting them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from tts_worker.client.base import ClientSettings
from tts_worker.errors import (
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    ErrorInfo,
    InvalidRequest,
    TTSWorkerError,
    as_exception,
)
from tts_worker.protocol.voices import VoiceInfo, VoiceUpload

CHANGE_TIMEOUT_S = 60.0
"""Limit of adding or deleting a voice: the models that analyze a recording may have to be loaded."""

_MAX_READ_TIMEOUT_S = 10.0
_MAX_BODY_BYTES = 4 << 20


class VoiceAccess(Protocol):
    """How a connector reaches the voices of its worker."""

    async def list(self) -> list[VoiceInfo]: ...
    async def get(self, voice: str) -> VoiceInfo: ...
    async def add(self, upload: VoiceUpload, audio: bytes | None) -> VoiceInfo: ...
    async def delete(self, voice: str) -> None: ...


class WorkerVoices:
    """The voices of a worker, or of the workers of a fleet."""

    def __init__(self, access: Callable[[], Awaitable[VoiceAccess]]) -> None:
        self._access = access

    async def list(self) -> list[VoiceInfo]:
        """Return the voices that sessions can choose. Raises ConnectionLost, DeadlineExceeded, Unauthenticated."""
        return await (await self._access()).list()

    async def get(self, voice: str) -> VoiceInfo:
        """Return a voice. Raises UnknownVoice, and as ``list`` does."""
        return await (await self._access()).get(voice)

    async def add(self, name: str, audio: bytes | str | os.PathLike[str], **fields: Any) -> VoiceInfo:
        """Add a voice from a recording.

        Args:
            name: Name of the voice.
            audio: The file or its content: WAV, FLAC, Ogg, MP3, M4A or WebM, 3 to 30 s of one speaker.
            fields: Those of ``VoiceUpload``: transcript, consent (required), style, languages, tags, ...

        Raises:
            InvalidRequest: The recording or a field is unsuitable; says why.
            IllegalCommand: The name is taken.
            Forbidden, QuotaExceeded: The API key may not add a voice, or no further one.
            TTSWorkerError: As ``Client.open`` does.
        """
        content = audio if isinstance(audio, bytes) else await asyncio.to_thread(_read, Path(audio))
        return await (await self._access()).add(_upload(name, fields), content)

    async def mix(self, name: str, weights: Mapping[str, float], **fields: Any) -> VoiceInfo:
        """Add a voice that mixes stored voices, for example ``{"anna": 0.6, "ben": 0.4}``. Raises as ``add`` does."""
        return await (await self._access()).add(_upload(name, {**fields, "mix": weights}), None)

    async def delete(self, voice: str) -> None:
        """Delete a voice that was added.

        Raises:
            UnknownVoice: There is no such voice.
            IllegalCommand: The voice belongs to its engine.
            Forbidden: Another API key added it.
        """
        await (await self._access()).delete(voice)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path.name} cannot be read: {error.strerror}") from None


def _upload(name: str, fields: Mapping[str, Any]) -> VoiceUpload:
    values: dict[str, Any] = {
        key: tuple(value) if key in ("languages", "tags") else value for key, value in fields.items()
    }
    try:
        return VoiceUpload(name, **values)
    except TypeError as error:
        raise InvalidRequest(f"unknown field of a voice: {error}") from None


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: the API key is for this host only."""

    def redirect_request(self, *_: object) -> None:
        return None


class HttpVoices:
    """Access over HTTP, to the worker of a ``ws://`` URL. Each request opens a connection on a thread."""

    def __init__(self, url: str, settings: ClientSettings) -> None:
        parts = urlsplit(url)
        # The worker may be behind a proxy under a path.
        path = parts.path.removesuffix("/v1/stream").rstrip("/") + "/v1/voices"
        scheme = parts.scheme.replace("ws", "http", 1)
        self._address = parts._replace(scheme=scheme, path=path, query="", fragment="").geturl()
        self._settings = settings
        handlers = [] if settings.tls_certificate is None else [HTTPSHandler(context=settings.tls_context())]
        # With the proxies of the environment, as for the WebSocket.
        self._opener = build_opener(_NoRedirect, *handlers)

    async def list(self) -> list[VoiceInfo]:
        answer = await asyncio.to_thread(self._request, "GET", "")
        return [_parse(voice) for voice in answer.get("voices", ())]

    async def get(self, voice: str) -> VoiceInfo:
        return _parse(await asyncio.to_thread(self._request, "GET", f"/{quote(voice, safe='')}"))

    async def add(self, upload: VoiceUpload, audio: bytes | None) -> VoiceInfo:
        body = upload.fields()
        if audio is not None:
            body["audio"] = base64.b64encode(audio).decode()
        return _parse(await asyncio.to_thread(self._request, "POST", "", body))

    async def delete(self, voice: str) -> None:
        await asyncio.to_thread(self._request, "DELETE", f"/{quote(voice, safe='')}")

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        if self._settings.api_key is not None:
            headers["authorization"] = f"Bearer {self._settings.api_key}"
        content = None if body is None else json.dumps(body).encode()
        request = Request(self._address + path, content, headers, method=method)
        timeout_s = CHANGE_TIMEOUT_S
        if method == "GET":
            timeout_s = min(self._settings.connect_timeout_s, _MAX_READ_TIMEOUT_S)
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                return _json(response.read(_MAX_BODY_BYTES), response.status)
        except HTTPError as error:
            with error:
                answer = error.read(_MAX_BODY_BYTES)
                raise error_of_response(answer, error.code, error.headers.get("retry-after")) from None
        except (OSError, HTTPException) as error:
            if isinstance(getattr(error, "reason", error), TimeoutError):
                raise DeadlineExceeded(f"the worker did not answer within {timeout_s:g} s") from None
            raise ConnectionLost(f"the worker cannot be reached ({type(error).__name__}): is it running?") from None


def _json(raw: bytes, status: int) -> dict[str, Any]:
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ConnectionLost(f"the server at this URL is no tts-worker (HTTP status {status})")
    return answer


def _parse(data: Mapping[str, Any]) -> VoiceInfo:
    try:
        return VoiceInfo.of_json(data)
    except (KeyError, TypeError, ValueError):
        raise ConnectionLost("the server at this URL is no tts-worker") from None


def error_of_response(body: bytes, status: int, retry_after: str | None) -> TTSWorkerError:
    """Return the error of a worker's HTTP response. Raises ConnectionLost if no worker answered."""
    error = _json(body, status).get("error")
    fields = error if isinstance(error, dict) else {}
    try:
        code = ErrorCode(fields.get("code"))
    except ValueError:
        code = ErrorCode.INTERNAL
    retry_after_s = float(retry_after) if retry_after is not None and retry_after.isdigit() else None
    message = str(fields.get("message", "the worker refused the request"))
    return as_exception(ErrorInfo(code, message, bool(fields.get("retryable", False)), retry_after_s))
