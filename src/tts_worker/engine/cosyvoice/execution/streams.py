"""Execution streams of a device, and asynchronous copies from and to it.

Work submitted to one ``ExecutionStream`` runs in order. On CUDA it is a CUDA stream with pinned host memory, so that
the language model and the vocoder overlap. On a CPU it is a thread if there are cores for it, otherwise the caller.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from tts_worker.engine.worker_thread import StreamFuture, WorkerThread

T = TypeVar("T")


class PendingCopy(Protocol):
    """A copy to the host in progress."""

    @property
    def ready(self) -> bool: ...

    def wait(self) -> Tensor:
        """Block until the copy is done and return the CPU tensor."""
        ...


class TimingEvent(Protocol):
    """A point in the work of a stream."""

    def ms_since(self, earlier: TimingEvent) -> float:
        """Return the device time since ``earlier``, of the same stream. Blocks until this point is reached."""
        ...


class ExecutionStream(Protocol):
    """Runs work on a device in order. Enter it as a context manager to compute in the calling thread.

    Attributes:
        device: The device.
        is_asynchronous: Whether the caller only starts work, so that work can follow on results it has not seen.
    """

    device: torch.device
    is_asynchronous: bool

    def __enter__(self) -> ExecutionStream: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def to_device(self, rows: Sequence[Sequence[int]] | Sequence[int]) -> Tensor:
        """Copy integers to the device, as int64, without blocking."""
        ...

    def to_host(self, tensor: Tensor) -> PendingCopy:
        """Start a copy to the host."""
        ...

    def submit(self, work: Callable[[], T]) -> StreamFuture[T]:
        """Start ``work``. It enters the stream, and must not share mutable state with other threads."""
        ...

    def close(self) -> None:
        """Wait for submitted work. Nothing may be submitted afterwards."""
        ...

    def record_event(self) -> TimingEvent:
        """Return an event that is reached when all work submitted so far is done."""
        ...

    def wait_for(self, event: TimingEvent) -> None:
        """Start what is submitted from now on when ``event``, of any stream of the device, is reached."""
        ...


class _HostTimingEvent:
    """A timing event by the host clock."""

    def __init__(self) -> None:
        self._at_s = perf_counter()

    def ms_since(self, earlier: TimingEvent) -> float:
        assert isinstance(earlier, _HostTimingEvent)
        return 1000 * (self._at_s - earlier._at_s)


class _CompletedCopy:
    """A tensor that is on the host already."""

    ready = True

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> Tensor:
        return self._tensor


class HostStream:
    """The CPU, synchronously in the calling thread."""

    is_asynchronous = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def __enter__(self) -> HostStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def to_device(self, rows: Sequence[Sequence[int]] | Sequence[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long)

    def to_host(self, tensor: Tensor) -> PendingCopy:
        return _CompletedCopy(tensor)

    def submit(self, work: Callable[[], T]) -> StreamFuture[T]:
        return StreamFuture(work).run()

    def close(self) -> None:
        pass

    def record_event(self) -> TimingEvent:
        return _HostTimingEvent()

    def wait_for(self, event: TimingEvent) -> None:
        pass  # what was submitted before is done


class ThreadStream(HostStream):
    """The CPU, on a separate thread: ``submit`` returns at once.

    Entering the stream from another thread blocks until all submitted work is done, which keeps the order.

    Args:
        threads: PyTorch threads of the thread.
    """

    def __init__(self, threads: int = 1) -> None:
        super().__init__()
        self._last_finished: threading.Event | None = None  # of the work submitted last
        # PyTorch's number of threads applies to the calling thread only.
        self._worker = WorkerThread("tts-flow", prepare=partial(torch.set_num_threads, threads))
        self.thread = self._worker.thread

    def __enter__(self) -> ThreadStream:
        if self._last_finished is not None and threading.current_thread() is not self.thread:
            self._last_finished.wait()
        return self

    def submit(self, work: Callable[[], T]) -> StreamFuture[T]:
        future = self._worker.submit(work)
        self._last_finished = future.finished_event
        return future

    def close(self) -> None:
        self._worker.close()


class _CudaTimingEvent:
    """A timing event by the clock of the device."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record(stream)

    def hold_back(self, stream: torch.cuda.Stream) -> None:
        """Have ``stream`` wait for this point."""
        stream.wait_event(self._event)

    def ms_since(self, earlier: TimingEvent) -> float:
        assert isinstance(earlier, _CudaTimingEvent)
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event))


class _CudaCopy:
    """A copy into pinned memory. An event marks its end."""

    def __init__(self, tensor: Tensor) -> None:
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._source = tensor  # must live until the copy is done
        self._event = torch.cuda.Event()
        self._event.record()

    @property
    def ready(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> Tensor:
        self._event.synchronize()
        return self._host


_POOLED_STREAMS = 32  # of each priority
_open_streams: weakref.WeakSet[CudaStream] = weakref.WeakSet()
_choosing_stream = threading.Lock()  # engines are built on their own threads


def _unused_stream(device: torch.device, priority: int) -> torch.cuda.Stream:
    """Return a stream that no open ``CudaStream`` uses, if there is one.

    PyTorch gives out its streams in turn, also those in use. A capture on one of them would take up what another engine
    submits.
    """
    used = {each.cuda_stream.cuda_stream for each in _open_streams}
    for _ in range(_POOLED_STREAMS):
        stream = torch.cuda.Stream(device, priority=priority)
        if stream.cuda_stream not in used:
            break
    return stream


class CudaStream:
    """A CUDA stream.

    Args:
        device: The CUDA device.
        high_priority: Whether its kernels are scheduled before those of other streams.
    """

    is_asynchronous = True

    def __init__(self, device: torch.device, *, high_priority: bool = False) -> None:
        self.device = device
        with _choosing_stream:
            self.cuda_stream = _unused_stream(device, priority=-1 if high_priority else 0)
            _open_streams.add(self)
        self._contexts: list[torch.cuda.StreamContext] = []

    def __enter__(self) -> CudaStream:
        context = torch.cuda.stream(self.cuda_stream)
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._contexts.pop().__exit__(kind, error, trace)

    def to_device(self, rows: Sequence[Sequence[int]] | Sequence[int]) -> Tensor:
        # Pinned, because a copy from pageable memory synchronizes the host with the device.
        return torch.tensor(rows, dtype=torch.long).pin_memory().to(self.device, non_blocking=True)

    def to_host(self, tensor: Tensor) -> PendingCopy:
        return _CudaCopy(tensor)

    def submit(self, work: Callable[[], T]) -> StreamFuture[T]:
        return StreamFuture(work).run()  # the host only launches kernels

    def close(self) -> None:
        # The memory of the engine was allocated on other streams, which give it away without regard to this one.
        with contextlib.suppress(RuntimeError):  # of a device that is lost
            self.cuda_stream.synchronize()
        with _choosing_stream:
            _open_streams.discard(self)

    def record_event(self) -> TimingEvent:
        return _CudaTimingEvent(self.cuda_stream)

    def wait_for(self, event: TimingEvent) -> None:
        assert isinstance(event, _CudaTimingEvent)
        event.hold_back(self.cuda_stream)


@dataclass(frozen=True)
class ExecutionStreams:
    """The streams of one engine.

    Attributes:
        tokens: The language model; high priority on CUDA.
        flow: The flow.
        vocoder: The vocoder. The same stream as ``flow`` unless the host can run both at once.
    """

    tokens: ExecutionStream
    flow: ExecutionStream
    vocoder: ExecutionStream

    def close(self) -> None:
        for stream in (self.tokens, self.flow, self.vocoder):
            stream.close()


def flow_threads(threads: int) -> int:
    """Return how many of PyTorch's threads compute the flow where it has its own thread."""
    return max(1, threads - max(1, threads // 3))


def streams_for(device: torch.device, *, overlap: bool = False) -> ExecutionStreams:
    """Create the streams for ``device``.

    Args:
        device: The device of the networks.
        overlap: On a CPU, run the flow, half of all work, on its own thread with two thirds of PyTorch's threads.
            Tokens and the vocoder stay on the calling thread.
    """
    if device.type == "cuda":
        audio = CudaStream(device)
        return ExecutionStreams(CudaStream(device, high_priority=True), audio, audio)
    host = HostStream()
    if not overlap:
        return ExecutionStreams(host, host, host)
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // 3))
    return ExecutionStreams(host, ThreadStream(flow_threads(threads)), host)
