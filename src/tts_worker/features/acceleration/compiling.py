"""Compiles computations with ``torch.compile`` before they are captured, where that is safe.

Inductor fuses what lies between matrix products, as the kernels of this project do (``acceleration.kernels``). A
compiled computation is compared with the eager one on the same inputs and state. If it cannot be compiled or differs,
or if compiling has taken too long already, the eager one is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.execution.graph_runner import Compute, Key
from tts_worker.engine.cosyvoice.execution.settings import CompileMode
from tts_worker.features.acceleration import kernels

log = logging.getLogger(__name__)

BUDGET_S = 180.0
"""Compiling adds at most this time to a warm-up, and that of the computation that exceeds it."""

MAX_SHAPES = 16
"""Most compiled shapes of a computation. PyTorch keeps one program for each."""

TOLERANCE_EPS = 16
"""Largest difference of a compiled computation, in units of the last place of the largest value."""


class TorchCompiler:
    """Compiles computations and compares them with eager calls.

    Args:
        backend: Back end of ``torch.compile``.
        budget_s: Time after which nothing more is compiled.
        clock: Returns the time in seconds.

    Attributes:
        faults: Why computations are not compiled, by name.
        shapes: Number of compiled shapes, by name.
    """

    def __init__(
        self,
        backend: str | Callable[..., Any] = "inductor",
        budget_s: float = BUDGET_S,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._backend = backend
        self._remaining_s = budget_s
        self._clock = clock
        self.faults: dict[str, str] = {}
        self.shapes: dict[str, int] = {}

    def compile(
        self,
        key: Key,
        compute: Compute,
        inputs: Sequence[Tensor | None],
        state: Sequence[Tensor] = (),
        tolerance: float = 0.0,
    ) -> Compute:
        """Compile ``compute`` as ``graph_runner.Compiler`` says; rounding is ``TOLERANCE_EPS``."""
        name = str(key[0])
        if name in self.faults or self._remaining_s <= 0 or self.shapes.get(name, 0) >= MAX_SHAPES:
            return compute
        began_s = self._clock()
        try:
            compiled = torch.compile(compute, backend=self._backend, fullgraph=True, dynamic=False)
            with torch._dynamo.config.patch(recompile_limit=2 * MAX_SHAPES):
                fault = _difference(compute, compiled, inputs, state, tolerance)
        except Exception as error:  # of Dynamo, Inductor, Triton or a compiler
            fault = f"{type(error).__name__}: {error}".splitlines()[0]
        self._remaining_s -= self._clock() - began_s
        if fault:
            self.faults[name] = fault
            log.warning("%s is not compiled: %s", name, fault)
            return compute
        self.shapes[name] = self.shapes.get(name, 0) + 1
        return compiled


def compiler_for(mode: CompileMode, device: torch.device) -> TorchCompiler | None:
    """Return a compiler if computations on ``device`` should be compiled.

    With the fused kernels a computation consists of matrix products and kernels: Inductor has nothing left to fuse.
    """
    if device.type != "cuda" or mode is CompileMode.OFF or (mode is CompileMode.AUTO and kernels.are_enabled()):
        return None
    if problem := kernels.triton_problem():
        log.warning("%s: computing on CUDA without compiling, which is slower", problem)
        return None
    return TorchCompiler()


def _difference(
    compute: Compute,
    compiled: Compute,
    inputs: Sequence[Tensor | None],
    state: Sequence[Tensor],
    tolerance: float,
) -> str:
    """Describe the difference of the results and of the state; empty if there is none."""
    before = [tensor.clone() for tensor in state]
    runs = []
    for call in (compute, compiled):
        outputs = call(*(None if tensor is None else tensor.clone() for tensor in inputs))
        runs.append([tensor.clone() for tensor in (*outputs, *state)])
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
    for expected, got in zip(*runs, strict=True):
        if expected.shape != got.shape or expected.dtype != got.dtype:
            return "it returns tensors of another shape"
        if expected.is_floating_point() or tolerance:
            limit = tolerance
            if expected.is_floating_point():
                limit = max(limit, TOLERANCE_EPS * torch.finfo(expected.dtype).eps)
            else:
                expected, got = expected.double(), got.double()
            worst = kernels.relative_difference(got, expected)
            if not worst <= limit:
                return f"it differs by {worst:.2g} from PyTorch's operators"
        elif not torch.equal(got, expected):
            return "it returns other integers"
    return ""
