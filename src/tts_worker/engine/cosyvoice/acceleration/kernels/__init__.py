"""Fused operators: one CUDA kernel in place of several, with a composition of PyTorch operators as the fallback.

A fused operator is written twice, with the same arguments and results: as a composition, which runs everywhere and
defines the numbers, and as a function of the same name in a module of Triton kernels:

    @fused_operator("tts_worker.engine.cosyvoice.acceleration.kernels.audio_triton", mutates={"residual"})
    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual.add_(x)
        return F.rms_norm(residual, weight.shape, weight, eps)

Callers call ``add_rms_norm``. Tensors on CUDA take the kernel once ``enable`` was called; it is an operator of PyTorch
that CUDA graphs capture and ``torch.compile`` does not look into. Everything else takes the composition. ``check``
compares both on the device, and switches an operator off that fails or differs. Triton is part of PyTorch's CUDA builds
for Linux; its modules are imported by the first launch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

log = logging.getLogger(__name__)

NAMESPACE = "tts_worker"
"""Namespace of the operators in ``torch.ops``."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class _Switch:
    is_on: bool = False


_kernels = _Switch()
OPERATORS: dict[str, FusedOperator[..., Any]] = {}
"""All fused operators, by name."""


@dataclass(eq=False)
class FusedOperator(Generic[P, R]):
    """A composition of PyTorch operators that a Triton kernel replaces on CUDA. Call it like the composition.

    Attributes:
        composition: Computes the same without the kernel.
        module: Module of the function that launches the kernel.
        mutates: Names of the arguments that are changed in place.
        is_excluded: Whether the settings have something else in its place.
        fault: Why the kernel is not used, if it failed or differed.
    """

    composition: Callable[P, R]
    module: str
    mutates: frozenset[str] = frozenset()
    is_excluded: bool = False
    fault: str = ""
    _operator: Callable[P, R] | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.composition.__name__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._operator is not None and self.is_fused(args[0]):
            return self._operator(*args, **kwargs)
        return self.composition(*args, **kwargs)

    def is_fused(self, x: object) -> bool:
        """Whether a call with ``x`` as the first argument launches the kernel."""
        return _kernels.is_on and not (self.fault or self.is_excluded) and isinstance(x, Tensor) and x.is_cuda

    def launch(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Launch the kernel, whatever the device of the arguments is."""
        function: Callable[P, R] = getattr(import_module(self.module), self.name)
        x = args[0]
        if not (isinstance(x, Tensor) and x.is_cuda):
            return function(*args, **kwargs)
        with torch.cuda.device_of(x):  # Triton launches on the current device
            return function(*args, **kwargs)

    def define(self) -> None:
        """Register the operator with PyTorch. Its shapes are those of the composition."""
        if self._operator is None:
            schema = torch.library.infer_schema(self.composition, mutates_args=self.mutates)
            operator = torch.library.custom_op(
                f"{NAMESPACE}::{self.name}", self.launch, mutates_args=self.mutates, schema=schema
            )
            operator.register_fake(self.composition)
            self._operator = operator


def fused_operator(module: str, *, mutates: Iterable[str] = ()) -> Callable[[Callable[P, R]], FusedOperator[P, R]]:
    """Make a composition of PyTorch operators a ``FusedOperator``.

    Args:
        module: Module with a function of the same name and arguments, which launches the kernel. It must not return one
            of its arguments or a view of it.
        mutates: Names of the arguments that are changed in place.
    """

    def decorate(composition: Callable[P, R]) -> FusedOperator[P, R]:
        operator = FusedOperator(composition, module, frozenset(mutates))
        OPERATORS[operator.name] = operator
        return operator

    return decorate


@cache
def triton_problem() -> str:
    """Return why Triton cannot launch kernels on this machine; empty if it can.

    Up to some version, 3.6 among them, it builds what launches kernels with a C compiler, when the first one is
    launched. Asked at the start, it is one fault with a remedy, and not one for every kernel.
    """
    if find_spec("triton") is None:
        return "triton is not installed"
    try:
        _ = import_module("triton.runtime").driver.active.utils
    except Exception as error:  # of Triton, the compiler, its cache or the driver
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        return (
            f"triton cannot be used ({cause:.160}): it needs a C compiler (gcc or CC), Python's headers (python3-dev) "
            "and a folder that it can write to (TRITON_CACHE_DIR)"
        )
    return ""


def enable() -> bool:
    """Use the kernels for tensors on CUDA from now on. Returns whether they are used; logs why not."""
    if problem := triton_problem():
        log.warning("%s: computing on CUDA without fused kernels, which is slower", problem)
        return False
    for operator in OPERATORS.values():
        operator.define()
    _kernels.is_on = True
    return True


def disable() -> None:
    """Use the compositions everywhere from now on."""
    _kernels.is_on = False


def forget_faults() -> None:
    """Let the next check decide again, once no engine uses the kernels."""
    for operator in OPERATORS.values():
        operator.fault = ""


def are_enabled() -> bool:
    """Whether the kernels are used for tensors on CUDA."""
    return _kernels.is_on


@dataclass(frozen=True)
class Case:
    """Arguments to check an operator with.

    Attributes:
        operator: The operator.
        args: Its arguments.
        tolerance: Largest difference of floating-point values, relative to the largest value. Others must be equal.
    """

    operator: FusedOperator[..., Any]
    args: tuple[Any, ...]
    tolerance: float


def tolerance(dtype: torch.dtype) -> float:
    """Return the tolerance of a kernel that computes sums in another order than PyTorch.

    In float32 it is far above rounding, for products of PyTorch's own on tensor cores are exact to a few units in the
    last place only, and far below any mistake.
    """
    return 2e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps


@torch.inference_mode()
def check(cases: Iterable[Case]) -> dict[str, str]:
    """Compare kernels with their compositions, results and arguments that are changed in place.

    An operator that raises or differs is not fused any more, nor checked again.

    Returns:
        Why operators of ``cases`` are not used, by name.
    """
    faults = {}
    for case in cases:
        operator = case.operator
        if not operator.fault:
            try:
                operator.fault = _difference(case)
            except Exception as error:  # of Triton, its compiler or the driver
                operator.fault = f"{type(error).__name__}: {error}"
            if operator.fault:
                log.warning("the kernel %s is not used: %s", operator.name, operator.fault)
        if operator.fault:
            faults[operator.name] = operator.fault
    return faults


def _difference(case: Case) -> str:
    """Describe the difference of kernel and composition; empty if there is none."""
    kernel_args, composition_args = (
        tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in case.args) for _ in range(2)
    )
    got = _tensors((case.operator.launch(*kernel_args), *kernel_args))
    expected = _tensors((case.operator.composition(*composition_args), *composition_args))
    if [tensor.shape for tensor in got] != [tensor.shape for tensor in expected]:
        return "it returns tensors of other shapes"
    worst = max((relative_difference(one, other) for one, other in zip(got, expected, strict=True)), default=0.0)
    return "" if worst <= case.tolerance else f"it differs by {worst:.2g} from PyTorch's operators"


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(_tensors(value))
    return found


def relative_difference(got: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest value; infinite for other values that are not equal, NaN included."""
    if not got.numel() or torch.equal(got, expected):
        return 0.0
    if not expected.is_floating_point() or got.dtype != expected.dtype:
        return float("inf")
    scale = expected.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1e-30)
    same = (got == expected) | (got.isnan() & expected.isnan())
    return float(((got - expected).abs().nan_to_num(float("inf")).masked_fill(same, 0.0) / scale).max())
