"""The ``Conversation`` service: a whole session on one call, used by ``tts_worker.connect("grpc://...")``.

Carries the events of ``docs/protocol.md``. Commands take effect on arrival, even while the client does not read. One
task writes, so messages leave in the order of the session's events. The session ends with the call.
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
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.transports.grpc import messages
from tts_worker.transports.grpc import tts_worker_pb2 as pb
from tts_worker.transports.grpc.calls import Context, ResponseWriter, abort_with
from tts_worker.transports.grpc.contexts import ContextTracker
from tts_worker.types import Acknowledged, Ended, Output, PcmFrame, SessionOptions, Started, State, UrlMode, Words

_MAX_UNSENT_REPLIES = 256
"""Unread rejections after which the call is ended."""
_MAX_CONTEXT_CHARS = 128


class ConversationService:
    """Servicer of ``tts.Conversation``.

    Args:
        hub: Admits sessions.
        send_timeout_s: Ends a call whose client has read nothing for this long.
        max_message_chars: Limit for the text of one message.
    """

    def __init__(self, hub: SessionHub, *, send_timeout_s: float, max_message_chars: int) -> None:
        self._hub = hub
        self._send_timeout_s = send_timeout_s
        self._max_message_chars = max_message_chars
        self._calls: set[ConverseCall] = set()

    async def Converse(self, requests: AsyncIterator[pb.ConverseRequest], context: Context) -> None:
        """Run one session until the client or the worker ends it."""
        try:
            options = await _read_start(requests)
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
        """Close sessions that are not speaking; a drain need not wait for them."""
        for call in list(self._calls):
            call.close_if_idle()


async def _read_start(requests: AsyncIterator[pb.ConverseRequest]) -> SessionOptions:
    """Read the options of the first message, ``start``. Raises InvalidRequest."""
    async for request in requests:
        if request.WhichOneof("message") != "start":
            break
        return _options(request.start)
    raise InvalidRequest("the first message must be start")


def _options(start: pb.ConverseRequest.Start) -> SessionOptions:
    if start.protocol_version != messages.PROTOCOL_VERSION:
        raise InvalidRequest(
            f"this worker uses protocol version {messages.PROTOCOL_VERSION}, the client {start.protocol_version}"
        )
    try:
        lexicon = json.loads(start.lexicon_json) if start.lexicon_json else None
        urls = UrlMode(start.urls) if start.HasField("urls") else None
    except (ValueError, RecursionError):
        raise InvalidRequest("lexicon_json must be a JSON object, urls must be drop or host") from None
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
    """One ``Converse`` call and its session.

    Attributes:
        session: The session of the call.
        closed_by_client: Whether the client has closed its side.
    """

    def __init__(self, hub: SessionHub, session: LocalSession, options: SessionOptions, max_chars: int) -> None:
        self.session = session
        self.closed_by_client = False
        self._hub = hub
        self._options = options
        self._max_chars = max_chars
        self._replies: deque[pb.ConverseResponse] = deque([self._ready_message()])
        self._failure: TTSWorkerError | None = None
        self._contexts = ContextTracker(session)

    def _ready_message(self) -> pb.ConverseResponse:
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

    # -- responses ----------------------------------------------------------------------------------------------------

    async def responses(self) -> AsyncIterator[pb.ConverseResponse]:
        """Yield messages for the client until the session is closed. Raises the error passed to ``fail``."""
        while True:
            if self._replies:
                yield self._replies.popleft()
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
        match item:
            case PcmFrame():
                response.pcm = item.pcm
            case Words():
                response.words.words.extend(messages.encode_words(item.words))
            case Started():
                response.started.CopyFrom(self._started_message(item))
            case Acknowledged():
                acknowledged = response.acknowledged
                acknowledged.command = messages.COMMANDS[item.command]
                acknowledged.applied = item.applied
                acknowledged.position_samples = item.position_samples
            case Ended():
                response.ended.context = self._contexts.name(item.key)
                response.ended.receipt.CopyFrom(messages.encode_receipt(item.receipt, item.outcome))
                if item.error is not None:
                    response.ended.error.CopyFrom(messages.encode_error(item.error))
                self._contexts.on_ended(item.key)
                if self._hub.draining:
                    self.close_if_idle()
        return response

    def _started_message(self, item: Started) -> pb.ConverseResponse.Started:
        params = item.params
        started = pb.ConverseResponse.Started(
            context=self._contexts.name(item.key),
            voice=params.voice,
            speed=params.speed,
            seed=params.seed,
        )
        if params.language is not None:
            started.language = params.language
        if params.instruct is not None:
            started.instruct = params.instruct
        return started

    # -- requests -----------------------------------------------------------------------------------------------------

    def handle(self, request: pb.ConverseRequest) -> None:
        """Execute one message of the client; errors of a command become ``rejected`` replies.

        Raises:
            SendTimeout: The client has left too many replies unread.
        """
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
        match name:
            case "say":
                self._say(request.say)
            case "end":
                self._contexts.end(request.end.context)
            case "flush":
                session.flush()
            case "pause":
                session.pause()
            case "resume":
                session.resume()
            case "stop":
                self._stop(request.stop)
            case "played":
                session.played(max(0, request.played.samples))
            case "configure":
                self._configure(request.configure)
            case "start":
                raise IllegalCommand("the conversation has started already: use configure")
            case _:
                raise InvalidRequest("unknown message type in this version of the protocol")

    def _say(self, say: pb.ConverseRequest.Say) -> None:
        if len(say.text) > self._max_chars:
            raise TextTooLong(f"a message may hold at most {self._max_chars} characters of text")
        if not 1 <= len(say.context) <= _MAX_CONTEXT_CHARS:
            raise InvalidRequest(f"context must have 1 to {_MAX_CONTEXT_CHARS} characters")
        self._contexts.say(say.context, say.text)

    def _stop(self, stop: pb.ConverseRequest.Stop) -> None:
        self._contexts.retire()
        played_samples = max(0, stop.played_samples) if stop.HasField("played_samples") else None
        self.session.stop(stop.reason[:64] or "stop", played_samples)

    def _configure(self, voicing: pb.ConverseRequest.Voicing) -> None:
        options = _with_voicing(self._options, voicing)
        params = self._hub.params(options)
        if self._hub.voices.get(params.voice).engine != self._hub.voices.get(self.session.params.voice).engine:
            raise IllegalCommand("that voice belongs to another engine: start another conversation")
        self._options = options
        self.session.configure(params)

    def _reject(self, context: str, error: ErrorInfo) -> None:
        if len(self._replies) >= _MAX_UNSENT_REPLIES:
            raise SendTimeout("the client does not read: too many unread replies")
        rejected = pb.ConverseResponse.Rejected(context=context, error=messages.encode_error(error))
        self._replies.append(pb.ConverseResponse(rejected=rejected))
        self.session.wake()

    def fail(self, error: TTSWorkerError) -> None:
        """End the call with ``error``; unread replies are dropped."""
        self._replies.clear()
        self._failure = error
        self.session.close(error.code.value)

    def on_client_closed(self) -> None:
        """End the session because the client closed its side."""
        self.closed_by_client = True
        self.session.close("client_closed")

    def close_if_idle(self) -> None:
        """End the session unless it is speaking or paused."""
        if self.session.state is State.IDLE:
            self.session.close("drain")
