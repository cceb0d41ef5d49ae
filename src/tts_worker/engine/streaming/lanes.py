"""Where work runs on the device, and how numbers get there and back without the host waiting.

A ``Lane`` is one queue of the device: what is sent, computed and fetched inside ``with lane:`` happens in order. On
CUDA it is a stream of its own with pinned memory on both sides, so that the language model and the vocoder overlap. On
a CPU it is a thread of its own where there are processors for that, else no queue at all. Knows nothing about what is
computed.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Ticket(Protocol):
    """Numbers on their way to the host."""

    @property
    def ready(self) -> bool: ...

    def wait(self) -> Tensor:
        """The numbers, on the CPU. Blocks until they are there."""
        ...


class Mark(Protocol):
    """A moment in what a lane does."""

    def ms_since(self, earlier: Mark) -> float:
        """How long the device took from ``earlier``, of the same lane, to here. Blocks until it has come here."""
        ...


class Begun(Generic[T]):
    """Work that a lane has begun: what it returned or raised, once it is over."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self.ended = threading.Event()
        self._returned: T | None = None
        self._raised: BaseException | None = None

    def run(self) -> Begun[T]:
        """Do it, in the thread that calls."""
        work = self._work
        self._work = None
        assert work is not None
        try:
            self._returned = work()
        except BaseException as problem:
            self._raised = problem
        self.ended.set()
        return self

    @property
    def over(self) -> bool:
        return self.ended.is_set()

    def result(self) -> T:
        """Blocks until it is over. Raises what it raised."""
        self.ended.wait()
        problem = self._raised
        self._raised = None
        if problem is not None:
            try:
                raise problem
            finally:
                del problem  # its traceback holds this frame: a cycle would keep all that the failed pass had made
        return self._returned  # type: ignore[return-value]


class Lane(Protocol):
    device: torch.device

    def __enter__(self) -> Lane: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def send(self, rows: Sequence[Sequence[int]] | Sequence[int]) -> Tensor:
        """Integers to the device, int64."""
        ...

    def fetch(self, numbers: Tensor) -> Ticket: ...

    def do(self, work: Callable[[], T]) -> Begun[T]:
        """Begin ``work``, which enters the lane and touches nothing meanwhile that anybody else does."""
        ...

    def close(self) -> None:
        """What has begun is waited for; nothing more is begun."""
        ...

    def mark(self) -> Mark:
        """The moment when all that was asked for until now is done."""
        ...


class _Now:
    """A moment of the host's clock."""

    def __init__(self) -> None:
        self._at_s = perf_counter()

    def ms_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, _Now)
        return 1000 * (self._at_s - earlier._at_s)


class _Here:
    """Numbers that are on the host already."""

    ready = True

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers

    def wait(self) -> Tensor:
        return self._numbers


class HostLane:
    """The CPU: everything has happened when the call returns."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def __enter__(self) -> HostLane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def send(self, rows: Sequence[Sequence[int]] | Sequence[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long)

    def fetch(self, numbers: Tensor) -> Ticket:
        return _Here(numbers)

    def do(self, work: Callable[[], T]) -> Begun[T]:
        return Begun(work).run()

    def close(self) -> None:
        pass

    def mark(self) -> Mark:
        return _Now()


_Inbox = queue.SimpleQueue[Callable[[], object] | None]


class ThreadLane(HostLane):
    """A thread of the CPU, with ``threads`` of PyTorch's: ``do`` returns at once. Who enters the lane in another thread
    waits until all is done that was begun, so that whatever he does comes after it."""

    def __init__(self, threads: int = 1) -> None:
        super().__init__()
        self._inbox: _Inbox = queue.SimpleQueue()
        self._last: threading.Event | None = None  # the end of what was begun last
        # The thread does not know the lane, which would otherwise never go away; without the lane, it ends.
        self._thread = threading.Thread(target=_serve, args=(self._inbox, threads), name="tts-flow", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._inbox.put, None)

    def __enter__(self) -> ThreadLane:
        if self._last is not None and threading.current_thread() is not self._thread:
            self._last.wait()
        return self

    def do(self, work: Callable[[], T]) -> Begun[T]:
        begun = Begun(work)
        self._last = begun.ended
        self._inbox.put(begun.run)
        return begun

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()


def _serve(inbox: _Inbox, threads: int) -> None:
    torch.set_num_threads(threads)  # a setting of the thread that calls
    while (work := inbox.get()) is not None:
        work()
        del work  # what it refers to need not wait for the next one


class _Passed:
    """A moment on a stream, by the device's clock."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def ms_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, _Passed)
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event))


class _Copied:
    """A copy into pinned memory that an event tells the end of."""

    def __init__(self, numbers: Tensor) -> None:
        self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._host.copy_(numbers, non_blocking=True)
        self._source = numbers  # alive until the copy is done
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()

    @property
    def ready(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> Tensor:
        self._event.synchronize()
        return self._host


class CudaLane:
    """A stream. ``urgent`` streams get the device first."""

    def __init__(self, device: torch.device, *, urgent: bool = False) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device, priority=-1 if urgent else 0)  # type: ignore[no-untyped-call]
        self._inside: list[torch.cuda.StreamContext] = []

    def __enter__(self) -> CudaLane:
        context = torch.cuda.stream(self.stream)
        context.__enter__()  # type: ignore[no-untyped-call]
        self._inside.append(context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.pop().__exit__(kind, error, trace)

    def send(self, rows: Sequence[Sequence[int]] | Sequence[int]) -> Tensor:
        # Not from pageable memory: that copy would make the host wait for everything that runs.
        return torch.tensor(rows, dtype=torch.long).pin_memory().to(self.device, non_blocking=True)

    def fetch(self, numbers: Tensor) -> Ticket:
        return _Copied(numbers)

    def do(self, work: Callable[[], T]) -> Begun[T]:
        return Begun(work).run()  # to launch is all that the host does

    def close(self) -> None:
        pass

    def mark(self) -> Mark:
        return _Passed(self.stream)


@dataclass(frozen=True)
class Lanes:
    """``tokens``: the language model, which is urgent. ``flow`` and ``vocoder``: one lane, or two where the host can do
    both at once."""

    tokens: Lane
    flow: Lane
    vocoder: Lane

    def close(self) -> None:
        for lane in (self.tokens, self.flow, self.vocoder):
            lane.close()


def lanes_for(device: torch.device, *, overlap: bool = False) -> Lanes:
    """``overlap``: on a CPU, the flow, which is half of all the work, has a thread to itself and two thirds of
    PyTorch's threads. Tokens and the vocoder stay with the caller."""
    if device.type == "cuda":
        sound = CudaLane(device)
        return Lanes(CudaLane(device, urgent=True), sound, sound)
    host = HostLane()
    if not overlap:
        return Lanes(host, host, host)
    threads = torch.get_num_threads()
    own = max(1, threads // 3)
    torch.set_num_threads(own)
    return Lanes(host, ThreadLane(max(1, threads - own)), host)
