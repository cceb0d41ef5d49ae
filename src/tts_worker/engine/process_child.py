"""The main program of an engine process. ``engine.process`` starts it and describes the protocol.

The main thread reads requests; the engine has a separate thread. The process ends with its engine, and at once when
the server process ends, which closes the pipe.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO, NoReturn

from tts_worker.engine.engine_thread import SWITCH_INTERVAL_S, EngineThread
from tts_worker.engine.pipe import (
    CloseEngine,
    Commands,
    EngineEnded,
    EngineReady,
    Events,
    LogRecord,
    Ping,
    Pong,
    SharedChange,
    StartEngine,
    encode,
    read_message,
)
from tts_worker.errors import EngineFault, TTSWorkerError
from tts_worker.types import EngineInfo, EngineReport, Event

_PIPE_BYTES = 1 << 20
"""Size of the pipe to the server, some seconds of audio: the engine does not wait while the server is busy."""


class _Server:
    """The pipe to the server process; any thread may write."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        with contextlib.suppress(ImportError, AttributeError, OSError):  # Linux only
            import fcntl

            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def send(self, message: object) -> None:
        data = memoryview(encode(message))
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


class _Reporter:
    """Reports of the engine thread to the server."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._steps = 0
        self._steps_s = 0.0
        self._slowest: tuple[float, str] = (0.0, "")  # the longest step and what it did
        self._report = EngineReport()

    def on_ready(self, info: EngineInfo) -> None:
        # Objects created so far live as long as the process: excluding them keeps garbage collection pauses short.
        gc.collect()
        gc.freeze()
        self._server.send(EngineReady(info, time.process_time(), resident_bytes()))

    def on_step(self, events: Sequence[Event], elapsed_s: float, report: EngineReport) -> None:
        self._steps += 1
        self._steps_s += elapsed_s
        self._report = report
        if elapsed_s > self._slowest[0]:
            self._slowest = (elapsed_s, report.last_step)
        if events:
            self._server.send(Events(list(events), self._steps, self._steps_s))
            self._steps = 0
            self._steps_s = 0.0

    def on_end(self, fault: BaseException | None) -> NoReturn:
        code = 0
        message = EngineEnded(None)
        if fault is not None:
            code = 1
            message = EngineEnded(_portable(fault), str(fault.__cause__).strip())
        with contextlib.suppress(OSError):  # the server has ended
            self._server.send(message)
        # Not an ordinary exit, which would wait for the main thread and run destructors of a device that may be lost.
        os._exit(code)

    def pong(self, busy_s: float) -> Pong:
        """Describe the state of the engine; called on another thread than the rest."""
        slowest_s, last_step = self._slowest
        report = replace(self._report, last_step=last_step)
        return Pong(busy_s, report, slowest_s, time.process_time(), resident_bytes())


class _ForwardLogs(logging.Handler):
    """Sends log records to the server, which formats and filters them as its own."""

    def __init__(self, server: _Server) -> None:
        super().__init__()
        self._server = server

    def emit(self, record: logging.LogRecord) -> None:
        values = dict(record.__dict__)
        values["msg"] = record.getMessage()
        values["args"] = None
        if record.exc_info:
            values["exc_text"] = logging.Formatter().formatException(record.exc_info)
            values["exc_info"] = None
        with contextlib.suppress(Exception):  # the server has ended, or a field cannot be pickled
            self._server.send(LogRecord(values))


def main() -> None:
    """Serve the engine whose description arrives on standard input, until that ends."""
    # Only the server decides when this process ends, also after Ctrl-C or a SIGTERM to the whole process group.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # the main thread reads the commands while the engine computes
    requests, server = _take_pipes()
    start = read_message(requests)
    if not isinstance(start, StartEngine):
        return  # the server has ended
    logging.getLogger().addHandler(_ForwardLogs(server))
    _set_log_levels(start.log_levels)
    reporter = _Reporter(server)
    engine = EngineThread(start.factory, reporter, name=start.name)
    engine.start()
    while (message := read_message(requests)) is not None:
        match message:
            case Commands():
                for command in message.commands:
                    engine.post(command)
            case SharedChange() if start.shared is not None:
                start.shared.apply(message.change)
            case Ping():
                _set_log_levels(message.log_levels)
                server.send(reporter.pong(engine.busy_s()))
            case CloseEngine():
                engine.close()
    os._exit(0)  # the server has ended: also if the engine hangs


def _set_log_levels(levels: tuple[int, int]) -> None:
    """Set the levels of the root logger and of this package's logger, which the server filters by as well."""
    logging.getLogger().setLevel(levels[0])
    logging.getLogger("tts_worker").setLevel(levels[1])


def _take_pipes() -> tuple[BinaryIO, _Server]:
    """Keep the standard streams for the protocol: output of libraries goes to standard error."""
    requests = os.fdopen(os.dup(0), "rb")
    events = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, _Server(events)


def _portable(fault: BaseException) -> Exception:
    """Return ``fault``, or an error that stands for it if it cannot be pickled or does not derive from Exception."""
    if isinstance(fault, TTSWorkerError):
        with contextlib.suppress(Exception):
            copy = pickle.loads(pickle.dumps(fault))
            if type(copy) is type(fault) and copy.info == fault.info:
                return fault
        error = TTSWorkerError(fault.message, retry_after_s=fault.retry_after_s)
        error.code = fault.code
        error.retryable = fault.retryable
        return error
    return EngineFault(f"the engine failed ({type(fault).__name__})")


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where that is unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0


if __name__ == "__main__":
    main()
