"""Telephone providers: the documented messages of Twilio and Telnyx, and a call that plays what it receives.

Sources: Twilio, "Media Streams - WebSocket Messages"; Telnyx, "Media Streaming over WebSockets".
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

RATE_HZ = 8_000
CALLER_AUDIO = bytes(range(160))


class TwilioMessages:
    """Messages as Twilio sends them: every one but ``connected`` has a sequence number and the stream."""

    path = "/twilio"

    def __init__(self, call: str, /, **parameters: str) -> None:
        self.call = call
        self.stream = f"MZ{call}"
        self.parameters = parameters
        self._numbers = itertools.count(1)

    def connected(self) -> dict[str, Any]:
        return {"event": "connected", "protocol": "Call", "version": "1.0.0"}

    def start(self) -> dict[str, Any]:
        return self.message(
            "start",
            start={
                "accountSid": "AC0",
                "streamSid": self.stream,
                "callSid": self.call,
                "tracks": ["inbound"],
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                "customParameters": self.parameters,
            },
        )

    def media(self) -> dict[str, Any]:
        payload = base64.b64encode(CALLER_AUDIO).decode()
        return self.message("media", media={"track": "inbound", "chunk": "1", "timestamp": "5", "payload": payload})

    def mark(self, name: str) -> dict[str, Any]:
        return self.message("mark", mark={"name": name})

    def dtmf(self, digit: str = "1") -> dict[str, Any]:
        return self.message("dtmf", dtmf={"track": "inbound_track", "digit": digit})

    def stop(self) -> dict[str, Any]:
        return self.message("stop", stop={"accountSid": "AC0", "callSid": self.call})

    def message(self, event: str, **fields: Any) -> dict[str, Any]:
        return {"event": event, "sequenceNumber": str(next(self._numbers)), "streamSid": self.stream, **fields}


class TelnyxMessages(TwilioMessages):
    """The same events with Telnyx's field names."""

    path = "/telnyx"

    def connected(self) -> dict[str, Any]:
        return {"event": "connected", "version": "1.0.0"}

    def start(self) -> dict[str, Any]:
        return self.message(
            "start",
            start={
                "user_id": "U0",
                "call_control_id": self.call,
                "client_state": "c3RhdGU=",
                "custom_parameters": self.parameters,
                "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
            },
        )

    def stop(self) -> dict[str, Any]:
        return self.message("stop", stop={"user_id": "U0", "call_control_id": self.call})

    def message(self, event: str, **fields: Any) -> dict[str, Any]:
        return {"event": event, "sequence_number": str(next(self._numbers)), "stream_id": self.stream, **fields}


@dataclass
class _Queued:
    mark: str
    timer: asyncio.TimerHandle


class FakeCall:
    """A call that plays audio by the clock, returns marks when they are played, and at once when they are cleared.

    Attributes:
        received: Audio received so far; ``clear`` does not remove it.
        cleared: Size of ``received`` and time at each ``clear``.
        marks: Size of ``received`` before each mark, by the name of the mark.
        returns_marks: Turn it off to freeze the position that the worker knows.
        returned: Names of the marks that were returned because they were played.
    """

    def __init__(self, socket: ClientConnection, messages: TwilioMessages) -> None:
        self.socket = socket
        self.messages = messages
        self.received = b""
        self.cleared: list[tuple[int, float]] = []
        self.marks: dict[str, int] = {}
        self.returned: list[str] = []
        self.returns_marks = True
        self.changed = asyncio.Event()
        self._queue: list[_Queued] = []
        self._empty_at_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def confirmed(self) -> int:
        """Size of ``received`` before the last mark that was returned as played."""
        return self.marks[self.returned[-1]] if self.returned else 0

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a change of the call makes ``condition`` true."""
        with anyio.fail_after(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def send(self, message: dict[str, Any]) -> None:
        await self.socket.send(json.dumps(message))

    async def begin(self) -> None:
        await self.send(self.messages.connected())
        await self.send(self.messages.start())

    async def run(self) -> None:
        """Receive until the worker closes the connection."""
        with suppress(ConnectionClosed):
            async for raw in self.socket:
                message = json.loads(raw)
                if isinstance(self.messages, TelnyxMessages):
                    assert message["stream_id"] == self.messages.stream
                else:
                    assert message["streamSid"] == self.messages.stream
                self._receive(message)
                self.changed.set()
        self.changed.set()

    def _receive(self, message: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        match message["event"]:
            case "media":
                audio = base64.b64decode(message["media"]["payload"], validate=True)
                assert len(audio) >= 160
                self.received += audio
                self._empty_at_s = max(self._empty_at_s, loop.time()) + len(audio) / RATE_HZ
            case "mark":
                name = message["mark"]["name"]
                assert name not in self.marks
                self.marks[name] = len(self.received)
                self._queue.append(_Queued(name, loop.call_at(self._empty_at_s, self._on_played, name)))
            case "clear":
                self.cleared.append((len(self.received), loop.time()))
                self._empty_at_s = 0.0
                for queued in self._queue:
                    queued.timer.cancel()
                    self._return(queued.mark)
                self._queue.clear()
            case other:
                raise AssertionError(other)

    def _on_played(self, mark: str) -> None:
        assert self._queue.pop(0).mark == mark
        if self.returns_marks:
            self.returned.append(mark)
            self._return(mark)
            self.changed.set()

    def _return(self, mark: str) -> None:
        task = asyncio.create_task(self._send_mark(mark))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_mark(self, mark: str) -> None:
        with suppress(ConnectionClosed):
            await self.send(self.messages.mark(mark))


@asynccontextmanager
async def calling(address: str, messages: TwilioMessages, **options: Any) -> AsyncIterator[FakeCall]:
    """Connect a call that plays until the end of the block."""
    async with connect(f"ws://{address}{messages.path}", compression=None, **options) as socket:
        call = FakeCall(socket, messages)
        await call.begin()
        task = asyncio.create_task(call.run())
        try:
            yield call
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
