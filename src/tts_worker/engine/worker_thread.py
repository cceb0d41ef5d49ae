"""A thread that does work for an engine thread, one item at a time and in order."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

ENGINE_NICENESS = 4
NETWORK_NICENESS = 5
"""How much nicer than their process the threads of an engine and of a CPU voice's network are.

Farther from the event loop, a STOP is shorter but clients on the same machine go before the engine, which causes
underruns. Near to each other: when only the network had 5, 64 calls left it too little time."""


class StreamFuture(Generic[T]):
    """The result of work submitted to a thread or stream."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self.finished_event = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self) -> StreamFuture[T]:
        """Run the work in the calling thread."""
        work = self._work
        self._work = None
        assert work is not None
        try:
            self._value = work()
        except BaseException as error:
            self._error = error
        self.finished_event.set()
        return self

    @property
    def is_done(self) -> bool:
        return self.finished_event.is_set()

    def result(self) -> T:
        """Block until the work is done. Returns its result, or raises its exception once."""
        self.finished_event.wait()
        error = self._error
        self._error = None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame: the cycle would keep the tensors of the failed pass
        return self._value  # type: ignore[return-value]


_Inbox = queue.SimpleQueue[Callable[[], object] | None]


class WorkerThread:
    """A daemon thread that ends with ``close``, or when this object is collected.

    Args:
        name: Name of the thread.
        prepare: Called on the thread before any work.

    Attributes:
        thread: The thread.
    """

    def __init__(self, name: str, prepare: Callable[[], object] | None = None) -> None:
        self._inbox: _Inbox = queue.SimpleQueue()
        if prepare is not None:
            self._inbox.put(prepare)
        # The thread holds no reference to this object, so this object can be collected; the finalizer ends the thread.
        self.thread = threading.Thread(target=_serve, args=(self._inbox,), name=name, daemon=True)
        self.thread.start()
        weakref.finalize(self, self._inbox.put, None).atexit = False  # its owner may still wait for work then

    def submit(self, work: Callable[[], T]) -> StreamFuture[T]:
        """Queue ``work`` and return at once. It must not share mutable state with other threads."""
        future = StreamFuture(work)
        self._inbox.put(future.run)
        return future

    def call(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` on the thread after all work submitted so far."""
        self._inbox.put(callback)

    def end(self) -> None:
        """Let the thread end after submitted work. Nothing may be submitted afterwards."""
        self._inbox.put(None)

    def close(self) -> None:
        """End the thread, and wait for submitted work."""
        self.end()
        self.thread.join()


def lower_priority(niceness: int) -> None:
    """Let threads of the process with less ``niceness`` go before the calling one (Linux only).

    If more threads than processors want to run, they go in turns of milliseconds, and one that waits may have a STOP to
    take or frames to send, or hold the interpreter lock.
    """
    if sys.platform == "linux":  # elsewhere the priority is that of the whole process
        process_niceness = os.getpriority(os.PRIO_PROCESS, os.getpid())
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), process_niceness + niceness)


def _serve(inbox: _Inbox) -> None:
    while (work := inbox.get()) is not None:
        work()
        del work  # release what it refers to before the next item arrives
