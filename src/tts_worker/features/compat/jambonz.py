"""jambonz's API for custom speech: ``/jambonz``, over HTTP and as a WebSocket.

Message formats follow jambonz' guide "Custom TTS providers" and its package ``@jambonz/speech-utils`` 0.2.27. A flush
ends a turn, of which nothing is told; ``stop`` ends the audio and the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from tts_worker.audio.encoders import Encoder
from tts_worker.errors import HTTP_STATUS, ErrorCode, ErrorInfo, TextTooLong, TTSWorkerError
from tts_worker.features.compat.context_socket import ContextSocket, Message
from tts_worker.features.compat.samples import SampleEncoder
from tts_worker.features.compat.turns import Turn, TurnProtocol
from tts_worker.protocol.json_codec import parse_object
from tts_worker.server.limits import ApiLimits
from tts_worker.server.rendering import download
from tts_worker.server.responses import SafeJSONResponse, retry_after, speech_stream
from tts_worker.server.routing import Routes
from tts_worker.server.validation import Fields, query_parameters, request_body, validate
from tts_worker.session.hub import SessionHub
from tts_worker.types import SessionOptions

PATH = "/jambonz"

_RateHz = Literal["8000", "16000", "24000", "32000", "48000"]
"""jambonz knows no others."""


class Voice(Fields):
    """What a voice is named by. Empty: the default one."""

    voice: str = Field("", max_length=128)
    language: str = Field("", max_length=35)


class Query(Voice):
    """Query parameters of the WebSocket."""

    rate: _RateHz = Field("16000", alias="sampleRate")

    @property
    def rate_hz(self) -> int:
        return int(self.rate)

    def open_encoder(self) -> Encoder:
        return SampleEncoder("pcm_s16le", self.rate_hz)

    def options(self, named: Voice) -> SessionOptions:
        """Convert to session options."""
        return SessionOptions(
            voice=named.voice or None,
            language=named.language or None,
            realtime=False,
            raw_chunks=True,
            sample_rate=self.rate_hz,
        )


class SpeechBody(Voice):
    """Body of the HTTP route. ``type`` tells nothing that the text does not: tags are read in both."""

    text: str


class Command(Fields):
    """A message of the WebSocket."""

    type: Literal["stream", "flush", "stop", "keepalive"]
    text: str = ""


def error_response(error: ErrorInfo, status: int | None = None) -> Response:
    """Build an error response."""
    status = HTTP_STATUS[error.code] if status is None else status
    return SafeJSONResponse({"error": error.message, "code": error.code.value}, status, retry_after(error))


class _JambonzProtocol(TurnProtocol):
    """The messages of one connection."""

    def __init__(self, socket: ContextSocket, query: Query) -> None:
        super().__init__(socket, query.options(query), query.open_encoder)
        socket.reply({"type": "connect", "data": {"sample_rate": query.rate_hz, "base64_encoding": False}})

    def handle_message(self, data: Message) -> None:
        message = validate(Command, data)
        match message.type:
            case "stream":
                self.speak(message.text)
            case "flush":
                self.flush()
            case "stop":
                self.stop()
                self._socket.finish()

    def ended(self, turn: Turn) -> Iterator[Message]:
        yield from ()

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        return {"type": "error", "error": error.message, "code": error.code.value}

    def is_fatal(self, error: ErrorInfo) -> bool:
        return error.code is not ErrorCode.INVALID_REQUEST


def router(hub: SessionHub, limits: ApiLimits) -> Routes:
    """Return the routes for jambonz."""
    routes = Routes(tag="jambonz")

    @routes.websocket(PATH, "Text to speech for jambonz, turn after turn")
    async def stream(websocket: WebSocket) -> None:
        try:
            query = validate(Query, dict(websocket.query_params))
            if query.voice:
                await hub.library.look_up(query.voice)
                hub.voices.get(query.voice)
        except TTSWorkerError as error:
            await websocket.send_denial_response(error_response(error.info))
            return
        await ContextSocket(websocket, hub, limits, partial(_JambonzProtocol, query=query)).run()

    def describe() -> dict[str, Any]:
        return {**request_body(SpeechBody), **query_parameters(Query, "sampleRate")}

    @routes.post(PATH, summary="Text to speech for jambonz, streamed", openapi_extra=describe)
    async def speech(request: Request) -> Response:
        query = validate(Query, dict(request.query_params))
        body = validate(SpeechBody, parse_object(await request.body(), "body"))
        if len(body.text) > limits.max_input_chars:
            raise TextTooLong(f"text may have at most {limits.max_input_chars} characters")
        headers: dict[str, str] = {}
        audio = download(hub, query.options(body), body.text, query.open_encoder(), headers)
        media_type = f"audio/l16;rate={query.rate_hz};channels=1"  # little-endian, as jambonz plays it
        return speech_stream(audio, media_type, limits, rate_hz=query.rate_hz, headers=headers)

    return routes
