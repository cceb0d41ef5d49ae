"""OpenAI-compatible API: ``POST /v1/audio/speech``. ``server.models`` answers ``GET /v1/models`` in its format.

Message formats follow OpenAI's public API reference as its Python SDK uses it. Unknown fields are ignored. Extensions:
``seed``, ``language``, ``lexicon``, ``sample_rate``, ``stream`` (false: the audio is complete before it is sent, and a
WAV file states its length), ``ref_audio`` with ``ref_text`` (the voice of a recording, as vLLM-Omni and SGLang-Omni
have it).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, FiniteFloat
from starlette.requests import Request
from starlette.responses import Response

from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.errors import ErrorCode, InvalidRequest, TextTooLong, TTSWorkerError
from tts_worker.features.compat import cloning
from tts_worker.features.compat.vendor_requests import SPEED_HEADER, whole_download, within_speeds
from tts_worker.features.compat.voice_names import own_voice, stand_in
from tts_worker.front_end.instruction import split_instruction
from tts_worker.protocol.json_codec import parse_object
from tts_worker.protocol.messages import error_fields
from tts_worker.server.checksums import checksum_field, describe_checksums, wants_checksums
from tts_worker.server.limits import ApiLimits
from tts_worker.server.models import engine_names, unknown_model
from tts_worker.server.rendering import download
from tts_worker.server.responses import speech_stream
from tts_worker.server.routing import Routes
from tts_worker.server.uploads import Body
from tts_worker.server.validation import Fields, request_body, validate
from tts_worker.session.hub import SessionHub
from tts_worker.text.language import language_of
from tts_worker.types import SessionOptions
from tts_worker.voices.routing import VoiceRequest

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "kokoro")
"""Model names that OpenAI's clients send by default, also with a date (``gpt-4o-mini-tts-2025-12-15``, ``tts-1-1106``),
and those of Kokoro-FastAPI. They select nothing: the voice determines the engine."""
_DATE = re.compile(r"-(\d{4}|\d{4}-\d{2}-\d{2})$")
_SPEEDS = (0.25, 4.0)
"""Range of the vendor, wider than that of most voices here."""

OPENAI_VOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "alloy": ("af_alloy", "af_sarah"),
        "ash": ("am_fenrir", "am_michael"),
        "ballad": ("bm_fable", "bm_george", "am_michael"),
        "cedar": ("am_liam", "am_michael"),
        "coral": ("af_river", "heart"),
        "echo": ("am_echo", "am_michael"),
        "fable": ("bm_fable", "bm_george", "am_michael"),
        "marin": ("heart",),
        "nova": ("af_nova", "heart"),
        "onyx": ("am_onyx", "am_michael"),
        "sage": ("bf_isabella", "bf_emma"),
        "shimmer": ("bf_emma",),
        "verse": ("bm_daniel", "am_michael"),
    }
)
"""Voice names that OpenAI's clients send, some of them no others: voices of the CPU engine that stand in for them.

The default voice speaks where none of these is installed, or another engine speaks. A voice or alias of such a name
goes first.
"""

SPEECH_PATH = "/v1/audio/speech"

BAD_REQUEST = frozenset({ErrorCode.TEXT_TOO_LONG, ErrorCode.UNSPEAKABLE_TEXT})
"""Errors answered with 400, as OpenAI does: its SDKs raise BadRequestError for 400 only."""


class VoiceId(Fields):
    """A voice named by an object."""

    id: str


class SpeechRequest(Fields):
    """Body of ``POST /v1/audio/speech``."""

    model: str = Field("tts-1", max_length=128)
    input: str
    voice: str | VoiceId | None = None
    response_format: AudioFormat = AudioFormat.MP3
    speed: FiniteFloat = Field(1.0, ge=_SPEEDS[0], le=_SPEEDS[1])
    instructions: str | None = Field(None, max_length=4_096)
    stream: bool = True
    stream_format: Literal["audio", "sse"] = "audio"
    seed: int = 0
    language: str | None = Field(None, max_length=35)
    lexicon: dict[str, Any] | str | None = None
    sample_rate: int | None = Field(None, ge=8_000, le=48_000)
    ref_audio: str | None = None
    ref_text: str = ""

    @property
    def voice_name(self) -> str | None:
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice


def router(hub: SessionHub, limits: ApiLimits) -> Routes:
    """Return OpenAI's routes."""
    routes = Routes(tag="OpenAI")
    cloning.add_openai_routes(routes, hub)

    @routes.post(
        SPEECH_PATH,
        summary="Text to speech, streamed",
        openapi_extra=lambda: describe_checksums(request_body(SpeechRequest)),
    )
    async def speech(request: Request) -> Response:
        data = parse_object(await request.body(), "body")
        speech_request = validate(SpeechRequest, data)
        if len(speech_request.input) > limits.max_input_chars:
            raise TextTooLong(f"input may have at most {limits.max_input_chars} characters")
        text, instruct = split_instruction(speech_request.input, speech_request.instructions)
        rate_hz = speech_request.sample_rate or speech_request.response_format.default_rate_hz
        checksums = wants_checksums(request.query_params)
        encoder = open_encoder(speech_request.response_format, rate_hz)
        speech_request = await enroll_recording(speech_request, hub)  # takes long: after the cheap checks
        options = session_options(speech_request, hub, rate_hz, instruct)
        headers = {} if options.speed == speech_request.speed else {SPEED_HEADER: f"{options.speed:g}"}
        if speech_request.stream:
            audio = download(hub, options, text, encoder, headers)
        else:
            audio = whole_download(hub, options, text, speech_request.response_format, headers)
        use_sse = speech_request.stream_format == "sse"
        return speech_stream(
            _as_events(audio, speech_request, checksums=checksums) if use_sse else audio,
            "text/event-stream" if use_sse else encoder.content_type,
            limits,
            rate_hz=rate_hz,
            headers=headers,
        )

    return routes


async def enroll_recording(request: SpeechRequest, hub: SessionHub) -> SpeechRequest:
    """Replace the voice by that of the recording in the request, if there is one. Raises as ``SessionHub.enroll``."""
    if request.ref_audio is None:
        if request.ref_text:
            raise InvalidRequest("ref_text is the transcript of ref_audio, which is missing")
        return request
    voice = await hub.enroll(Body({"ref_audio": request.ref_audio}).recording("ref_audio"), request.ref_text)
    return request.model_copy(update={"voice": voice})


def _engine(name: str, hub: SessionHub) -> str | None:
    """Return the engine that a request names as its model; None for the models of the vendor.

    Raises:
        UnknownModel: It names neither.
    """
    if _DATE.sub("", name) in OPENAI_MODELS:
        return None
    engines = engine_names(hub)
    if name not in engines:
        raise unknown_model(name, (*engines, *OPENAI_MODELS))
    return name


def session_options(request: SpeechRequest, hub: SessionHub, rate_hz: int, instruct: str | None) -> SessionOptions:
    """Convert to session options, the speed within the range of the voice. Raises UnknownModel."""
    model = _engine(request.model, hub)
    voice = own_voice(hub, request.voice_name, OPENAI_VOICES.__contains__)
    if voice is None and (preferred := OPENAI_VOICES.get(request.voice_name or "")):
        tags = [tag for each in hub.voices for tag in each.languages]
        language = request.language or language_of(request.input, tags)
        voice = stand_in(hub, preferred, VoiceRequest(None, language, model))
    options = SessionOptions(
        voice=voice,
        model=model,
        instruct=instruct,
        speed=request.speed,
        seed=request.seed,
        language=request.language,
        lexicon=request.lexicon,
        realtime=False,
        raw_chunks=True,
        sample_rate=rate_hz,
    )
    return within_speeds(hub, options)


async def _as_events(
    audio: AsyncGenerator[bytes, None], request: SpeechRequest, *, checksums: bool
) -> AsyncGenerator[bytes, None]:
    """Encode audio for ``stream_format: "sse"``. Usage counts characters as input and encoded bytes as output."""
    input_chars = len(request.input)
    sent_bytes = 0
    try:
        async for data in audio:
            sent_bytes += len(data)
            event = {"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}
            yield _event({**event, **checksum_field(data, wanted=checksums)})
        usage = {"input_tokens": input_chars, "output_tokens": sent_bytes, "total_tokens": input_chars + sent_bytes}
        yield _event({"type": "speech.audio.done", "usage": usage})
    except TTSWorkerError as error:
        if sent_bytes == 0:
            raise  # nothing was sent yet: becomes an error response
        yield _event({"type": "error", "error": error_fields(error.info)})
    finally:
        await audio.aclose()


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
