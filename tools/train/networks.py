"""The engine's networks, made trainable: same modules, same names of weights, gradients everywhere.

The engine runs some operators through kernels without gradients, and tabulates what depends on weights. Here those few
modules are replaced; ``state_dict`` stays that of the official files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.networks.blocks import FusedAttention
from tts_worker.engine.cosyvoice.networks.dims import FlowDims, HiftDims, LmDims
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.networks.hift import Hift, Snake
from tts_worker.engine.cosyvoice.networks.qwen2 import Layer, SpeechLM
from tts_worker.engine.cosyvoice.networks.source_filter import SourceFilter
from tts_worker.engine.cosyvoice.networks.unet import Unet

_EMBEDDING_STD = 0.3
_HARMONIC_WEIGHT = 0.1  # of the excitation: small, so that its limiter hardly changes it
_LM_STD = 0.02
_LM_EMBEDDING_STD = 0.5


class TrainableSnake(Snake):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        alpha = self.alpha[:, None]
        y = x + (x * alpha).sin().square() / (alpha + 1e-9)
        return y if mask is None else y * mask


class TrainableHift(Hift):
    """The vocoder before ``prepare``."""

    def __init__(self, dims: HiftDims) -> None:
        super().__init__(dims)
        _replace_snakes(self)

    def _is_fused(self, x: Tensor) -> bool:
        return False


class TrainableSourceFilter(SourceFilter):
    """The vocoder that filters its excitation, before ``prepare``. Begins with quiet noise and harmonics."""

    def __init__(self, dims: HiftDims) -> None:
        super().__init__(dims)
        _replace_snakes(self)
        bins = dims.n_fft // 2 + 1
        with torch.no_grad():
            self.m_source.l_linear.weight.fill_(_HARMONIC_WEIGHT)
            self.m_source.l_linear.bias.zero_()
            assert self.conv_post.bias is not None
            self.conv_post.bias.copy_(torch.tensor([-2.0, -3.0]).repeat_interleave(bins))


def _replace_snakes(net: nn.Module) -> None:
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Snake):
                setattr(module, name, TrainableSnake(child.alpha.shape[0]))


class _JoinedProjections:
    """Stands for ``FusedAttention.to_qkv`` while query, key and value have separate weights."""

    def __init__(self, attention: FusedAttention) -> None:
        self._layers = (attention.to_q, attention.to_k, attention.to_v)

    @property
    def weight(self) -> Tensor:
        return self._layers[0].weight

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self._layers], dim=-1)


def trainable_lm(dims: LmDims) -> SpeechLM:
    """A language model with random weights."""
    net = SpeechLM(dims)
    for name, parameter in net.named_parameters():
        if parameter.dim() > 1:
            is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=_LM_STD / math.sqrt(2 * dims.layers) if is_output else _LM_STD)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=_LM_EMBEDDING_STD)
    net.tie()
    return net


def trainable_flow(dims: FlowDims) -> Flow:
    """A flow with random weights."""
    net = Flow(dims)
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=_EMBEDDING_STD)
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GELU):  # the engine's computes in place
                setattr(module, name, nn.GELU(child.approximate))
        if isinstance(module, FusedAttention):
            module.__dict__["to_qkv"] = _JoinedProjections(module)
    return net


def adapt_flow(net: Flow, mean: Tensor, std: Tensor) -> None:
    """Scale a flow with random weights to the mel it shall predict.

    Both outputs begin at the mean. The estimator's first layer sees noise and token condition at one scale, since the
    raw log mel (about -5 +- 2.3) would drown the noise.

    Args:
        net: The flow.
        mean: ``[mel]`` mean of each bin.
        std: ``[mel]`` standard deviation.
    """
    estimator = net.estimator
    assert isinstance(estimator, Unet)
    mel = net.dims.mel
    first = estimator.down_blocks.get_submodule("0.0")
    with torch.no_grad():
        outputs: list[nn.Module] = [net.encoder_proj, estimator.final_proj]
        for output in outputs:
            assert isinstance(output, nn.Linear | nn.Conv1d)
            assert output.bias is not None
            output.bias.copy_(mean)
        for conv in (first.get_submodule("block1.block.0"), first.get_submodule("res_conv")):
            assert isinstance(conv, nn.Conv1d)
            assert conv.bias is not None
            conv.weight[:, :mel] *= 4
            conv.weight[:, mel : 2 * mel] *= 4 / std[None, :, None]
            conv.bias.sub_((conv.weight[:, mel : 2 * mel].sum(-1) * mean).sum(-1))
        estimator.final_proj.weight *= 2


def adapt_vocoder(net: Hift, mean: Tensor, std: Tensor) -> None:
    """Scale the first layers of a vocoder with random weights, so that they see mel bins of mean 0 and variance 1."""
    with torch.no_grad():
        for conv in (net.conv_pre, net.f0_predictor.condnet[0]):
            assert isinstance(conv, nn.Conv1d)
            weight = conv.weight / std[None, :, None]
            conv.weight = weight  # divided into direction and norm
            assert conv.bias is not None
            conv.bias.sub_((weight.sum(-1) * mean).sum(-1))


def copy_matching(net: nn.Module, weights: Mapping[str, Tensor]) -> int:
    """Copy the tensors of equal name and shape into ``net``. Returns their number."""
    own = net.state_dict()
    count = 0
    with torch.no_grad():
        for name, value in weights.items():
            if name in own and own[name].shape == value.shape:
                own[name].copy_(value)
                count += 1
    return count


def language_model_pass(net: SpeechLM, x: Tensor, guided_layer: int = -1) -> tuple[Tensor, Tensor | None]:
    """Whole sequences through the decoder stack, causally.

    Args:
        net: Before ``prepare``.
        x: ``[B, T, D]``.
        guided_layer: Layer whose attention is returned, -1: none.

    Returns:
        Hidden states ``[B, T, D]`` and the attention of that layer ``[B, H, T, T]``.
    """
    dims = net.dims
    cos, _, sin = net.rotations(x.shape[1], x).unbind(1)  # [T, d/2] each
    attention: Tensor | None = None
    for i, layer in enumerate(cast("list[Layer]", net.body.layers)):
        weights = layer.self_attn
        h = layer.input_layernorm(x)
        q = _rotate(weights.q_proj(h).unflatten(-1, (dims.heads, -1)).transpose(1, 2), cos, sin)  # [B, H, T, d]
        k = _rotate(weights.k_proj(h).unflatten(-1, (dims.kv_heads, -1)).transpose(1, 2), cos, sin)
        v = weights.v_proj(h).unflatten(-1, (dims.kv_heads, -1)).transpose(1, 2)
        k, v = (y.repeat_interleave(dims.heads // dims.kv_heads, 1) for y in (k, v))
        if i == guided_layer:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.transpose(2, 3) / math.sqrt(dims.head_dim)).masked_fill(hidden, -torch.inf)
            attention = scores.softmax(-1)
            out = attention @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + weights.o_proj(out.transpose(1, 2).flatten(2))
        h, mlp = layer.post_attention_layernorm(x), layer.mlp
        x = x + mlp.down_proj(F.silu(mlp.gate_proj(h)) * mlp.up_proj(h))
    return net.body.norm(x), attention


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
