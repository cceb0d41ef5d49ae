"""Runs computations of fixed shapes, eagerly or as captured graphs.

A computation is a function of tensors. Its key fixes everything else (shapes, batch, context). ``EagerRunner`` calls
it. ``GraphRunner`` captures it once as a CUDA graph and replays it on static input and output buffers.
``FakeGraphRunner`` does the same without a device, so CPU tests detect state that a capture would miss.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

log = logging.getLogger(__name__)

Tensors = tuple[Tensor, ...]
Compute = Callable[..., Tensors]


class Runner(Protocol):
    """Runs keyed computations.

    Attributes:
        fixed_shapes: Whether callers should round batches and contexts up, so that few graphs suffice.
    """

    fixed_shapes: bool

    def run(self, key: Hashable, compute: Compute, inputs: Tensors) -> Tensors:
        """Return ``compute(*inputs)``. In-place changes have the same effect as in a direct call.

        Args:
            key: Determines ``compute`` and all shapes.
            compute: The computation.
            inputs: Everything that differs from call to call.
        """
        ...

    def clear(self) -> None:
        """Release all captured graphs and what they refer to."""
        ...


class EagerRunner:
    """Calls every computation directly."""

    fixed_shapes = False

    def run(self, key: Hashable, compute: Compute, inputs: Tensors) -> Tensors:
        return compute(*inputs)

    def clear(self) -> None:
        pass


@dataclass
class _CapturedGraph:
    inputs: Tensors
    outputs: Tensors
    replay: Callable[[], None]


def single_output(runner: Runner) -> Callable[[Hashable, Callable[..., Tensor], Tensors], Tensor]:
    """Adapt ``runner`` to computations that return one tensor."""

    def run(key: Hashable, compute: Callable[..., Tensor], inputs: Tensors) -> Tensor:
        return runner.run(key, lambda *args: (compute(*args),), inputs)[0]

    return run


class CapturingRunner(ABC):
    """Base of runners that replay captured graphs.

    Captures happen only while ``is_capturing`` is set, so that no client waits for one. All other keys run eagerly, as
    do all uncaptured keys after a failed capture.
    """

    fixed_shapes = True

    def __init__(self) -> None:
        self.is_capturing = True
        self.replays = 0
        self.eager_calls = 0
        self._capture_failed = False
        self._graphs: dict[Hashable, _CapturedGraph] = {}

    @property
    def captured_graphs(self) -> int:
        return len(self._graphs)

    def run(self, key: Hashable, compute: Compute, inputs: Tensors) -> Tensors:
        graph = self._graphs.get(key)
        if graph is None and (self._capture_failed or not self.is_capturing):
            self.eager_calls += 1
            return compute(*inputs)
        if graph is None:
            # A capture does not compute: this eager call advances the state, and warms up.
            outputs = compute(*inputs)
            buffers = tuple(tensor.clone() for tensor in inputs)
            try:
                self._graphs[key] = self._capture(compute, buffers, outputs)
            except RuntimeError as error:  # not permitted by the device, or out of memory
                self._capture_failed = True
                log.warning("CUDA graph capture failed; computing without graphs, which is slower: %s", error)
            return outputs
        for buffer, tensor in zip(graph.inputs, inputs, strict=True):
            buffer.copy_(tensor)
        graph.replay()
        self.replays += 1
        return graph.outputs

    def clear(self) -> None:
        self._graphs.clear()

    @abstractmethod
    def _capture(self, compute: Compute, inputs: Tensors, outputs: Tensors) -> _CapturedGraph: ...


class GraphRunner(CapturingRunner):
    """Captures CUDA graphs that share one memory pool.

    Args:
        stream: The CUDA stream of the ``ExecutionStream`` that runs the computations.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        super().__init__()
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    def _capture(self, compute: Compute, inputs: Tensors, outputs: Tensors) -> _CapturedGraph:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Thread-local, because another engine, or the successor of this one, may use the device on its own thread.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            static_outputs = compute(*inputs)
        return _CapturedGraph(inputs, static_outputs, graph.replay)


class FakeGraphRunner(CapturingRunner):
    """Mimics graph replay on the CPU.

    A replay calls the captured function on the captured input buffers and writes into the captured output buffers.
    State that reaches a computation in any other way shows as a wrong result.
    """

    def _capture(self, compute: Compute, inputs: Tensors, outputs: Tensors) -> _CapturedGraph:
        static_outputs = tuple(output.clone() for output in outputs)

        def replay() -> None:
            for buffer, output in zip(static_outputs, compute(*inputs), strict=True):
                buffer.copy_(output)

        return _CapturedGraph(inputs, static_outputs, replay)
