"""ElevenLabs-compatible API: ``multi-stream-input``, ``stream-input``, HTTP routes, voices and models.

Message formats follow the vendor's public API reference as its Python SDK, LiveKit and pipecat use it. Fields that have
no meaning here (``model_id``, stability, chunk schedules, SSML) are accepted and ignored.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from tts_worker.audio.decode import MAX_AUDIO_BYTES
from tts_worker.audio.encoders import Encoder, wav_file
from tts_worker.errors import ErrorInfo, InvalidRequest, TextTooLong, TTSWorkerError
from tts_worker.features.compat import cloning, dictionaries, voice_pages
from tts_worker.features.compat import elevenlabs_wire as vendor
from tts_worker.features.compat.character_times import CharacterClock, CharacterTimes
from tts_worker.features.compat.context_socket import ContextSocket, Message, SpeechContext, VendorProtocol
from tts_worker.protocol.json_codec import dumps, parse_object
from tts_worker.server.checksums import checksum_field, describe_checksums, wants_checksums
from tts_worker.server.limits import ApiLimits
from tts_worker.server.rendering import converted, download, failure, is_quiet_turn, quiet_turn, synthesize
from tts_worker.server.responses import speech_stream
from tts_worker.server.routing import Routes
from tts_worker.server.uploads import read_body
from tts_worker.server.validation import MULTIPART, query_parameters, request_body, upload_body, validate
from tts_worker.session.conversion import RecordedSource
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.text.decoding import TextDecoder
from tts_worker.types import SAMPLE_RATE_HZ, Ended, Output, PcmFrame, SessionOptions, Words

PREFIX = "/elevenlabs"
"""Prefix under which all routes are served, so a client needs no header to select this API."""

_SPEECH_PATH = "/v1/text-to-speech/{voice}"
CONVERSION_PATHS = ("/v1/voice-changer/", "/v1/speech-to-speech/")
"""Beginnings of the paths of voice conversion: the name of newer clients first."""

_UPLOADS = (*CONVERSION_PATHS, dictionaries.FILE_PATH)
UPLOAD_PATHS = frozenset((*_UPLOADS, *(f"{PREFIX}{path}" for path in _UPLOADS)))
"""Paths, and beginnings of paths, whose requests contain a file."""

_SENTENCE_END = re.compile(r"""[.!?…]["')\]”’]*$""")
_SENTENCE_START = re.compile(r"""(?:["']|[^\w\s"'.,;:!?…%)\]}”’»]\s*)*\w""")
"""The first word after signs that may open a sentence (``$``, ``(``, ``**``, a dash). A quote may end the one before,
so a word must follow it at once."""


# -- one context ------------------------------------------------------------------------------------------------------


class _ElevenLabsEncoder:
    """Writes the text of a context to its session and encodes the audio with character timestamps.

    Args:
        name: The context's name; empty for none.
        encoder: Encodes the audio.
        clock: Computes the character timestamps.
        by_sentence: Messages are whole sentences (``auto_mode``). They are separated by a space if the client does not
            send one, as pipecat does not.
        checksums: Add the SHA-256 of the audio to its messages.

    Attributes:
        finished: The last message was returned.
        audio_sent: Some audio was sent.
        text_complete: The text was ended.
        after_bare_flush: The last message was a flush without text.
    """

    def __init__(
        self, name: str, encoder: Encoder, clock: CharacterClock, *, by_sentence: bool, checksums: bool
    ) -> None:
        self.finished = False
        self.audio_sent = False
        self.text_complete = False
        self.after_bare_flush = False
        self._id = {"contextId": name} if name else {}
        self._encoder = encoder
        self._clock = clock
        self._decoder = TextDecoder()
        self._by_sentence = by_sentence
        self._checksums = checksums
        self._tail = ""  # end of the text written so far

    def write(self, session: LocalSession, text: str, *, flush: bool) -> None:
        """Write text to the session. Raises the errors of ``LocalSession.speak``."""
        if self._by_sentence and _SENTENCE_START.match(text) and _SENTENCE_END.search(self._tail):
            text = f" {text}"
        session.speak(text)
        self._tail = (self._tail + text)[-8:]
        self._clock.text += self._decoder.feed(text)
        if flush:
            session.flush()

    def end(self, session: LocalSession) -> None:
        """End the text."""
        session.end_text()
        self._clock.text += self._decoder.end()

    def messages(self, item: Output) -> Iterator[Message]:
        """Encode an output of the session."""
        match item:
            case PcmFrame():
                if data := self._encoder.encode(item.pcm):
                    yield self._audio(data)
            case Words():
                self._clock.add(item.words)
            case Ended():
                yield from self._ended(item)

    def _ended(self, ended: Ended) -> Iterator[Message]:
        self.finished = True
        if (error := failure(ended)) is not None:
            yield {**self._id, **vendor.error_fields(error)}
            return
        self._clock.finish()
        rest = self._encoder.encode(quiet_turn(self._clock.sample_rate_hz)) if is_quiet_turn(ended) else b""
        rest += self._encoder.finish()
        if rest or self._clock.has_times:
            yield self._audio(rest)
        yield self.final()

    def _audio(self, data: bytes) -> Message:
        self.audio_sent = True
        times = self._clock.take()
        encoded = base64.b64encode(data).decode()
        message = {**self._id, "audio": encoded, "isFinal": None, "alignment": times, "normalizedAlignment": times}
        return message | checksum_field(data, wanted=self._checksums)

    def final(self) -> Message:
        """Return the last message of the context."""
        return {**self._id, "audio": None, "isFinal": True}


# -- one connection ---------------------------------------------------------------------------------------------------


class _ElevenLabsProtocol(VendorProtocol):
    """The messages of one socket. ``single``: ``stream-input``, a connection with one unnamed context."""

    def __init__(
        self, socket: ContextSocket, voice: str, query: vendor.Query, *, single: bool, checksums: bool
    ) -> None:
        self._socket = socket
        self._checksums = checksums
        self._voice = voice
        self._query = query
        self._single = single

    def context_of(self, data: Message) -> str | None:
        """Return the named context; the unnamed one only if it is open."""
        if self._single:
            return vendor.UNNAMED if vendor.UNNAMED in self._socket.contexts else None
        name = data.get("context_id") or data.get("contextId") or vendor.UNNAMED
        return name if isinstance(name, str) and (name or vendor.UNNAMED in self._socket.contexts) else None

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        return {**({"contextId": context} if context else {}), **vendor.error_fields(error)}

    def handle_message(self, data: Message) -> None:
        message = validate(vendor.Input, data)
        name = vendor.UNNAMED if self._single else message.name
        if message.close_socket:
            self._close_socket()
        elif message.close_context:
            self._close_context(name)
        elif message.text is None and not message.flush:
            raise InvalidRequest("text: a message needs text, flush, close_context or close_socket")
        else:
            self._write(name, message)

    def _write(self, name: str, message: vendor.Input) -> None:
        text = message.text or ""
        self._socket.check_text(text)
        context = self._socket.contexts.get(name)
        if context is not None and self._encoder(context).text_complete:
            if self._single:
                return  # the text has already ended
            self._socket.drop(name, "reopened")  # per the vendor's reference a reused name is a new context
            context = None
        if context is None:
            # Text after the end of a connection's only context, and a keep-alive or a flush of one that has ended.
            if (self._single and self._socket.finishing) or (not self._single and not text):
                return
            context = self._open(name, message)
            if self._single:
                self._socket.finish()  # the connection ends with its context
            text = "" if text == " " else text  # a single space opens a context
        encoder = self._encoder(context)
        flush = bool(message.flush)
        encoder.after_bare_flush = flush and not text.strip()
        context.run_command(lambda session: encoder.write(session, text, flush=flush))
        if self._single and message.text == "":
            self._end(context)  # an empty text ends it, also one that flushes

    def _open(self, name: str, message: vendor.Input) -> SpeechContext:
        clock = CharacterClock(self._query.sample_rate_hz, per_message=not self._query.sync_alignment)
        encoder = _ElevenLabsEncoder(
            name, self._query.open_encoder(), clock, by_sentence=self._query.auto_mode, checksums=self._checksums
        )
        options = self._query.options(self._voice, message.voice_settings, message.pronunciation_dictionary_locators)
        return self._socket.open(name, options, encoder)

    def _close_context(self, name: str) -> None:
        """Handle ``close_context``, which means either the end of the text or an interruption.

        Per the vendor's reference flushed text is still spoken, so a close after a flush would be the end of the text.
        But LiveKit flushes every sentence and interrupts with the same message. A close is therefore an
        interruption if audio was sent and the last message was not a flush without text, or if it is the second one.
        """
        context = self._socket.contexts.get(name)
        if context is None:
            return
        encoder = self._encoder(context)
        if encoder.text_complete or (encoder.audio_sent and not encoder.after_bare_flush):
            self._socket.drop(name, "interrupted")
            self._socket.reply(encoder.final())
        else:
            self._end(context)

    def _close_socket(self) -> None:
        for context in self._socket.contexts.values():
            self._end(context)
        self._socket.finish()

    def _end(self, context: SpeechContext) -> None:
        encoder = self._encoder(context)
        if not encoder.text_complete:
            encoder.text_complete = True
            context.run_command(encoder.end)

    @staticmethod
    def _encoder(context: SpeechContext) -> _ElevenLabsEncoder:
        assert isinstance(context.encoder, _ElevenLabsEncoder)
        return context.encoder


# -- audio with timestamps over HTTP ----------------------------------------------------------------------------------


async def _timed_audio(
    hub: SessionHub, options: SessionOptions, text: str, encoder: Encoder, headers: dict[str, str]
) -> AsyncGenerator[tuple[bytes, CharacterTimes | None], None]:
    """Yield encoded audio, each chunk with the new character timestamps. The rest is as with ``synthesize``."""
    clock = CharacterClock(options.sample_rate or SAMPLE_RATE_HZ, per_message=False)
    decoder = TextDecoder()
    clock.text = decoder.feed(text) + decoder.end()
    async with aclosing(synthesize(hub, options, text, headers=headers, accepts_quiet_turn=True)) as items:
        async for item in items:
            if isinstance(item, Words):
                clock.add(item.words)
            elif data := encoder.encode(item.pcm):
                yield data, clock.take()
    clock.finish()
    data = encoder.finish()
    if data or clock.has_times:
        yield data, clock.take()


def _timed_fields(times: CharacterTimes | None) -> Message:
    alignment = vendor.alignment_in_seconds(times)
    return {"alignment": alignment, "normalized_alignment": alignment}


async def _as_lines(
    timed: AsyncGenerator[tuple[bytes, CharacterTimes | None], None], *, checksums: bool
) -> AsyncGenerator[bytes, None]:
    """Encode each chunk as one line of JSON."""
    async with aclosing(timed):
        async for data, times in timed:
            line = {"audio_base64": base64.b64encode(data).decode(), **_timed_fields(times)}
            line |= checksum_field(data, wanted=checksums)
            yield f"{dumps(line)}\n".encode()


async def _as_document(timed: AsyncGenerator[tuple[bytes, CharacterTimes | None], None]) -> AsyncGenerator[bytes, None]:
    """Encode the audio as one JSON object, streamed: only the timestamps are buffered until the end."""
    head = b'{"audio_base64":"'
    rest = b""
    all_times: CharacterTimes = {"chars": [], "charStartTimesMs": [], "charDurationsMs": []}
    async with aclosing(timed):
        async for data, times in timed:
            if times is not None:
                all_times["chars"] += times["chars"]
                all_times["charStartTimesMs"] += times["charStartTimesMs"]
                all_times["charDurationsMs"] += times["charDurationsMs"]
            rest += data
            if ready := len(rest) // 3 * 3:  # only whole groups of 3 bytes: base64 padding is allowed at the end only
                yield head + base64.b64encode(rest[:ready])
                head = b""
                rest = rest[ready:]
    tail = dumps(_timed_fields(all_times if all_times["chars"] else None))
    yield head + base64.b64encode(rest) + b'",' + tail[1:].encode()


# -- routes -----------------------------------------------------------------------------------------------------------


def voices_response(hub: SessionHub) -> Response:
    """Answer ``GET /v1/voices``."""
    return JSONResponse({"voices": [vendor.voice_json(voice) for voice in hub.voices]})


def voice_response(hub: SessionHub, name: str) -> Response:
    """Answer ``GET /v1/voices/{name}``.

    Raises:
        UnknownVoice: No voice has that name.
    """
    return JSONResponse(vendor.voice_json(hub.voices.get(name)))


def models_response(hub: SessionHub, limits: ApiLimits) -> Response:
    """Answer ``GET /v1/models``."""
    return JSONResponse(vendor.models_json(hub.voices, max_input_chars=limits.max_input_chars))


def _prefixed_router(hub: SessionHub, limits: ApiLimits) -> Routes:
    """Return all routes under ``PREFIX``, including the paths that other APIs share."""
    routes = Routes(prefix=PREFIX, include_in_schema=False, tag="ElevenLabs")
    _add_own_routes(routes, hub, limits)
    cloning.add_elevenlabs_delete(routes, hub)

    @routes.get("/v1/voices")
    async def voices() -> Response:
        await hub.library.refresh()
        return voices_response(hub)

    @routes.get("/v1/voices/{voice}")
    async def voice(voice: str) -> Response:
        return voice_response(hub, voice)

    @routes.get("/v1/models")
    async def models() -> Response:
        return models_response(hub, limits)

    return routes


def router(hub: SessionHub, limits: ApiLimits) -> Routes:
    """Return ElevenLabs' routes, without those on paths that other APIs share (see ``http``)."""
    routes = Routes(tag="ElevenLabs")
    _add_own_routes(routes, hub, limits)
    routes.include(_prefixed_router(hub, limits))
    return routes


def _add_own_routes(routes: Routes, hub: SessionHub, limits: ApiLimits) -> None:
    _add_sockets(routes, hub, limits)
    _add_voice_search(routes, hub)
    cloning.add_elevenlabs_routes(routes, hub)
    dictionaries.add_routes(routes, hub)
    _add_speech(routes, hub, limits)
    _add_conversion(routes, hub, limits)


def _describe_speech() -> dict[str, Any]:
    return {**request_body(vendor.Body), **query_parameters(vendor.Query, "output_format", "language_code", "seed")}


def _add_speech(routes: Routes, hub: SessionHub, limits: ApiLimits) -> None:
    async def read(request: Request, voice: str) -> tuple[SessionOptions, str, Encoder]:
        query = vendor.parse_query(request.query_params)
        body = validate(vendor.Body, parse_object(await request.body(), "body"))
        if len(body.text) > limits.max_input_chars:
            raise TextTooLong(f"text may have at most {limits.max_input_chars} characters")
        query = query.model_copy(update=body.model_dump(include={"language_code", "seed"}, exclude_none=True))
        options = query.options(voice, body.voice_settings, body.pronunciation_dictionary_locators)
        return dictionaries.only_stored(hub, options), body.text, query.open_encoder()

    @routes.post(
        _SPEECH_PATH, summary="Text to speech for ElevenLabs clients, streamed", openapi_extra=_describe_speech
    )
    @routes.post(f"{_SPEECH_PATH}/stream", summary="As the route without /stream", openapi_extra=_describe_speech)
    async def speech(request: Request, voice: str) -> Response:
        options, text, encoder = await read(request, voice)
        headers: dict[str, str] = {}
        audio = download(hub, options, text, encoder, headers)
        return speech_stream(audio, encoder.content_type, limits, headers=headers)

    @routes.post(
        f"{_SPEECH_PATH}/with-timestamps",
        summary="Text to speech as JSON, with character timestamps",
        openapi_extra=_describe_speech,
    )
    async def speech_with_times(request: Request, voice: str) -> Response:
        headers: dict[str, str] = {}
        audio = _timed_audio(hub, *await read(request, voice), headers)
        return speech_stream(_as_document(audio), "application/json", limits, headers=headers)

    @routes.post(
        f"{_SPEECH_PATH}/stream/with-timestamps",
        summary="Text to speech as JSON lines, streamed",
        openapi_extra=lambda: describe_checksums(_describe_speech()),
    )
    async def stream_with_times(request: Request, voice: str) -> Response:
        checksums = wants_checksums(request.query_params)
        headers: dict[str, str] = {}
        lines = _as_lines(_timed_audio(hub, *await read(request, voice), headers), checksums=checksums)
        return speech_stream(lines, "application/x-ndjson", limits, headers=headers)


def _add_conversion(routes: Routes, hub: SessionHub, limits: ApiLimits) -> None:
    async def convert(request: Request, voice: str) -> Response:
        query = vendor.parse_query(request.query_params)
        body = await read_body(request, max_file_bytes=MAX_AUDIO_BYTES)
        form = validate(vendor.ConversionForm, body.fields)
        if form.seed is not None:
            query = query.model_copy(update={"seed": form.seed})
        audio = body.recording("audio")
        if form.file_format == vendor.RAW_PCM:
            audio = wav_file(audio[: len(audio) // 2 * 2], vendor.RAW_PCM_RATE_HZ)
        encoder = query.open_encoder()
        options = replace(query.options(voice, form.settings()), language=None)
        return speech_stream(converted(hub, options, RecordedSource(audio), encoder), encoder.content_type, limits)

    def describe() -> dict[str, Any]:
        body = upload_body(vendor.ConversionForm, (MULTIPART,), {"audio": "The speech to convert"})
        return {**body, **query_parameters(vendor.Query, "output_format")}

    for path in CONVERSION_PATHS:
        for suffix in ("{voice}", "{voice}/stream"):
            routes.add(
                f"{path}{suffix}",
                convert,
                method="POST",
                summary="Voice conversion for ElevenLabs clients, streamed",
                openapi_extra=describe,
            )


def _add_sockets(routes: Routes, hub: SessionHub, limits: ApiLimits) -> None:
    async def serve_socket(websocket: WebSocket, voice: str, *, single: bool) -> None:
        try:
            hub.voices.get(voice)  # an unknown voice rejects the handshake with 404
            query = vendor.parse_query(websocket.query_params)
            checksums = wants_checksums(websocket.query_params)
        except TTSWorkerError as error:
            await websocket.send_denial_response(vendor.error_response(error.info))
            return
        make_protocol = partial(_ElevenLabsProtocol, voice=voice, query=query, single=single, checksums=checksums)
        await ContextSocket(websocket, hub, limits, make_protocol).run()

    @routes.websocket(f"{_SPEECH_PATH}/multi-stream-input", "Text to speech for ElevenLabs clients, several contexts")
    async def multi_stream_input(websocket: WebSocket, voice: str) -> None:
        await serve_socket(websocket, voice, single=False)

    @routes.websocket(f"{_SPEECH_PATH}/stream-input", "Text to speech for ElevenLabs clients, one context")
    async def stream_input(websocket: WebSocket, voice: str) -> None:
        await serve_socket(websocket, voice, single=True)


def _add_voice_search(routes: Routes, hub: SessionHub) -> None:
    @routes.get(
        "/v2/voices",
        summary="Search the voices for ElevenLabs clients",
        openapi_extra=partial(query_parameters, vendor.VoiceQuery),
    )
    async def search_voices(request: Request) -> Response:
        await hub.library.refresh()
        return JSONResponse(_matching_voices(hub, vendor.parse_voice_query(request.query_params)))


def _matching_voices(hub: SessionHub, query: vendor.VoiceQuery) -> Message:
    voices = voice_pages.search(hub.voices, query.search)
    if query.voice_ids is not None:
        voices = [voice for voice in voices if voice.name in query.voice_ids]
    if query.sort == "name":
        voices.sort(key=lambda voice: voice.name)
    if query.sort_direction == "desc":
        voices.reverse()
    page = voice_pages.page(voices, limit=query.page_size, after=query.next_page_token)
    return {
        "voices": [vendor.voice_json(voice) for voice in page.items],
        "has_more": page.has_more,
        "total_count": len(voices),
        "next_page_token": page.items[-1].name if page.has_more else None,
    }
