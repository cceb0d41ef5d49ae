"""CosyVoice2's estimator: a causal UNet without resampling, of residual convolutions and transformer blocks.

Computes the velocity of the flow at a solver time, over whole sequences or chunks with a past. What depends on the time
only is computed once for all solver times (``tables``).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.kv_cache import Memory
from tts_worker.engine.cosyvoice.models.blocks import CausalConv, FusedAttention, Sites, attend, sinusoid
from tts_worker.engine.cosyvoice.models.dims import UnetDims


class CausalBlock(nn.Module):
    """Causal convolution, layer norm over channels, Mish: ``[N, C, T] -> [N, C', T]``."""

    def __init__(self, sites: Sites, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict(
            {"0": CausalConv(sites, in_channels, out_channels, 3), "2": nn.LayerNorm(out_channels)}
        )

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        x = self.block["0"](x, memory).transpose(1, 2)
        return F.mish(self.block["2"](x)).transpose(1, 2)


class Residual(nn.Module):
    """Two causal blocks with the time embedding added between them, and a 1x1 shortcut."""

    def __init__(self, sites: Sites, in_channels: int, out_channels: int, time_channels: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Mish(), nn.Linear(time_channels, out_channels))
        self.block1 = CausalBlock(sites, in_channels, out_channels)
        self.block2 = CausalBlock(sites, out_channels, out_channels)
        self.res_conv = nn.Conv1d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor, memory: Memory) -> Tensor:
        """``x [N, C, T] -> [N, C', T]``; ``time [N or 1, C']`` is already projected by ``mlp``."""
        y = self.block1(x, memory) + time[:, :, None]
        return self.block2(y, memory) + self.res_conv(x)


class SelfAttention(FusedAttention):
    def __init__(self, sites: Sites, dims: UnetDims) -> None:
        super().__init__()
        inner = dims.heads * dims.head_dim
        self.heads = dims.heads
        self.site = sites.attention()
        self.to_q = nn.Linear(dims.channels, inner, bias=False)
        self.to_k = nn.Linear(dims.channels, inner, bias=False)
        self.to_v = nn.Linear(dims.channels, inner, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(inner, dims.channels)])

    def forward(self, x: Tensor, mask: Tensor | None, memory: Memory) -> Tensor:  # [N, T, C] -> [N, T, C]
        qkv = self.to_qkv(x).unflatten(-1, (3, self.heads, -1))  # [N, T, 3, H, d]
        return self.to_out[0](attend(qkv, mask, self.site, memory))


class FeedForward(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        first = nn.Sequential(OrderedDict(proj=nn.Linear(dim, 4 * dim)))  # nested as in the official weights
        self.net = nn.Sequential(first, nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:  # [N, T, C] -> [N, T, C]
        return self.net(x)


class TransformerBlock(nn.Module):
    def __init__(self, sites: Sites, dims: UnetDims) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dims.channels)
        self.attn1 = SelfAttention(sites, dims)
        self.norm3 = nn.LayerNorm(dims.channels)
        self.ff = FeedForward(dims.channels)

    def forward(self, x: Tensor, mask: Tensor | None, memory: Memory) -> Tensor:  # [N, T, C] -> [N, T, C]
        x = x + self.attn1(self.norm1(x), mask, memory)
        return x + self.ff(self.norm3(x))


class TimeMlp(nn.Module):
    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(in_size, out_size)
        self.linear_2 = nn.Linear(out_size, out_size)

    def forward(self, t: Tensor) -> Tensor:  # [S, in] -> [S, out]
        return self.linear_2(F.silu(self.linear_1(t)))


class Unet(nn.Module):
    """One down stage, the middle stages and one up stage with a skip connection, all at the same rate."""

    def __init__(self, dims: UnetDims) -> None:
        super().__init__()
        self.dims = dims
        self.sites = Sites()
        width = dims.channels
        time = 4 * dims.channels

        def stage(in_channels: int, sampler: bool) -> nn.ModuleList:
            parts: list[nn.Module] = [Residual(self.sites, in_channels, width, time)]
            parts.append(nn.ModuleList(TransformerBlock(self.sites, dims) for _ in range(dims.blocks)))
            return nn.ModuleList([*parts, CausalConv(self.sites, width, width, 3)] if sampler else parts)

        self.time_mlp = TimeMlp(dims.in_channels, time)
        self.down_blocks = nn.ModuleList([stage(dims.in_channels, sampler=True)])
        self.mid_blocks = nn.ModuleList(stage(width, sampler=False) for _ in range(dims.mid_blocks))
        self.up_blocks = nn.ModuleList([stage(2 * width, sampler=True)])
        self.final_block = CausalBlock(self.sites, width, width)
        self.final_proj = nn.Conv1d(width, dims.out_channels, 1)

    def _stages(self) -> list[Any]:
        """All stages in order: a residual block, transformer blocks and, at both ends, a convolution."""
        return [*self.down_blocks, *self.mid_blocks, *self.up_blocks]

    def time_embedding(self, t: Tensor) -> Tensor:  # [S] -> [S, 4C]
        return self.time_mlp(sinusoid(t, self.dims.in_channels).to(self.final_proj.weight.dtype))

    def tables(self, t: Tensor) -> Tensor:
        """Projected time embeddings of ``t [S]`` for each stage: ``[S, stages, C]``."""
        time = self.time_embedding(t)
        return torch.stack([stage[0].mlp(time) for stage in self._stages()], dim=1)

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
        """Velocity ``[N, T, mel]``.

        Args:
            x: ``[N, T, mel]`` current state.
            mu: ``[N, T, mel]`` token condition.
            spk: ``[N, mel]`` speaker condition.
            cond: ``[N, T, mel]`` prompt mel.
            table: ``[N or 1, stages, C]``, a row of ``tables``.
            start: ``[B]``, unused: this network has no position embedding.
            mask: ``[N or 1, 1, T, L]``.
            past: Past of this network.
        """
        spk = spk[:, None].expand(-1, x.shape[1], -1)
        x = torch.cat([x, mu, spk, cond], dim=-1).transpose(1, 2)  # [N, 4*mel, T]
        skip = x
        stages = self._stages()
        for i, (residual, blocks, *sampler) in enumerate(stages):
            if i == len(stages) - 1:
                x = torch.cat([x, skip], dim=1)  # [N, 2C, T]
            x = residual(x, table[:, i], past).transpose(1, 2)  # [N, T, C]
            for block in blocks:
                x = block(x, mask, past)
            x = x.transpose(1, 2)  # [N, C, T]
            skip = x if i == 0 else skip
            for conv in sampler:
                x = conv(x, past)
        return self.final_proj(self.final_block(x, past)).transpose(1, 2)
