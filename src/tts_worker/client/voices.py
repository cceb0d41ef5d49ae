"""Reads the voices of a worker over HTTP (``GET /v1/voices``), for WebSocket connectors."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from urllib.parse import urlsplit

import msgspec

from tts_worker.client.base import ClientSettings, VoiceDescription
from tts_worker.errors import ConnectionLost, TTSWorkerError, as_exception
from tts_worker.protocol.messages import parse_error

_MAX_BODY_BYTES = 4 << 20
_MAX_TIMEOUT_S = 10.0


class _VoiceJson(msgspec.Struct):
    id: str
    engine: str = ""
    languages: tuple[str, ...] = ()
    description: str = ""
    default: bool = False


class _VoicesJson(msgspec.Struct):
    voices: list[_VoiceJson]


class _ErrorJson(msgspec.Struct):
    error: dict[str, object]


async def fetch_voices(url: str, settings: ClientSettings) -> tuple[VoiceDescription, ...]:
    """Return the voices of the worker at a WebSocket URL. Raises the worker's error, or ConnectionLost."""
    return await asyncio.to_thread(_fetch, url, settings)


def _fetch(url: str, settings: ClientSettings) -> tuple[VoiceDescription, ...]:
    parts = urlsplit(url)
    path = parts.path.removesuffix("/stream") if parts.path.endswith("/v1/stream") else "/v1"
    headers = {} if settings.api_key is None else {"Authorization": f"Bearer {settings.api_key}"}
    host = parts.hostname or ""
    timeout_s = min(settings.connect_timeout_s, _MAX_TIMEOUT_S)
    connection: http.client.HTTPConnection
    if parts.scheme == "wss":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    try:
        connection.request("GET", f"{path}/voices", headers=headers)
        response = connection.getresponse()
        body = response.read(_MAX_BODY_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionLost(f"the worker cannot be reached ({type(error).__name__}): is it running?") from None
    finally:
        connection.close()
    if response.status != 200:
        raise _refusal(response.status, body)
    try:
        voices = msgspec.json.decode(body, type=_VoicesJson).voices
    except msgspec.DecodeError:
        raise ConnectionLost("the server at this URL is no tts-worker") from None
    return tuple(VoiceDescription(v.id, v.languages, v.description, v.engine, v.default) for v in voices)


def _refusal(status: int, body: bytes) -> TTSWorkerError:
    try:
        return as_exception(parse_error(msgspec.json.decode(body, type=_ErrorJson).error))
    except (msgspec.DecodeError, ValueError, TypeError, KeyError):
        return ConnectionLost(f"the server at this URL is no tts-worker (HTTP status {status})")
