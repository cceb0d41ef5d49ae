"""Low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685): few weights to train, merged afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tts_worker.engine.cosyvoice.networks.qwen2 import SpeechLM

_SCALE = 2.0
"""Of the product of both matrices, so that the rank does not change the best learning rate."""


class LowRank(nn.Module):
    """Adds ``up @ down`` of a small rank to a weight; nothing at first."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.down = nn.Parameter(torch.randn(rank, inputs, device=weight.device) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank, device=weight.device))
        self._scale = _SCALE / rank

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self._scale * (self.up @ self.down)


def add_adapters(net: SpeechLM, rank: int) -> None:
    """Freeze ``net`` but for adapters of all matrices of its layers."""
    net.requires_grad_(False)
    for linear in _matrices(net):
        parametrize.register_parametrization(linear, "weight", LowRank(linear.weight, rank))


def merge_adapters(net: SpeechLM) -> None:
    """Add the adapters to the weights; afterwards the state dict has the official names."""
    for linear in _matrices(net):
        parametrize.remove_parametrizations(linear, "weight", leave_parametrized=True)


def _matrices(net: SpeechLM) -> Iterator[nn.Linear]:
    return (module for module in list(net.body.layers.modules()) if isinstance(module, nn.Linear))
