"""Linear layers: their product, and how their weights are arranged once they are loaded.

On a CPU, PyTorch leaves products to MKL. On processors of AMD, MKL uses no AVX-512, and takes as long for four rows as
for eight. oneDNN, which PyTorch contains for convolutions, takes less than half the time with AVX-512 and two thirds
without it, so it computes products of two or more rows there. Single rows stay with MKL: they read the weights once
and do little else.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

log = logging.getLogger(__name__)

Product = Callable[[Tensor, Tensor, Tensor | None, str, list[Any], str], Tensor]
"""``x [..., I], weight [O, I], bias [O]`` and the names and arguments of a fused operator (none) -> ``[..., O]``."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x [..., I] -> [..., O]`` with ``weight [O, I]``, as ``F.linear``.

    By oneDNN where that is faster: float32 on a CPU, at least two rows, no gradient, neither traced nor compiled.
    """
    if is_plain_product(x) and x.numel() > x.shape[-1]:
        product = onednn_product()
        if product is not None:
            return product(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def pointwise(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """Return the convolution of width 1 of ``x [N, C, T]``, ``[N, C', T]``; as a product if oneDNN computes those."""
    if is_plain_product(x) and onednn_product() is not None:
        return linear(x.transpose(1, 2), conv.weight[:, :, 0], conv.bias).transpose(1, 2)
    return cast(Tensor, conv(x))


def is_plain_product(x: Tensor) -> bool:
    """Whether products of ``x`` are in float32 on a CPU, and neither recorded nor differentiated."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]


class Linear(nn.Linear):
    """A linear layer: ``[..., I] -> [..., O]``."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@cache
def onednn_product() -> Product | None:
    """Return oneDNN's product of rows and weights; None where MKL's is used for all.

    It is the operator that Inductor puts into its programs for linear layers. PyTorch does not document it, so it is
    tried first. Where PyTorch is told to use no AVX, MKL's products are the same on all processors.
    """
    if not is_amd() or not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return None
    try:
        product = cast(Product, torch.ops.mkldnn._linear_pointwise.default)
        x = torch.arange(6.0).view(2, 3)
        weight = torch.arange(12.0).view(4, 3)
        with torch.inference_mode():
            is_right = torch.equal(product(x, weight, x.new_ones(4), "none", [], ""), x @ weight.t() + 1)
    except (AttributeError, RuntimeError) as error:
        log.info("products stay with MKL: %s", str(error).partition("\n")[0])
        return None
    return product if is_right else None


def products_library() -> str:
    """Return the name of the library that computes the products of rows on a CPU."""
    return "MKL" if onednn_product() is None else "oneDNN"


def is_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return "AuthenticAMD" in platform.processor()


@torch.inference_mode(False)  # some kernels read the version counter, which inference tensors lack
def fuse_linear(*layers: nn.Linear) -> Linear:
    """Concatenate the outputs of ``layers`` into one layer: ``[..., I] -> [..., sum of O]``.

    Either all layers have a bias or none has.
    """
    weight = torch.cat(tuple(layer.weight for layer in layers))
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    with torch.device("meta"):  # skips the initialization of values that are replaced anyway
        fused = Linear(weight.shape[1], weight.shape[0], bias=bool(biases))
    fused.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        fused.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return fused


@torch.inference_mode(False)
def store_by_columns(*layers: nn.Linear) -> None:
    """Store the weights ``[O, I]`` of ``layers`` with the outputs next to each other in memory, if they are on a CPU.

    Products with few rows read the weights once and do little else. In this order MKL takes half to three quarters of
    the time for them and the same for many rows; oneDNN takes less for any number.
    """
    for layer in layers:
        if layer.weight.device.type == "cpu":
            layer.weight = nn.Parameter(_transposed(layer.weight.detach()), requires_grad=False)


def _transposed(weight: Tensor) -> Tensor:
    return weight.t().contiguous().t()


def by_columns(weight: Tensor) -> Tensor:
    """Return ``weight [O, I]`` in the order of ``store_by_columns`` if oneDNN computes its products."""
    return weight if onednn_product() is None else _transposed(weight)


def arrange_for_onednn(network: nn.Module) -> None:
    """Store all linear layers of ``network`` by columns if oneDNN computes their products."""
    if onednn_product() is not None:
        store_by_columns(*(module for module in network.modules() if isinstance(module, Linear)))
