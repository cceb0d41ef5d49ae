"""Deepgram-compatible API: ``/v1/speak``, as a WebSocket and over HTTP, and ``POST /v2/speak``.

Message formats follow Deepgram's public API reference and its Python SDK 7.17, as LiveKit and pipecat use them. The
vendor's own models select the default voice unless a voice or alias has the name; any other model is the name of a
voice. Fields without a meaning here (``bit_rate``, ``mip_opt_out``, ``tag``, ``expressivity``) are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from pydantic import Field
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from tts_worker.audio.encoders import AudioFormat, Encoder, open_encoder
from tts_worker.audio.resampler import check_rate
from tts_worker.errors import HTTP_STATUS, ErrorCode, ErrorInfo, InvalidRequest, TextTooLong, TTSWorkerError
from tts_worker.features.compat.context_socket import ContextSocket, Message
from tts_worker.features.compat.samples import SampleEncoder
from tts_worker.features.compat.turns import Turn, TurnProtocol
from tts_worker.features.compat.vendor_requests import within_speeds
from tts_worker.features.compat.voice_names import own_voice
from tts_worker.logs import current_request_id
from tts_worker.protocol.json_codec import parse_object
from tts_worker.server.limits import ApiLimits
from tts_worker.server.rendering import download
from tts_worker.server.responses import SafeJSONResponse, retry_after, speech_stream
from tts_worker.server.routing import Routes
from tts_worker.server.validation import Fields, query_parameters, request_body, validate
from tts_worker.session.hub import SessionHub
from tts_worker.types import SAMPLE_RATE_HZ, SessionOptions

PATHS = ("/v1/speak", "/v2/speak")
MODEL_VERSION = "1"
SPEEDS = (0.5, 1.5)

_VENDORS_MODEL = re.compile(r"(aura|aura-2|flux)-[a-z]+-[a-z]{2}")
_SAMPLES = MappingProxyType({"linear16": "pcm_s16le", "mulaw": "pcm_mulaw", "alaw": "pcm_alaw"})
"""The vendor's encodings of samples: ours."""
_RATES_HZ = MappingProxyType({"linear16": SAMPLE_RATE_HZ, "mulaw": 8_000, "alaw": 8_000, "opus": 48_000})
_FILE_RATE_HZ = 22_050
"""Sample rate of other encodings."""


class Query(Fields):
    """Query parameters of the WebSockets."""

    model: str = Field("aura-asteria-en", max_length=128)
    encoding: Literal["linear16", "mulaw", "alaw"] = "linear16"
    sample_rate: int | None = Field(None, ge=8_000, le=48_000)
    speed: float = Field(1.0, ge=SPEEDS[0], le=SPEEDS[1])

    @property
    def rate_hz(self) -> int:
        return self.sample_rate or _RATES_HZ.get(self.encoding, _FILE_RATE_HZ)

    def open_encoder(self) -> Encoder:
        """Open an encoder of the format. Raises InvalidRequest if it is not supported."""
        check_rate(self.rate_hz, "sample_rate")
        return SampleEncoder(_SAMPLES[self.encoding], self.rate_hz)

    async def options(self, hub: SessionHub) -> SessionOptions:
        """Convert to session options, the speed within the range of the voice.

        Raises:
            UnknownVoice: The model is neither one of the vendor's nor a voice.
        """
        voice = own_voice(hub, self.model, lambda name: _VENDORS_MODEL.fullmatch(name) is not None)
        if voice is not None:
            await hub.library.look_up(voice)
            hub.voices.get(voice)
        options = SessionOptions(
            voice=voice, speed=self.speed, realtime=False, raw_chunks=True, sample_rate=self.rate_hz
        )
        return within_speeds(hub, options)


class FileQuery(Query):
    """Query parameters of the HTTP routes."""

    encoding: Literal["linear16", "mulaw", "alaw", "mp3", "opus", "flac", "aac"] = "mp3"  # type: ignore[assignment]
    container: Literal["none", "wav", "ogg"] | None = None
    callback: str | None = None

    def open_encoder(self) -> Encoder:
        if self.callback is not None:
            raise InvalidRequest("callback is not supported: the audio is the response")
        if self.encoding in _SAMPLES:
            if self.container == "ogg":
                raise InvalidRequest("container: samples come bare (none) or in a wav file")
            check_rate(self.rate_hz, "sample_rate")
            return SampleEncoder(_SAMPLES[self.encoding], self.rate_hz, is_file=self.container != "none")
        if self.container not in (None, "ogg" if self.encoding == "opus" else "none"):
            raise InvalidRequest(f"container: {self.encoding} needs none")
        return open_encoder(AudioFormat(self.encoding), self.rate_hz)


_Query = TypeVar("_Query", bound=Query)


class SpeechBody(Fields):
    """Body of the HTTP routes."""

    text: str


# -- errors -----------------------------------------------------------------------------------------------------------


def error_fields(error: ErrorInfo) -> Message:
    """Encode an error: ``err_msg`` for older clients, ``message`` for newer ones."""
    request = {"request_id": current_request_id()}
    code, message = error.code.value, error.message
    return {"err_code": code.upper(), "err_msg": message, "category": code, "message": message, **request}


def error_response(error: ErrorInfo, status: int | None = None) -> Response:
    """Build an error response. The header says it to clients of a WebSocket, which do not see the body."""
    status = HTTP_STATUS[error.code] if status is None else status
    reason = error.message.encode("ascii", "replace").decode().replace("\n", " ")
    return SafeJSONResponse(error_fields(error), status, {"dg-error": reason, **retry_after(error)})


def error_status(path: str, error: TTSWorkerError) -> int | None:
    """An unknown model and a text without words are bad requests, for which the SDK has an exception."""
    return 400 if error.code in (ErrorCode.UNKNOWN_VOICE, ErrorCode.UNSPEAKABLE_TEXT) else None


# -- one connection ---------------------------------------------------------------------------------------------------


class Command(Fields):
    """A message without further fields, or ``Speak``."""

    type: Literal["Speak", "Flush", "Clear", "Close"]
    text: str = ""


class _SpeakProtocol(TurnProtocol):
    """The messages of ``/v1/speak``. A flush ends a turn; ``Flushed`` follows the audio that it asked for."""

    def __init__(self, socket: ContextSocket, query: Query, options: SessionOptions) -> None:
        super().__init__(socket, options, query.open_encoder)
        self._answers = 0
        model = {"model_name": query.model, "model_version": MODEL_VERSION, "model_uuid": query.model}
        socket.reply({"type": "Metadata", "request_id": current_request_id(), **model, "additional_model_uuids": []})

    def handle_message(self, data: Message) -> None:
        message = validate(Command, data)
        if self._socket.finishing:
            return
        match message.type:
            case "Speak":
                self.speak(message.text)
            case "Flush":
                if self.flush() is None:
                    self._socket.reply(self._answer("Flushed"))
            case "Clear":
                self.stop()
                self._socket.reply(self._answer("Cleared"))
            case "Close":
                self.flush()
                self._socket.finish()

    def ended(self, turn: Turn) -> Iterator[Message]:
        for _ in range(turn.flushes):
            yield self._answer("Flushed")

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        kind = "Error" if self.is_fatal(error) else "Warning"
        fields = {"description": error.message, "code": error.code.value.upper()}
        return {"type": kind, **fields, "warn_msg": error.message, **error_fields(error)}

    def is_fatal(self, error: ErrorInfo) -> bool:
        return error.code is not ErrorCode.INVALID_REQUEST

    def _answer(self, kind: str) -> Message:
        self._answers += 1
        return {"type": kind, "sequence_id": self._answers - 1}


# -- routes -----------------------------------------------------------------------------------------------------------


async def parse_handshake(
    websocket: WebSocket, hub: SessionHub, kind: type[_Query]
) -> tuple[_Query, SessionOptions] | None:
    """Return the parameters of a WebSocket; None if they are invalid and it was denied."""
    try:
        query = _parse(kind, websocket.query_params)
        query.open_encoder()
        return query, await query.options(hub)
    except TTSWorkerError as error:
        status = error_status(websocket.url.path, error)
        await websocket.send_denial_response(error_response(error.info, status))
        return None


def _parse(kind: type[_Query], params: QueryParams) -> _Query:
    return validate(kind, dict(params))


def router(hub: SessionHub, limits: ApiLimits) -> Routes:
    """Return the routes for Deepgram's clients, without the WebSocket of Flux."""
    routes = Routes(tag="Deepgram")

    @routes.websocket("/v1/speak", "Text to speech for Deepgram clients")
    async def speak(websocket: WebSocket) -> None:
        if (parsed := await parse_handshake(websocket, hub, Query)) is not None:
            query, options = parsed
            make_protocol = partial(_SpeakProtocol, query=query, options=options)
            await ContextSocket(websocket, hub, limits, make_protocol).run()

    def describe() -> dict[str, Any]:
        return {**request_body(SpeechBody), **query_parameters(FileQuery)}

    @routes.post("/v1/speak", summary="Text to speech for Deepgram clients, streamed", openapi_extra=describe)
    @routes.post("/v2/speak", summary="As /v1/speak", openapi_extra=describe)
    async def speech(request: Request) -> Response:
        query = _parse(FileQuery, request.query_params)
        body = validate(SpeechBody, parse_object(await request.body(), "body"))
        if len(body.text) > limits.max_input_chars:
            raise TextTooLong(f"text may have at most {limits.max_input_chars} characters")
        encoder = query.open_encoder()
        headers = {
            "dg-model-name": query.model if query.model.isascii() else "",
            "dg-char-count": str(len(body.text)),
            "dg-request-id": current_request_id(),
        }
        audio = download(hub, await query.options(hub), body.text, encoder, headers)
        return speech_stream(audio, encoder.content_type, limits, rate_hz=query.rate_hz, headers=headers)

    return routes
