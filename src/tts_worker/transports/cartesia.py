"""Cartesia's compatibility API: ``/tts/websocket``, ``POST /tts/bytes`` and ``/tts/sse``, and the voices, so that its
clients work with another base URL.

Source of the shapes: Cartesia's public API reference, as its Python SDK, LiveKit's and pipecat's clients send and read
them. Owns field names, formats and the order of messages; the contexts of a socket are ``contexts``' work. Fields that
mean nothing here (``model_id``, emotion, volume, pronunciation dictionaries) are accepted and ignored.

A context is one session. A flush ends an utterance of it and the text that follows begins the next one, so that
``flush_done`` comes exactly behind the sound it is about.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, WebSocket
from starlette.responses import JSONResponse, Response

from tts_worker.errors import ErrorInfo, InvalidRequest, TextTooLong, TTSWorkerError
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.transports import cartesia_wire as vendor
from tts_worker.transports import voice_pages, wire
from tts_worker.transports.context_socket import ContextSocket, Message, SocketLimits, SpeechContext
from tts_worker.transports.rendering import Rendering, download, failure, synthesize
from tts_worker.transports.responses import LiveStream
from tts_worker.types import SAMPLE_RATE_HZ, Ended, Output, PcmFrame, UtteranceKey, Words

_MAX_UTTERANCES = 8
"""Utterances of one context that may wait; flushes beyond that are answered together."""

_MAX_CANCELLED = 256
"""Cancelled contexts that are remembered, so that text which crossed the cancel on its way does not revive them."""


# -- one context ------------------------------------------------------------------------------------------------------


class _Speech:
    """The sound of a context as messages, and what was written of it."""

    def __init__(self, name: str | None, rendering: Rendering, *, timestamps: bool) -> None:
        self.finished = False
        self._name = name
        self._rendering = rendering
        self._timestamps = timestamps
        self._utterances: deque[UtteranceKey] = deque()  # not yet ended
        self._complete: set[UtteranceKey] = set()  # no more text comes for them
        self._flushes: dict[UtteranceKey, int] = {}  # how many are answered when it ends
        self._flush_id = 0
        self._before_samples = 0  # sound of the utterances that have ended
        self._last: UtteranceKey | None = None

    def write(self, session: LocalSession, text: str, *, flush: bool, hurry: bool, end: bool) -> None:
        """``hurry``: speak what is there, without ending the utterance. Raises what ``speak`` raises."""
        key = self._speak(session, text)
        if end:
            self._last = key
            self._end(session, key)
        elif flush:
            self._flushes[key] = self._flushes.get(key, 0) + 1
            if len(self._utterances) <= _MAX_UTTERANCES:
                self._end(session, key)
                self._speak(session, "")  # there is always one being written, so that a silent writer times out
            else:
                session.flush()
        elif hurry:
            session.flush()

    def _speak(self, session: LocalSession, text: str) -> UtteranceKey:
        key = session.speak(text)
        if key not in self._utterances:
            self._utterances.append(key)
        return key

    def _end(self, session: LocalSession, key: UtteranceKey) -> None:
        session.end_text()
        self._complete.add(key)

    def messages(self, item: Output) -> Iterator[Message]:
        if isinstance(item, PcmFrame):
            yield from self._chunk(self._rendering.process(item.pcm), item.meta.wall_ms)
        elif isinstance(item, Words) and self._timestamps:
            yield self._message("timestamps", word_timestamps=self._times(item))
        elif isinstance(item, Ended):
            yield from self._ended(item)

    def _ended(self, ended: Ended) -> Iterator[Message]:
        self._utterances.popleft()
        self._before_samples += ended.receipt.samples_sent
        if (error := failure(ended)) is not None:
            self.finished = True
            yield vendor.error_message(error, self._name)
            return
        last = ended.key == self._last or ended.key not in self._complete  # or its writer fell silent for too long
        self._complete.discard(ended.key)
        if last:
            yield from self._rest()
        for _ in range(self._flushes.pop(ended.key, 0)):
            self._flush_id += 1
            yield self._message("flush_done", flush_done=True, flush_id=self._flush_id)
        if last:
            self.finished = True
            yield self._done()

    def end(self) -> Iterator[Message]:
        """The last messages of a text that is spoken by itself, without utterances that ``write`` began."""
        yield from self._rest()
        yield self._done()

    def _rest(self) -> Iterator[Message]:
        return self._chunk(self._rendering.finish(), 0.0)

    def _done(self) -> Message:
        return self._message("done", done=True)

    def _chunk(self, data: bytes, step_ms: float) -> Iterator[Message]:
        if data:
            encoded = base64.b64encode(data).decode()
            yield self._message("chunk", data=encoded, step_time=round(step_ms, 3), flush_id=self._flush_id + 1)

    def _times(self, item: Words) -> dict[str, list[str] | list[float]]:
        def seconds(sample: int) -> float:
            return round((self._before_samples + sample) / SAMPLE_RATE_HZ, 4)

        return {
            "words": [word.text for word in item.words],
            "start": [seconds(word.start_sample) for word in item.words],
            "end": [seconds(word.end_sample) for word in item.words],
        }

    def _message(self, kind: str, *, done: bool = False, **fields: Any) -> Message:
        return {"type": kind, "context_id": self._name, "status_code": 200 if done else 206, "done": done, **fields}


# -- one connection ---------------------------------------------------------------------------------------------------


class _Conversation:
    """The dialect on one socket."""

    def __init__(self, socket: ContextSocket) -> None:
        self._socket = socket
        self._cancelled: dict[str, None] = {}  # in the order in which they were
        socket.protocol = self

    def context_of(self, data: Message) -> str | None:
        name = data.get("context_id")
        return name if isinstance(name, str) else None

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        return vendor.error_message(error, context)

    def handle_message(self, data: Message) -> None:
        if data.get("cancel"):
            self._cancel(vendor.checked(vendor.CANCEL, data).context_id)
            return
        message = vendor.checked(vendor.CONTINUATION, data)
        self._socket.check_text(message.transcript)
        if message.context_id in self._cancelled:
            return
        context = self._socket.contexts.get(message.context_id)
        if context is None:
            context = self._open(message, vendor.checked(vendor.REQUEST, data))
        speech = context.encoder
        assert isinstance(speech, _Speech)
        context.run_command(
            lambda session: speech.write(
                session,
                message.transcript,
                flush=bool(message.flush),
                hurry=message.max_buffer_delay_ms == 0,
                end=not (message.flush if message.more is None else message.more),
            )
        )

    def _open(self, message: vendor.Continuation, wanted: vendor.Request) -> SpeechContext:
        if wanted.output_format.container != "raw":
            raise InvalidRequest("output_format.container: a socket carries raw sound only")
        speech = _Speech(message.context_id, wanted.output_format.rendering(), timestamps=bool(message.add_timestamps))
        return self._socket.open(message.context_id, wanted.options(), speech)

    def _cancel(self, name: str) -> None:
        """Nothing follows of that context, not even a ``done``, as the vendor has it."""
        self._cancelled[name] = None
        if len(self._cancelled) > _MAX_CANCELLED:
            del self._cancelled[next(iter(self._cancelled))]
        self._socket.drop(name, "cancelled")


# -- server-sent events -----------------------------------------------------------------------------------------------


async def _events(hub: SessionHub, wanted: vendor.Request, rendering: Rendering) -> AsyncGenerator[bytes, None]:
    """The messages of one text as events. An error after the first of them is the last event.

    Raises what ``synthesize`` raises, as long as there was no event.
    """
    speech = _Speech(wanted.context_id, rendering, timestamps=bool(wanted.add_timestamps))
    begun = False
    try:
        async with aclosing(synthesize(hub, wanted.options(), wanted.transcript)) as items:
            async for item in items:
                for message in speech.messages(item):
                    begun = True
                    yield _event(message)
        for message in speech.end():
            yield _event(message)
    except TTSWorkerError as error:
        if not begun:
            raise
        yield _event(vendor.error_message(error.info, wanted.context_id))


def _event(message: Message) -> bytes:
    return f"event: {message['type']}\ndata: {wire.dumps(message)}\n\n".encode()


# -- routes -----------------------------------------------------------------------------------------------------------


def router(hub: SessionHub, limits: SocketLimits, *, max_input_chars: int) -> APIRouter:
    """The vendor's routes over ``hub``."""
    routes = APIRouter()

    @routes.websocket("/tts/websocket")
    async def contexts(websocket: WebSocket) -> None:
        socket = ContextSocket(websocket, hub, limits)
        _Conversation(socket)
        await socket.run()

    async def read(request: Request) -> tuple[vendor.Request, Rendering]:
        wanted: vendor.Request = vendor.checked(vendor.REQUEST, wire.parse_object(await request.body(), "body"))
        if len(wanted.transcript) > max_input_chars:
            raise TextTooLong(f"transcript may have at most {max_input_chars} characters")
        return wanted, wanted.output_format.rendering()

    @routes.post("/tts/bytes", summary="Text to speech as Cartesia's clients ask for it, streamed")
    async def speech(request: Request) -> Response:
        try:
            wanted, rendering = await read(request)
        except TTSWorkerError as error:
            return vendor.error_response(error.info)
        return LiveStream(
            download(hub, wanted.options(), wanted.transcript, rendering),
            rendering.content_type,
            {"x-sample-rate": str(wanted.output_format.sample_rate), "x-synthetic": "true"},
            send_timeout_s=limits.send_timeout_s,
            make_error_response=vendor.error_response,
        )

    @routes.post("/tts/sse", summary="The same as server-sent events, with times of words")
    async def events(request: Request) -> Response:
        try:
            wanted, rendering = await read(request)
            if wanted.output_format.container != "raw":
                raise InvalidRequest("output_format.container: events carry raw audio only")
        except TTSWorkerError as error:
            return vendor.error_response(error.info)
        return LiveStream(
            _events(hub, wanted, rendering),
            "text/event-stream",
            {"x-synthetic": "true"},
            send_timeout_s=limits.send_timeout_s,
            make_error_response=vendor.error_response,
        )

    @routes.get("/voices", summary="The voices as Cartesia's clients list them")
    async def voices(request: Request) -> Response:
        try:
            query: vendor.VoiceQuery = vendor.checked(vendor.VOICE_QUERY, dict(request.query_params))
            return JSONResponse(_listed_voices(hub, query))
        except TTSWorkerError as error:
            return vendor.error_response(error.info)

    @routes.get("/voices/{voice}", summary="One of them")
    async def voice(voice: str) -> Response:
        try:
            return JSONResponse(vendor.voice_json(hub.voices.get(voice)))
        except TTSWorkerError as error:
            return vendor.error_response(error.info)

    return routes


def _listed_voices(hub: SessionHub, query: vendor.VoiceQuery) -> Message:
    voices = [] if query.is_owner else voice_pages.search(hub.voices, query.q)
    if query.gender is not None:
        voices = [voice for voice in voices if vendor.gender_of(voice) == query.gender]
    page = voice_pages.page(voices, limit=query.limit, after=query.starting_after, before=query.ending_before)
    return {"data": [vendor.voice_json(voice) for voice in page.voices], "has_more": page.has_more}
