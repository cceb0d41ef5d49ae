"""CosyVoice3's estimator: a diffusion transformer whose norms are steered by the solver time (adaLN-zero).

Owns its weights; gives the velocity of the flow at a solver time (DiT, https://arxiv.org/abs/2212.09748). The steering
vectors are 42 % of the weights and depend on the time only, so ``tables`` computes them once for the solver's times.
It must not know guidance, the solver or where its past is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.dims import DitDims
from tts_worker.engine.cosyvoice.flow.blocks import CausalConv, JoinedAttention, Sites, attend, sinusoid
from tts_worker.engine.cosyvoice.kv import Memory

# fixed in the reference
TIME_SINUSOIDS = 256
POSITION_KERNEL = 31
POSITION_GROUPS = 16
ROTARY_BASE = 10_000.0
GELU_SLOPE = math.sqrt(8 / math.pi)


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
        """From positions ``start [B]``: ``[B, span, head_dim/2]``."""
        where = start[:, None] + torch.arange(span, device=start.device)  # [B, T]
        return where[:, :, None].float() * self.inv_freq.float()

    def turns(self, start: Tensor, x: Tensor) -> Tensor:
        """For ``x [N, T, D]`` from positions ``start [B]``, as ``rotate_first_heads`` takes them: complex but for half
        precision, which has no complex numbers, and for exporters, which lose what is written through a view."""
        angle = self.angles(start, x.shape[1]).repeat(x.shape[0] // start.shape[0], 1, 1)[:, :, None]  # [N, T, 1, d/2]
        if x.dtype == torch.float32 and not torch.jit.is_tracing():  # type: ignore[attr-defined]
            return torch.polar(torch.ones_like(angle), angle)
        return torch.stack([angle.cos(), angle.sin()], dim=-1).to(x.dtype)


def rotate_first_heads(qkv: Tensor, turns: Tensor) -> Tensor:
    """``qkv [N, T, 3, H, d]``, ``turns [N, T, 1, d/2]``, complex, or ``[N, T, 1, d/2, 2]``, their real and imaginary
    parts: head 0 of queries and of keys rotated, the rest as it was. Complex ``turns`` rotate in place."""
    head = qkv[:, :, :2, 0].unflatten(-1, (-1, 2))  # [N, T, 2, d/2, 2]
    if turns.is_complex():
        torch.view_as_complex(head).mul_(turns)
        return qkv
    (a, b), (cos, sin) = head.unbind(-1), turns.unbind(-1)
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)[:, :, :, None]  # [N, T, 2, 1, d]
    return torch.cat([torch.cat([turned, qkv[:, :, :2, 1:]], dim=3), qkv[:, :, 2:]], dim=2)


class SelfAttention(JoinedAttention):
    def __init__(self, dims: DitDims, sites: Sites) -> None:
        super().__init__()
        inner = dims.heads * dims.head_dim
        self.heads = dims.heads
        self.site = sites.attention()
        self.to_q = nn.Linear(dims.dim, inner)
        self.to_k = nn.Linear(dims.dim, inner)
        self.to_v = nn.Linear(dims.dim, inner)
        self.to_out = nn.ModuleList([nn.Linear(inner, dims.dim)])

    def forward(self, x: Tensor, turns: Tensor, mask: Tensor | None, memory: Memory) -> Tensor:  # [N, T, D]
        qkv = rotate_first_heads(self.to_qkv(x).unflatten(-1, (3, self.heads, -1)), turns)  # [N, T, 3, H, d]
        return self.to_out[0](attend(qkv, mask, self.site, memory))


class Gelu(nn.GELU):
    """The approximation with a hyperbolic tangent. PyTorch's own takes two and a half times as long on a CPU."""

    def __init__(self) -> None:
        super().__init__(approximate="tanh")

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda or x.dtype != torch.float32:  # half precision would be rounded between the operations
            return super().forward(x)
        # (1 + tanh u) / 2 is the sigmoid of 2u, here sqrt(8 / pi) * (x + 0.044715 x^3)
        return torch.addcmul(x.new_tensor(GELU_SLOPE), x, x, value=0.044715 * GELU_SLOPE).mul_(x).sigmoid_().mul_(x)


class FeedForward(nn.Module):
    def __init__(self, dims: DitDims) -> None:
        super().__init__()
        inner = int(dims.dim * dims.ff_mult)
        first = nn.Sequential(nn.Linear(dims.dim, inner), Gelu())
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
    """Layer norm with scale and shift from outside: ``x [N, T, D]``, ``shift, scale [D] or [N, 1, D]``."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=1e-6, elementwise_affine=False)

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        if shift.dim() == 1:  # the same for all: weight and bias of one operation
            return F.layer_norm(x, self.normalized_shape, scale, shift, self.eps)
        return torch.addcmul(shift, super().forward(x), scale)


class Block(nn.Module):
    def __init__(self, dims: DitDims, sites: Sites) -> None:
        super().__init__()
        self.attn_norm = Steering(dims.dim, 6)
        self.attn = SelfAttention(dims, sites)
        self.ff = FeedForward(dims)
        self.norm = Steered(dims.dim)

    def forward(self, x: Tensor, steer: Sequence[Tensor], turns: Tensor, mask: Tensor | None, memory: Memory) -> Tensor:
        """``x [N, T, D]``, ``steer``: shift, scale, gate of attention, then of the feed-forward, ``[D] or [N, 1, D]``
        each."""
        shift, scale, gate, ff_shift, ff_scale, ff_gate = steer
        x = torch.addcmul(x, gate, self.attn(self.norm(x, shift, scale), turns, mask, memory))
        return torch.addcmul(x, ff_gate, self.ff(self.norm(x, ff_shift, ff_scale)))


class Dit(nn.Module):
    """Noise and conditions to velocity."""

    def __init__(self, dims: DitDims) -> None:
        super().__init__()
        self.dims = dims
        self.sites = Sites()
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
        """What the times ``t [S]`` steer: ``[S, 6*depth + 2, D]``, the last two being scale and shift of the output.
        Scales as they are multiplied with: one is added."""
        time = self.time_embed(t)
        blocks = cast("list[Block]", self.transformer_blocks)
        table = torch.cat([part(time) for part in (*(block.attn_norm for block in blocks), self.norm_out)], dim=1)
        scales = [6 * block + place for block in range(len(blocks)) for place in (1, 4)] + [-2]
        table[:, scales] += 1
        return table

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        spk: Tensor,
        cond: Tensor,
        table: Tensor,
        start: Tensor,
        mask: Tensor | None,
        past: Memory,
    ) -> Tensor:
        """``x, mu, cond [N, T, mel]``, ``spk [N, mel]``, ``table [N or 1, 6*depth+2, D]``, ``start [B]`` (position of
        the first frame), ``mask [N or 1, 1, T, L]``: velocity ``[N, T, mel]``."""
        turns = self.rotary_embed.turns(start, x)
        x = self.input_embed(x, cond, mu, spk, past)  # [N, T, D]
        steer = table[0].unbind() if table.shape[0] == 1 else table[:, :, None].unbind(1)
        for i, block in enumerate(self.transformer_blocks):
            x = block(x, steer[6 * i : 6 * i + 6], turns, mask, past)
        return self.proj_out(self.norm(x, steer[-1], steer[-2]))
