"""CosyVoice2's token encoder: a conformer without convolution modules, upsampled from 25 to 50 vectors per second.

Runs over whole sequences or over chunks with a past; both give the same numbers under the chunk mask. Positions are
relative (Transformer-XL, https://arxiv.org/abs/1901.02860, section 3.3), so keys of the past stay valid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.networks.blocks import CausalConv, Lookahead, Sites, chunk_mask
from tts_worker.engine.cosyvoice.networks.dims import ConformerDims, EncoderDims
from tts_worker.engine.cosyvoice.networks.kv_cache import Memory
from tts_worker.engine.cosyvoice.networks.linear import Linear


class RelativeAttention(nn.Module):
    """Attention with learned content and position biases."""

    def __init__(self, dim: int, heads: int, site: int) -> None:
        super().__init__()
        self.heads = heads
        self.site = site
        self.linear_q = Linear(dim, dim)
        self.linear_k = Linear(dim, dim)
        self.linear_v = Linear(dim, dim)
        self.linear_out = Linear(dim, dim)
        self.linear_pos = Linear(dim, dim, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, dim // heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, dim // heads))
        self.positions = torch.zeros(0)  # [H, d, 2M-1]: linear_pos of distances M-1 .. -(M-1)

    def prepare(self, sinusoids: Tensor) -> None:
        """Tabulate ``linear_pos`` for ``sinusoids [2M-1, D]``."""
        self.positions = self.linear_pos(sinusoids.to(self.linear_pos.weight)).unflatten(-1, (self.heads, -1))
        self.positions = self.positions.permute(1, 2, 0).contiguous()

    def forward(self, x: Tensor, mask: Tensor, column: Tensor, memory: Memory) -> Tensor:
        """``x [B, T, D] -> [B, T, D]``.

        ``mask, column`` are ``[B, 1, T, L]``; ``column`` indexes the slice of ``positions`` below.
        """
        first = self.positions.shape[-1] // 2 - mask.shape[-1] + 1  # column of the largest distance, L-1
        qkv = torch.stack([self.linear_q(x), self.linear_k(x), self.linear_v(x)])
        qkv = qkv.unflatten(-1, (self.heads, -1)).transpose(2, 3)  # [3, B, H, T, d]
        q, (k, v) = qkv[0], memory.keys_values(self.site, qkv[1:])  # [B, H, T or L, d]
        positions = self.positions[:, :, first : first + mask.shape[-1] + x.shape[1] - 1]  # [H, d, L+T-1]
        by_position = (q + self.pos_bias_v[:, None]) @ positions  # [B, H, T, L+T-1]
        bias = by_position.gather(-1, column.expand(-1, self.heads, -1, -1))  # [B, H, T, L]
        bias = (bias / math.sqrt(q.shape[-1])).masked_fill(~mask, -torch.inf)
        out = F.scaled_dot_product_attention(q + self.pos_bias_u[:, None], k, v, bias)
        return self.linear_out(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.w_1 = Linear(dim, inner)
        self.w_2 = Linear(inner, dim)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        return self.w_2(F.silu(self.w_1(x)))


class Layer(nn.Module):
    def __init__(self, dims: EncoderDims | ConformerDims, site: int) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(dims.output_size, dims.heads, site)
        self.feed_forward = FeedForward(dims.output_size, dims.linear_units)
        self.norm_mha = nn.LayerNorm(dims.output_size, eps=1e-12)
        self.norm_ff = nn.LayerNorm(dims.output_size, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor, column: Tensor, memory: Memory) -> Tensor:  # [B, T, D]
        x = x + self.self_attn(self.norm_mha(x), mask, column, memory)
        return x + self.feed_forward(self.norm_ff(x))


class Embed(nn.Module):
    """Linear layer, layer norm and scaling by the square root of the width."""

    def __init__(self, in_size: int, dim: int) -> None:
        super().__init__()
        self.out = nn.Sequential(Linear(in_size, dim), nn.LayerNorm(dim, eps=1e-5))

    def forward(self, x: Tensor) -> Tensor:  # [B, T, C] -> [B, T, D]
        x = self.out(x)
        return x * math.sqrt(x.shape[-1])


class Upsample(nn.Module):
    """Repeats every vector ``factor`` times, then applies a causal convolution."""

    def __init__(self, dim: int, factor: int, sites: Sites) -> None:
        super().__init__()
        self.factor = factor
        self.conv = CausalConv(sites, dim, dim, 2 * factor + 1)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:  # [B, T, D] -> [B, factor*T, D]
        x = x.repeat_interleave(self.factor, dim=1).transpose(1, 2)
        return self.conv(x, memory).transpose(1, 2)


def relative_sinusoids(length: int, dim: int) -> Tensor:
    """Position vectors of distances ``length-1 .. -(length-1)``: ``[2*length-1, dim]``, interleaved sine and cosine."""
    position = torch.arange(length - 1, -length, -1, dtype=torch.float32)[:, None]
    rates = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * -(math.log(10000.0) / dim))
    return torch.stack([(position * rates).sin(), (position * rates).cos()], dim=-1).flatten(1)


def prepare_layers(layers: nn.ModuleList, length: int, norm: nn.LayerNorm) -> None:
    """Give the attention of ``layers`` the position vectors of distances below ``length``.

    Args:
        layers: Each is a ``Layer``.
        length: Vectors of a sequence.
        norm: The norm after the layers, which has their width and device.
    """
    table = relative_sinusoids(length, norm.normalized_shape[0]).to(norm.weight.device)
    for layer in cast("list[Layer]", layers):
        layer.self_attn.prepare(table)


@dataclass(frozen=True)
class EncoderPast:
    """The past of the layers before and after upsampling."""

    tokens: Memory
    frames: Memory


class Encoder(nn.Module):
    """Tokens to vectors at mel rate. ``token_sites`` and ``frame_sites`` describe the past it needs."""

    def __init__(self, dims: EncoderDims) -> None:
        super().__init__()
        self.dims = dims
        self.token_sites = Sites()
        self.frame_sites = Sites()
        self.embed = Embed(dims.input_size, dims.output_size)
        self.pre_lookahead_layer = Lookahead(dims.lookahead, self.token_sites)
        self.encoders = nn.ModuleList(Layer(dims, self.token_sites.attention()) for _ in range(dims.layers))
        self.up_layer = Upsample(dims.output_size, dims.upsample, self.frame_sites)
        self.up_embed = Embed(dims.input_size, dims.output_size)
        self.up_encoders = nn.ModuleList(Layer(dims, self.frame_sites.attention()) for _ in range(dims.up_layers))
        self.after_norm = nn.LayerNorm(dims.output_size, eps=1e-5)
        self.reach_tokens = 0

    def prepare(self, tokens: int) -> None:
        """Tabulate relative positions for sequences of up to ``tokens`` tokens. Idempotent."""
        if tokens <= self.reach_tokens:
            return
        self.reach_tokens = max(tokens, 2 * self.reach_tokens)
        for layers, reach in ((self.encoders, 1), (self.up_encoders, self.dims.upsample)):
            prepare_layers(layers, self.reach_tokens * reach, self.after_norm)

    def _run(self, layers: nn.ModuleList, x: Tensor, at: tuple[Tensor, Tensor, int, int], memory: Memory) -> Tensor:
        start, total, context, chunk = at
        mask = chunk_mask(start, total, x.shape[1], context, chunk)  # [B, 1, T, L]
        query = start[:, None] + torch.arange(x.shape[1], device=x.device)  # [B, T]
        distance = query[:, :, None] - torch.arange(context, device=x.device)  # [B, T, L], keys left of the query > 0
        column = (context - 1 - distance).clamp(0, context + x.shape[1] - 2)[:, None]  # [B, 1, T, L]
        for layer in layers:
            x = layer(x, mask, column, memory)
        return x

    def forward(
        self, x: Tensor, known: Tensor, start: Tensor, total: Tensor, context: int, chunked: bool, past: EncoderPast
    ) -> Tensor:
        """Encode tokens: ``[B, T+A, C] -> [B, 2T, D]``.

        Args:
            x: ``[B, T+A, C]`` embedded tokens, the last A are look-ahead only.
            known: ``[B]`` number of available tokens; the rest is silence after the end.
            start: ``[B]`` position of the first token.
            total: ``[B]`` tokens before this position are rendered.
            context: At least ``start + T``.
            chunked: Whether attention uses the chunk mask.
            past: Past of the layers.
        """
        up = self.dims.upsample
        chunk = self.dims.chunk_tokens
        exists = torch.arange(x.shape[1], device=x.device) < known[:, None]  # [B, T+A]
        x = self.embed(x).masked_fill(~exists[:, :, None], 0.0)  # [B, T+A, D]
        x = self.pre_lookahead_layer(x, past.tokens)  # [B, T, D]
        x = self._run(self.encoders, x, (start, total, context, chunk * chunked), past.tokens)
        x = self.up_embed(self.up_layer(x, past.frames))  # [B, 2T, D]
        x = self._run(self.up_encoders, x, (start * up, total * up, context * up, chunk * up * chunked), past.frames)
        return self.after_norm(x)
