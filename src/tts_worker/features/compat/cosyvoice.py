"""The HTTP APIs of CosyVoice for their published clients; they work on any worker.

- CosyVoice's own server (``/inference_...``, its ``runtime/python/fastapi``): GET works like POST, because its client
  uses GET. The response streams PCM16LE mono.
- The project cosyvoice-ray-serve-api, with or without Ray: its old paths (``/v1/model/cosyvoice/...``) and new ones
  (``/tts``, ...). The response is MP3, WAV or PCM according to ``response_format``, whole or streamed.

Unlike the originals, responses state the sample rate, an unknown voice is an error, a recording is never a file path,
and synthesis stops when the client disconnects. A recording needs an engine that enrolls voices.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Literal

from pydantic import AliasChoices, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tts_worker.audio.decode import MAX_AUDIO_BYTES
from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.errors import InvalidRequest, TextTooLong
from tts_worker.features.compat.vendor_requests import speech_options, split_language, whole_download
from tts_worker.front_end.instruction import split_instruction
from tts_worker.server.limits import ApiLimits
from tts_worker.server.rendering import converted, download
from tts_worker.server.responses import Upload, speech_stream
from tts_worker.server.routing import Routes
from tts_worker.server.uploads import Body, live_rate_hz, read_body
from tts_worker.server.validation import MULTIPART, PROMPT_AUDIO, Fields, upload_body, validate
from tts_worker.session.conversion import LiveSource, RecordedSource, Source
from tts_worker.session.hub import SessionHub
from tts_worker.types import SAMPLE_RATE_HZ, SessionOptions

_TYPES = {"mp3": "audio/mpeg", "wav": "audio/wav", "pcm": f"audio/pcm;rate={SAMPLE_RATE_HZ};channels=1"}
_MEDIA_TYPES = (MULTIPART, "application/x-www-form-urlencoded", "application/json")


class _CosyVoiceRequest(Fields):
    """A request of either API. The fields that an API lacks have these values.

    The docstrings of the requests are the summaries of their routes.
    """

    recording: ClassVar[str | None] = None
    """Name of the field with a recording of the voice."""
    optional_recording: ClassVar[bool] = False

    text: str

    @classmethod
    def body(cls) -> dict[str, Any]:
        """Describe the body for OpenAPI."""
        recordings = {} if cls.recording is None else {cls.recording: PROMPT_AUDIO}
        return upload_body(cls, _MEDIA_TYPES, recordings, optional=recordings if cls.optional_recording else ())

    def value(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


# -- CosyVoice's own API ----------------------------------------------------------------------------------------------


class InferenceSftRequest(_CosyVoiceRequest):
    """Text to speech for CosyVoice clients, in a stored voice."""

    text: str = Field(alias="tts_text")
    voice: str = Field(alias="spk_id", max_length=128)


class InferenceInstructRequest(InferenceSftRequest):
    """Text to speech for CosyVoice clients, in a stored voice and as an instruction says."""

    instruct: str = Field(alias="instruct_text", max_length=2_000)


class InferenceCrossLingualRequest(_CosyVoiceRequest):
    """Text to speech for CosyVoice clients, in the voice of a recording."""

    recording = "prompt_wav"

    text: str = Field(alias="tts_text")


class InferenceZeroShotRequest(InferenceCrossLingualRequest):
    """Text to speech for CosyVoice clients, in the voice of a recording with its transcript."""

    transcript: str = Field(alias="prompt_text")


class InferenceInstruct2Request(InferenceCrossLingualRequest):
    """Text to speech for CosyVoice clients, in the voice of a recording and as an instruction says."""

    instruct: str = Field(alias="instruct_text", max_length=2_000)


# -- the API of cosyvoice-ray-serve-api -------------------------------------------------------------------------------


class TtsRequest(_CosyVoiceRequest):
    """Text to speech for clients of CosyVoice on Ray, in a stored voice."""

    text: str = Field(min_length=1)
    voice: str | None = Field(None, validation_alias=AliasChoices("voice_type", "voice"), max_length=128)
    speed: float = Field(1.0, ge=0.5, le=2.0)
    stream: bool = False
    response_format: Literal["mp3", "wav", "pcm"] = "mp3"


class CrossLingualRequest(TtsRequest):
    """Text to speech for clients of CosyVoice on Ray, in the voice of a recording."""

    recording = "reference_audio"


class ZeroShotRequest(CrossLingualRequest):
    """Text to speech for clients of CosyVoice on Ray, in the voice of a recording with its transcript."""

    transcript: str = Field(alias="reference_text", min_length=1)


class InstructRequest(TtsRequest):
    """Text to speech for clients of CosyVoice on Ray, as an instruction says, in any voice."""

    recording = "reference_audio"
    optional_recording = True

    instruct: str = Field(alias="instruction", min_length=1, max_length=2_000)


class InferenceVcRequest(Fields):
    """Voice conversion for CosyVoice clients, to a stored voice or that of a recording.

    A body of ``audio/pcm;rate=16000``, with ``spk_id`` in the URL, is converted while it arrives.
    """

    source: ClassVar[str] = "source_wav"
    recording: ClassVar[str] = "prompt_wav"

    voice: str | None = Field(None, alias="spk_id", max_length=128)
    speed: float = Field(1.0, ge=0.5, le=2.0)

    @classmethod
    def body(cls) -> dict[str, Any]:
        """Describe the body for OpenAPI. ``spk_id`` replaces the recording of the voice."""
        recordings = {cls.source: "The speech to convert", cls.recording: PROMPT_AUDIO}
        return upload_body(cls, _MEDIA_TYPES, recordings, optional={cls.recording}, live=True)


_BASE = "/v1/model/cosyvoice"
_HEALTH = f"{_BASE}/healthcheck"
_ROUTES: dict[str, type[_CosyVoiceRequest]] = {
    "/inference_sft": InferenceSftRequest,
    "/inference_zero_shot": InferenceZeroShotRequest,
    "/inference_cross_lingual": InferenceCrossLingualRequest,
    "/inference_instruct": InferenceInstructRequest,
    "/inference_instruct2": InferenceInstruct2Request,
    f"{_BASE}/tts": TtsRequest,
    "/tts": TtsRequest,
    f"{_BASE}/zero_shot": ZeroShotRequest,
    "/zero_shot_tts": ZeroShotRequest,
    f"{_BASE}/cross_lingual": CrossLingualRequest,
    "/cross_lingual_tts": CrossLingualRequest,
    f"{_BASE}/instruct": InstructRequest,
    "/instruct_tts": InstructRequest,
}
_CONVERSION = "/inference_vc"
PATHS = frozenset((*_ROUTES, _CONVERSION))
"""Paths whose requests may contain a recording."""


def router(hub: SessionHub, limits: ApiLimits) -> Routes:
    """Build the routes over ``hub``."""
    routes = Routes(tag="CosyVoice")

    def add(
        path: str, kind: type[_CosyVoiceRequest | InferenceVcRequest], answer: Callable[[Request], Awaitable[Response]]
    ) -> None:
        name = path.strip("/").replace("/", "_")
        for method in ("GET", "POST") if path.startswith("/inference") else ("POST",):
            routes.add(
                path,
                answer,
                method=method,
                name=name,
                summary=(kind.__doc__ or "").partition("\n")[0].rstrip("."),
                operation_id=f"{name}_{method.lower()}",
                openapi_extra=kind.body,  # a GET in OpenAPI 3.1 may have one, too
            )

    def add_speech(path: str, kind: type[_CosyVoiceRequest]) -> None:
        async def speech(request: Request) -> Response:
            body = await read_body(request)
            fields = validate(kind, body.fields)
            if len(fields.text) > limits.max_input_chars:
                name = kind.model_fields["text"].alias or "text"
                raise TextTooLong(f"{name} may have at most {limits.max_input_chars} characters")
            text, instruct = split_instruction(fields.text, fields.value("instruct"))
            text, language = split_language(text)
            options = speech_options(await _voice(hub, fields, body), instruct, fields.value("speed", 1.0), language)
            return _response(hub, options, fields.model_copy(update={"text": text}), limits)

        add(path, kind, speech)

    for path, kind in _ROUTES.items():
        add_speech(path, kind)
    add(_CONVERSION, InferenceVcRequest, _conversion(hub, limits))

    @routes.post(_HEALTH, summary="As GET")
    @routes.get(_HEALTH, summary="Whether the worker accepts sessions")
    async def healthcheck() -> Response:
        return JSONResponse({"status": "healthy" if hub.ready else "unhealthy"}, 200 if hub.ready else 503)

    return routes


def _conversion(hub: SessionHub, limits: ApiLimits) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of voice conversions."""

    def converted_to(voice: str, speed: float, source: Source, upload: Upload | None = None) -> Response:
        speech = converted(hub, speech_options(voice, speed=speed), source, open_encoder(AudioFormat.PCM))
        return speech_stream(speech, _TYPES["pcm"], limits, rate_hz=SAMPLE_RATE_HZ, upload=upload)

    async def conversion(request: Request) -> Response:
        if (rate_hz := live_rate_hz(request)) is not None:
            live = validate(InferenceVcRequest, dict(request.query_params))
            if live.voice is None:
                raise InvalidRequest("spk_id is missing: live audio is converted to a stored voice")
            upload = Upload()
            return converted_to(live.voice, live.speed, LiveSource(upload.parts(), rate_hz), upload)
        body = await read_body(request, max_files=2, max_file_bytes=MAX_AUDIO_BYTES)
        fields = validate(InferenceVcRequest, body.fields)
        source = RecordedSource(body.recording(fields.source))
        voice = fields.voice
        if voice is None:
            voice = await hub.enroll(body.recording(fields.recording))
        return converted_to(voice, fields.speed, source)

    return conversion


async def _voice(hub: SessionHub, fields: _CosyVoiceRequest, body: Body) -> str | None:
    """Return the voice that the request names, or enroll that of its recording."""
    name = fields.recording
    if name is None or (fields.optional_recording and name not in body.files and name not in body.fields):
        voice: str | None = fields.value("voice")
        return voice
    return await hub.enroll(body.recording(name), fields.value("transcript", ""))


def _response(hub: SessionHub, options: SessionOptions, fields: _CosyVoiceRequest, limits: ApiLimits) -> Response:
    audio_format = fields.value("response_format", "pcm")
    headers: dict[str, str] = {}
    if fields.value("stream", True):
        body = download(hub, options, fields.text, open_encoder(AudioFormat(audio_format)), headers)
    else:
        body = whole_download(hub, options, fields.text, AudioFormat(audio_format), headers)
    return speech_stream(body, _TYPES[audio_format], limits, rate_hz=SAMPLE_RATE_HZ, headers=headers)
