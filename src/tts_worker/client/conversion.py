"""Voice conversion by a worker: source audio in, the same speech in another voice out.

The source is a recording, or live audio that is converted while it is still being spoken.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode

from tts_worker.client.arguments import read_file
from tts_worker.client.http_api import HttpApi, connection_error, read_parts
from tts_worker.client.iteration import iterate
from tts_worker.client.settings import ClientSettings
from tts_worker.errors import InvalidRequest
from tts_worker.types import SAMPLE_RATE_HZ, SessionOptions

LIVE_TIMEOUT_S = 3_600.0
"""Limit without audio while the source is live, which may be silent for any time."""

_READ_BYTES = 16 << 10

AudioSource = bytes | str | os.PathLike[str] | Iterable[bytes] | AsyncIterable[bytes]
"""A recording (its content or its path), or live audio: parts of s16le mono while they are being recorded."""


@dataclass(frozen=True, slots=True)
class SourceAudio:
    """What is converted.

    Attributes:
        audio: A whole file, or the parts of s16le mono that is still being spoken.
        live_rate_hz: Sample rate of live audio; None for a file.
    """

    audio: bytes | AsyncIterator[bytes]
    live_rate_hz: int | None = None


class ConversionAccess(Protocol):
    """How a connector has its worker convert."""

    def convert(self, source: SourceAudio, options: SessionOptions) -> AsyncGenerator[bytes, None]:
        """Yield s16le at the rate of ``options``; closing the generator ends the conversion. Raises TTSWorkerError."""
        ...


class AsyncConversion:
    """Converted speech while it is being generated: an asynchronous iterator over parts of s16le.

    Use it as a context manager, or call ``aclose``, if the iteration may be left early.
    """

    def __init__(
        self,
        access: Callable[[], Awaitable[ConversionAccess]],
        source: AudioSource,
        options: SessionOptions,
        live_rate_hz: int | None,
    ) -> None:
        if isinstance(source, bytes | str | os.PathLike) == (live_rate_hz is not None):
            raise InvalidRequest("live_rate_hz is the sample rate of live audio, an iterable of parts of s16le")
        if live_rate_hz is not None and not (isinstance(live_rate_hz, int) and live_rate_hz > 0):
            raise InvalidRequest("live_rate_hz must be a whole number above 0")
        if live_rate_hz is not None and not isinstance(source, Iterable | AsyncIterable):
            raise InvalidRequest("live audio must be an iterable of parts of s16le")
        self.sample_rate_hz = options.sample_rate or SAMPLE_RATE_HZ
        self._parts = self._convert(access, source, options, live_rate_hz)

    async def _convert(
        self,
        access: Callable[[], Awaitable[ConversionAccess]],
        source: AudioSource,
        options: SessionOptions,
        live_rate_hz: int | None,
    ) -> AsyncGenerator[bytes, None]:
        if isinstance(source, str | os.PathLike):
            source = await asyncio.to_thread(read_file, Path(source))
        audio = source if isinstance(source, bytes) else _live_parts(source)
        parts = (await access()).convert(SourceAudio(audio, live_rate_hz), options)
        try:
            async for part in parts:
                yield part
        finally:
            await parts.aclose()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._parts)

    async def aclose(self) -> None:
        """End the conversion. Idempotent."""
        await self._parts.aclose()

    async def __aenter__(self) -> AsyncConversion:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _live_parts(source: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of live audio. Raises InvalidRequest if a part is not bytes."""
    async with aclosing(iterate(source)) as parts:
        async for part in parts:
            if not isinstance(part, bytes | bytearray | memoryview):
                raise InvalidRequest(f"each part of live audio must be bytes, not {type(part).__name__}")
            yield bytes(part)


class HttpConversion:
    """Conversion over HTTP, by the worker of a ``ws://`` URL. Each one opens a connection."""

    def __init__(self, url: str, settings: ClientSettings) -> None:
        self._api = HttpApi(url, "/v1/audio/conversions", settings)
        self._timeout_s = settings.audio_timeout_s

    async def convert(self, source: SourceAudio, options: SessionOptions) -> AsyncGenerator[bytes, None]:
        """See ``ConversionAccess``."""
        if not isinstance(source.audio, bytes):
            query = "?" + urlencode(_fields(options))
            kind = f"audio/pcm;rate={source.live_rate_hz}"
            async with aclosing(self._api.exchange(query, source.audio, kind, LIVE_TIMEOUT_S)) as live:
                async for pcm in live:
                    yield pcm
            return
        body, content_type = _form(source.audio, _fields(options))
        response = await asyncio.to_thread(self._api.open, "POST", "", body, self._timeout_s, content_type)
        async with aclosing(read_parts(response, partial(self._read, response))) as parts:
            async for pcm in parts:
                yield pcm

    def _read(self, response: HTTPResponse) -> bytes:
        try:
            return response.read1(_READ_BYTES)
        except (OSError, HTTPException) as error:
            raise connection_error(error, self._timeout_s) from None


def _fields(options: SessionOptions) -> dict[str, str]:
    fields = {
        "response_format": "pcm",
        "voice": options.voice,
        "model": options.model,
        "speed": options.speed,
        "seed": options.seed,
        "sample_rate": options.sample_rate,
        "realtime": str(options.realtime).lower(),
    }
    return {name: str(value) for name, value in fields.items() if value is not None}


def _form(audio: bytes, fields: dict[str, str]) -> tuple[bytes, str]:
    """Encode a multipart form; returns its body and content type."""
    boundary = uuid.uuid4().hex
    parts = []
    for name, value in fields.items():
        parts.append(f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode())
    head = f'--{boundary}\r\ncontent-disposition: form-data; name="audio"; filename="audio"\r\n\r\n'
    parts += [head.encode(), audio, f"\r\n--{boundary}--\r\n".encode()]
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"
