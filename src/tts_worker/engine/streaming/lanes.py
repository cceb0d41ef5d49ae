"""Where work runs on the device, and how numbers get there and back without the host waiting.

A ``Lane`` is one queue of the device: what is sent, computed and fetched inside ``with lane:`` happens in order. On a
CPU it is no queue at all. On CUDA it is a stream of its own with pinned memory on both sides, so that the language
model and the vocoder overlap. Knows nothing about what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor


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

    def mark(self) -> Mark:
        return _Now()


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

    def mark(self) -> Mark:
        return _Passed(self.stream)


def lane_for(device: torch.device, *, urgent: bool = False) -> Lane:
    """A lane of its own on ``device``."""
    return CudaLane(device, urgent=urgent) if device.type == "cuda" else HostLane()
