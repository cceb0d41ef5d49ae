"""The provider's side of a call: one WebSocket of Twilio or Telnyx, from handshake to close."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Protocol

import anyio
from starlette.websockets import WebSocket

from tts_worker.callers import ApiScope
from tts_worker.errors import InvalidRequest, OverCapacity, TTSWorkerError
from tts_worker.features.telephony.calls import Call, CallDirectory
from tts_worker.features.telephony.wire import MediaStreamFormat, StreamStarted, StreamStopped, check_identifier
from tts_worker.server.keys import KeyRing
from tts_worker.server.limits import ApiLimits
from tts_worker.server.message_socket import CLIENT_CLOSED, DISCONNECTED, MessageSocket

START_TIMEOUT_S = 10.0
UNKNOWN_START_TIMEOUT_S = 3.0
"""For a stream whose handshake did not authenticate it."""
CALL_PARAMETER = "call"
KEY_PARAMETER = "key"


class StreamPool(Protocol):
    """Counts the streams of a worker."""

    def waiting(self, stream: MediaStream) -> AbstractContextManager[None]:
        """Hold a stream that has not started; it may be evicted for another one."""
        ...

    def started(self) -> AbstractContextManager[None]:
        """Count a call. Raises OverCapacity if all are taken."""
        ...


class MediaStream:
    """A media stream. An error of the provider ends it with a close code; its agent is told the error's code.

    Args:
        websocket: The connection, not accepted yet.
        wire: The provider's messages.
        directory: Where agents find the call.
        limits: Limits on messages.
        keys: Checks the parameter ``key`` of the stream; None if the handshake was authenticated.
        pool: Counts the stream, as a call once it has started and shown its key.
    """

    def __init__(
        self,
        websocket: WebSocket,
        wire: MediaStreamFormat,
        directory: CallDirectory,
        limits: ApiLimits,
        keys: KeyRing | None,
        pool: StreamPool,
    ) -> None:
        self._socket = MessageSocket(websocket, limits, f"{wire.provider} stream")
        self._address = websocket.client.host if websocket.client is not None else "unknown"
        self._wire = wire
        self._directory = directory
        self._keys = keys
        self._pool = pool
        self._is_evicted = False
        self._starting = anyio.CancelScope()
        self._call: Call | None = None
        self._reason: str | None = None
        self._wakeup = asyncio.Event()

    async def run(self) -> None:
        # The provider accepts only its own messages, so an error is its close code.
        await self._socket.run(self._read, self._write, on_end=self._end, encode_error=lambda error: "{}")

    def evict(self) -> None:
        """End the stream, which has not started, for another one."""
        self._is_evicted = True
        self._starting.cancel()

    def _end(self, reason: str) -> None:
        if self._call is not None:
            # Providers say that a stream has stopped; without that, a closed connection is a lost call.
            lost = DISCONNECTED if reason == CLIENT_CLOSED else reason
            self._directory.remove_call(self._call, self._reason or lost)

    async def _read(self) -> None:
        try:
            with self._pool.waiting(self):
                started, owner = await self._start()
            with self._pool.started():
                await self._serve(self._announce(started, owner))
            self._reason = "stopped"
        except TTSWorkerError as error:
            self._reason = error.code.value
            raise

    async def _serve(self, call: Call) -> None:
        """Pass the events of the call on until the stream stops."""
        while not isinstance(event := self._wire.parse(await self._socket.receive()), StreamStopped):
            if isinstance(event, StreamStarted):
                raise InvalidRequest("the stream has started already")
            if event is not None:
                self._directory.dispatch(call, event)

    async def _start(self) -> tuple[StreamStarted, str | None]:
        """Wait for the start of the stream and authenticate it. Returns the start and the name of its key."""
        event = None
        timeout_s = START_TIMEOUT_S if self._keys is None else UNKNOWN_START_TIMEOUT_S
        self._starting.deadline = anyio.current_time() + timeout_s
        with self._starting:
            while event is None:
                event = self._wire.parse(await self._socket.receive())
            if isinstance(event, StreamStarted):
                return event, await self._authenticate(event.parameters.pop(KEY_PARAMETER, None))
        if self._is_evicted:
            raise OverCapacity("too many streams have not started", retry_after_s=1.0)
        raise InvalidRequest(f"the stream must begin with start, within {timeout_s:g} s")

    def _announce(self, started: StreamStarted, owner: str | None) -> Call:
        name = check_identifier(started.parameters.get(CALL_PARAMETER) or started.call_id, CALL_PARAMETER)
        call = Call(name, started, self._wire, owner, self._wakeup.set)
        self._directory.add_call(call)
        self._call = call
        return call

    async def _authenticate(self, key: str | None) -> str | None:
        """Return the name of the API key that the call belongs to, if any."""
        if self._keys is None:
            return None
        caller = await self._keys.authenticate(key, "telephony")
        if caller is None:
            raise await self._keys.rejection(key, self._address, "telephony")
        caller.require(ApiScope.SPEAK)
        return caller.key

    async def _write(self) -> None:
        while self._call is None or not self._call.is_hung_up or self._call.outbox:
            if self._call is not None and self._call.outbox:
                await self._socket.send(self._call.outbox.popleft())
            else:
                self._wakeup.clear()
                await self._wakeup.wait()
        self._reason = "hung_up"
