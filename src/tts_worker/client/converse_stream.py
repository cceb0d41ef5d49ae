"""One ``Converse`` call to a worker (``proto/tts_worker.proto``), the ``Link`` of one session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from tts_worker.client.link import Receiver, check_format
from tts_worker.client.settings import ClientSettings
from tts_worker.client.stream import MessageStream
from tts_worker.client.unreachable import unreachable_over_grpc
from tts_worker.errors import (
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    ErrorInfo,
    RemoteError,
    TTSWorkerError,
    as_exception,
)
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.protocol.messages import PROTOCOL_VERSION, ClientMessage, ReadyMessage, StartMessage, WorkerMessage
from tts_worker.protocol.proto_codec import encode_client_message, parse_trailers, parse_worker_message
from tts_worker.types import TRACEPARENT, Encoding, SessionOptions


async def open_converse_stream(
    channel: grpc.aio.Channel, options: SessionOptions, settings: ClientSettings
) -> ConverseStream:
    """Start a call and wait until the worker admits it.

    Raises:
        TTSWorkerError: The worker's own refusal.
        InvalidRequest: An option does not fit its protobuf field.
        ConnectionLost: The worker cannot be reached.
    """
    start = encode_client_message(StartMessage.of(options))
    call = tts_worker_pb2_grpc.ConversationStub(channel).Converse(
        # Protobuf has no field for the trace context: it is metadata of the call, as with all gRPC services.
        metadata=(*authorization(settings), *([(TRACEPARENT, options.traceparent)] if options.traceparent else ()))
    )
    try:
        await _write(call, start)
        ready = parse_worker_message(await _read(call))
    except BaseException:
        call.cancel()
        raise
    if not isinstance(ready, ReadyMessage):
        call.cancel()
        raise ConnectionLost("the server at this address is no tts-worker")
    if ready.protocol != PROTOCOL_VERSION:
        call.cancel()
        raise _incompatible_error(f"the worker speaks protocol {ready.protocol}, this client {PROTOCOL_VERSION}")
    try:
        check_format(options, ready)
    except TTSWorkerError:
        call.cancel()
        raise
    return ConverseStream(call, options, ready)


def authorization(settings: ClientSettings) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call."""
    return () if settings.api_key is None else (("authorization", f"Bearer {settings.api_key}"),)


async def _write(call: Any, request: Any) -> None:
    """Send a request. Raises the error of the call's status if the call has ended."""
    try:
        await call.write(request)
    except (grpc.RpcError, asyncio.InvalidStateError):
        raise await status_error(call) from None


async def _read(call: Any) -> Any:
    """Read a response. Raises the error of the call's status if the call has ended."""
    try:
        response = await call.read()
    except (grpc.RpcError, asyncio.InvalidStateError):
        response = grpc.aio.EOF
    if response is grpc.aio.EOF:
        raise await status_error(call)
    return response


def _incompatible_error(message: str) -> TTSWorkerError:
    return RemoteError(ErrorInfo(ErrorCode.CONFIG, message))


async def status_error(call: Any) -> TTSWorkerError:
    """Convert the status of an ended call into a typed error."""
    code = await call.code()
    details = await call.details()
    trailers = {key: value for key, value in await call.trailing_metadata() or () if isinstance(value, str)}
    if (info := parse_trailers(trailers, details or "")) is not None:
        return as_exception(info)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return _incompatible_error("the server there does not speak the protocol of this client")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("the worker did not answer in time")
    return unreachable_over_grpc(code.name, details or "")


class ConverseStream(MessageStream):
    """An admitted ``Converse`` call.

    ``attach`` starts reading and writing; its ``on_closed`` is called once when the call has ended.
    """

    def __init__(self, call: Any, options: SessionOptions, ready: ReadyMessage) -> None:
        super().__init__()
        self.session = ready.session
        self.sample_rate_hz = ready.sample_rate
        self.encoding = Encoding(ready.format)
        self.model = ready.model
        self.params = options.voicing(ready.voice)
        self._call = call
        self._on_closed: Callable[[ConverseStream], None] = lambda _: None

    def attach(self, receiver: Receiver, on_closed: Callable[[ConverseStream], None]) -> None:
        self._receiver = receiver
        self._on_closed = on_closed
        self._start()

    def release(self, *, healthy: bool) -> None:
        """See ``link.Link``."""
        self.close()

    async def _transmit(self, message: ClientMessage) -> bool:
        try:
            await self._call.write(encode_client_message(message))
        except (grpc.RpcError, asyncio.InvalidStateError):
            return False
        return True

    async def _next(self) -> WorkerMessage | bytes | None:
        try:
            return parse_worker_message(await _read(self._call))
        except TTSWorkerError as error:
            raise ConnectionLost(f"the connection to the worker was lost: {error.message}") from None

    async def _close_transport(self) -> None:
        self._call.cancel()

    def _abort_transport(self) -> None:
        self._call.cancel()

    def _on_disconnect(self, error: ErrorInfo) -> None:
        self._call.cancel()
        self._on_closed(self)
