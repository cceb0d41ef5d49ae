"""``POST /v1/audio/conversions``: the speech of a recording in another voice, streamed."""

from __future__ import annotations

from functools import partial

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from tts_worker.audio.decode import MAX_AUDIO_BYTES
from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.server.application import Application
from tts_worker.server.rendering import converted
from tts_worker.server.responses import Upload, speech_stream
from tts_worker.server.uploads import live_rate_hz, read_body
from tts_worker.server.validation import MULTIPART, Fields, upload_body, validate
from tts_worker.session.conversion import LiveSource, RecordedSource, Source
from tts_worker.types import SessionOptions

PATH = "/v1/audio/conversions"
SOURCE_FIELD = "audio"


class ConversionRequest(Fields):
    """Body of ``POST /v1/audio/conversions``, besides the recording."""

    voice: str | None = Field(None, max_length=128)
    model: str | None = Field(None, max_length=128)
    response_format: AudioFormat = AudioFormat.MP3
    speed: float = 1.0
    seed: int = 0
    sample_rate: int | None = Field(None, ge=8_000, le=48_000)
    realtime: bool = False
    """Schedule it as a call and send at playback pace."""

    def options(self) -> SessionOptions:
        """Return the options of its session."""
        return SessionOptions(
            voice=self.voice or None,
            model=self.model or None,
            speed=self.speed,
            seed=self.seed,
            realtime=self.realtime,
            raw_chunks=not self.realtime,
            sample_rate=self.sample_rate_hz,
        )

    @property
    def sample_rate_hz(self) -> int:
        return self.sample_rate or self.response_format.default_rate_hz


_BODY = partial(
    upload_body,
    ConversionRequest,
    (MULTIPART, "application/json"),
    {SOURCE_FIELD: "The speech to convert"},
    live=True,
)


def add_routes(app: Application) -> None:
    """Add the route."""
    app.paths.uploads.add(PATH)

    def answer(conversion: ConversionRequest, source: Source, upload: Upload | None = None) -> Response:
        encoder = open_encoder(conversion.response_format, conversion.sample_rate_hz)
        speech = converted(app.hub, conversion.options(), source, encoder)
        return speech_stream(speech, encoder.content_type, app.limits, rate_hz=conversion.sample_rate_hz, upload=upload)

    @app.routes.post(
        PATH,
        summary="The speech of a recording in another voice, streamed",
        description="A body of the type `audio/pcm;rate=16000` (mono s16le; the fields are in the URL) is converted "
        "while it arrives.",
        openapi_extra=_BODY,
    )
    async def convert(request: Request) -> Response:
        if (rate_hz := live_rate_hz(request)) is not None:
            upload = Upload()
            live = validate(ConversionRequest, dict(request.query_params))
            return answer(live, LiveSource(upload.parts(), rate_hz), upload)
        body = await read_body(request, max_file_bytes=MAX_AUDIO_BYTES)
        conversion = validate(ConversionRequest, body.without(SOURCE_FIELD))
        return answer(conversion, RecordedSource(body.only_recording(SOURCE_FIELD)))
