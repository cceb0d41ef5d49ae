"""Runs a computation of fixed shapes: plainly, or from a recording whose inputs and outputs stay in place.

A computation is a function of tensors, named by a key that fixes everything else about it (shapes, batch, context).
``EagerRunner`` calls it. ``GraphRunner`` records it once as a CUDA graph and replays it: the inputs are copied into
buffers that never move, the outputs lie in buffers that the next replay overwrites. ``RehearsalRunner`` does the same
without a device, so that a CPU test finds out what a recording would have missed. Knows no network.
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
    """``fixed_shapes``: whoever calls should round batches and contexts up, so that few recordings do."""

    fixed_shapes: bool

    def run(self, key: Hashable, compute: Compute, inputs: Tensors) -> Tensors:
        """``compute(*inputs)``. ``key`` must determine ``compute`` and all shapes; what differs from call to call must
        be among ``inputs``. What it changes in place, it changes as a plain call would."""
        ...

    def forget(self) -> None:
        """Let go of what was recorded and of everything that it refers to."""
        ...


class EagerRunner:
    fixed_shapes = False

    def run(self, key: Hashable, compute: Compute, inputs: Tensors) -> Tensors:
        return compute(*inputs)

    def forget(self) -> None:
        pass


@dataclass
class _Recording:
    inputs: Tensors
    outputs: Tensors
    replay: Callable[[], None]


def single(runner: Runner) -> Callable[[Hashable, Callable[..., Tensor], Tensors], Tensor]:
    """``runner`` for computations that return one tensor."""

    def run(key: Hashable, compute: Callable[..., Tensor], inputs: Tensors) -> Tensor:
        return runner.run(key, lambda *given: (compute(*given),), inputs)[0]

    return run


class RecordingRunner(ABC):
    """Buffers and keys; subclasses know how to record. Only what is asked for while ``recording`` is on is recorded: a
    caller's first chunk must not wait for a capture. Everything else is computed plainly, and so is all that is left
    once a recording failed."""

    fixed_shapes = True

    def __init__(self) -> None:
        self.recording = True
        self._refused = False
        self.replays = self.plain_calls = 0
        self._recordings: dict[Hashable, _Recording] = {}

    @property
    def recordings(self) -> int:
        return len(self._recordings)

    def run(self, key: Hashable, compute: Compute, inputs: Tensors) -> Tensors:
        recording = self._recordings.get(key)
        if recording is None and (self._refused or not self.recording):
            self.plain_calls += 1
            return compute(*inputs)
        if recording is None:
            # A recording does not compute: the state is brought forward by this plain call, which also warms up.
            outputs = compute(*inputs)
            buffers = tuple(tensor.clone() for tensor in inputs)
            try:
                self._recordings[key] = self._record(compute, buffers, outputs)
            except RuntimeError as problem:  # what the device does not permit, or has no memory for
                self._refused = True
                log.warning("computing without recordings from here on, which is slower: %s", problem)
            return outputs
        for buffer, tensor in zip(recording.inputs, inputs, strict=True):
            buffer.copy_(tensor)
        recording.replay()
        self.replays += 1
        return recording.outputs

    def forget(self) -> None:
        self._recordings.clear()

    @abstractmethod
    def _record(self, compute: Compute, inputs: Tensors, outputs: Tensors) -> _Recording: ...


class GraphRunner(RecordingRunner):
    """CUDA graphs that share one memory pool. Captures on ``stream``, which must be the lane's."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        super().__init__()
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    def _record(self, compute: Compute, inputs: Tensors, outputs: Tensors) -> _Recording:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Other threads may use the device meanwhile: another engine, or the one that takes this one's place.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            static = compute(*inputs)
        return _Recording(inputs, static, graph.replay)


class RehearsalRunner(RecordingRunner):
    """A recording played on the CPU: replays call the function that was recorded first, on the buffers that were there
    first, into the output that was there first. What reaches a computation by any other way shows as a wrong result."""

    def _record(self, compute: Compute, inputs: Tensors, outputs: Tensors) -> _Recording:
        static = tuple(output.clone() for output in outputs)

        def replay() -> None:
            for buffer, output in zip(static, compute(*inputs), strict=True):
                buffer.copy_(output)

        return _Recording(inputs, static, replay)
