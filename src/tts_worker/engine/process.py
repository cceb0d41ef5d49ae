"""Runs an engine in a separate process, so that it does not compete with the event loop for the interpreter lock.

The process is a child that executes ``engine.process_child`` in a new interpreter; nothing is forked. Messages
(``engine.pipe``) go through its standard input and output. Commands are batched per iteration of the event loop, events
per engine step. Audio crosses a pipe as part of its event: at 128 calls that is 6 MB/s, which the copy does not show.

The child ends when its engine is broken, and when this process ends, which closes its input. A hanging child is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable
from enum import Enum
from typing import cast

from tts_worker.engine.base import Engine, SharedState
from tts_worker.engine.engine_thread import FaultTrace
from tts_worker.engine.handle import EngineOwner
from tts_worker.engine.phases import change_phase
from tts_worker.engine.pipe import (
    CloseEngine,
    Commands,
    EngineEnded,
    EngineReady,
    Events,
    LogRecord,
    MessageDecoder,
    Ping,
    Pong,
    SharedChange,
    StartEngine,
    encode,
)
from tts_worker.errors import ConfigError, EngineFault
from tts_worker.types import Command, EngineInfo

log = logging.getLogger(__name__)

_KILL_TIMEOUT_S = 5.0
"""Time for a killed process to disappear; one that waits for a driver may take longer."""

_STDERR = 2
"""File descriptor of a child's standard error."""

_LINE_BYTES = 64 << 10
"""Bound on an incomplete line of it."""

_PIPE_DRAIN_S = 0.5
"""Time after the exit of a child for its last messages, where another process still holds the pipe."""


class _ChildPhase(Enum):
    """A child process: LIVE -> ENDING -> EXITED, or LIVE -> EXITED, which is a fault."""

    LIVE = "starting or serving"
    ENDING = "its end was asked for or reported"
    EXITED = "it has exited"


TRANSITIONS: dict[_ChildPhase, frozenset[_ChildPhase]] = {
    _ChildPhase.LIVE: frozenset({_ChildPhase.ENDING, _ChildPhase.EXITED}),
    _ChildPhase.ENDING: frozenset({_ChildPhase.EXITED}),
    _ChildPhase.EXITED: frozenset(),
}


class ProcessHandle(asyncio.SubprocessProtocol):
    """Runs one engine in a child process (``engine.handle.EngineHandle``).

    Args:
        factory: Builds the engine in the child; picklable.
        owner: Receives events and faults.
        name: Name of the engine in logs and errors.
        shared: State that ``factory`` refers to; its changes are sent to the child.
    """

    is_isolated = True

    def __init__(
        self, factory: Callable[[], Engine], owner: EngineOwner, *, name: str, shared: SharedState | None = None
    ) -> None:
        self._info: EngineInfo | None = None  # once the engine is built and warm
        self._factory = factory
        self._owner = owner
        self._name = name
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.SubprocessTransport | None = None
        self._requests: asyncio.WriteTransport | None = None
        self._decoder = MessageDecoder()
        self._stderr = b""  # of its standard error, a line that is not complete
        self._commands: list[Command] = []
        self._spawning: asyncio.Task[None] | None = None
        self._exited = self._loop.create_future()
        self._phase = _ChildPhase.LIVE
        self._unanswered_pings = 0
        self._silent_s = 0.0
        self._busy_s = 0.0
        self._cpu_s = 0.0

    # -- engine.handle.EngineHandle -----------------------------------------------------------------------------------

    @property
    def has_started(self) -> bool:
        return self._info is not None

    def launch(self) -> None:
        self._spawning = self._loop.create_task(self._spawn())

    def post(self, command: Command) -> None:
        if not self._commands:
            self._loop.call_soon(self._send_commands)
        self._commands.append(command)

    def busy_s(self, interval_s: float) -> float:
        """Return for how long the engine call in progress has run, or for how long the process has not answered.

        Silence is counted in calls of this method, so that a stall of this process does not look like a hang.
        """
        if self.has_started and not self._unanswered_pings:
            self._silent_s = 0.0
            self._unanswered_pings += 1
            self._send(Ping(_log_levels()))
        else:
            self._silent_s += interval_s
        return max(self._silent_s, self._busy_s)

    def abandon(self) -> None:
        self._expect_end()
        self._kill()

    async def wait_until_freed(self, timeout_s: float) -> bool:
        await asyncio.wait({self._exited}, timeout=timeout_s)
        return self._exited.done()

    async def close(self, timeout_s: float) -> bool:
        self._expect_end()
        if self._spawning is not None:
            await asyncio.wait({self._spawning})
        if self.has_started:
            self._send_commands()
            self._send(CloseEngine())
            if await self.wait_until_freed(timeout_s):
                return True
        self._kill()
        return await self.wait_until_freed(_KILL_TIMEOUT_S) and not self.has_started

    # -- the child ----------------------------------------------------------------------------------------------------

    async def _spawn(self) -> None:
        try:
            if self._shared is not None:
                self._shared.on_change(self._on_shared_change)
            start = _encode_start(StartEngine(self._factory, self._shared, self._name, _log_levels()))
            program = f"import sys; sys.path[:] = {sys.path!r}; from {_CHILD} import main; main()"
            transport, _ = await self._loop.subprocess_exec(
                lambda: self, sys.executable, "-c", program, f"tts-engine {self._name}"
            )
        except Exception as error:
            self._mark_exited()
            self._owner.on_fault(self, error)
            return
        if self._phase is not _ChildPhase.LIVE:
            self._kill()
            return
        requests = transport.get_pipe_transport(0)
        self._requests = cast(asyncio.WriteTransport, requests)  # uvloop's are no subclasses
        self._requests.write(start)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDERR:
            self._log_stderr(data)
            return
        for message in self._decoder.feed(data):
            self._on_message(message)

    def process_exited(self) -> None:
        self._loop.call_later(_PIPE_DRAIN_S, self._on_exit)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == _STDERR and self._stderr:
            self._log_stderr(b"\n")

    def connection_lost(self, exc: Exception | None) -> None:
        """The child has exited and its pipes are read to the end."""
        self._on_exit()

    def _log_stderr(self, data: bytes) -> None:
        """Log the lines that libraries and the dump of a crash write to standard error, those of one read together."""
        lines, _, rest = (self._stderr + data).rpartition(b"\n")
        self._stderr = rest[-_LINE_BYTES:]
        if text := lines.decode(errors="replace").strip("\n"):
            log.warning("process of engine %s: %s", self._name, text)

    def _on_exit(self) -> None:
        if self._phase is _ChildPhase.EXITED:
            return
        code = self._transport.get_returncode() if self._transport is not None else None
        is_fault = self._phase is _ChildPhase.LIVE
        self._mark_exited()
        if is_fault:
            self._owner.on_fault(self, EngineFault(f"the engine process ended ({describe_exit(code)})"))

    def _mark_exited(self) -> None:
        if self._shared is not None:
            self._shared.on_change(None)
        if self._phase is not _ChildPhase.EXITED:
            self._phase = change_phase(self._phase, _ChildPhase.EXITED, TRANSITIONS)
            self._exited.set_result(None)
        if self._transport is not None:
            self._transport.close()

    def _expect_end(self) -> None:
        if self._phase is _ChildPhase.LIVE:
            self._phase = change_phase(self._phase, _ChildPhase.ENDING, TRANSITIONS)

    def _kill(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(ProcessLookupError):  # it has exited
                self._transport.kill()

    # -- messages -----------------------------------------------------------------------------------------------------

    def _send(self, message: object) -> None:
        if self._requests is not None and not self._requests.is_closing():
            self._requests.write(encode(message))

    def _send_commands(self) -> None:
        if self._commands:
            commands = self._commands
            self._commands = []
            self._send(Commands(commands))

    def _on_shared_change(self, change: object) -> None:
        """Send a change; called on any thread, before any command that depends on it is posted."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._send, SharedChange(change))

    def _on_message(self, message: object) -> None:
        match message:
            case Events():
                self._owner.stats.add_steps(message.steps, message.steps_s)
                self._owner.on_events(self, message.events)
            case Pong():
                self._unanswered_pings = 0
                self._busy_s = message.busy_s
                self._owner.stats.add_report(message.report, message.slowest_s)
                self._note_usage(message.cpu_s, message.memory_bytes)
            case LogRecord():
                logger = logging.getLogger(message.values["name"])
                if logger.isEnabledFor(message.values["levelno"]):
                    logger.handle(logging.makeLogRecord(message.values))
            case EngineReady():
                self._info = message.info
                self._note_usage(message.cpu_s, message.memory_bytes)
                self._owner.on_ready(self, message.info)
            case EngineEnded() if message.fault is not None and self._phase is _ChildPhase.LIVE:
                self._expect_end()
                message.fault.__cause__ = FaultTrace(message.traceback)
                self._owner.on_fault(self, message.fault)

    def _note_usage(self, cpu_s: float, memory_bytes: int) -> None:
        stats = self._owner.stats
        stats.process_cpu_s += cpu_s - self._cpu_s
        stats.process_memory_bytes = memory_bytes
        self._cpu_s = cpu_s


_CHILD = "tts_worker.engine.process_child"


def _encode_start(start: StartEngine) -> bytes:
    """Raises ConfigError if the factory cannot be pickled."""
    try:
        return encode(start)
    except Exception as error:
        raise ConfigError(
            f"engine.process: the engine {start.name} cannot run in a separate process, because what builds it "
            f"cannot be pickled ({type(error).__name__})"
        ) from error


def _log_levels() -> tuple[int, int]:
    """Levels of the root logger and of this package's logger."""
    return logging.getLogger().level, logging.getLogger("tts_worker").getEffectiveLevel()


def describe_exit(code: int | None) -> str:
    """Return how a process ended, from its return code."""
    if code is None:
        return "no status"
    if code >= 0:
        return f"status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
