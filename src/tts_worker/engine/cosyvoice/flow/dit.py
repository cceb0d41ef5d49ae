"""CosyVoice3's estimator: a diffusion transformer whose norms are steered by the solver time (adaLN-zero).

Owns its weights; gives the velocity of the flow at a solver time (DiT, https://arxiv.org/abs/2212.09748). The steering
vectors are 42 % of the weights and depend on the time only, so ``tables`` computes them once for the solver's times.
It must not know guidance, the solver or where its past is kept.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.dims import DitDims
from tts_worker.engine.cosyvoice.flow.blocks import CausalConv, JoinedAttention, Sites, attend, sinusoid
from tts_worker.engine.cosyvoice.kv import Memory

TIME_SINUSOIDS, POSITION_KERNEL, POSITION_GROUPS, ROTARY_BASE = 256, 31, 16, 10_000.0  # fixed in the reference


class TimeEmbed(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(TIME_SINUSOIDS, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:  # [S] -> [S, D]
        return self.time_mlp(sinusoid(t, TIME_SINUSOIDS).to(next(self.parameters()).dtype))


class ConvPosition(nn.Module):
    """Two grouped causal convolutions that tell a frame what came shortly before it: ``[N, T, D] -> [N, T, D]``."""

    def __init__(self, dim: int, sites: Sites) -> None:
        super().__init__()
        self.conv1 = nn.ModuleList([CausalConv(sites, dim, dim, POSITION_KERNEL, POSITION_GROUPS)])
        self.conv2 = nn.ModuleList([CausalConv(sites, dim, dim, POSITION_KERNEL, POSITION_GROUPS)])

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        x = F.mish(self.conv1[0](x.transpose(1, 2), memory))
        return F.mish(self.conv2[0](x, memory)).transpose(1, 2)


class InputEmbed(nn.Module):
    def __init__(self, dims: DitDims, sites: Sites) -> None:
        super().__init__()
        self.proj = nn.Linear(2 * dims.mel + dims.mu + dims.spk, dims.dim)
        self.conv_pos_embed = ConvPosition(dims.dim, sites)

    def forward(self, x: Tensor, cond: Tensor, mu: Tensor, spk: Tensor, memory: Memory) -> Tensor:  # -> [N, T, D]
        x = self.proj(torch.cat([x, cond, mu, spk[:, None].expand(-1, x.shape[1], -1)], dim=-1))
        return self.conv_pos_embed(x, memory) + x


class Rotary(nn.Module):
    """Rotary positions in the interleaved form. The reference rotates the *un-split* query and key with a table one
    head wide, so only head 0 carries positions; the weights were trained that way."""

    inv_freq: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        exponent = torch.arange(0, head_dim, 2).float() / head_dim
        self.register_buffer("inv_freq", 1.0 / ROTARY_BASE**exponent)

    def angles(self, start: Tensor, span: int) -> Tensor:
        """``start [B]`` to ``[B, span, head_dim]``: each frequency twice, side by side."""
        where = start[:, None] + torch.arange(span, device=start.device)  # [B, T]
        angle = where[:, :, None].float() * self.inv_freq.float()
        return torch.stack([angle, angle], dim=-1).flatten(-2)


def rotate_first_heads(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``qkv [N, T, 3*H*d]``, ``cos, sin [N, T, 1, d]``: head 0 of queries and of keys rotated, the rest as it was."""
    d, inner = cos.shape[-1], qkv.shape[-1] // 3
    head = qkv.unflatten(-1, (3, -1))[:, :, :2, :d]  # [N, T, 2, d]
    turned = torch.stack([-head[..., 1::2], head[..., ::2]], dim=-1).flatten(-2)
    q, k = torch.addcmul(head * cos, turned, sin).unbind(2)
    return torch.cat([q, qkv[..., d:inner], k, qkv[..., inner + d :]], dim=-1)


class SelfAttention(JoinedAttention):
    def __init__(self, dims: DitDims, sites: Sites) -> None:
        super().__init__()
        inner = dims.heads * dims.head_dim
        self.heads, self.site = dims.heads, sites.attention()
        self.to_q = nn.Linear(dims.dim, inner)
        self.to_k = nn.Linear(dims.dim, inner)
        self.to_v = nn.Linear(dims.dim, inner)
        self.to_out = nn.ModuleList([nn.Linear(inner, dims.dim)])

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, memory: Memory) -> Tensor:  # [N, T, D]
        qkv = rotate_first_heads(self.to_qkv(x), cos, sin)  # [N, T, 3*H*d]
        return self.to_out[0](attend(qkv, self.heads, mask, self.site, memory))


class FeedForward(nn.Module):
    def __init__(self, dims: DitDims) -> None:
        super().__init__()
        inner = int(dims.dim * dims.ff_mult)
        first = nn.Sequential(nn.Linear(dims.dim, inner), nn.GELU(approximate="tanh"))
        self.ff = nn.Sequential(first, nn.Identity(), nn.Linear(inner, dims.dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.ff(x)


class Steering(nn.Module):
    """The time to the shifts, scales and gates of one block: ``[S, D] -> [S, parts, D]``."""

    def __init__(self, dim: int, parts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, parts * dim)
        self.parts = parts

    def forward(self, time: Tensor) -> Tensor:
        return self.linear(F.silu(time)).unflatten(-1, (self.parts, -1))


class Steered(nn.LayerNorm):
    """Layer norm with scale and shift from outside: ``x [N, T, D]``, ``shift, scale [N or 1, D]``."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=1e-6, elementwise_affine=False)

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        if shift.shape[0] == 1:  # the same for all: weight and bias of one operation
            return F.layer_norm(x, self.normalized_shape, 1 + scale[0], shift[0], self.eps)
        return torch.addcmul(shift[:, None], super().forward(x), 1 + scale[:, None])


class Block(nn.Module):
    def __init__(self, dims: DitDims, sites: Sites) -> None:
        super().__init__()
        self.attn_norm = Steering(dims.dim, 6)
        self.attn = SelfAttention(dims, sites)
        self.ff = FeedForward(dims)
        self.norm = Steered(dims.dim)

    def forward(
        self, x: Tensor, table: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, memory: Memory
    ) -> Tensor:
        """``x [N, T, D]``, ``table [N or 1, 6, D]``: shift, scale, gate of attention, then of the feed-forward."""
        heard = self.attn(self.norm(x, table[:, 0], table[:, 1]), cos, sin, mask, memory)
        x = torch.addcmul(x, table[:, 2, None], heard)
        return torch.addcmul(x, table[:, 5, None], self.ff(self.norm(x, table[:, 3], table[:, 4])))


class Dit(nn.Module):
    """Noise and conditions to velocity."""

    def __init__(self, dims: DitDims) -> None:
        super().__init__()
        self.dims, self.sites = dims, Sites()
        self.time_embed = TimeEmbed(dims.dim)
        self.input_embed = InputEmbed(dims, self.sites)
        self.rotary_embed = Rotary(dims.head_dim)
        self.transformer_blocks = nn.ModuleList(Block(dims, self.sites) for _ in range(dims.depth))
        self.norm_out = Steering(dims.dim, 2)
        self.norm = Steered(dims.dim)
        self.proj_out = nn.Linear(dims.dim, dims.mel)

    def time_embedding(self, t: Tensor) -> Tensor:  # [S] -> [S, D]
        return self.time_embed(t)

    def tables(self, t: Tensor) -> Tensor:
        """What the times ``t [S]`` steer: ``[S, 6*depth + 2, D]``, the last two being scale and shift of the output."""
        time, blocks = self.time_embed(t), cast("list[Block]", self.transformer_blocks)
        return torch.cat([part(time) for part in (*(block.attn_norm for block in blocks), self.norm_out)], dim=1)

    def forward(
        self, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor, table: Tensor, start: Tensor, mask: Tensor | None,
        past: Memory,
    ) -> Tensor:  # fmt: skip
        """``x, mu, cond [N, T, mel]``, ``spk [N, mel]``, ``table [N or 1, 6*depth+2, D]``, ``start [B]`` (position of
        the first frame), ``mask [B, 1, T, L]``: velocity ``[N, T, mel]``."""
        angles = self.rotary_embed.angles(start, x.shape[1])  # [B, T, d]
        angles = angles.repeat(x.shape[0] // start.shape[0], 1, 1)  # [N, T, d]
        cos, sin = angles.cos().to(x.dtype)[:, :, None], angles.sin().to(x.dtype)[:, :, None]  # [N, T, 1, d]
        x = self.input_embed(x, cond, mu, spk, past)  # [N, T, D]
        for i, block in enumerate(self.transformer_blocks):
            x = block(x, table[:, 6 * i : 6 * i + 6], cos, sin, mask, past)
        scale, shift = table[:, -2], table[:, -1]
        return self.proj_out(self.norm(x, shift, scale))
