"""Runs computations of fixed shapes, eagerly or as captured graphs.

A computation is a function of tensors. Its key fixes everything else (shapes, batch, context) and begins with the name
of the computation. ``EagerRunner`` calls it. ``CudaGraphRunner`` replays the CUDA graph that was captured for the key,
on static input and output buffers. They count replays and calls.
"""

from __future__ import annotations

import gc
import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tts_worker.types import ComputationCounts

log = logging.getLogger(__name__)

Tensors = tuple[Tensor, ...]
Compute = Callable[..., Tensors]
Key = tuple[Hashable, ...]
"""The name of a computation (``decode``, ``flow`` and so on) and its shape."""

_RECENT_KEYS = 8  # keys without a graph that are remembered for a report
_COUNTED_KEYS = 1000  # most keys without a graph that are counted; shapes are rounded, so that there are few


class GraphRunner(Protocol):
    """Runs keyed computations.

    Attributes:
        fixed_shapes: Whether callers should round batches and contexts up, so that there are few shapes.
    """

    fixed_shapes: bool

    def run(self, key: Key, compute: Compute, inputs: Tensors) -> Tensors:
        """Return ``compute(*inputs)``. In-place changes have the same effect as in a direct call.

        Args:
            key: Determines ``compute`` and all shapes.
            compute: The computation.
            inputs: Everything that differs from call to call.
        """
        ...

    def capture(self, key: Key, compute: Compute, inputs: Tensors) -> None:
        """Prepare ``run`` for a key: run the computation once on ``inputs``, which must not affect any utterance."""
        ...

    def clear(self) -> None:
        """Release all captured graphs and what they refer to."""
        ...


def padded_rows(rows: int) -> int:
    """Return the rows that a batch of ``rows`` is padded to where shapes are fixed: a power of two."""
    return 1 << (rows - 1).bit_length()


def captured_rows(batch: int) -> list[int]:
    """Return the rows of the passes to capture for batches of up to ``batch``, the most first: others reuse memory."""
    return [1 << power for power in reversed(range(padded_rows(batch).bit_length()))]


@dataclass
class _Counts:
    captured: int = 0
    refused: int = 0
    replays: int = 0
    eager_calls: int = 0


class CountingRunner:
    """Base of runners that count how often each computation ran."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}

    @property
    def computations(self) -> tuple[ComputationCounts, ...]:
        """How often each computation ran, by name."""
        return tuple(
            ComputationCounts(name, counts.captured, counts.refused, counts.replays, counts.eager_calls)
            for name, counts in sorted(self._counts.items())
        )

    @property
    def replays(self) -> int:
        return sum(counts.replays for counts in self._counts.values())

    @property
    def eager_calls(self) -> int:
        return sum(counts.eager_calls for counts in self._counts.values())

    def reset_counts(self) -> None:
        """Set the counts of replays and calls to zero, after the warm-up."""
        for counts in self._counts.values():
            counts.replays = counts.eager_calls = 0

    def _counts_of(self, key: Key) -> _Counts:
        name = str(key[0])
        if name not in self._counts:
            self._counts[name] = _Counts()
        return self._counts[name]


class EagerRunner(CountingRunner):
    """Calls every computation directly.

    Args:
        fixed_shapes: Whether callers should round shapes up: on CUDA, a new shape costs a search for kernels.
    """

    def __init__(self, *, fixed_shapes: bool = False) -> None:
        super().__init__()
        self.fixed_shapes = fixed_shapes

    def run(self, key: Key, compute: Compute, inputs: Tensors) -> Tensors:
        self._counts_of(key).eager_calls += 1
        return compute(*inputs)

    def capture(self, key: Key, compute: Compute, inputs: Tensors) -> None:
        compute(*inputs)  # lets the libraries choose kernels for the shape

    def clear(self) -> None:
        pass


@dataclass
class CapturedGraph:
    """A graph and what it uses by address, which must live as long: its buffers, and what ``compute`` refers to."""

    inputs: Tensors
    outputs: Tensors
    replay: Callable[[], None]
    compute: Compute


class CapturingRunner(CountingRunner, ABC):
    """Base of runners that replay captured graphs.

    Graphs are captured during the warm-up, so that no client waits for one. Keys without a graph run eagerly. A failed
    capture concerns its key only.

    Attributes:
        refused: Why each failed capture failed, by key.
        recent_eager_keys: The last keys that ran without a graph, for reports; the caller clears it.
        eager_keys: How often each key ran without a graph since ``reset_counts``.
    """

    fixed_shapes = True

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[Key, str] = {}
        self.recent_eager_keys: deque[Key] = deque(maxlen=_RECENT_KEYS)
        self.eager_keys: Counter[Key] = Counter()
        self._graphs: dict[Key, CapturedGraph] = {}
        self._timed: list[tuple[Key, Any, Any]] | None = None  # begin and end of the replays, while they are timed

    def run(self, key: Key, compute: Compute, inputs: Tensors) -> Tensors:
        graph = self._graphs.get(key)
        if graph is None:
            self._counts_of(key).eager_calls += 1
            self.recent_eager_keys.append(key)
            if key in self.eager_keys or len(self.eager_keys) < _COUNTED_KEYS:
                self.eager_keys[key] += 1
            return compute(*inputs)
        for buffer, tensor in zip(graph.inputs, inputs, strict=True):
            buffer.copy_(tensor)
        if self._timed is None:
            graph.replay()
        else:
            begin = self._mark()
            graph.replay()
            self._timed.append((key, begin, self._mark()))
        self._counts_of(key).replays += 1
        return graph.outputs

    def capture(self, key: Key, compute: Compute, inputs: Tensors) -> None:
        if key in self._graphs:
            return
        try:
            outputs = compute(*inputs)  # libraries initialize and choose kernels in an eager call, not in a capture
            self._graphs[key] = self._capture(compute, tuple(tensor.clone() for tensor in inputs), outputs)
            self._counts_of(key).captured += 1
            return
        except Exception as error:  # not permitted by the device, out of memory, or of Triton
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        # After the handler, because the traceback of the error refers to the tensors of the failed pass.
        self._counts_of(key).refused += 1
        self.refused[key] = reason
        log.warning("no CUDA graph for %s, which will be slower: the capture failed (%s)", key, reason)
        self._free_memory()

    def reset_counts(self) -> None:
        super().reset_counts()
        self.eager_keys.clear()

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys with a graph."""
        return tuple(self._graphs)

    @contextmanager
    def timing(self) -> Iterator[dict[Key, list[float]]]:
        """Time every replay inside the block. When it ends, it yields the milliseconds of each, by key."""
        times: dict[Key, list[float]] = {}
        timed: list[tuple[Key, Any, Any]] = []
        self._timed = timed
        try:
            yield times
        finally:
            self._timed = None
        for key, begin, end in timed:
            times.setdefault(key, []).append(self._elapsed_ms(begin, end))

    def clear(self) -> None:
        self._graphs.clear()

    @abstractmethod
    def _capture(self, compute: Compute, inputs: Tensors, outputs: Tensors) -> CapturedGraph: ...

    @abstractmethod
    def _mark(self) -> Any:
        """Return a point in the work submitted so far."""

    @abstractmethod
    def _elapsed_ms(self, begin: Any, end: Any) -> float:
        """Return the time between two points, the later of which is waited for."""

    def _free_memory(self) -> None:
        """Return unused memory to the device after a failed capture."""


class CudaGraphRunner(CapturingRunner):
    """Captures CUDA graphs that share one memory pool.

    Args:
        stream: The CUDA stream of the ``ExecutionStream`` that runs the computations.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        super().__init__()
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    def _capture(self, compute: Compute, inputs: Tensors, outputs: Tensors) -> CapturedGraph:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Thread-local, because another engine, or the successor of this one, may use the device on its own thread.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            static_outputs = compute(*inputs)
        return CapturedGraph(inputs, static_outputs, graph.replay, compute)

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _elapsed_ms(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end))

    def _free_memory(self) -> None:
        # Before pull request 180395 of PyTorch (2.11 is older), the allocator believes that a capture which became
        # invalid still goes on, and then returns no memory or refuses to.
        end = getattr(torch._C, "_cuda_endAllocateToPool", None)
        if end is not None:
            with suppress(RuntimeError):  # it has ended
                end(self._stream.device_index, self._pool)
        self._pool = torch.cuda.graph_pool_handle()  # a failed capture may leave its pool in use
        gc.collect()
        try:
            torch.cuda.empty_cache()
        except RuntimeError as error:
            log.warning("after the failed capture no memory is returned to the device (%s)", str(error).splitlines()[0])
