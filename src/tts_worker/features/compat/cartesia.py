"""Cartesia-compatible API: ``/tts/websocket``, ``POST /tts/bytes``, ``POST /tts/sse`` and the voices.

Message formats follow Cartesia's public API reference as its Python SDK, LiveKit and pipecat use it. Fields that have
no meaning here (``model_id``) are accepted and ignored.

A context is one session. A flush ends an utterance and later text starts the next one, so ``flush_done`` follows
exactly after the audio it refers to.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from tts_worker.errors import ErrorInfo, InvalidRequest, TextTooLong, TTSWorkerError
from tts_worker.features.compat import cartesia_dictionaries, cloning, dictionaries, voice_pages
from tts_worker.features.compat import cartesia_wire as vendor
from tts_worker.features.compat.context_socket import ContextSocket, Message, SpeechContext, VendorProtocol
from tts_worker.protocol.json_codec import dumps, parse_object
from tts_worker.server.checksums import checksum_field, describe_checksums, wants_checksums
from tts_worker.server.limits import ApiLimits
from tts_worker.server.rendering import download, failure, is_quiet_turn, quiet_turn, synthesize
from tts_worker.server.responses import speech_stream
from tts_worker.server.routing import Routes
from tts_worker.server.validation import query_parameters, request_body, validate
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.types import NEUTRAL, Ended, Output, PcmFrame, UtteranceKey, Words

_MAX_UTTERANCES = 8
"""Queued utterances of one context. A flush beyond that ends none yet: text that follows joins the last one."""

_MAX_CANCELLED = 256
"""Cancelled contexts to remember, so text sent before the client's cancel does not reopen them."""


_BODY = partial(request_body, vendor.GenerationRequest)


# -- one context ------------------------------------------------------------------------------------------------------


class _CartesiaEncoder:
    """Writes the text of a context to its session and encodes the audio and events as messages."""

    def __init__(self, name: str | None, output_format: vendor.Format, *, timestamps: bool, checksums: bool) -> None:
        self.finished = False
        self._name = name
        self._encoder = output_format.open_encoder()
        self._sample_rate_hz = output_format.sample_rate
        self._timestamps = timestamps
        self._checksums = checksums
        self._utterances: deque[UtteranceKey] = deque()  # not yet ended
        self._complete: set[UtteranceKey] = set()  # utterances whose text is complete
        self._flushes: dict[UtteranceKey, int] = {}  # number of flushes to answer when the utterance ends
        self._due: tuple[LocalSession, UtteranceKey] | None = None  # ends as soon as fewer are queued
        self._flush_id = 0
        self._ended_samples = 0  # audio of the utterances that have ended
        self._last: UtteranceKey | None = None

    def write(self, session: LocalSession, text: str, *, flush: bool, speak_now: bool, end: bool) -> None:
        """Write text to the session. Raises the errors of ``LocalSession.speak``.

        Args:
            session: The session of the context.
            text: Text to append.
            flush: End the utterance and answer with ``flush_done``.
            speak_now: Speak the text so far without ending the utterance.
            end: End the context.
        """
        key = self._speak(session, text)
        if text:
            self._last = None  # it may follow an end whose ``done`` was not sent yet
        if text or end:
            self._due = None
        if end:
            self._last = key
            self._end(session, key)
        elif flush:
            self._flushes[key] = self._flushes.get(key, 0) + 1
            if len(self._utterances) <= _MAX_UTTERANCES:
                self._end_flushed(session, key)
            else:
                session.flush()
                self._due = session, key
        elif speak_now:
            session.flush()

    def _speak(self, session: LocalSession, text: str) -> UtteranceKey:
        key = session.speak(text)
        if key not in self._utterances:
            self._utterances.append(key)
        return key

    def _end_flushed(self, session: LocalSession, key: UtteranceKey) -> None:
        self._end(session, key)
        self._speak(session, "")  # starts the next utterance: the idle timeout applies to open utterances

    def _end(self, session: LocalSession, key: UtteranceKey) -> None:
        session.end_text()
        self._complete.add(key)

    def messages(self, item: Output) -> Iterator[Message]:
        if isinstance(item, PcmFrame):
            yield from self._chunk(self._encoder.encode(item.pcm), item.meta.wall_ms)
        elif isinstance(item, Words) and self._timestamps:
            yield self._message("timestamps", word_timestamps=self._times(item))
        elif isinstance(item, Ended):
            yield from self._ended(item)

    def _ended(self, ended: Ended) -> Iterator[Message]:
        self._utterances.popleft()
        if self._due is not None:
            session, key = self._due
            self._due = None
            if session.writing == key:  # the idle timeout may have ended it
                self._end_flushed(session, key)
        self._ended_samples += ended.receipt.samples_sent
        if (error := failure(ended)) is not None:
            self.finished = True
            yield vendor.error_message(error, self._name)
            return
        if is_quiet_turn(ended):
            yield from self._chunk(self._encoder.encode(quiet_turn(self._sample_rate_hz)), 0.0)
        is_last = ended.key == self._last or ended.key not in self._complete  # incomplete: ended by the idle timeout
        self._complete.discard(ended.key)
        if is_last:
            yield from self._rest()
        for _ in range(self._flushes.pop(ended.key, 0)):
            self._flush_id += 1
            yield self._message("flush_done", flush_done=True, flush_id=self._flush_id)
        if is_last:
            self.finished = True
            yield self._done()

    def end(self) -> Iterator[Message]:
        """Return the last messages of a single text that was not written with ``write``."""
        yield from self._rest()
        yield self._done()

    def _rest(self) -> Iterator[Message]:
        return self._chunk(self._encoder.finish(), 0.0)

    def _done(self) -> Message:
        return self._message("done", done=True)

    def _chunk(self, data: bytes, step_ms: float) -> Iterator[Message]:
        if data:
            encoded = base64.b64encode(data).decode()
            fields: Message = {"data": encoded, "step_time": round(step_ms, 3), "flush_id": self._flush_id + 1}
            yield self._message("chunk", **fields, **checksum_field(data, wanted=self._checksums))

    def _times(self, item: Words) -> dict[str, list[str] | list[float]]:
        def seconds(sample: int) -> float:
            return round((self._ended_samples + sample) / self._sample_rate_hz, 4)

        return {
            "words": [word.text for word in item.words],
            "start": [seconds(word.start_sample) for word in item.words],
            "end": [seconds(word.end_sample) for word in item.words],
        }

    def _message(self, kind: str, *, done: bool = False, **fields: Any) -> Message:
        return {"type": kind, "context_id": self._name, "status_code": 200 if done else 206, "done": done, **fields}


# -- one connection ---------------------------------------------------------------------------------------------------


class _CartesiaProtocol(VendorProtocol):
    """The messages of one socket."""

    def __init__(self, socket: ContextSocket, *, checksums: bool) -> None:
        self._socket = socket
        self._checksums = checksums
        self._cancelled: dict[str, None] = {}  # ordered, oldest first

    def context_of(self, data: Message) -> str | None:
        name = data.get("context_id")
        return name if isinstance(name, str) else None

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        return vendor.error_message(error, context)

    def handle_message(self, data: Message) -> None:
        if data.get("cancel"):
            self._cancel(validate(vendor.Cancel, data).context_id)
            return
        message = validate(vendor.Continuation, data)
        self._socket.check_text(message.transcript)
        if message.context_id in self._cancelled:
            return
        context = self._socket.contexts.get(message.context_id)
        if context is None:
            context = self._open(message, validate(vendor.GenerationRequest, data))
        encoder = context.encoder
        assert isinstance(encoder, _CartesiaEncoder)
        context.run_command(
            lambda session: encoder.write(
                session,
                message.transcript,
                flush=bool(message.flush),
                speak_now=message.max_buffer_delay_ms == 0,
                end=not (message.flush if message.more is None else message.more),
            )
        )

    def _open(self, message: vendor.Continuation, generation: vendor.GenerationRequest) -> SpeechContext:
        if generation.output_format.container != "raw":
            raise InvalidRequest("output_format.container: a socket supports raw audio only")
        encoder = _CartesiaEncoder(
            message.context_id,
            generation.output_format,
            timestamps=bool(message.add_timestamps),
            checksums=self._checksums,
        )
        context = self._socket.open(message.context_id, generation.options(), encoder)
        if generation.expression != NEUTRAL:
            context.run_command(lambda session: session.express(generation.expression))
        return context

    def _cancel(self, name: str) -> None:
        """Cancel a context. Nothing more is sent of it, not even ``done``, as the vendor specifies."""
        self._cancelled[name] = None
        if len(self._cancelled) > _MAX_CANCELLED:
            del self._cancelled[next(iter(self._cancelled))]
        self._socket.drop(name, "cancelled")


# -- server-sent events -----------------------------------------------------------------------------------------------


async def _events(
    hub: SessionHub, generation: vendor.GenerationRequest, encoder: _CartesiaEncoder, headers: dict[str, str]
) -> AsyncGenerator[bytes, None]:
    """Yield the messages of one text as events. An error after the first event is the last event.

    ``headers`` are as of ``synthesize``.

    Raises:
        TTSWorkerError: An error of ``synthesize`` before the first event.
    """
    has_sent = False
    try:
        options = dictionaries.only_stored(hub, generation.options())
        async with aclosing(
            synthesize(
                hub,
                options,
                generation.transcript,
                headers=headers,
                accepts_quiet_turn=True,
                expression=generation.expression,
            )
        ) as items:
            async for item in items:
                for message in encoder.messages(item):
                    has_sent = True
                    yield _event(message)
        for message in encoder.end():
            yield _event(message)
    except TTSWorkerError as error:
        if not has_sent:
            raise
        yield _event(vendor.error_message(error.info, generation.context_id))


def _event(message: Message) -> bytes:
    return f"event: {message['type']}\ndata: {dumps(message)}\n\n".encode()


# -- routes -----------------------------------------------------------------------------------------------------------


def router(hub: SessionHub, limits: ApiLimits) -> Routes:
    """Return Cartesia's routes."""
    routes = Routes(tag="Cartesia")

    @routes.websocket("/tts/websocket", "Text to speech for Cartesia clients")
    async def contexts(websocket: WebSocket) -> None:
        try:
            checksums = wants_checksums(websocket.query_params)
        except InvalidRequest as error:
            await websocket.send_denial_response(vendor.error_response(error.info))
            return
        await ContextSocket(websocket, hub, limits, partial(_CartesiaProtocol, checksums=checksums)).run()

    _add_speech_routes(routes, hub, limits)
    _add_voice_routes(routes, hub)
    cartesia_dictionaries.add_routes(routes, hub)
    return routes


def _add_speech_routes(routes: Routes, hub: SessionHub, limits: ApiLimits) -> None:
    async def read(request: Request) -> vendor.GenerationRequest:
        body = parse_object(await request.body(), "body")
        generation = validate(vendor.GenerationRequest, body)
        if len(generation.transcript) > limits.max_input_chars:
            raise TextTooLong(f"transcript may have at most {limits.max_input_chars} characters")
        return generation

    @routes.post("/tts/bytes", summary="Text to speech for Cartesia clients, streamed", openapi_extra=_BODY)
    async def speech(request: Request) -> Response:
        generation = await read(request)
        encoder = generation.output_format.open_encoder()
        headers: dict[str, str] = {}
        options = dictionaries.only_stored(hub, generation.options())
        audio = download(hub, options, generation.transcript, encoder, headers, generation.expression)
        rate_hz = generation.output_format.sample_rate
        return speech_stream(audio, encoder.content_type, limits, rate_hz=rate_hz, headers=headers)

    @routes.post(
        "/tts/sse",
        summary="Text to speech as server-sent events, with word timestamps",
        openapi_extra=lambda: describe_checksums(_BODY()),
    )
    async def events(request: Request) -> Response:
        generation = await read(request)
        if generation.output_format.container != "raw":
            raise InvalidRequest("output_format.container: events support raw audio only")
        encoder = _CartesiaEncoder(
            generation.context_id,
            generation.output_format,
            timestamps=bool(generation.add_timestamps),
            checksums=wants_checksums(request.query_params),
        )
        headers: dict[str, str] = {}
        return speech_stream(_events(hub, generation, encoder, headers), "text/event-stream", limits, headers=headers)


def _add_voice_routes(routes: Routes, hub: SessionHub) -> None:
    @routes.get(
        "/voices",
        summary="List the voices for Cartesia clients",
        openapi_extra=partial(query_parameters, vendor.VoiceQuery),
    )
    async def voices(request: Request) -> Response:
        await hub.library.refresh()
        return JSONResponse(_listed_voices(hub, validate(vendor.VoiceQuery, dict(request.query_params))))

    cloning.add_cartesia_routes(routes, hub)

    @routes.get("/voices/{voice}", summary="Describe a voice for Cartesia clients")
    async def voice(voice: str) -> Response:
        return JSONResponse(vendor.voice_json(hub.voices.get(voice)))


def _listed_voices(hub: SessionHub, query: vendor.VoiceQuery) -> Message:
    voices = [] if query.is_owner else voice_pages.search(hub.voices, query.q)
    if query.gender is not None:
        voices = [voice for voice in voices if vendor.gender_of(voice) == query.gender]
    page = voice_pages.page(voices, limit=query.limit, after=query.starting_after, before=query.ending_before)
    return {"data": [vendor.voice_json(voice) for voice in page.items], "has_more": page.has_more}
