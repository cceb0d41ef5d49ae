"""Messages between the server process and an engine process: length-prefixed pickles over the pipes of a child.

Both ends run the same code under the same user, so that unpickling is safe. Commands and events are reduced to their
class and fields, which is an order of magnitude cheaper than the default for frozen dataclasses.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, BinaryIO

from tts_worker import types
from tts_worker.engine.base import Engine, SharedState
from tts_worker.types import Command, EngineInfo, EngineReport, Event

_LENGTH = struct.Struct("<I")


# -- server to engine -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartEngine:
    """The first message.

    Attributes:
        factory: Builds the engine.
        shared: State that ``factory`` refers to, or None.
        name: Name of the engine in the log.
        log_levels: Levels of the root logger and of this package's logger.
    """

    factory: Callable[[], Engine]
    shared: SharedState | None
    name: str
    log_levels: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Commands:
    commands: list[Command]


@dataclass(frozen=True, slots=True)
class SharedChange:
    change: object


@dataclass(frozen=True, slots=True)
class Ping:
    """Is answered with ``Pong``.

    Attributes:
        log_levels: As in ``StartEngine``; an operator may change them.
    """

    log_levels: tuple[int, int]


@dataclass(frozen=True, slots=True)
class CloseEngine:
    """Is answered with ``EngineEnded`` once the engine is closed, and the process exits."""


# -- engine to server -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine is built and warm.

    Attributes:
        info: Its capabilities.
        cpu_s: Processor time of the process so far.
        memory_bytes: Resident memory of the process; 0 if unknown.
    """

    info: EngineInfo
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Events:
    """Events of a step.

    Attributes:
        events: The events.
        steps: Steps since the last message, and
        steps_s: the time spent in them.
    """

    events: list[Event]
    steps: int
    steps_s: float


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to a ping.

    Attributes:
        busy_s: For how long the engine call in progress has run.
        report: The last report of the engine; ``last_step`` is what its slowest step so far did.
        slowest_s: Longest step so far.
        cpu_s: Processor time of the process.
        memory_bytes: Resident memory of the process; 0 if unknown.
    """

    busy_s: float
    report: EngineReport
    slowest_s: float
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class LogRecord:
    """Attributes of a ``logging.LogRecord`` with a formatted message."""

    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """The engine is freed and the process exits.

    Attributes:
        fault: What ended it; None after a request to close.
        traceback: Where it was raised.
    """

    fault: Exception | None
    traceback: str = ""


# -- framing ----------------------------------------------------------------------------------------------------------


def _reducer(cls: type) -> Callable[[Any], tuple[type, tuple[Any, ...]]]:
    names = [field.name for field in dataclasses.fields(cls)]
    if len(names) == 1:
        (name,) = names
        return lambda value: (cls, (getattr(value, name),))
    fields = attrgetter(*names)
    return lambda value: (cls, fields(value))


_REDUCERS = {
    cls: _reducer(cls)
    for cls in (*vars(types).values(), Commands, Events, Pong)
    if isinstance(cls, type) and dataclasses.is_dataclass(cls)
}


def encode(message: object) -> bytes:
    """Return a message as bytes. Raises what pickle raises if a part of it cannot be pickled."""
    buffer = io.BytesIO(bytes(_LENGTH.size))
    buffer.seek(_LENGTH.size)
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(message)
    with buffer.getbuffer() as view:
        _LENGTH.pack_into(view, 0, len(view) - _LENGTH.size)
    return buffer.getvalue()


class MessageDecoder:
    """Turns the bytes of a pipe, in portions of any size, into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[object]:
        """Add bytes; yield the messages that are complete."""
        self._buffer += data
        begin = 0
        try:
            while len(self._buffer) - begin >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._buffer, begin)
                end = begin + _LENGTH.size + length
                if len(self._buffer) < end:
                    return
                with memoryview(self._buffer)[begin + _LENGTH.size : end] as view:
                    message = pickle.loads(view)
                begin = end
                yield message
        finally:
            del self._buffer[:begin]


def read_message(stream: BinaryIO) -> object | None:
    """Read one message; blocks. Returns None at the end of the stream."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    body = stream.read(length)
    return None if len(body) < length else pickle.loads(body)
