"""A network in virtual time: what ``grpc.aio`` channels and calls are to the client and to the worker's services.

Messages are delayed, arrive in order, and wait in a window of bytes, so that a client that reads slowly holds up the
worker. A connection can break, or become half-open: then neither side hears of the other until its keepalive fails.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, Protocol

import grpc

from tts_worker.errors import Unauthenticated
from tts_worker.protocol.proto_codec import encode_trailers

owner: ContextVar[object] = ContextVar("owner", default=None)
"""The simulated caller whose task runs."""

_FULL_METHOD = "/tts.Conversation/Converse"


class Host(Protocol):
    """A worker that accepts calls."""

    is_alive: bool

    def accept(self, call: SimulatedCall) -> None:
        """Serve a call in a separate task."""
        ...


class Network:
    """Addresses, delays and faults of all connections.

    Args:
        clock: Time in seconds.
        chance: Draws delays.

    Attributes:
        hosts: The workers by address.
        calls: Calls that have not ended on both sides.
        slow_until_s: Delays are ten times as long until then.
        on_call: Called with every call that a client begins.
    """

    WINDOW_BYTES = 32_768
    CLIENT_KEEPALIVE_S = 10.0
    WORKER_KEEPALIVE_S = 20.0

    def __init__(self, clock: Callable[[], float], chance: random.Random) -> None:
        self.hosts: dict[str, Host] = {}
        self.calls: list[SimulatedCall] = []
        self.slow_until_s = 0.0
        self.on_call: Callable[[SimulatedCall], None] = lambda call: None
        self.clock = clock
        self._chance = chance

    def delay_s(self) -> float:
        """Return how long the next message is on its way."""
        delay_s = self._chance.uniform(0.000_5, 0.008)
        return 10 * delay_s if self.clock() < self.slow_until_s else delay_s

    def channel(self, address: str, **_: object) -> SimulatedChannel:
        """Stands for ``grpc.aio.insecure_channel``."""
        return SimulatedChannel(self, address)

    def calls_of(self, caller: object) -> list[SimulatedCall]:
        """Return the calls that a caller has begun and that have not ended."""
        return [call for call in self.calls if call.owner is caller and not call.has_ended]


class SimulatedChannel:
    """A channel to an address; every call finds who listens there at that time."""

    def __init__(self, network: Network, address: str) -> None:
        self.network = network
        self.address = address
        self._is_closed = False
        self._was_connected = False

    def get_state(self) -> grpc.ChannelConnectivity:
        host = self.network.hosts.get(self.address)
        is_up = self._was_connected and host is not None and host.is_alive
        return grpc.ChannelConnectivity.READY if is_up else grpc.ChannelConnectivity.IDLE

    async def channel_ready(self) -> None:
        await asyncio.sleep(self.network.delay_s())

    async def close(self) -> None:
        self._is_closed = True

    def stream_stream(self, method: str, *_: object, **__: object) -> Callable[..., SimulatedCall]:
        assert method == _FULL_METHOD, method
        return self._begin

    def _begin(self, metadata: tuple[tuple[str, str], ...] = ()) -> SimulatedCall:
        self._was_connected = True
        return SimulatedCall(self.network, self.address, metadata)


class _End:
    """The end of a direction."""


class _Direction:
    """Messages on their way from one side to the other."""

    def __init__(self, network: Network, window_bytes: int) -> None:
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._window_bytes = window_bytes
        self._arrived: deque[tuple[Any, int]] = deque()
        self._unread_bytes = 0
        self._last_at_s = 0.0
        self._has_arrived = asyncio.Event()
        self._has_room = asyncio.Event()
        self.is_dead = False  # what is sent does not arrive
        self.is_ended = False
        self.blocked_since_s: float | None = None

    async def send(self, message: object, size: int) -> None:
        """Send a message, waiting for room in the window."""
        while self._unread_bytes and self._unread_bytes + size > self._window_bytes and not self.is_ended:
            if self.blocked_since_s is None:
                self.blocked_since_s = self._loop.time()
            self._has_room.clear()
            await self._has_room.wait()
        self.blocked_since_s = None
        self._unread_bytes += size
        self._push(message, size)

    def _push(self, message: object, size: int) -> None:
        # Timers of the same time fire in any order.
        self._last_at_s = max(self._last_at_s + 1e-6, self._loop.time() + self._network.delay_s())
        self._loop.call_at(self._last_at_s, self._arrive, message, size)

    def _arrive(self, message: object, size: int) -> None:
        if not self.is_dead:
            self._arrived.append((message, size))
            self._has_arrived.set()

    def finish(self) -> None:
        """Send the end, behind all messages."""
        self._push(_End(), 0)

    def break_off(self) -> None:
        """End at once: what is on its way is lost."""
        self.is_dead = self.is_ended = True
        self._arrived.clear()
        self._arrived.append((_End(), 0))
        self._has_arrived.set()
        self._has_room.set()

    async def receive(self) -> object:
        """Wait for the next message; an ``_End`` is returned again and again."""
        while not self._arrived:
            self._has_arrived.clear()
            await self._has_arrived.wait()
        message, size = self._arrived[0]
        if not isinstance(message, _End):
            self._arrived.popleft()
            self._unread_bytes -= size
            self._has_room.set()
        return message


class SimulatedCall:
    """A ``Converse`` call: the client's side has the methods of a ``grpc.aio`` call, ``context`` is the worker's.

    Attributes:
        owner: The caller that began it.
        address: The address that it was begun with.
        host: The worker that accepted it; None while it is on its way, or if none did.
        context: The side of the worker.
        is_half_open: Nothing arrives any more, and no side knows.
        has_ended: It has ended for the client.
    """

    def __init__(self, network: Network, address: str, metadata: tuple[tuple[str, str], ...]) -> None:
        self.network = network
        self.owner = owner.get()
        self.address = address
        self.metadata = tuple(metadata)
        self.host: Host | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_half_open = False
        self.has_ended = False
        self.to_worker = _Direction(network, 1 << 20)
        self.to_client = _Direction(network, network.WINDOW_BYTES)
        self.context = WorkerContext(self)
        self._loop = asyncio.get_running_loop()
        self._code = grpc.StatusCode.OK
        self._details = ""
        self._trailers: tuple[tuple[str, str | bytes], ...] = ()
        network.calls.append(self)
        network.on_call(self)
        self._loop.call_later(network.delay_s(), self._connect)

    def _connect(self) -> None:
        if self.has_ended:
            return
        host = self.network.hosts.get(self.address)
        if host is None or not host.is_alive:
            self.break_off("connection refused")
            return
        self.host = host
        host.accept(self)

    # -- the client ---------------------------------------------------------------------------------------------------

    async def write(self, message: Any) -> None:
        if self.has_ended:
            raise asyncio.InvalidStateError("the call has ended")
        await self.to_worker.send(message, message.ByteSize())

    async def read(self) -> Any:
        message = await self.to_client.receive()
        if isinstance(message, _End):
            self._end()
            return grpc.aio.EOF
        return message

    def cancel(self) -> None:
        if self.has_ended:
            return
        self._code = grpc.StatusCode.CANCELLED
        self.to_client.break_off()
        self._end()
        if not self.is_half_open:
            self._loop.call_later(self.network.delay_s(), self.end_on_worker)

    async def code(self) -> grpc.StatusCode:
        return self._code

    async def details(self) -> str:
        return self._details

    async def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._trailers

    def _end(self) -> None:
        self.has_ended = True
        self._forget_if_over()

    def _forget_if_over(self) -> None:
        if self.has_ended and (self.task is None or self.task.done()) and self in self.network.calls:
            self.network.calls.remove(self)

    # -- faults -------------------------------------------------------------------------------------------------------

    def break_off(self, reason: str = "the connection was reset") -> None:
        """Both sides learn at once that the connection is gone."""
        self.end_on_client(reason)
        self.end_on_worker()

    def become_half_open(self) -> None:
        """Nothing arrives any more; each side learns it by its own keepalive."""
        self.is_half_open = self.to_worker.is_dead = self.to_client.is_dead = True
        self._loop.call_later(self.network.CLIENT_KEEPALIVE_S, self.end_on_client, "keepalive timeout")
        self._loop.call_later(self.network.WORKER_KEEPALIVE_S, self.end_on_worker)

    def end_on_client(self, reason: str) -> None:
        if not self.has_ended:
            self._code, self._details = grpc.StatusCode.UNAVAILABLE, reason
            self.to_client.break_off()

    def end_on_worker(self) -> None:
        if self.task is not None:
            self.task.cancel()

    # -- the worker ---------------------------------------------------------------------------------------------------

    def serve(self, task: asyncio.Task[None]) -> None:
        """The worker serves the call in ``task``."""
        self.task = task
        task.add_done_callback(lambda _: self._on_served())

    def _on_served(self) -> None:
        if not self.to_client.is_dead:
            self.to_client.finish()
        self.to_client.is_ended = True
        self._forget_if_over()

    def set_status(self, code: grpc.StatusCode, details: str, trailers: tuple[tuple[str, str | bytes], ...]) -> None:
        self._code, self._details, self._trailers = code, details, trailers

    def refuse(self) -> None:
        """End a call whose API key is not valid."""
        error = Unauthenticated("the API key is not valid").info
        self.set_status(grpc.StatusCode.UNAUTHENTICATED, error.message, encode_trailers(error))


class AbortedCall(Exception):
    """The worker has ended a call with a status."""


class WorkerContext:
    """The side of the worker, with the methods of a ``grpc.aio`` servicer context that its service calls.

    Attributes:
        on_write: Called with every message before it is sent.
        on_request: Called with every message once the worker has handled it.
    """

    def __init__(self, call: SimulatedCall) -> None:
        self._call = call
        self.on_write: Callable[[Any], None] = lambda message: None
        self.on_request: Callable[[Any], None] = lambda message: None

    async def requests(self) -> AsyncIterator[Any]:
        """Yield what the client sends."""
        while not isinstance(message := await self._call.to_worker.receive(), _End):
            yield message
            self.on_request(message)

    async def send_initial_metadata(self, metadata: object) -> None:
        pass

    async def write(self, message: Any) -> None:
        self.on_write(message)
        await self._call.to_client.send(message, message.ByteSize())

    async def abort(self, code: grpc.StatusCode, details: str, trailers: tuple[tuple[str, str | bytes], ...]) -> None:
        self._call.set_status(code, details, trailers)
        raise AbortedCall(code.name)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._call.metadata
