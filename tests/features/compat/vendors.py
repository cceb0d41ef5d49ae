"""Every way to have a text spoken by a vendor's API: what ``test_every_vendor.py`` must know of it.

All of them are asked for the samples of a text, as s16le at 24 kHz.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

Message = dict[str, Any]


class Refused(Exception):
    """An API answered with an error.

    Attributes:
        status: HTTP status; 0 for an error in the midst of a response or on a connection.
        code: The vendor's code; the worker's own in lower case, where the vendor has none.
        message: For people.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message


class Vendor(Protocol):
    """A way to have a text spoken.

    Attributes:
        name: Its name in the tests.
        statuses: HTTP status of an error by the worker's code, where it is not the usual one.
        codes: The vendor's code of an error by the worker's, likewise.
        invalid: A message or fields that are not valid.
    """

    name: str
    statuses: Message
    codes: Message
    invalid: Message

    def speak(self, address: str, text: str, **options: Any) -> AsyncIterator[bytes]:
        """Yield the audio of a text as it arrives.

        Args:
            address: The worker.
            text: The text.
            options: ``voice``; ``key`` of the worker; ``fields``, which replace those of the body, or are another
                message. Of a socket: ``parts``, the text as several messages; ``size`` of the audio.

        Raises:
            Refused: The API answers with an error.
        """
        ...


def _plain(error: Message) -> tuple[str, str]:
    return error["code"], error["message"]


@dataclass(frozen=True)
class Download:
    """An HTTP route: a request has the whole text, the response is audio, or messages with audio in base64."""

    name: str
    path: str  # with the placeholder {voice}
    body: Callable[[str, str], Message]
    error: Callable[[Message], tuple[str, str]]
    invalid: Message
    audio: Callable[[Message], str | None] | None = None
    key: Callable[[str], Message] = lambda key: {"x-api-key": key}
    is_form: bool = False
    statuses: Message = field(default_factory=dict)
    codes: Message = field(default_factory=dict)

    async def speak(
        self, address: str, text: str, *, voice: str = "tone", key: str = "any", fields: Message | None = None
    ) -> AsyncIterator[bytes]:
        url = f"http://{address}{self.path.format(voice=voice)}"
        body = {**self.body(text, voice), **(fields or {})}
        content: Message = {"data": body} if self.is_form else {"json": body}
        async with (
            httpx.AsyncClient(timeout=60, headers=self.key(key)) as http,
            http.stream("POST", url, **content) as response,
        ):
            if response.status_code != 200:
                raise Refused(response.status_code, *self.error(json.loads(await response.aread())))
            try:
                if self.audio is None:
                    async for part in response.aiter_bytes():
                        yield part
                    return
                async for line in response.aiter_lines():
                    message = json.loads(line.removeprefix("data: ")) if line[:1] in ("d", "{") else {}
                    if audio := self.audio(message):
                        yield base64.b64decode(audio)
                    elif "error" in message or message.get("type") == "error":
                        raise Refused(0, "", json.dumps(message))
            except httpx.RemoteProtocolError:
                raise Refused(0, "", "broken off") from None


@dataclass(frozen=True)
class Socket:
    """A WebSocket: a turn is the messages of its text and one that ends it."""

    name: str
    path: str  # with the placeholder {voice}
    text: Callable[[str, str], Message]
    end: Message
    error: Callable[[Message], tuple[str, str] | None]
    invalid: Message
    stop: Message
    audio: Callable[[Message], str | None] = lambda message: None
    is_last: Callable[[Message], bool] | None = None  # jambonz tells nothing of the end
    denial: Callable[[Message], tuple[str, str]] = _plain
    first: Callable[[str], Sequence[Message]] = lambda voice: ()
    key: Callable[[str], Message] = lambda key: {"x-api-key": key}
    statuses: Message = field(default_factory=dict)
    codes: Message = field(default_factory=dict)

    @asynccontextmanager
    async def dial(self, address: str, voice: str = "tone", key: str = "any") -> AsyncIterator[ClientConnection]:
        url = f"ws://{address}{self.path.format(voice=voice)}"
        headers = self.key(key)
        try:
            async with connect(
                url, additional_headers=headers, compression=None, max_size=None, open_timeout=60, close_timeout=0.1
            ) as socket:
                for message in self.first(voice):
                    await socket.send(json.dumps(message))
                yield socket
        except InvalidStatus as error:
            body = error.response.body or b"{}"
            raise Refused(error.response.status_code, *self.denial(json.loads(body))) from None

    async def write(self, socket: ClientConnection, parts: Iterable[str], voice: str = "tone") -> None:
        for part in parts:
            await socket.send(json.dumps(self.text(part, voice)))

    async def read(self, socket: ClientConnection, size: int | None = None) -> AsyncIterator[bytes]:
        """Yield the audio of a turn; ``size`` tells its end where no message does."""
        received = 0
        try:
            async for message in socket:
                data = {} if isinstance(message, bytes) else json.loads(message)
                if (error := self.error(data) if data else None) is not None:
                    raise Refused(0, *error)
                if audio := message if isinstance(message, bytes) else base64.b64decode(self.audio(data) or ""):
                    received += len(audio)
                    yield audio
                if received == size if self.is_last is None else (data and self.is_last(data)):
                    return
            raise Refused(0, "", "closed")
        except ConnectionClosed:
            raise Refused(0, "", "broken off") from None

    async def speak(
        self,
        address: str,
        text: str,
        *,
        voice: str = "tone",
        key: str = "any",
        fields: Message | None = None,
        parts: Sequence[str] | None = None,
        size: int | None = None,
    ) -> AsyncIterator[bytes]:
        async with self.dial(address, voice, key) as socket:
            if fields is not None:
                await socket.send(json.dumps(fields))
            await self.write(socket, parts or (text,), voice)
            await socket.send(json.dumps(self.end))
            async for audio in self.read(socket, size):
                yield audio


# -- the rows ---------------------------------------------------------------------------------------------------------


def _bearer(key: str) -> Message:
    return {"authorization": f"Bearer {key}"}


def _openai_error(error: Message) -> tuple[str, str]:
    return error["error"]["code"], error["error"]["message"]


def _elevenlabs_error(error: Message) -> tuple[str, str]:
    return error["detail"]["status"], error["detail"]["message"]


def _elevenlabs_message(message: Message) -> tuple[str, str] | None:
    return (message["code"], message["message"]) if message.get("error") else None


def _cartesia_error(error: Message) -> tuple[str, str]:
    return error["error_code"], error["message"]


def _deepgram_error(error: Message) -> tuple[str, str]:
    assert error["err_code"] == error["category"].upper()
    return error["category"], error["err_msg"]


def _jambonz_error(error: Message) -> tuple[str, str]:
    return error["code"], error["error"]


def _if(kind: str, read: Callable[[Message], tuple[str, str]]) -> Callable[[Message], tuple[str, str] | None]:
    return lambda message: read(message) if message.get("type") == kind else None


RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
_ELEVENLABS = "/v1/text-to-speech/{voice}"
_PCM = "?output_format=pcm_24000"
_SAMPLES = urlencode({"encoding": "linear16", "sample_rate": 24_000})


def _cartesia(text: str, voice: str) -> Message:
    return {"model_id": "sonic-3", "transcript": text, "voice": {"mode": "id", "id": voice}, "output_format": RAW}


def _token(key: str) -> Message:
    return {"authorization": f"Token {key}"}


DOWNLOADS = (
    Download(
        "openai",
        "/v1/audio/speech",
        lambda text, voice: {"model": "tts-1", "input": text, "voice": voice, "response_format": "pcm"},
        _openai_error,
        {"speed": "fast"},
        key=_bearer,
        statuses={"text_too_long": 400, "unspeakable_text": 400},
    ),
    Download(
        "openai-sse",
        "/v1/audio/speech",
        lambda text, voice: {"input": text, "voice": voice, "response_format": "pcm", "stream_format": "sse"},
        _openai_error,
        {"response_format": 7},
        audio=lambda message: message.get("audio"),
        key=_bearer,
        statuses={"text_too_long": 400, "unspeakable_text": 400},
    ),
    Download("cartesia", "/tts/bytes", _cartesia, _cartesia_error, {"output_format": None}),
    Download(
        "cartesia-sse",
        "/tts/sse",
        _cartesia,
        _cartesia_error,
        {"add_phoneme_timestamps": True},
        audio=lambda message: message.get("data"),
    ),
    *(
        Download(
            f"elevenlabs{route.replace('/', '-')}",
            f"{_ELEVENLABS}{route}{_PCM}",
            lambda text, voice: {"text": text},
            _elevenlabs_error,
            {"voice_settings": {"speed": 9}},
            audio=(lambda message: message.get("audio_base64")) if "times" in route else None,
            key=lambda key: {"xi-api-key": key},
        )
        for route in ("", "/stream", "/with-timestamps", "/stream/with-timestamps")
    ),
    *(
        Download(
            f"deepgram-{version}",
            f"/{version}/speak?model={{voice}}&container=none&{_SAMPLES}",
            lambda text, voice: {"text": text},
            _deepgram_error,
            {"text": 7},
            key=_token,
            statuses={"unknown_voice": 400, "unspeakable_text": 400},
        )
        for version in ("v1", "v2")
    ),
    Download(
        "jambonz",
        "/jambonz?sampleRate=24000",
        lambda text, voice: {"text": text, "voice": voice, "language": "en-US", "type": "text"},
        _jambonz_error,
        {"text": 7},
        key=_bearer,
    ),
    Download(
        "cosyvoice",
        "/inference_sft",
        lambda text, voice: {"tts_text": text, "spk_id": voice},
        _openai_error,
        {"spk_id": "x" * 200},
        is_form=True,
    ),
    Download(
        "ray-serve",
        "/v1/model/cosyvoice/tts",
        lambda text, voice: {"text": text, "voice_type": voice, "response_format": "pcm", "stream": True},
        _openai_error,
        {"speed": 9},
    ),
)

SOCKETS = (
    Socket(
        "cartesia-socket",
        "/tts/websocket",
        lambda text, voice: {**_cartesia(text, voice), "context_id": "a", "continue": True},
        {"context_id": "a", "transcript": "", "continue": False, "voice": {"id": "tone"}, "output_format": RAW},
        _if("error", _cartesia_error),
        {"context_id": "b", "transcript": 7},
        {"context_id": "a", "cancel": True},
        audio=lambda message: message.get("data"),
        is_last=lambda message: message["type"] == "done",
        denial=_cartesia_error,
    ),
    Socket(
        "elevenlabs-multi",
        f"{_ELEVENLABS}/multi-stream-input{_PCM}",
        lambda text, voice: {"text": text, "context_id": "a"},
        {"close_socket": True},
        _elevenlabs_message,
        {"text": 7, "context_id": "b"},
        {"context_id": "a", "close_context": True},
        audio=lambda message: message.get("audio"),
        is_last=lambda message: bool(message.get("isFinal")),
        denial=_elevenlabs_error,
        key=lambda key: {"xi-api-key": key},
    ),
    Socket(
        "elevenlabs-stream-input",
        f"{_ELEVENLABS}/stream-input{_PCM}",
        lambda text, voice: {"text": text},
        {"text": ""},
        _elevenlabs_message,
        {"text": 7},
        {"text": 7},  # an error ends it
        audio=lambda message: message.get("audio"),
        is_last=lambda message: bool(message.get("isFinal")),
        denial=_elevenlabs_error,
        key=lambda key: {"xi-api-key": key},
    ),
    Socket(
        "deepgram-socket",
        f"/v1/speak?model={{voice}}&{_SAMPLES}",
        lambda text, voice: {"type": "Speak", "text": text},
        {"type": "Flush"},
        lambda message: _deepgram_error(message) if message["type"] in ("Warning", "Error") else None,
        {"type": "Sing"},
        {"type": "Clear"},
        is_last=lambda message: message["type"] == "Flushed",
        denial=_deepgram_error,
        key=_token,
        statuses={"unknown_voice": 400},
    ),
    Socket(
        "deepgram-flux",
        f"/v2/speak?model={{voice}}&{_SAMPLES}",
        lambda text, voice: {"type": "Speak", "text": text},
        {"type": "Flush"},
        _if("Error", lambda message: (message["code"], message["description"])),
        {"type": "Sing"},
        {"type": "Interrupt"},
        is_last=lambda message: message["type"] == "SpeechMetadata",
        denial=_deepgram_error,
        key=_token,
        statuses={"unknown_voice": 400},
        codes={"invalid_request": "MESSAGE-0000", "text_too_long": "BIG-0000", "over_capacity": "NET-0000"},
    ),
    Socket(
        "vllm-omni",
        "/v1/audio/speech/stream",
        lambda text, voice: {"type": "input.text", "text": text},
        {"type": "input.done"},
        _if("error", _plain),
        {"type": "sing"},
        {"type": "session.close"},
        is_last=lambda message: message["type"] == "session.done",
        denial=_openai_error,
        first=lambda voice: [
            {"type": "session.config", "voice": voice, "response_format": "pcm", "stream_audio": True}
        ],
        key=_bearer,
    ),
    Socket(
        "jambonz-socket",
        "/jambonz?voice={voice}&language=en&sampleRate=24000",
        lambda text, voice: {"type": "stream", "text": text},
        {"type": "flush"},
        _if("error", _jambonz_error),
        {"type": "dance"},
        {"type": "stop"},
        denial=_jambonz_error,
        key=_bearer,
    ),
)
