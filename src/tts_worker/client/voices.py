"""Reads the voices of a worker over HTTP (``GET /v1/voices``), for WebSocket connectors."""

from __future__ import annotations

import asyncio
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from tts_worker.client.base import ClientSettings, VoiceDescription
from tts_worker.errors import ConnectionLost, DeadlineExceeded, TTSWorkerError, as_exception
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


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: the API key is for this host only."""

    def redirect_request(self, *_: object) -> None:
        return None


async def fetch_voices(url: str, settings: ClientSettings) -> tuple[VoiceDescription, ...]:
    """Return the voices of the worker at a WebSocket URL. Raises its error, ConnectionLost or DeadlineExceeded."""
    return await asyncio.to_thread(_fetch, url, settings)


def _fetch(url: str, settings: ClientSettings) -> tuple[VoiceDescription, ...]:
    parts = urlsplit(url)
    path = parts.path.removesuffix("/stream") if parts.path.endswith("/v1/stream") else "/v1"
    address = parts._replace(scheme=parts.scheme.replace("ws", "http", 1), path=f"{path}/voices", query="").geturl()
    headers = {} if settings.api_key is None else {"Authorization": f"Bearer {settings.api_key}"}
    opener = build_opener(_NoRedirect)  # with the proxies of the environment, as for the WebSocket
    timeout_s = min(settings.connect_timeout_s, _MAX_TIMEOUT_S)
    try:
        with opener.open(Request(address, headers=headers), timeout=timeout_s) as response:
            body = response.read(_MAX_BODY_BYTES)
    except HTTPError as error:
        with error:
            raise _refusal(error.code, error.read(_MAX_BODY_BYTES)) from None
    except (OSError, HTTPException) as error:
        if isinstance(getattr(error, "reason", error), TimeoutError):
            raise DeadlineExceeded(f"the worker did not answer within {timeout_s:g} s") from None
        raise ConnectionLost(f"the worker cannot be reached ({type(error).__name__}): is it running?") from None
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
