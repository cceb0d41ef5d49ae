"""CosyVoice2's estimator: a causal UNet without resampling, of residual convolutions and transformer blocks.

Computes the velocity of the flow at a solver time, over whole sequences or chunks with a past. What depends on the time
only is computed once for all solver times (``tables``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

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
from tts_worker.engine.cosyvoice.networks.dims import UnetDims, V1UnetDims
from tts_worker.engine.cosyvoice.networks.kv_cache import Memory, PagedView
from tts_worker.engine.cosyvoice.networks.linear import Linear, linear, pointwise
from tts_worker.engine.cosyvoice.ops.audio import add_norm, conv_norm_mish, conv_norm_mish_add_norm, linear_gelu


class CausalBlock(nn.Module):
    """Causal convolution, layer norm over channels, Mish: ``[N, C, T] -> [N, C', T]``."""

    def __init__(self, sites: Sites, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict(
            {"0": CausalConv(sites, in_channels, out_channels, 3), "2": nn.LayerNorm(out_channels)}
        )

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        x = self.block["0"](x, memory).transpose(1, 2)
        return mish(self.block["2"](x.float())).to(x.dtype).transpose(1, 2)

    def fused(self, x: Tensor, shift: Tensor | None, memory: PagedView) -> Tensor:
        """``forward`` of ``x [N, T, C]`` plus ``shift [C']``: ``[N, T, C']``."""
        return conv_norm_mish(*self.arguments(x, memory), shift)

    def arguments(
        self, x: Tensor, memory: PagedView
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float]:
        """Arguments of the fused operators for ``x [N, T, C]``."""
        conv = cast("CausalConv", self.block["0"])
        norm = cast("nn.LayerNorm", self.block["2"])
        return x, *memory.past(conv.site), conv.packed, conv.bias, norm.weight, norm.bias, norm.eps


class Residual(nn.Module):
    """Two causal blocks with the time embedding added between them, and a 1x1 shortcut."""

    def __init__(self, sites: Sites, in_channels: int, out_channels: int, time_channels: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Mish(), Linear(time_channels, out_channels))
        self.block1 = CausalBlock(sites, in_channels, out_channels)
        self.block2 = CausalBlock(sites, out_channels, out_channels)
        self.res_conv = nn.Conv1d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor, memory: Memory) -> Tensor:
        """``x [N, C, T] -> [N, C', T]``; ``time [N or 1, C']`` is already projected by ``mlp``."""
        y = self.block1(x, memory) + time[:, :, None].to(x.dtype)
        return self.block2(y, memory) + pointwise(self.res_conv, x)

    def fused(self, x: Tensor, time: Tensor, following: nn.LayerNorm, memory: PagedView) -> tuple[Tensor, Tensor]:
        """``forward`` of ``x [N, T, C]`` with ``time [C']``, and the norm of the first transformer block.

        Returns:
            The residual stream and its norm, ``[N, T, C']`` each.
        """
        y = self.block1.fused(x, time, memory)
        shortcut = linear(x, self.res_conv.weight[:, :, 0], self.res_conv.bias)
        return conv_norm_mish_add_norm(*self.block2.arguments(y, memory), shortcut, following.weight, following.bias)


class SelfAttention(FusedAttention):
    def __init__(self, sites: Sites, dims: UnetDims | V1UnetDims) -> None:
        super().__init__()
        inner = dims.heads * dims.head_dim
        self.heads = dims.heads
        self.site = sites.attention()
        self.to_q = Linear(dims.channels, inner, bias=False)
        self.to_k = Linear(dims.channels, inner, bias=False)
        self.to_v = Linear(dims.channels, inner, bias=False)
        self.to_out = nn.ModuleList([Linear(inner, dims.channels)])

    def forward(self, x: Tensor, mask: Tensor | None, memory: Memory) -> Tensor:  # [N, T, C] -> [N, T, C]
        qkv = self.to_qkv(x).unflatten(-1, (3, self.heads, -1))  # [N, T, 3, H, d]
        return self.to_out[0](attend(qkv, mask, self.site, memory))

    def fused(self, x: Tensor, memory: PagedView) -> Tensor:
        """``forward`` over the pages."""
        return self.to_out[0](memory.attend(self.site, self.to_qkv(x).unflatten(-1, (3, self.heads, -1)), None))


class FeedForward(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        first = nn.Sequential(OrderedDict(proj=Linear(dim, 4 * dim)))  # nested as in the official weights
        self.net = nn.Sequential(first, nn.GELU(), Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:  # [N, T, C] -> [N, T, C]
        return self.net(x)

    def fused(self, x: Tensor) -> Tensor:
        first = cast("Linear", self.net.get_submodule("0.proj"))
        return self.net[2](linear_gelu(x, first.weight, first.bias, False))


class TransformerBlock(nn.Module):
    def __init__(self, sites: Sites, dims: UnetDims | V1UnetDims) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dims.channels)
        self.attn1 = SelfAttention(sites, dims)
        self.norm3 = nn.LayerNorm(dims.channels)
        self.ff = FeedForward(dims.channels)

    def forward(self, x: Tensor, mask: Tensor | None, memory: Memory) -> Tensor:  # [N, T, C] -> [N, T, C]
        dtype = self.attn1.to_qkv.weight.dtype
        x = x + self.attn1(self.norm1(x).to(dtype), mask, memory)
        return x + self.ff(self.norm3(x).to(dtype))

    def fused(self, x: Tensor, y: Tensor, memory: PagedView) -> tuple[Tensor, Tensor]:
        """``forward`` without the last addition.

        Args:
            x: ``[N, T, C]`` residual stream.
            y: ``[N, T, C]`` its norm.
            memory: The pages.

        Returns:
            The residual stream and what is to be added to it.
        """
        norm = self.norm3
        x, y = add_norm(x, self.attn1.fused(y, memory), None, norm.weight, norm.bias, norm.eps)
        return x, self.ff.fused(y)


class TimeMlp(nn.Module):
    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        self.linear_1 = Linear(in_size, out_size)
        self.linear_2 = Linear(out_size, out_size)

    def forward(self, t: Tensor) -> Tensor:  # [S, in] -> [S, out]
        return self.linear_2(F.silu(self.linear_1(t)))


class Unet(Estimator):
    """One down stage, the middle stages and one up stage with a skip connection, all at the same rate."""

    def __init__(self, dims: UnetDims) -> None:
        super().__init__()
        self.dims = dims
        self.mel = dims.out_channels
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

    def inputs(self, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor) -> Tensor:
        return torch.cat([x, mu, spk[:, None].expand(-1, x.shape[1], -1), cond], dim=-1)

    def positions(self, start: Tensor, inputs: Tensor) -> None:
        """This network has no position embedding."""

    def velocity(
        self, inputs: Tensor, positions: Tensor | None, table: Tensor, mask: Tensor | None, past: Memory
    ) -> Tensor:
        if isinstance(past, PagedView) and past.is_fused:
            return self._fused(inputs, table[0].unbind(), past)
        x = inputs.transpose(1, 2)  # [N, 4*mel, T]
        skip = x
        stages = self._stages()
        for i, (residual, blocks, *sampler) in enumerate(stages):
            if i == len(stages) - 1:
                x = torch.cat([x, skip], dim=1)  # [N, 2C, T]
            x = residual(x, table[:, i], past).transpose(1, 2).to(table.dtype)  # [N, T, C]
            for block in blocks:
                x = block(x, mask, past)
            x = x.to(inputs.dtype).transpose(1, 2)  # [N, C, T]
            skip = x if i == 0 else skip
            for conv in sampler:
                x = conv(x, past)
        return pointwise(self.final_proj, self.final_block(x, past)).transpose(1, 2)

    def _fused(self, x: Tensor, times: Sequence[Tensor], past: PagedView) -> Tensor:
        stages = self._stages()
        skip = x
        for i, (residual, blocks, *sampler) in enumerate(stages):
            if i == len(stages) - 1:
                x = torch.cat([x, skip], dim=-1)  # [N, T, 2C]
            total, y = residual.fused(x, times[i], blocks[0].norm1, past)
            for j, block in enumerate(blocks):
                total, y = block.fused(total, y, past)
                if j < len(blocks) - 1:
                    norm = blocks[j + 1].norm1
                    total, y = add_norm(total, y, None, norm.weight, norm.bias, norm.eps)
            x = torch.add(total, y, out=torch.empty_like(y))  # [N, T, C], in the dtype of the convolutions
            skip = x if i == 0 else skip
            for conv in sampler:
                x = conv.fused(x, past)
        x = self.final_block.fused(x, None, past)
        return linear(x, self.final_proj.weight[:, :, 0], self.final_proj.bias)
