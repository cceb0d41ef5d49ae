"""Fuses linear layers that share an input, once their weights are loaded: fewer and larger matrix products."""

from __future__ import annotations

import torch
from torch import nn


@torch.inference_mode(False)  # some kernels read the version counter, which inference tensors lack
def fuse_linear(*layers: nn.Linear) -> nn.Linear:
    """Concatenate the outputs of ``layers`` into one layer: ``[..., I] -> [..., sum of O]``.

    Either all layers have a bias or none has.
    """
    weight = torch.cat(tuple(layer.weight for layer in layers))
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    with torch.device("meta"):  # skips the initialization of values that are replaced anyway
        fused = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(biases))
    fused.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        fused.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return fused
