"""CosyVoice3's estimator: a diffusion transformer with adaLN-zero modulation by the solver time.

Computes the velocity of the flow at a solver time (DiT, https://arxiv.org/abs/2212.09748). The modulation layers are
42 % of the weights and depend on the time only, so ``tables`` computes them once for all solver times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.networks.blocks import (
    CausalConv,
    Estimator,
    FusedAttention,
    Sites,
    attend,
    mish,
    sinusoid,
)
from tts_worker.engine.cosyvoice.networks.dims import DitDims
from tts_worker.engine.cosyvoice.networks.kv_cache import Memory, PagedView
from tts_worker.engine.cosyvoice.networks.linear import Linear
from tts_worker.engine.cosyvoice.ops.audio import add_norm, linear_gelu, rotate_first_heads

# Fixed in the reference.
TIME_SINUSOIDS = 256
POSITION_KERNEL = 31
POSITION_GROUPS = 16
ROTARY_BASE = 10_000.0
GELU_SLOPE = math.sqrt(8 / math.pi)
NORM_EPS = 1e-6


class TimeEmbed(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(Linear(TIME_SINUSOIDS, dim), nn.SiLU(), Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:  # [S] -> [S, D]
        return self.time_mlp(sinusoid(t, TIME_SINUSOIDS).to(next(self.parameters()).dtype))


class ConvPosition(nn.Module):
    """Convolutional position embedding, two grouped causal convolutions: ``[N, T, D] -> [N, T, D]``."""

    def __init__(self, dim: int, sites: Sites) -> None:
        super().__init__()
        self.conv1 = nn.ModuleList([CausalConv(sites, dim, dim, POSITION_KERNEL, POSITION_GROUPS)])
        self.conv2 = nn.ModuleList([CausalConv(sites, dim, dim, POSITION_KERNEL, POSITION_GROUPS)])

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        x = mish(self.conv1[0](x.transpose(1, 2).contiguous(), memory))
        return mish(self.conv2[0](x, memory)).transpose(1, 2)

    def fused(self, x: Tensor, memory: PagedView) -> Tensor:
        first, second = cast("CausalConv", self.conv1[0]), cast("CausalConv", self.conv2[0])
        return second.fused(first.fused(x, memory, True), memory, True)


class InputEmbed(nn.Module):
    def __init__(self, dims: DitDims, sites: Sites) -> None:
        super().__init__()
        self.proj = Linear(2 * dims.mel + dims.mu + dims.spk, dims.dim)
        self.conv_pos_embed = ConvPosition(dims.dim, sites)

    def forward(self, inputs: Tensor, memory: Memory) -> Tensor:  # [N, T, I] -> [N, T, D]
        x = self.proj(inputs)
        return self.conv_pos_embed(x, memory) + x


class Rotary(nn.Module):
    """Rotary position embedding in interleaved form.

    The reference rotates the *unsplit* query and key with a table one head wide, so only head 0 carries positions; the
    weights were trained that way.
    """

    inv_freq: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        # Not computed by PyTorch: on the meta device it would import its compiler, which takes a second.
        self.register_buffer("inv_freq", torch.tensor([ROTARY_BASE ** -(n / head_dim) for n in range(0, head_dim, 2)]))

    def angles(self, start: Tensor, span: int) -> Tensor:
        """From positions ``start [B]``: ``[B, span, head_dim/2]``."""
        positions = start[:, None] + torch.arange(span, device=start.device)  # [B, T]
        return positions[:, :, None].float() * self.inv_freq.float()

    def rotations(self, start: Tensor, x: Tensor) -> Tensor:
        """Rotations for ``x [N, T, D]`` from positions ``start [B]``, as ``rotate`` takes them.

        Complex float32, except for exporters, which have no complex type.
        """
        angle = self.angles(start, x.shape[1]).repeat(x.shape[0] // start.shape[0], 1, 1)[:, :, None]  # [N, T, 1, d/2]
        if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            return torch.stack([angle.cos(), angle.sin()], dim=-1).to(x.dtype)
        return torch.polar(torch.ones_like(angle), angle)


def rotate(qkv: Tensor, rotations: Tensor) -> Tensor:
    """Rotate head 0 of queries and keys in ``qkv [N, T, 3, H, d]``.

    ``rotations`` are complex ``[N, T, 1, d/2]`` (rotates in place) or real ``[N, T, 1, d/2, 2]`` (for exporters, which
    lose writes through a view).
    """
    if rotations.is_complex():
        return rotate_first_heads(qkv, rotations)
    a, b = qkv[:, :, :2, 0].unflatten(-1, (-1, 2)).unbind(-1)  # [N, T, 2, d/2] each
    cos, sin = rotations.unbind(-1)
    rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)[:, :, :, None]  # [N, T, 2, 1, d]
    return torch.cat([torch.cat([rotated, qkv[:, :, :2, 1:]], dim=3), qkv[:, :, 2:]], dim=2)


class SelfAttention(FusedAttention):
    def __init__(self, dims: DitDims, sites: Sites) -> None:
        super().__init__()
        inner = dims.heads * dims.head_dim
        self.heads = dims.heads
        self.site = sites.attention()
        self.to_q = Linear(dims.dim, inner)
        self.to_k = Linear(dims.dim, inner)
        self.to_v = Linear(dims.dim, inner)
        self.to_out = nn.ModuleList([Linear(inner, dims.dim)])

    def forward(self, x: Tensor, rotations: Tensor, mask: Tensor | None, memory: Memory) -> Tensor:  # [N, T, D]
        qkv = rotate(self.to_qkv(x).unflatten(-1, (3, self.heads, -1)), rotations)  # [N, T, 3, H, d]
        return self.to_out[0](attend(qkv, mask, self.site, memory))

    def fused(self, x: Tensor, rotations: Tensor, memory: PagedView) -> Tensor:
        """``forward`` over the pages."""
        qkv = self.to_qkv(x).unflatten(-1, (3, self.heads, -1))
        return self.to_out[0](memory.attend(self.site, qkv, rotations))


class Gelu(nn.GELU):
    """GELU with the tanh approximation. PyTorch's own takes 2.5 times as long on a CPU."""

    def __init__(self) -> None:
        super().__init__(approximate="tanh")

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda or x.dtype != torch.float32:  # half precision would round between the operations
            return super().forward(x)
        # (1 + tanh u) / 2 == sigmoid(2u) with 2u = sqrt(8 / pi) * (x + 0.044715 x^3)
        return torch.addcmul(x.new_tensor(GELU_SLOPE), x, x, value=0.044715 * GELU_SLOPE).mul_(x).sigmoid_().mul_(x)


class FeedForward(nn.Module):
    def __init__(self, dims: DitDims) -> None:
        super().__init__()
        inner = int(dims.dim * dims.ff_mult)
        first = nn.Sequential(Linear(dims.dim, inner), Gelu())
        self.ff = nn.Sequential(first, nn.Identity(), Linear(inner, dims.dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.ff(x)

    def fused(self, x: Tensor) -> Tensor:
        first = cast("Linear", self.ff.get_submodule("0.0"))
        return self.ff[2](linear_gelu(x, first.weight, first.bias, True))


class AdaLNModulation(nn.Module):
    """Shifts, scales and gates of one block from the time embedding: ``[S, D] -> [S, parts, D]``."""

    def __init__(self, dim: int, parts: int) -> None:
        super().__init__()
        self.linear = Linear(dim, parts * dim)
        self.parts = parts

    def forward(self, time: Tensor) -> Tensor:
        return self.linear(F.silu(time)).unflatten(-1, (self.parts, -1))


class AdaLayerNorm(nn.LayerNorm):
    """Layer norm of ``x [N, T, D]`` with external ``shift, scale [D] or [N, 1, D]``."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=NORM_EPS, elementwise_affine=False)

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        if shift.dim() == 1:  # shared by all rows: fused into the layer norm
            return F.layer_norm(x, self.normalized_shape, scale, shift, self.eps)
        return torch.addcmul(shift, super().forward(x), scale)


class Block(nn.Module):
    def __init__(self, dims: DitDims, sites: Sites) -> None:
        super().__init__()
        self.attn_norm = AdaLNModulation(dims.dim, 6)
        self.attn = SelfAttention(dims, sites)
        self.ff = FeedForward(dims)
        self.norm = AdaLayerNorm(dims.dim)

    def forward(
        self, x: Tensor, modulation: Sequence[Tensor], rotations: Tensor, mask: Tensor | None, memory: Memory
    ) -> Tensor:
        """Run one block on ``x [N, T, D]``, the residual stream.

        ``modulation``: shift, scale and gate of the attention, then of the feed-forward, each ``[D] or [N, 1, D]``.
        """
        shift, scale, gate, ff_shift, ff_scale, ff_gate = modulation
        dtype = self.attn.to_qkv.weight.dtype
        x = torch.addcmul(x, gate, self.attn(self.norm(x, shift, scale).to(dtype), rotations, mask, memory))
        return torch.addcmul(x, ff_gate, self.ff(self.norm(x, ff_shift, ff_scale).to(dtype)))

    def fused(
        self,
        x: Tensor,
        y: Tensor,
        modulation: Sequence[Tensor],
        following: Sequence[Tensor],
        rotations: Tensor,
        memory: PagedView,
    ) -> tuple[Tensor, Tensor]:
        """``forward``, up to and including the norm of the next block.

        Args:
            x: ``[N, T, D]`` residual stream.
            y: ``[N, T, D]`` its norm.
            modulation: As in ``forward``, ``[D]`` each.
            following: Shift and scale of the next norm.
            rotations: As in ``forward``.
            memory: The pages.

        Returns:
            The residual stream and its norm.
        """
        _, _, gate, ff_shift, ff_scale, ff_gate = modulation
        x, y = add_norm(x, self.attn.fused(y, rotations, memory), gate, ff_scale, ff_shift, NORM_EPS)
        return add_norm(x, self.ff.fused(y), ff_gate, following[1], following[0], NORM_EPS)


class Dit(Estimator):
    """The diffusion transformer: noise and conditions to velocity."""

    def __init__(self, dims: DitDims) -> None:
        super().__init__()
        self.dims = dims
        self.mel = dims.mel
        self.sites = Sites()
        self.time_embed = TimeEmbed(dims.dim)
        self.input_embed = InputEmbed(dims, self.sites)
        self.rotary_embed = Rotary(dims.head_dim)
        self.transformer_blocks = nn.ModuleList(Block(dims, self.sites) for _ in range(dims.depth))
        self.norm_out = AdaLNModulation(dims.dim, 2)
        self.norm = AdaLayerNorm(dims.dim)
        self.proj_out = Linear(dims.dim, dims.mel)

    def time_embedding(self, t: Tensor) -> Tensor:  # [S] -> [S, D]
        return self.time_embed(t)

    def tables(self, t: Tensor) -> Tensor:
        """Modulation for the times ``t [S]``: ``[S, 6*depth + 2, D]``, the last two for the output (scale, shift).

        One is already added to the scales.
        """
        time = self.time_embed(t)
        blocks = cast("list[Block]", self.transformer_blocks)
        table = torch.cat([part(time) for part in (*(block.attn_norm for block in blocks), self.norm_out)], dim=1)
        scales = [6 * block + row for block in range(len(blocks)) for row in (1, 4)] + [-2]
        table[:, scales] += 1
        return table

    def inputs(self, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor) -> Tensor:
        return torch.cat([x, cond, mu, spk[:, None].expand(-1, x.shape[1], -1)], dim=-1)

    def positions(self, start: Tensor, inputs: Tensor) -> Tensor:
        return self.rotary_embed.rotations(start, inputs)

    def velocity(
        self, inputs: Tensor, positions: Tensor | None, table: Tensor, mask: Tensor | None, past: Memory
    ) -> Tensor:
        assert positions is not None
        if isinstance(past, PagedView) and past.is_fused:
            return self._fused(inputs, positions, table[0].unbind(), past)
        x = self.input_embed(inputs, past).to(table.dtype)  # [N, T, D]
        modulation = table[0].unbind() if table.shape[0] == 1 else table[:, :, None].unbind(1)
        for i, block in enumerate(self.transformer_blocks):
            x = block(x, modulation[6 * i : 6 * i + 6], positions, mask, past)
        return self.proj_out(self.norm(x, modulation[-1], modulation[-2]).to(inputs.dtype))

    def _fused(self, inputs: Tensor, rotations: Tensor, modulation: Sequence[Tensor], past: PagedView) -> Tensor:
        x = self.input_embed.proj(inputs)
        y = self.input_embed.conv_pos_embed.fused(x, past)
        x, y = add_norm(x, y, None, modulation[1], modulation[0], NORM_EPS)
        last = len(self.transformer_blocks) - 1
        for i, block in enumerate(cast("list[Block]", self.transformer_blocks)):
            following = modulation[6 * i + 6 : 6 * i + 8] if i < last else (modulation[-1], modulation[-2])
            x, y = block.fused(x, y, modulation[6 * i : 6 * i + 6], following, rotations, past)
        return self.proj_out(y)
