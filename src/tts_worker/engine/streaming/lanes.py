"""Where work runs on the device, and how numbers get there and back without the host waiting.

A ``Lane`` is one queue of the device: what is sent, computed and fetched inside ``with lane:`` happens in order. On a
CPU it is no queue at all. On CUDA it is a stream of its own with pinned memory on both sides, so that the language
model and the vocoder overlap. Knows nothing about what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def lane_for(device: torch.device, *, urgent: bool = False) -> Lane:
    """A lane of its own on ``device``."""
    return CudaLane(device, urgent=urgent) if device.type == "cuda" else HostLane()
