"""Times and numbers of the convolutions that a GPU may compute slowly, at the model's sizes, beside other ways.

The pitch is predicted in float64, whose convolutions few GPUs are made for; the position embedding of the DiT convolves
31 positions in 16 groups. Where fused operators are used, both are something else (``F0Predictor``, ``causal_conv``).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.bench.gpu_attention import Figures, figures_of, kernel_fault
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.blocks import CausalConv
from tts_worker.engine.cosyvoice.networks.dit import Dit
from tts_worker.engine.cosyvoice.networks.hift import F0Predictor
from tts_worker.engine.cosyvoice.ops.audio import causal_conv, elu_rows, pack_conv

BATCHES = (1, 8)
BRANCHES = 2


@torch.inference_mode()
def measure_convolutions(networks: Networks, repeats: int) -> Figures:
    """Measure convolutions in a window of the vocoder and in a chunk of the flow.

    Args:
        networks: The networks; their sizes, dtypes and device are used.
        repeats: Calls that are timed.

    Returns:
        By shape and way: milliseconds of a call as by ``time_of``, and the largest difference from exact results
        relative to the largest value; or why a way was skipped.
    """
    figures: Figures = {}
    hift, flow = networks.hift, networks.chunked_flow
    device = flow.noise.device
    frames = hift.history + hift.held + flow.chunk_frames
    for batch in BATCHES:
        mel = torch.randn(batch, hift.dims.in_channels, frames, device=device)
        figures[f"pitch batch {batch}"] = _pitch(hift.f0_predictor, mel, repeats)
        if isinstance(flow.estimator, Dit):
            conv = flow.estimator.input_embed.conv_pos_embed.conv1[0]
            assert isinstance(conv, CausalConv)
            x = torch.randn(BRANCHES * batch, flow.chunk_frames, conv.in_channels, device=device).to(flow.dtype)
            figures[f"positions batch {batch}"] = _positions(conv, x, repeats)
    return figures


def _pitch(predictor: F0Predictor, mel: Tensor, repeats: int) -> Figures:
    def convolutions(dtype: torch.dtype) -> F0Predictor:
        network = deepcopy(predictor).to(dtype)
        network.row_weights = []
        return network

    float64, float32 = convolutions(torch.float64), convolutions(torch.float32)
    exact = float64(mel.double())
    calls: dict[str, Callable[[], Tensor] | str] = {
        "products": (lambda: predictor(mel)) if elu_rows.is_fused(mel) else kernel_fault(elu_rows),
        "float64": lambda: float64(mel),
        "float32": lambda: float32(mel),
    }
    return figures_of(calls, exact, repeats)


def _positions(conv: CausalConv, x: Tensor, repeats: int) -> Figures:
    width, groups = conv.kernel_size[0], conv.groups
    weight, bias = conv.weight, conv.bias
    batch = x.shape[0] // BRANCHES
    past = x.new_zeros(BRANCHES, batch, x.shape[2], width - 1)
    slots = torch.arange(batch, device=x.device)
    packed = pack_conv(weight, groups)

    def grouped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        padded = F.pad(x.transpose(1, 2), (width - 1, 0))
        return F.mish(F.conv1d(padded, weight, bias, groups=groups)).transpose(1, 2)

    def products() -> Tensor:
        windows = F.pad(x.transpose(1, 2), (width - 1, 0)).unfold(2, width, 1)  # [N, C, T, k]
        windows = windows.unflatten(1, (groups, -1)).permute(1, 0, 3, 2, 4)  # [groups, N, T, C/groups, k]
        matrix = weight.view(groups, -1, windows.shape[3] * width).transpose(1, 2)
        y = torch.bmm(windows.reshape(groups, -1, matrix.shape[1]), matrix)  # [groups, N*T, C'/groups]
        return F.mish(y.transpose(0, 1).flatten(1) + bias).view(*x.shape[:2], -1)

    def kernel() -> Tensor:
        return causal_conv(x, past, slots, packed, bias, groups, True)

    exact = grouped(x.float(), weight.float(), bias.float())
    calls: dict[str, Callable[[], Tensor] | str] = {
        "kernel": kernel if causal_conv.is_fused(x) else kernel_fault(causal_conv),
        "grouped": lambda: grouped(x, weight, bias),
        "products": products,
    }
    return figures_of(calls, exact, repeats)
