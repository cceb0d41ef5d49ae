"""The ``Conversation`` service: a whole session on one call, used by ``tts_worker.connect("grpc://...")``.

Carries the messages of ``docs/protocol.md``. Commands take effect on arrival, even while the client does not read. One
task writes, so messages leave in the order of the session's events. The session ends with the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tts_worker.errors import Draining, IllegalCommand, InvalidRequest, TTSWorkerError
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol.dialogue import Dialogue
from tts_worker.protocol.messages import ChunkMessage, ReportMessage, StartMessage
from tts_worker.protocol.proto_codec import encode_worker_message, parse_client_message
from tts_worker.server.grpc.calls import Context, ResponseWriter, abort_with
from tts_worker.server.limits import ApiLimits
from tts_worker.server.rates import MessageRate
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.types import PcmFrame, SessionOptions, State


class ConversationService:
    """Servicer of ``tts.Conversation``.

    Args:
        hub: Admits sessions.
        limits: Limits of a call.
    """

    def __init__(self, hub: SessionHub, limits: ApiLimits) -> None:
        self._hub = hub
        self._limits = limits
        self._calls: set[ConverseCall] = set()

    async def Converse(self, requests: AsyncIterator[pb.ConverseRequest], context: Context) -> None:
        """Run one session until the client or the worker ends it."""
        try:
            options, checksums = await _read_start(requests)
            session = await self._hub.admit(options)
            call = ConverseCall(self._hub, session, options, self._limits, checksums=checksums)
        except TTSWorkerError as error:
            await abort_with(context, error)
        self._calls.add(call)
        reader = asyncio.create_task(self._read(requests, call), name=f"{call.session.id}-reader")
        writer = ResponseWriter(context, self._limits.send_timeout_s, call.fail)
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
                if request.configure.voice:
                    await self._hub.library.look_up(request.configure.voice)
                call.receive(request)
        except TTSWorkerError as error:
            call.fail(error)
        call.on_client_closed()

    def close_idle_sessions(self) -> None:
        """Close sessions that are not speaking; a drain need not wait for them."""
        for call in list(self._calls):
            call.close_if_idle()


async def _read_start(requests: AsyncIterator[pb.ConverseRequest]) -> tuple[SessionOptions, bool]:
    """Read the options of the first message, ``start``, and whether it asks for checksums. Raises InvalidRequest."""
    async for request in requests:
        message = parse_client_message(request)
        if isinstance(message, StartMessage):
            return message.options(), request.start.checksums
        break
    raise InvalidRequest("the first message must be start")


class ConverseCall:
    """One ``Converse`` call and its session.

    Attributes:
        session: The session of the call.
        closed_by_client: Whether the client has closed its side.
    """

    def __init__(
        self,
        hub: SessionHub,
        session: LocalSession,
        options: SessionOptions,
        limits: ApiLimits,
        *,
        checksums: bool = False,
    ) -> None:
        self.session = session
        self.closed_by_client = False
        self._checksums = checksums
        self._hub = hub
        self._dialogue = Dialogue(hub, session, options, max_message_chars=limits.max_message_chars)
        self._rate = MessageRate(limits.max_messages_per_s)
        self._loop = asyncio.get_running_loop()
        self._failure: TTSWorkerError | None = None

    async def responses(self) -> AsyncIterator[pb.ConverseResponse]:
        """Yield messages for the client until the session is closed. Raises the error passed to ``fail``."""
        while self._failure is None:
            item = self._dialogue.poll()
            if isinstance(item, PcmFrame):
                if self._checksums:
                    yield encode_worker_message(ChunkMessage.of(item))
                yield encode_worker_message(item.pcm)
            elif item is not None:
                if isinstance(item, ReportMessage) and self._hub.draining:
                    self.close_if_idle()
                yield encode_worker_message(item, self.session.sample_rate_hz)
            elif self.session.state is State.CLOSED:
                return
            else:
                await self.session.wait()
        raise self._failure

    def receive(self, request: pb.ConverseRequest) -> None:
        """Handle one message of the client; an error is answered by ``rejected``.

        Raises:
            RateLimited: The client sends too many messages.
            SendTimeout: It has left too many replies unread.
        """
        self._rate.count(request.ByteSize(), self._loop.time())
        if self.session.state is not State.CLOSED:
            if request.WhichOneof("message") == "start":
                self._dialogue.reject(IllegalCommand("the conversation has started already: use configure"), "start")
            else:
                self._dialogue.receive(request, parse_client_message)

    def fail(self, error: TTSWorkerError) -> None:
        """End the call with ``error``; unread replies are dropped."""
        self._dialogue.replies.clear()
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
