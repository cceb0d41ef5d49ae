"""Triton kernels in place of fused operators, which ``check`` compares with the compositions on the device.

``enable`` switches all of them on; an operator that fails or differs goes back to its composition. Triton is part of
PyTorch's CUDA builds for Linux.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.ops import OPERATORS, FusedOperator, kernel_switch

log = logging.getLogger(__name__)


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
    kernel_switch.is_on = True
    return True


def forget_faults() -> None:
    """Let the next check decide again, once no engine uses the kernels."""
    for operator in OPERATORS.values():
        operator.fault = ""


def are_enabled() -> bool:
    """Whether the kernels are used for tensors on CUDA."""
    return kernel_switch.is_on


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
