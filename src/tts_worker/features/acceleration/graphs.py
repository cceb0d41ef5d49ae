"""Captures computations of fixed shapes as CUDA graphs and replays them.

``CudaGraphRunner`` replays the graph that was captured for a key, on static input and output buffers. It counts replays
and calls.
"""

from __future__ import annotations

import gc
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from tts_worker.engine.cosyvoice.execution.graph_runner import Compute, CountingRunner, Key, Tensors

log = logging.getLogger(__name__)

_COUNTED_KEYS = 1000  # most keys without a graph that are counted; shapes are rounded, so that there are few


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
    """

    fixed_shapes = True

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[Key, str] = {}
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


def graph_problem(device: torch.device | str, pytorch: Any = torch) -> str:
    """Return why CUDA graphs do not work on ``device``, by capturing and replaying one; empty if they do."""
    cuda = pytorch.cuda
    try:
        x = pytorch.zeros(1, device=device)
        graph = cuda.CUDAGraph()
        with cuda.device(device), cuda.graph(graph, capture_error_mode="thread_local"):
            x += 1
        graph.replay()
        return "" if x.tolist() == [1.0] else "a replay changed nothing"
    except RuntimeError as error:
        return f"{error!s:.100}"
