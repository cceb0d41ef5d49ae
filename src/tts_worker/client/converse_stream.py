"""One ``Converse`` call to a worker (``proto/tts_worker.proto``), the ``Link`` of one session.

Session commands only append to an outbox; a writer task sends it while a reader task dispatches incoming messages.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from tts_worker.client.base import ClientSettings
from tts_worker.errors import (
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    ErrorInfo,
    InvalidRequest,
    MissingExtra,
    RemoteError,
    TTSWorkerError,
    as_exception,
)
from tts_worker.types import ControlName, Outcome, Receipt, SessionOptions, SynthesisParams, Word

try:
    import grpc

    from tts_worker.transports.grpc import messages, tts_worker_pb2_grpc
    from tts_worker.transports.grpc import tts_worker_pb2 as pb
    from tts_worker.transports.grpc.calls import CODE_KEY, RETRY_AFTER_KEY, RETRYABLE_KEY
except ModuleNotFoundError:
    raise MissingExtra("a grpc:// worker", "grpc") from None

_MESSAGE_CHARS = 4_000
"""Maximum characters of a text message; queued deltas are joined up to this size."""


class Receiver(Protocol):
    """Handles the worker's messages (``remote.RemoteSession``)."""

    async def wait_for_capacity(self) -> None: ...
    def on_started(self, context: str, params: SynthesisParams) -> None: ...
    def on_words(self, words: tuple[Word, ...]) -> None: ...
    def on_audio(self, pcm: bytes) -> None: ...
    def on_acknowledged(self, command: ControlName) -> None: ...
    def on_ended(self, context: str, outcome: Outcome, receipt: Receipt, error: ErrorInfo | None) -> None: ...
    def on_rejected(self, error: ErrorInfo) -> None: ...
    def on_lost(self, error: ErrorInfo) -> None: ...


async def open_converse_stream(
    channel: grpc.aio.Channel, options: SessionOptions, settings: ClientSettings
) -> ConverseStream:
    """Start a call and wait until the worker admits it.

    Raises:
        TTSWorkerError: The worker's own refusal.
        InvalidRequest: An option does not fit its protobuf field.
        ConnectionLost: The worker cannot be reached.
    """
    start = _start_message(options)
    metadata = () if settings.api_key is None else (("authorization", f"Bearer {settings.api_key}"),)
    call = tts_worker_pb2_grpc.ConversationStub(channel).Converse(metadata=metadata)
    try:
        response = await _handshake(call, start)
    except BaseException:
        call.cancel()
        raise
    return ConverseStream(call, options, response.ready)


async def _handshake(call: Any, start: pb.ConverseRequest) -> pb.ConverseResponse:
    try:
        await call.write(start)
        response = await call.read()
    except (grpc.RpcError, asyncio.InvalidStateError):
        raise await _status_error(call) from None
    if response is grpc.aio.EOF:
        raise await _status_error(call)
    if response.WhichOneof("message") != "ready":
        raise ConnectionLost("the server at this address is no tts-worker")
    if response.ready.protocol_version != messages.PROTOCOL_VERSION:
        protocol = response.ready.protocol_version
        raise _incompatible_error(f"the worker speaks protocol {protocol}, this client {messages.PROTOCOL_VERSION}")
    return response  # type: ignore[no-any-return]


def _incompatible_error(message: str) -> TTSWorkerError:
    return RemoteError(ErrorInfo(ErrorCode.CONFIG, message))


async def _status_error(call: Any) -> TTSWorkerError:
    """Convert the status of an ended call into a typed error."""
    code = await call.code()
    details = await call.details()
    trailers = {key: value for key, value in await call.trailing_metadata() or () if isinstance(value, str)}
    known = next((known for known in ErrorCode if known.value == trailers.get(CODE_KEY)), None)
    if known is not None:
        after_s = trailers.get(RETRY_AFTER_KEY, "")
        retry_after_s = float(after_s) if after_s.replace(".", "", 1).isdigit() else None
        return as_exception(
            ErrorInfo(known, details or known.value, trailers.get(RETRYABLE_KEY) == "true", retry_after_s)
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return _incompatible_error("the server there does not speak the protocol of this client")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("the worker did not answer in time")
    return ConnectionLost(f"the worker cannot be reached ({code.name}): is it running?")


def _start_message(options: SessionOptions) -> pb.ConverseRequest:
    params = SynthesisParams(options.voice or "", options.speed, options.seed, options.language, options.instruct)
    try:
        start = pb.ConverseRequest.Start(
            protocol_version=messages.PROTOCOL_VERSION,
            voicing=_voicing(params),
            realtime=options.realtime,
            lead_ms=options.lead_ms,
            frame_ms=options.frame_ms,
            raw_chunks=options.raw_chunks,
            lexicon_json="" if options.lexicon is None else json.dumps(dict(options.lexicon)),
            urls=None if options.urls is None else options.urls.value,
            pause_timeout_s=options.pause_timeout_s,
            text_idle_timeout_s=options.text_idle_timeout_s,
            flush_after_ms=options.flush_after_ms,
            model=options.model,
            needs=options.needs,
        )
    except (ValueError, TypeError):
        raise InvalidRequest("an option has a type or value that does not fit its protobuf field") from None
    if options.markdown is not None:
        start.markdown = options.markdown
    if options.normalise is not None:
        start.normalise = options.normalise
    return pb.ConverseRequest(start=start)


def _voicing(params: SynthesisParams) -> pb.ConverseRequest.Voicing:
    return pb.ConverseRequest.Voicing(
        voice=params.voice or None,
        speed=params.speed,
        seed=params.seed,
        language=params.language,
        instruct=params.instruct,
    )


class ConverseStream:
    """An admitted ``Converse`` call.

    ``attach`` starts reading and writing; its ``on_closed`` is called once when the call has ended.
    """

    def __init__(self, call: Any, options: SessionOptions, ready: pb.ConverseResponse.Ready) -> None:
        self.session = ready.session
        self.sample_rate_hz = ready.sample_rate
        self.params = SynthesisParams(ready.voice, options.speed, options.seed, options.language, options.instruct)
        self._call = call
        self._receiver: Receiver | None = None
        self._outbox: deque[pb.ConverseRequest] = deque()
        self._outgoing = asyncio.Event()
        self._is_closed = False
        self._on_closed: Callable[[ConverseStream], None] = lambda _: None
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(self, receiver: Receiver, on_closed: Callable[[ConverseStream], None]) -> None:
        self._receiver = receiver
        self._on_closed = on_closed
        self._tasks = {
            asyncio.create_task(self._write(), name="tts-client-writer"),
            asyncio.create_task(self._read(receiver), name="tts-client-reader"),
        }

    def close(self) -> None:
        """Cancel the call. The session's utterances end with ConnectionLost."""
        self._disconnect(ConnectionLost("the connection was closed").info)

    async def wait_closed(self) -> None:
        """Wait until both tasks have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- Link ---------------------------------------------------------------------------------------------------------

    def text(self, context: str, text: str) -> None:
        last = self._outbox[-1] if self._outbox else None
        joins = last is not None and last.WhichOneof("message") == "say" and last.say.context == context
        if last is not None and joins and len(last.say.text) + len(text) <= _MESSAGE_CHARS:
            last.say.text += text
            return
        for start in range(0, len(text) or 1, _MESSAGE_CHARS):
            piece = text[start : start + _MESSAGE_CHARS]
            self._post(pb.ConverseRequest(say=pb.ConverseRequest.Say(context=context, text=piece)))

    def flush(self) -> None:
        self._post(pb.ConverseRequest(flush=pb.ConverseRequest.Flush()))

    def end_text(self, context: str) -> None:
        self._post(pb.ConverseRequest(end=pb.ConverseRequest.EndText(context=context)))

    def pause(self) -> None:
        self._post(pb.ConverseRequest(pause=pb.ConverseRequest.Pause()))

    def resume(self) -> None:
        self._post(pb.ConverseRequest(resume=pb.ConverseRequest.Resume()))

    def stop(self, reason: str, played_samples: int) -> None:
        self._post(pb.ConverseRequest(stop=pb.ConverseRequest.Stop(reason=reason[:64], played_samples=played_samples)))

    def played(self, samples: int) -> None:
        self._post(pb.ConverseRequest(played=pb.ConverseRequest.Played(samples=samples)))

    def configure(self, params: SynthesisParams) -> None:
        self._post(pb.ConverseRequest(configure=_voicing(params)))

    def release(self, *, healthy: bool) -> None:
        self.close()

    def _post(self, request: pb.ConverseRequest) -> None:
        self._outbox.append(request)
        self._outgoing.set()

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            while self._outbox:
                try:
                    await self._call.write(self._outbox.popleft())
                except (grpc.RpcError, asyncio.InvalidStateError):
                    return  # the reader reports the loss
            self._outgoing.clear()
            await self._outgoing.wait()

    async def _read(self, receiver: Receiver) -> None:
        lost: TTSWorkerError = ConnectionLost("the connection to the worker was lost")
        try:
            while not self._is_closed:
                await receiver.wait_for_capacity()
                response = await self._call.read()
                if response is grpc.aio.EOF:
                    break
                _dispatch(receiver, response)
            lost = await _status_error(self._call)
        except (grpc.RpcError, asyncio.InvalidStateError):
            lost = await _status_error(self._call)
        finally:
            reason = f"the connection to the worker was lost: {lost.message}"
            self._disconnect(ConnectionLost(reason).info)

    def _disconnect(self, error: ErrorInfo) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._call.cancel()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        if self._receiver is not None:
            self._receiver.on_lost(error)
        self._on_closed(self)


def _dispatch(receiver: Receiver, response: pb.ConverseResponse) -> None:
    match response.WhichOneof("message"):
        case "pcm":
            receiver.on_audio(response.pcm)
        case "words":
            receiver.on_words(messages.parse_words(response.words.words))
        case "started":
            receiver.on_started(response.started.context, _started_params(response.started))
        case "ended":
            ended = response.ended
            error = messages.parse_error(ended.error) if ended.HasField("error") else None
            outcome = messages.parse_outcome(ended.receipt)
            receiver.on_ended(ended.context, outcome, messages.parse_receipt(ended.receipt), error)
        case "acknowledged":
            command = messages.CONTROL_NAMES.get(response.acknowledged.command)
            if command in (ControlName.PAUSE, ControlName.RESUME):
                receiver.on_acknowledged(command)
        case "rejected":
            receiver.on_rejected(messages.parse_error(response.rejected.error))


def _started_params(started: pb.ConverseResponse.Started) -> SynthesisParams:
    return SynthesisParams(
        started.voice,
        started.speed,
        started.seed,
        started.language if started.HasField("language") else None,
        started.instruct if started.HasField("instruct") else None,
    )
