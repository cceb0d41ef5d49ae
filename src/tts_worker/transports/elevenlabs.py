"""ElevenLabs' compatibility API: text-to-speech over ``multi-stream-input``, ``stream-input`` and HTTP, and the
lists of voices and models, so that its clients work with another base URL.

Source of the shapes: the vendor's public API reference, as its Python SDK, LiveKit's and pipecat's clients send and
read them. Owns field names, formats and what closing a context means; the contexts of a socket are ``contexts``' work.
Fields that mean nothing here (``model_id``, stability, chunk schedules, dictionaries, SSML) are accepted and ignored.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from fastapi import APIRouter, Request, WebSocket
from starlette.responses import JSONResponse, Response

from tts_worker.errors import ErrorInfo, InvalidRequest, TextTooLong, TTSWorkerError
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.session.session import LocalSession
from tts_worker.text.decoding import TextDecoder
from tts_worker.transports import elevenlabs_wire as vendor
from tts_worker.transports import voice_pages, wire
from tts_worker.transports.character_times import CharacterClock, CharacterTimes
from tts_worker.transports.context_socket import ContextSocket, Message, SocketLimits, SpeechContext
from tts_worker.transports.rendering import Rendering, download, failure, synthesize
from tts_worker.transports.responses import LiveStream
from tts_worker.types import Ended, Output, PcmFrame, Words

_SENTENCE_END = re.compile(r"""[.!?…]["')\]”’]*$""")


# -- one context ------------------------------------------------------------------------------------------------------


class _Speech:
    """The audio of a context as messages, with the times of its characters.

    ``by_sentence`` (``auto_mode``): a message is a whole sentence, so one that follows another without a space is not
    its continuation (pipecat sends them so).
    """

    def __init__(self, name: str, rendering: Rendering, clock: CharacterClock, *, by_sentence: bool) -> None:
        self.finished = False
        self.heard = False  # some of its sound was sent
        self.closing = False  # its writer is done
        self.bare_flush = False  # the last message was a flush without text
        self._id = {"contextId": name} if name else {}
        self._rendering = rendering
        self._clock = clock
        self._decoder = TextDecoder()
        self._by_sentence = by_sentence
        self._tail = ""  # of the text that was written

    def write(self, session: LocalSession, text: str, *, flush: bool) -> None:
        """Raises what ``speak`` raises."""
        if self._by_sentence and text[:1].isalnum() and _SENTENCE_END.search(self._tail):
            text = f" {text}"
        session.speak(text)
        self._tail = (self._tail + text)[-8:]
        self._clock.text += self._decoder.feed(text)
        if flush:
            session.flush()

    def end(self, session: LocalSession) -> None:
        session.end_text()

    def messages(self, item: Output) -> Iterator[Message]:
        if isinstance(item, PcmFrame):
            if data := self._rendering.process(item.pcm):
                yield self._audio(data)
        elif isinstance(item, Words):
            self._clock.add(item.words)
        elif isinstance(item, Ended):
            self.finished = True
            if (error := failure(item)) is not None:
                yield {**self._id, **vendor.error_fields(error)}
                return
            self._clock.finish()
            rest = self._rendering.finish()
            if rest or self._clock.has_times:
                yield self._audio(rest)
            yield self.final()

    def _audio(self, data: bytes) -> Message:
        self.heard = True
        times = self._clock.take()
        encoded = base64.b64encode(data).decode()
        return {**self._id, "audio": encoded, "isFinal": None, "alignment": times, "normalizedAlignment": times}

    def final(self) -> Message:
        return {**self._id, "audio": None, "isFinal": True}


# -- one connection ---------------------------------------------------------------------------------------------------


class _Conversation:
    """The dialect on one socket. ``single``: ``stream-input``, which is one context and ends with it."""

    def __init__(self, socket: ContextSocket, voice: str, query: vendor.Query, *, single: bool) -> None:
        self._socket = socket
        self._voice = voice
        self._query = query
        self._single = single
        socket.protocol = self

    def context_of(self, data: Message) -> str | None:
        """No name is a name too, once such a context is there."""
        if self._single:
            return vendor.ONLY if vendor.ONLY in self._socket.contexts else None
        name = data.get("context_id") or data.get("contextId") or vendor.ONLY
        return name if isinstance(name, str) and (name or vendor.ONLY in self._socket.contexts) else None

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        return {**({"contextId": context} if context else {}), **vendor.error_fields(error)}

    def handle_message(self, data: Message) -> None:
        message: vendor.Input = vendor.checked(vendor.INPUT, data)
        name = vendor.ONLY if self._single else message.name
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
        if context is not None and self._speech(context).closing:
            if self._single:
                return  # it has ended its text already
            self._socket.drop(name, "reopened")  # the same name is a new context, says the vendor
            context = None
        if context is None:
            if not text and not self._single:
                return  # keeps the connection alive, or flushes what is over
            context = self._open(name, message)
            if self._single:
                self._socket.finish()  # the connection ends with its context
            text = "" if text == " " else text  # that is how a context is opened
        speech = self._speech(context)
        flush = bool(message.flush)
        speech.bare_flush = flush and not text.strip()
        context.run_command(lambda session: speech.write(session, text, flush=flush))
        if self._single and not message.text and not flush:
            self._end(context)

    def _open(self, name: str, message: vendor.Input) -> SpeechContext:
        clock = CharacterClock(per_message=not self._query.sync_alignment)
        speech = _Speech(name, self._query.rendering(), clock, by_sentence=self._query.auto_mode)
        return self._socket.open(name, self._query.options(self._voice, message.voice_settings), speech)

    def _close_context(self, name: str) -> None:
        """One message means two things: the end of the text, and an interruption. What was flushed is still heard, says
        the vendor, so it is the end if a flush went before it; but LiveKit flushes every sentence and interrupts with
        the same message. Who is being heard and did not flush without text, or closes twice, interrupts."""
        context = self._socket.contexts.get(name)
        if context is None:
            return
        speech = self._speech(context)
        if speech.closing or (speech.heard and not speech.bare_flush):
            self._socket.drop(name, "interrupted")
            self._socket.reply(speech.final())
        else:
            self._end(context)

    def _close_socket(self) -> None:
        for context in self._socket.contexts.values():
            self._end(context)
        self._socket.finish()

    def _end(self, context: SpeechContext) -> None:
        speech = self._speech(context)
        if not speech.closing:
            speech.closing = True
            context.run_command(speech.end)

    @staticmethod
    def _speech(context: SpeechContext) -> _Speech:
        assert isinstance(context.encoder, _Speech)
        return context.encoder


# -- audio with times over HTTP ---------------------------------------------------------------------------------------


async def _timed_audio(
    hub: SessionHub, options: SessionOptions, text: str, rendering: Rendering
) -> AsyncGenerator[tuple[bytes, CharacterTimes | None], None]:
    """Encoded audio, each chunk with the characters that were not told before. Raises what ``synthesize`` raises."""
    clock = CharacterClock(per_message=False)
    decoder = TextDecoder()
    clock.text = decoder.feed(text) + decoder.end()
    async with aclosing(synthesize(hub, options, text)) as items:
        async for item in items:
            if isinstance(item, Words):
                clock.add(item.words)
            elif data := rendering.process(item.pcm):
                yield data, clock.take()
    clock.finish()
    data = rendering.finish()
    if data or clock.has_times:
        yield data, clock.take()


def _timed_fields(times: CharacterTimes | None) -> Message:
    alignment = vendor.alignment_in_seconds(times)
    return {"alignment": alignment, "normalized_alignment": alignment}


async def _as_lines(timed: AsyncGenerator[tuple[bytes, CharacterTimes | None], None]) -> AsyncGenerator[bytes, None]:
    """One JSON object a line for each chunk."""
    async with aclosing(timed):
        async for data, times in timed:
            line = {"audio_base64": base64.b64encode(data).decode(), **_timed_fields(times)}
            yield f"{wire.dumps(line)}\n".encode()


async def _as_document(timed: AsyncGenerator[tuple[bytes, CharacterTimes | None], None]) -> AsyncGenerator[bytes, None]:
    """One JSON object for all of it, written as the audio is made: only the times are kept until the end."""
    head = b'{"audio_base64":"'
    rest = b""
    whole: CharacterTimes = {"chars": [], "charStartTimesMs": [], "charDurationsMs": []}
    async with aclosing(timed):
        async for data, times in timed:
            if times is not None:
                whole["chars"] += times["chars"]
                whole["charStartTimesMs"] += times["charStartTimesMs"]
                whole["charDurationsMs"] += times["charDurationsMs"]
            rest += data
            if ready := len(rest) // 3 * 3:  # base64 has no padding in between
                yield head + base64.b64encode(rest[:ready])
                head = b""
                rest = rest[ready:]
    tail = wire.dumps(_timed_fields(whole if whole["chars"] else None))
    yield head + base64.b64encode(rest) + b'",' + tail[1:].encode()


# -- routes -----------------------------------------------------------------------------------------------------------


def voices_response(hub: SessionHub) -> Response:
    """``GET /v1/voices``."""
    return JSONResponse({"voices": [vendor.voice_json(voice) for voice in hub.voices]})


def voice_response(hub: SessionHub, name: str) -> Response:
    """``GET /v1/voices/{name}``. Raises UnknownVoice."""
    return JSONResponse(vendor.voice_json(hub.voices.get(name)))


def models_response(hub: SessionHub, *, max_input_chars: int) -> Response:
    """``GET /v1/models``."""
    return JSONResponse(vendor.models_json(hub.voices, max_input_chars=max_input_chars))


def prefixed_router(hub: SessionHub, limits: SocketLimits, *, prefix: str, max_input_chars: int) -> APIRouter:
    """All of the vendor's routes under ``prefix``, also those whose paths other APIs share."""
    routes = APIRouter(prefix=prefix, include_in_schema=False)
    routes.include_router(router(hub, limits, max_input_chars=max_input_chars))

    @routes.get("/v1/voices")
    async def voices() -> Response:
        return voices_response(hub)

    @routes.get("/v1/voices/{voice}")
    async def voice(voice: str) -> Response:
        return voice_response(hub, voice)

    @routes.get("/v1/models")
    async def models() -> Response:
        return models_response(hub, max_input_chars=max_input_chars)

    return routes


def router(hub: SessionHub, limits: SocketLimits, *, max_input_chars: int) -> APIRouter:
    """The routes over ``hub`` whose paths are the vendor's alone."""
    routes = APIRouter()
    speech_path = "/v1/text-to-speech/{voice}"

    async def converse(websocket: WebSocket, voice: str, *, single: bool) -> None:
        try:
            hub.voices.get(voice)  # unknown: 404 to the handshake
            query = vendor.query_of(websocket.query_params)
        except TTSWorkerError as error:
            await websocket.send_denial_response(vendor.error_response(error.info))
            return
        socket = ContextSocket(websocket, hub, limits)
        _Conversation(socket, voice, query, single=single)
        await socket.run()

    @routes.websocket(f"{speech_path}/multi-stream-input")
    async def multi_stream_input(websocket: WebSocket, voice: str) -> None:
        await converse(websocket, voice, single=False)

    @routes.websocket(f"{speech_path}/stream-input")
    async def stream_input(websocket: WebSocket, voice: str) -> None:
        await converse(websocket, voice, single=True)

    async def read(request: Request, voice: str) -> tuple[SessionOptions, str, Rendering]:
        query = vendor.query_of(request.query_params)
        body: vendor.Body = vendor.checked(vendor.BODY, wire.parse_object(await request.body(), "body"))
        if len(body.text) > max_input_chars:
            raise TextTooLong(f"text may have at most {max_input_chars} characters")
        query = query.model_copy(update=body.model_dump(include={"language_code", "seed"}, exclude_none=True))
        return query.options(voice, body.voice_settings), body.text, query.rendering()

    def streamed(chunks: AsyncGenerator[bytes, None], content_type: str) -> Response:
        headers = {"x-synthetic": "true"}
        timeout_s = limits.send_timeout_s
        return LiveStream(
            chunks, content_type, headers, send_timeout_s=timeout_s, make_error_response=vendor.error_response
        )

    @routes.post(speech_path, summary="Text to speech as ElevenLabs' clients ask for it, streamed")
    @routes.post(f"{speech_path}/stream", include_in_schema=False)
    async def speech(request: Request, voice: str) -> Response:
        try:
            options, text, rendering = await read(request, voice)
        except TTSWorkerError as error:
            return vendor.error_response(error.info)
        return streamed(download(hub, options, text, rendering), rendering.content_type)

    @routes.post(f"{speech_path}/with-timestamps", summary="The same in one JSON object, with times of characters")
    async def speech_with_times(request: Request, voice: str) -> Response:
        try:
            timed = _timed_audio(hub, *await read(request, voice))
        except TTSWorkerError as error:
            return vendor.error_response(error.info)
        return streamed(_as_document(timed), "application/json")

    @routes.post(f"{speech_path}/stream/with-timestamps", summary="The same as lines of JSON, streamed")
    async def stream_with_times(request: Request, voice: str) -> Response:
        try:
            timed = _timed_audio(hub, *await read(request, voice))
        except TTSWorkerError as error:
            return vendor.error_response(error.info)
        return streamed(_as_lines(timed), "application/x-ndjson")

    @routes.get("/v2/voices", summary="The voices as ElevenLabs' clients search them")
    async def search_voices(request: Request) -> Response:
        try:
            return JSONResponse(_found_voices(hub, vendor.voice_query_of(request.query_params)))
        except TTSWorkerError as error:
            return vendor.error_response(error.info)

    return routes


def _found_voices(hub: SessionHub, query: vendor.VoiceQuery) -> Message:
    voices = voice_pages.search(hub.voices, query.search)
    if query.voice_ids is not None:
        voices = [voice for voice in voices if voice.name in query.voice_ids]
    if query.sort == "name":
        voices.sort(key=lambda voice: voice.name)
    if query.sort_direction == "desc":
        voices.reverse()
    page = voice_pages.page(voices, limit=query.page_size, after=query.next_page_token)
    return {
        "voices": [vendor.voice_json(voice) for voice in page.voices],
        "has_more": page.has_more,
        "total_count": len(voices),
        "next_page_token": page.voices[-1].name if page.has_more else None,
    }
