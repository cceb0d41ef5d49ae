"""The operators that the networks are computed with: PyTorch's, and fused ones that a kernel may replace.

A fused operator is a composition of PyTorch operators, which runs everywhere and defines the numbers:

    @fused_operator("tts_worker.features.acceleration.kernels.audio_triton", mutates={"residual"})
    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual.add_(x)
        return F.rms_norm(residual, weight.shape, weight, eps)

Callers call ``add_rms_norm``. The module that it names has a kernel of the same name, arguments and results. Tensors on
CUDA take the kernel once ``acceleration.kernels`` switched kernels on and checked this one on the device; everything
else takes the composition. A kernel is an operator of PyTorch that CUDA graphs capture and ``torch.compile`` does not
look into; its module is imported by the first launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

NAMESPACE = "tts_worker"
"""Namespace of the operators in ``torch.ops``."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class _Switch:
    is_on: bool = False


kernel_switch = _Switch()
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
        return kernel_switch.is_on and not (self.fault or self.is_excluded) and isinstance(x, Tensor) and x.is_cuda

    def launch(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Launch the kernel for arguments on any device."""
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


def disable() -> None:
    """Use the compositions everywhere from now on."""
    kernel_switch.is_on = False
