"""A CUDA device simulated on the CPU: the branches of the code for CUDA compute real values, and races are errors.

Tensors claim to be on CUDA, fused operators are used and compute their compositions, and computations are replayed as
fake graphs. Streams are what they are on CUDA: work of different streams is unordered unless an event orders it, or the
host has waited in between. ``SimulatedDevice`` follows that order with vector clocks and notes where a result could
depend on chance: memory that one stream reads or writes while another one may still use it, and memory that the
allocator could give away too early. It hands out the memory of a freed tensor again in the order of the stream that
allocated it; other streams do not count (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management).

    with simulated_cuda() as device:
        subject = engine(..., streams=device.streams(), graph_runners=(FakeGraphRunner(), FakeGraphRunner()))
        device.watch()
        ...
        assert device.faults == []
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.fakes.cuda import claimed_cuda
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStreams, HostStream, PendingCopy, TimingEvent

DEFAULT = "default"
_HOST_READS = frozenset({"_local_scalar_dense", "equal", "is_nonzero", "nonzero"})

Clock = dict[str, int]
"""How much of the work of each stream is certainly done, in operations."""


@cache
def _schema_of(func: OpOverload) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the names of an operator's arguments, and of those that it writes."""
    arguments = func._schema.arguments
    writes = [each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write]
    return tuple(each.name for each in arguments), frozenset(writes)


def _add_tensors(value: object, tensors: list[Tensor]) -> None:
    """Append the tensors of an argument or a result: one, a list of them, or none."""
    if isinstance(value, Tensor):
        tensors.append(value)
    elif isinstance(value, list | tuple):
        tensors.extend(each for each in value if isinstance(each, Tensor))


def _merge(clock: Clock, other: Clock) -> None:
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


@dataclass
class _Memory:
    """Uses of a tensor's memory.

    Attributes:
        allocated_by: Stream that allocated it; None if it lives as long as the engine.
        write: Stream and number of the operation that wrote it last.
        reads: Number of the last operation that read it since then, by stream.
        what: The operation that wrote it.
        alive: Whether it is still there.
    """

    allocated_by: str | None
    alive: StorageWeakRef
    write: tuple[str, int] | None = None
    reads: Clock = field(default_factory=dict)
    what: str = ""

    @property
    def uses(self) -> Clock:
        """Number of the last operation of each stream."""
        uses = dict(self.reads)
        if self.write is not None:
            _merge(uses, dict([self.write]))
        return uses


class SimulatedDevice(TorchDispatchMode):
    """Follows all operations on tensors of the device.

    What exists when ``watch`` is called is on the device, and so is what is computed of it, or inside a stream. Other
    tensors are on the host.

    Attributes:
        faults: Races, and values that the host reads other than by a copy. Noted, not raised: the engine would retry.
        operations: Number of operations on the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.operations = 0
        self._entered: list[str] = []
        self._clocks: dict[str, Clock] = {}
        self._host: Clock = {}
        self._memory: dict[int, _Memory] = {}  # by address
        self._shared: list[_Memory] = []  # used by a stream that has not allocated it
        self._is_watching = False

    def streams(self) -> ExecutionStreams:
        """Return one stream for tokens and one for audio, as on CUDA."""
        audio = SimulatedStream(self, "audio")
        return ExecutionStreams(SimulatedStream(self, "tokens"), audio, audio)

    def watch(self) -> None:
        """Begin, after a synchronization: all work so far is done."""
        # By the exact types: tensors without values, which other tests leave behind, have no memory.
        for tensor in [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter)]:
            if tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                self._memory[storage.data_ptr()] = _Memory(None, StorageWeakRef(storage))
        self._is_watching = True

    def upload(self, rows: Sequence[Sequence[int]] | Sequence[int]) -> Tensor:
        """Copy integers to the device, on the current stream."""
        with _disable_current_modes():
            tensor = torch.tensor(rows, dtype=torch.long)
        if self._is_watching:
            self._operate("copy to the device", (), (), (tensor,))
        return tensor

    # -- streams ------------------------------------------------------------------------------------------------------

    @property
    def _stream(self) -> str:
        return self._entered[-1] if self._entered else DEFAULT

    def enter(self, stream: str) -> None:
        self._entered.append(stream)

    def leave(self) -> None:
        self._entered.pop()

    def clock(self, stream: str) -> Clock:
        """What is done before the next operation of ``stream``."""
        return self._clocks.setdefault(stream, {stream: 0})

    def reached(self, event: Clock) -> None:
        """The host has waited for ``event``."""
        _merge(self._host, event)

    # -- operations ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if not self._is_watching or func.is_view:
            return func(*args, **kwargs)
        names, writes = _schema_of(func)
        read: list[Tensor] = []
        written: list[Tensor] = []
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            _add_tensors(value, written if name in writes else read)
        before = {tensor.untyped_storage().data_ptr() for tensor in (*read, *written)}
        is_known = any(self._find(address) is not None for address in before)
        is_on_device = bool(self._entered) or is_known
        out = func(*args, **kwargs)
        if not is_on_device:
            return out
        name = func._schema.name
        if is_known and name.split("::")[1] in _HOST_READS:
            self.faults.append(f"the host reads a value by {name}")
        returned: list[Tensor] = []
        _add_tensors(out, returned)
        fresh = [tensor for tensor in returned if tensor.untyped_storage().data_ptr() not in before]
        self._operate(name, read, written, fresh)
        return out

    def _operate(self, name: str, read: Sequence[Tensor], written: Sequence[Tensor], fresh: Sequence[Tensor]) -> None:
        """Record an operation of the current stream."""
        self.operations += 1
        stream = self._stream
        clock = self.clock(stream)
        _merge(clock, self._host)  # it is submitted after what the host has waited for
        self._check_freed()
        clock[stream] += 1
        now = clock[stream]
        for tensor in fresh:
            storage = tensor.untyped_storage()
            self._memory[storage.data_ptr()] = _Memory(stream, StorageWeakRef(storage), (stream, now), what=name)
        for tensor in read:
            memory = self._of(tensor)
            if memory is not None:
                self._check(name, "reads", clock, dict([memory.write]) if memory.write else {}, memory)
                memory.reads[stream] = now
        for tensor in written:
            memory = self._of(tensor)
            if memory is not None:
                self._check(name, "writes", clock, memory.uses, memory)
                memory.write = stream, now
                memory.what = name
                memory.reads = {}

    def _of(self, tensor: Tensor) -> _Memory | None:
        """Return the memory of a tensor on the device; None on the host."""
        memory = self._find(tensor.untyped_storage().data_ptr())
        is_shared = memory is not None and memory.allocated_by not in (None, self._stream)
        if memory is not None and is_shared and not any(each is memory for each in self._shared):
            self._shared.append(memory)
        return memory

    def _find(self, address: int) -> _Memory | None:
        memory = self._memory.get(address)
        if memory is not None and memory.alive.expired():  # what is there now came into being without an operation
            del self._memory[address]
            return None
        return memory

    def _check(self, name: str, access: str, clock: Clock, uses: Clock, memory: _Memory) -> None:
        for stream, count in uses.items():
            if clock.get(stream, 0) < count:
                self.faults.append(
                    f"{name} on {self._stream} {access} what {stream} may still use, written by {memory.what}"
                )

    def _check_freed(self) -> None:
        """Check that freed memory may be allocated again."""
        for memory in [each for each in self._shared if each.alive.expired()]:
            self._shared.remove(memory)
            assert memory.allocated_by is not None
            clock = dict(self.clock(memory.allocated_by))
            _merge(clock, self._host)
            for stream, count in memory.uses.items():
                if clock.get(stream, 0) < count:
                    self.faults.append(
                        f"what {memory.what} wrote on {memory.allocated_by} was freed while {stream} may still use it"
                    )


class _Event:
    """A point in the work of a simulated stream."""

    def __init__(self, device: SimulatedDevice, clock: Clock) -> None:
        self._device = device
        self.clock = dict(clock)

    def ms_since(self, earlier: TimingEvent) -> float:
        self._device.reached(self.clock)
        return 0.1


class _Copy:
    """A copy to the host, done at the second look. The host knows nothing of it before it has waited or seen that."""

    def __init__(self, device: SimulatedDevice, tensor: Tensor) -> None:
        self._looks = 0
        self._host = tensor.clone()
        device._memory.pop(self._host.untyped_storage().data_ptr(), None)  # on the host
        self._source = tensor
        self._event = _Event(device, device.clock(device._stream))

    @property
    def ready(self) -> bool:
        self._looks += 1
        if self._looks < 2:
            return False
        self._event.ms_since(self._event)
        return True

    def wait(self) -> Tensor:
        self._event.ms_since(self._event)
        return self._host


class SimulatedStream(HostStream):
    """A stream of a simulated device: submitted work runs in order, and the host does not wait for it."""

    is_asynchronous = True

    def __init__(self, device: SimulatedDevice, name: str) -> None:
        super().__init__()
        self._simulated = device
        self._name = name

    def __enter__(self) -> SimulatedStream:
        self._simulated.enter(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._simulated.leave()

    def to_device(self, rows: Sequence[Sequence[int]] | Sequence[int]) -> Tensor:
        return self._simulated.upload(rows)

    def to_host(self, tensor: Tensor) -> PendingCopy:
        return _Copy(self._simulated, tensor)

    def record_event(self) -> TimingEvent:
        clock = self._simulated.clock(self._name)
        _merge(clock, self._simulated._host)
        return _Event(self._simulated, clock)

    def wait_for(self, event: TimingEvent) -> None:
        assert isinstance(event, _Event)
        _merge(self._simulated.clock(self._name), event.clock)


@contextmanager
def simulated_cuda(device: SimulatedDevice | None = None) -> Iterator[SimulatedDevice]:
    """Let tensors claim to be on CUDA, with fused operators and streams of a simulated device.

    Args:
        device: A device of an earlier context, to go on with what was built there.
    """
    with claimed_cuda(), device or SimulatedDevice() as current:
        yield current
