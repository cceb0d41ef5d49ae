"""``client.voices``: the voices of a worker: listing, adding, mixing and deleting them."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from tts_worker.client.arguments import check_str, read_file
from tts_worker.client.http_api import HttpApi
from tts_worker.client.settings import ClientSettings
from tts_worker.errors import ConnectionLost, InvalidRequest, UnknownVoice
from tts_worker.protocol.voices import VoiceInfo, VoiceUpload

_LISTS = ("languages", "tags")
"""Fields that also take one comma-separated text, as the worker does."""


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
        check_str(voice, "the name of a voice")
        return await (await self._access()).get(voice)

    async def add(self, name: str, audio: bytes | str | os.PathLike[str], **fields: Any) -> VoiceInfo:
        """Add a voice from a recording.

        Args:
            name: Name of the voice.
            audio: The file or its content: WAV, FLAC, Ogg, MP3, AIFF, CAF, M4A, AAC or WebM, 3 to 30 s of one speaker.
            fields: Those of ``VoiceUpload``: transcript, consent (required), style, languages, tags, ...

        Raises:
            InvalidRequest: The recording or a field is unsuitable; says why.
            IllegalCommand: The name is taken.
            Forbidden, VoiceQuotaExceeded: The API key may not add a voice, or no further one.
            TTSWorkerError: As ``Client.open`` does.
        """
        if not isinstance(audio, bytes | str | os.PathLike):
            raise InvalidRequest(f"a recording must be bytes or a path, not {type(audio).__name__}")
        upload = _upload(name, fields)
        content = audio if isinstance(audio, bytes) else await asyncio.to_thread(read_file, Path(audio))
        return await (await self._access()).add(upload, content)

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
        check_str(voice, "the name of a voice")
        await (await self._access()).delete(voice)


def _upload(name: str, fields: Mapping[str, Any]) -> VoiceUpload:
    if unknown := sorted(fields.keys() - VoiceUpload.__dataclass_fields__.keys()):
        raise InvalidRequest(f"unknown field of a voice: {', '.join(unknown)}")
    lists = {
        key: [part.strip() for part in value.split(",")]
        for key, value in fields.items()
        if key in _LISTS and isinstance(value, str)
    }
    try:
        upload = msgspec.convert({**fields, **lists, "name": name}, VoiceUpload)
        msgspec.json.encode(upload)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"a field of the voice is unsuitable: {error}") from None
    except UnicodeEncodeError:
        raise InvalidRequest("a field of the voice contains lone surrogates") from None
    return upload


class HttpVoices:
    """Access over HTTP, to the worker of a ``ws://`` URL. Each request opens a connection on a thread."""

    def __init__(self, url: str, settings: ClientSettings) -> None:
        self._api = HttpApi(url, "/v1/voices", settings)

    async def list(self) -> list[VoiceInfo]:
        answer = await self._api.request("GET")
        return [_parse(voice) for voice in answer.get("voices", ())]

    async def get(self, voice: str) -> VoiceInfo:
        return _parse(await self._api.request("GET", _path(voice)))

    async def add(self, upload: VoiceUpload, audio: bytes | None) -> VoiceInfo:
        body = upload.fields()
        if audio is not None:
            body["audio"] = base64.b64encode(audio).decode()
        return _parse(await self._api.request("POST", "", body))

    async def delete(self, voice: str) -> None:
        await self._api.request("DELETE", _path(voice))


def _path(voice: str) -> str:
    if not voice or "/" in voice:  # another route; no voice has such a name
        raise UnknownVoice(f'unknown voice "{voice}"')
    return "/" + quote(voice, safe="")


def _parse(data: Mapping[str, Any]) -> VoiceInfo:
    try:
        return VoiceInfo.of_json(data)
    except ValueError:
        raise ConnectionLost("the server at this URL is no tts-worker") from None
