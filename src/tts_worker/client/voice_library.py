"""``client.voice_library``: the voices of a worker as resources: listing, adding, mixing and deleting them."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from tts_worker.client.base import ClientSettings
from tts_worker.errors import ConnectionLost, ErrorCode, ErrorInfo, InvalidRequest, TTSWorkerError, as_exception
from tts_worker.protocol.voices import VoiceInfo, VoiceUpload

_TIMEOUT_S = 60.0
"""Limit of one request: the models that analyze a recording may have to be loaded."""


class VoiceAccess(Protocol):
    """How a connector reaches the voices of its worker."""

    async def list(self) -> list[VoiceInfo]: ...
    async def get(self, voice: str) -> VoiceInfo: ...
    async def add(self, upload: VoiceUpload, audio: bytes | None) -> VoiceInfo: ...
    async def delete(self, voice: str) -> None: ...


class VoiceLibrary:
    """The voices of a worker."""

    def __init__(self, access: Callable[[], Awaitable[VoiceAccess]]) -> None:
        self._access = access

    async def list(self) -> list[VoiceInfo]:
        """Return all voices. Raises ConnectionLost, Unauthenticated."""
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


class HttpVoices:
    """Access over HTTP, to the worker of a ``ws://`` URL. Each request opens a connection on a thread."""

    def __init__(self, url: str, settings: ClientSettings) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port
        self._is_secure = parts.scheme == "wss"
        # The worker may be behind a proxy under a path.
        self._path = parts.path.removesuffix("/v1/stream").rstrip("/") + "/v1/voices"
        self._settings = settings

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
        connection: http.client.HTTPConnection
        if self._is_secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=context)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        headers = {"content-type": "application/json"}
        if self._settings.api_key is not None:
            headers["authorization"] = f"Bearer {self._settings.api_key}"
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, self._path + path, content, headers)
            response = connection.getresponse()
            status = response.status
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLost(f"the worker cannot be reached ({type(error).__name__}): is it running?") from None
        finally:
            connection.close()
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ConnectionLost(f"the server at this address is no tts-worker (HTTP {status})")
        if status >= 400:
            raise _error(answer, response.headers.get("retry-after"))
        return answer


def _parse(data: Mapping[str, Any]) -> VoiceInfo:
    try:
        return VoiceInfo.of_json(data)
    except (KeyError, TypeError, ValueError):
        raise ConnectionLost("the server at this address is no tts-worker") from None


def _error(answer: Mapping[str, Any], retry_after: str | None) -> TTSWorkerError:
    error = answer.get("error")
    fields = error if isinstance(error, dict) else {}
    try:
        code = ErrorCode(fields.get("code"))
    except ValueError:
        code = ErrorCode.INTERNAL
    retry_after_s = float(retry_after) if retry_after is not None and retry_after.isdigit() else None
    message = str(fields.get("message", "the worker refused the request"))
    return as_exception(ErrorInfo(code, message, bool(fields.get("retryable", False)), retry_after_s))
