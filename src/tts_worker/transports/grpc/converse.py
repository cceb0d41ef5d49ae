"""A whole session on one call: what ``tts_worker.connect("grpc://...")`` speaks. The events of ``docs/protocol.md``.

Commands are handled in the moment they arrive, whether or not the client reads; one task writes, so the order on the
wire is the order in which the session decided. The session lives as long as the call. Knows no engine.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace

from tts_worker.errors import (
    Draining,
    ErrorInfo,
    IllegalCommand,
    InvalidRequest,
    SendTimeout,
    TextTooLong,
    TTSWorkerError,
)
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.session.machine import State
from tts_worker.session.session import LocalSession
from tts_worker.text.filter import UrlMode
from tts_worker.transports.grpc import messages
from tts_worker.transports.grpc import tts_worker_pb2 as pb
from tts_worker.transports.grpc.calls import Context, ResponseWriter, abort_with
from tts_worker.transports.grpc.contexts import ContextTracker
from tts_worker.types import Acknowledged, Ended, Output, PcmFrame, Started

_MAX_UNSENT_ANSWERS = 256
"""Rejections that may wait for a client that does not read, before it is cut off."""
_MAX_CONTEXT_CHARS = 128


class ConversationService:
    """``send_timeout_s``: a client that takes nothing for so long is cut off."""

    def __init__(self, hub: SessionHub, *, send_timeout_s: float, max_message_chars: int) -> None:
        self._hub = hub
        self._send_timeout_s = send_timeout_s
        self._max_message_chars = max_message_chars
        self._calls: set[ConverseCall] = set()

    async def Converse(
        self,
        requests: AsyncIterator[pb.ConverseRequest],
        context: Context,
    ) -> None:
        try:
            options = await _first(requests)
            call = ConverseCall(self._hub, await self._hub.admit(options), options, self._max_message_chars)
        except TTSWorkerError as error:
            await abort_with(context, error)
        self._calls.add(call)
        reader = asyncio.create_task(self._read(requests, call), name=f"{call.session.id}-reader")
        writer = ResponseWriter(context, self._send_timeout_s, call.fail)
        try:
            async for response in call.responses():
                await writer.write(response)
            if call.session.close_error is not None:
                raise call.session.close_error
            if not call.closed_by_client:
                raise Draining("the worker is shutting down; use another one")
        except Exception as error:
            await abort_with(context, error)
        finally:
            reader.cancel()
            writer.close()
            call.session.close("disconnected")
            self._calls.discard(call)

    async def _read(self, requests: AsyncIterator[pb.ConverseRequest], call: ConverseCall) -> None:
        try:
            async for request in requests:
                call.handle(request)
        except TTSWorkerError as error:
            call.fail(error)
        call.on_client_closed()

    def close_idle_sessions(self) -> None:
        """A drain begins: sessions that say nothing need not be waited for."""
        for call in list(self._calls):
            call.close_if_idle()


async def _first(requests: AsyncIterator[pb.ConverseRequest]) -> SessionOptions:
    """The options in the message that begins a conversation. Raises InvalidRequest."""
    async for request in requests:
        if request.WhichOneof("message") != "start":
            break
        return _options(request.start)
    raise InvalidRequest("a conversation begins with start")


def _options(start: pb.ConverseRequest.Start) -> SessionOptions:
    if start.protocol_version != messages.PROTOCOL_VERSION:
        raise InvalidRequest(
            f"this worker speaks protocol {messages.PROTOCOL_VERSION}, the client {start.protocol_version}"
        )
    try:
        lexicon = json.loads(start.lexicon_json) if start.lexicon_json else None
        urls = UrlMode(start.urls) if start.HasField("urls") else None
    except (ValueError, RecursionError):
        raise InvalidRequest("lexicon_json must be a JSON object, urls drop or host") from None
    if lexicon is not None and not isinstance(lexicon, dict):
        raise InvalidRequest("lexicon_json must be a JSON object")
    return _with_voicing(
        SessionOptions(
            realtime=start.realtime,
            lead_ms=start.lead_ms if start.HasField("lead_ms") else None,
            frame_ms=start.frame_ms if start.HasField("frame_ms") else None,
            raw_chunks=start.raw_chunks,
            lexicon=lexicon,
            markdown=start.markdown if start.HasField("markdown") else None,
            urls=urls,
            normalise=start.normalise if start.HasField("normalise") else None,
            pause_timeout_s=start.pause_timeout_s if start.HasField("pause_timeout_s") else None,
            text_idle_timeout_s=start.text_idle_timeout_s if start.HasField("text_idle_timeout_s") else None,
            flush_after_ms=start.flush_after_ms if start.HasField("flush_after_ms") else None,
            model=start.model if start.HasField("model") else None,
            needs=tuple(start.needs),
        ),
        start.voicing,
    )


def _with_voicing(options: SessionOptions, voicing: pb.ConverseRequest.Voicing) -> SessionOptions:
    return replace(
        options,
        voice=voicing.voice if voicing.HasField("voice") else None,
        speed=voicing.speed,
        seed=voicing.seed,
        language=voicing.language if voicing.HasField("language") else None,
        instruct=voicing.instruct if voicing.HasField("instruct") else None,
    )


class ConverseCall:
    """One conversation. ``left``: its client wants no more."""

    def __init__(self, hub: SessionHub, session: LocalSession, options: SessionOptions, max_chars: int) -> None:
        self.session = session
        self.closed_by_client = False
        self._hub = hub
        self._options = options
        self._max_chars = max_chars
        self._answers: deque[pb.ConverseResponse] = deque([self._ready()])
        self._failure: TTSWorkerError | None = None
        self._contexts = ContextTracker(session)

    def _ready(self) -> pb.ConverseResponse:
        params = self.session.params
        return pb.ConverseResponse(
            ready=pb.ConverseResponse.Ready(
                protocol_version=messages.PROTOCOL_VERSION,
                session=self.session.id,
                sample_rate=self.session.sample_rate_hz,
                voice=params.voice,
                alignment=self._hub.voices.get(params.voice).info.alignment.value,
            )
        )

    # -- out ----------------------------------------------------------------------------------------------------------

    async def responses(self) -> AsyncIterator[pb.ConverseResponse]:
        """Ends when the session is closed. Raises what made it fail."""
        while True:
            if self._answers:
                yield self._answers.popleft()
            elif self._failure is not None:
                raise self._failure
            elif (item := self.session.poll()) is not None:
                yield self._response(item)
            elif self.session.state is State.CLOSED:
                return
            else:
                await self.session.wait()

    def _response(self, item: Output) -> pb.ConverseResponse:
        response = pb.ConverseResponse()
        if isinstance(item, PcmFrame):
            response.pcm = item.pcm
        elif isinstance(item, Started):
            started = response.started
            params = item.params
            started.context = self._contexts.name(item.key)
            started.voice = params.voice
            started.speed = params.speed
            started.seed = params.seed
            if params.language is not None:
                started.language = params.language
            if params.instruct is not None:
                started.instruct = params.instruct
        elif isinstance(item, Acknowledged):
            acknowledged = response.acknowledged
            acknowledged.command = messages.COMMANDS[item.command]
            acknowledged.applied = item.applied
            acknowledged.position_samples = item.position_samples
        elif isinstance(item, Ended):
            response.ended.context = self._contexts.name(item.key)
            response.ended.receipt.CopyFrom(messages.encode_receipt(item.receipt, item.outcome))
            if item.error is not None:
                response.ended.error.CopyFrom(messages.encode_error(item.error))
            self._contexts.ended(item.key)
            if self._hub.draining:
                self.close_if_idle()
        else:
            response.words.words.extend(messages.encode_words(item.words))
        return response

    # -- in -----------------------------------------------------------------------------------------------------------

    def handle(self, request: pb.ConverseRequest) -> None:
        """Raises SendTimeout if the client sends and sends and reads no answer."""
        name = request.WhichOneof("message")
        if self.session.state is State.CLOSED:
            return
        try:
            self._handle(name, request)
        except TTSWorkerError as error:
            context = request.say.context if name == "say" else request.end.context if name == "end" else ""
            self._reject(context[:_MAX_CONTEXT_CHARS], error.info)

    def _handle(self, name: str | None, request: pb.ConverseRequest) -> None:
        session = self.session
        if name == "say":
            self._say(request.say)
        elif name == "end":
            self._contexts.end(request.end.context)
        elif name == "flush":
            session.flush()
        elif name == "pause":
            session.pause()
        elif name == "resume":
            session.resume()
        elif name == "stop":
            self._contexts.retire()
            played_samples = request.stop.played_samples if request.stop.HasField("played_samples") else None
            session.stop(request.stop.reason[:64] or "stop", None if played_samples is None else max(0, played_samples))
        elif name == "played":
            session.played(max(0, request.played.samples))
        elif name == "configure":
            self._configure(request.configure)
        elif name == "start":
            raise IllegalCommand("the conversation has begun: use configure")
        else:
            raise InvalidRequest("there is no message of that kind in this version of the protocol")

    def _say(self, say: pb.ConverseRequest.Say) -> None:
        if len(say.text) > self._max_chars:
            raise TextTooLong(f"a message may hold at most {self._max_chars} characters of text")
        if not 1 <= len(say.context) <= _MAX_CONTEXT_CHARS:
            raise InvalidRequest(f"context must have 1 to {_MAX_CONTEXT_CHARS} characters")
        self._contexts.say(say.context, say.text)

    def _configure(self, voicing: pb.ConverseRequest.Voicing) -> None:
        options = _with_voicing(self._options, voicing)
        params = self._hub.params(options)
        if self._hub.voices.get(params.voice).engine != self._hub.voices.get(self.session.params.voice).engine:
            raise IllegalCommand("that voice is on another engine: begin another conversation")
        self._options = options
        self.session.configure(params)

    def _reject(self, context: str, error: ErrorInfo) -> None:
        if len(self._answers) >= _MAX_UNSENT_ANSWERS:
            raise SendTimeout("too many answers were not read")
        rejected = pb.ConverseResponse.Rejected(context=context, error=messages.encode_error(error))
        self._answers.append(pb.ConverseResponse(rejected=rejected))
        self.session.wake()

    def fail(self, error: TTSWorkerError) -> None:
        """End it, because of the client."""
        self._answers.clear()
        self._failure = error
        self.session.close(error.code.value)

    def on_client_closed(self) -> None:
        """The client has closed its side."""
        self.closed_by_client = True
        self.session.close("client_closed")

    def close_if_idle(self) -> None:
        if self.session.state is State.IDLE:
            self.session.close("drain")
