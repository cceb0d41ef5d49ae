"""Graph replay without a device."""

from __future__ import annotations

from time import perf_counter

import torch

from tts_worker.engine.cosyvoice.execution.graph_runner import Compute, Tensors
from tts_worker.features.acceleration.graphs import CapturedGraph, CapturingRunner


class FakeGraphRunner(CapturingRunner):
    """Mimics graph replay on the CPU, so that tests detect state that a capture would miss.

    A replay calls the captured function on the captured input buffers and writes into the captured output buffers.
    State that reaches a computation in any other way shows as a wrong result. So do outputs that are used after the
    next replay of any graph: on a device the graphs share their memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last_outputs: Tensors = ()

    def _capture(self, compute: Compute, inputs: Tensors, outputs: Tensors) -> CapturedGraph:
        static_outputs = tuple(output.clone() for output in outputs)

        def replay() -> None:
            for buffer in self._last_outputs:
                buffer.fill_(torch.nan if buffer.is_floating_point() else torch.iinfo(buffer.dtype).min)
            for buffer, output in zip(static_outputs, compute(*inputs), strict=True):
                buffer.copy_(output)
            self._last_outputs = static_outputs

        return CapturedGraph(inputs, static_outputs, replay, compute)

    def _mark(self) -> float:
        return perf_counter()

    def _elapsed_ms(self, begin: float, end: float) -> float:
        return 1000 * (end - begin)
