"""vLLM-Omni's WebSocket for text that arrives in parts: ``/v1/audio/speech/stream``.

Message formats are those of vLLM-Omni 0.30. Its fields are those of ``POST /v1/audio/speech``, and a few more.
Audio with ``stream_audio`` begins at the first clause and not at ``input.done``: ``sentence_text`` is then the text so
far. A flush is always one sentence of the protocol: ``split_granularity`` has no effect.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Iterator
from typing import Literal

from starlette.websockets import WebSocket

from tts_worker.audio.encoders import AudioFormat, open_encoder, wav_file
from tts_worker.errors import ErrorCode, ErrorInfo, InvalidRequest
from tts_worker.features.compat import openai
from tts_worker.features.compat.context_socket import ContextSocket, Message, WireMessage
from tts_worker.features.compat.turns import Turn, TurnProtocol
from tts_worker.server.limits import ApiLimits
from tts_worker.server.routing import Routes
from tts_worker.server.validation import Fields, validate
from tts_worker.session.hub import SessionHub
from tts_worker.types import BYTES_PER_SAMPLE, SessionOptions

PATH = "/v1/audio/speech/stream"

_HARMLESS = (ErrorCode.INVALID_REQUEST, ErrorCode.TEXT_TOO_LONG, ErrorCode.UNKNOWN_VOICE, ErrorCode.UNKNOWN_MODEL)
"""Errors that leave a configured connection open."""


class SessionConfig(openai.SpeechRequest):
    """``session.config``: the first message, and between two flushes."""

    input: str = ""
    response_format: AudioFormat = AudioFormat.WAV
    speaker: str | None = None
    stream_audio: bool = False
    word_timestamps: bool = False

    @property
    def voice_name(self) -> str | None:
        return super().voice_name or self.speaker

    def check(self) -> None:
        """
        Raises:
            InvalidRequest: The fields do not fit each other.
        """
        if self.stream_audio and self.response_format is not AudioFormat.PCM:
            raise InvalidRequest("stream_audio: only response_format pcm is streamed")
        if self.word_timestamps and not self.stream_audio:
            raise InvalidRequest("word_timestamps: set stream_audio, too")


class Input(Fields):
    """Any other message."""

    type: Literal["session.config", "input.text", "input.done", "session.close"]
    text: str = ""


class _OmniProtocol(TurnProtocol):
    """The messages of one connection. ``input.done`` ends a turn; all of them have an answer, ``session.done``."""

    def __init__(self, socket: ContextSocket, hub: SessionHub) -> None:
        super().__init__(socket, SessionOptions(), lambda: open_encoder(AudioFormat.PCM))
        self._hub = hub
        self._config: SessionConfig | None = None
        self._flushes = 0  # that were answered
        self._chunks = 0  # messages with audio of the turn that is being spoken
        self._sent_bytes = 0  # of that turn
        self._unsent: list[bytes] = []

    def handle_message(self, data: Message) -> Awaitable[None] | None:
        message = validate(Input, data)
        if message.type == "session.config":
            if self.writing is not None:
                raise InvalidRequest("session.config: an utterance is in progress; send input.done first")
            return self._configure(validate(SessionConfig, data))
        if self._config is None:
            raise InvalidRequest("type: the first message must be session.config")
        if message.type == "input.text":
            if message.text.strip() or self.writing is not None:
                self.speak(message.text)
        elif message.type == "input.done":
            if self.flush() is None:
                self._socket.reply(self._done(0))
        else:
            self.stop()
            self._socket.finish()
        return None

    async def _configure(self, config: SessionConfig) -> None:
        config.check()
        rate_hz = config.sample_rate or config.response_format.default_rate_hz
        is_wav = config.response_format is AudioFormat.WAV
        encoded = AudioFormat.PCM if is_wav else config.response_format  # the header states the length
        open_encoder(encoded, rate_hz)
        enrolled = await openai.enroll_recording(config, self._hub)
        assert isinstance(enrolled, SessionConfig)
        voice = enrolled.voice_name
        options = openai.session_options(enrolled, self._hub, rate_hz, config.instructions)
        if options.voice is not None:
            await self._hub.library.look_up(voice)
            self._hub.voices.get(options.voice)
        await self.until_ended()
        self.open_encoder = lambda: open_encoder(encoded, rate_hz)
        self.options = options
        self._config = config

    @property
    def config(self) -> SessionConfig:
        assert self._config is not None, "turns begin after it"
        return self._config

    def started(self, turn: Turn) -> Iterator[Message]:
        self._chunks = self._sent_bytes = 0
        self._unsent.clear()  # of a turn that failed
        if self.config.stream_audio:
            yield self._start(turn)

    def audio(self, turn: Turn, data: bytes) -> Iterator[WireMessage]:
        self._sent_bytes += len(data)
        if not self.config.stream_audio:
            self._unsent.append(data)
        elif self.config.word_timestamps:
            yield self._chunk(turn, data, None)
        else:
            yield data

    def ended(self, turn: Turn) -> Iterator[WireMessage]:
        if self.config.word_timestamps:
            times = [
                {"word": word.text, "start_ms": self._ms(word.start_sample), "end_ms": self._ms(word.end_sample)}
                for report in turn.reports  # one: nothing changes the parameters of a turn
                for word in report.words
            ]
            yield self._chunk(turn, b"", times)
        if not self.config.stream_audio:
            data = b"".join(self._unsent)
            self._unsent.clear()
            yield self._start(turn)
            yield wav_file(data, self.rate_hz) if self.config.response_format is AudioFormat.WAV else data
        yield {"type": "audio.done", **self._place, "total_bytes": self._sent_bytes, "error": False}
        for flush in range(turn.flushes):
            yield self._done(int(flush == 0))

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        return {"type": "error", "message": error.message, "code": error.code.value}

    def is_fatal(self, error: ErrorInfo) -> bool:
        return self._config is None or error.code not in _HARMLESS

    @property
    def _place(self) -> Message:
        return {"utterance_index": self._flushes, "sentence_index": 0}

    def _start(self, turn: Turn) -> Message:
        more: Message = {"sample_rate": self.rate_hz} if self.config.stream_audio else {}
        if self.config.word_timestamps:
            more["word_timestamps"] = True
        audio_format = self.config.response_format.value
        return {"type": "audio.start", **self._place, "sentence_text": turn.text, "format": audio_format, **more}

    def _chunk(self, turn: Turn, data: bytes, times: list[Message] | None) -> Message:
        chunk = self._chunks
        self._chunks += 1
        start = turn.samples - len(data) // BYTES_PER_SAMPLE if data else 0
        return {
            "type": "audio.chunk",
            **self._place,
            "chunk_id": chunk,
            "chunk_start_ms": self._ms(start),
            "chunk_end_ms": self._ms(turn.samples),
            "sample_rate": self.rate_hz,
            "audio_b64": base64.b64encode(data).decode(),
            "timestamps": times,
        }

    def _done(self, sentences: int) -> Message:
        self._flushes += 1
        return {"type": "session.done", "utterance_index": self._flushes - 1, "total_sentences": sentences}

    def _ms(self, samples: int) -> int:
        return round(1_000 * samples / self.rate_hz)


def router(hub: SessionHub, limits: ApiLimits) -> Routes:
    """Return the WebSocket, one of OpenAI's API as vLLM-Omni extends it."""
    routes = Routes(tag="OpenAI")

    @routes.websocket(PATH, "Text to speech for vLLM-Omni clients")
    async def stream(websocket: WebSocket) -> None:
        await ContextSocket(websocket, hub, limits, lambda socket: _OmniProtocol(socket, hub)).run()

    return routes
