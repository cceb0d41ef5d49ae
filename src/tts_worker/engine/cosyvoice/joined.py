"""Layers that read the same input as one, once their weights are loaded: fewer and larger products.

It must not know which networks there are.
"""

from __future__ import annotations

import torch
from torch import nn


@torch.inference_mode(False)  # weights are tensors like any other: some kernels ask for their version
def joined(*layers: nn.Linear) -> nn.Linear:
    """One layer whose output is that of ``layers`` side by side: ``[..., I] -> [..., sum of O]``. All of them have a
    bias, or none."""
    weight = torch.cat(tuple(layer.weight for layer in layers))
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    with torch.device("meta"):  # no numbers made up that are thrown away
        one = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(biases))
    one.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        one.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return one
