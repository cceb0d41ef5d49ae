"""What the flow's networks share: the chunk mask, attention over a past, causal convolution, the look-ahead layer.

Batches are ``[N, T, C]``. ``N`` is branches x utterances, branch-major (guidance runs two branches of each utterance);
start positions are per utterance ``[B]``. Nothing here knows tokens, mel frames or the solver.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.dims import LookaheadDims
from tts_worker.engine.cosyvoice.joined import joined
from tts_worker.engine.cosyvoice.kv import Memory


def chunk_mask(start: Tensor, total: Tensor, span: int, context: int, chunk: int) -> Tensor:
    """Who may look at whom: queries ``start [B] + 0..span`` see every key before the end of their own chunk and before
    ``total [B]``; ``chunk`` 0 means all keys. ``[B, 1, span, context]``, True = may look."""
    end = total[:, None]  # [B, 1]
    if chunk:
        query = start[:, None] + torch.arange(span, device=start.device)  # [B, T]
        end = torch.minimum((query // chunk + 1) * chunk, end)
    return (torch.arange(context, device=start.device) < end[:, :, None])[:, None].expand(-1, -1, span, -1)


def sinusoid(t: Tensor, dim: int, scale: float = 1000.0) -> Tensor:
    """Time embedding: ``t [S]`` in 0..1 to ``[S, dim]``, sines first. The rates are rounded from float64: a last bit in
    them is 1e-4 in the sine, and exponentials differ in last bits from one processor to the next."""
    rates = torch.exp(torch.arange(dim // 2, device=t.device).double() * -(math.log(10000) / (dim // 2 - 1)))
    angle = scale * t[:, None] * rates.float()
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def attend(qkv: Tensor, mask: Tensor | None, site: int, memory: Memory) -> Tensor:
    """Attention of queries, keys and values ``qkv [N, T, 3, H, d]`` over the past and themselves: ``[N, T, H*d]``."""
    qkv = qkv.permute(2, 0, 3, 1, 4)  # [3, N, H, T, d], nothing copied
    k, v = memory.keys_values(site, qkv[1:])  # [N, H, L, d]
    return F.scaled_dot_product_attention(qkv[0], k, v, mask).transpose(1, 2).flatten(2)


class JoinedAttention(nn.Module):
    """Queries, keys and values of the same input: three layers in a file, one once ``prepare`` was called."""

    to_q: nn.Linear
    to_k: nn.Linear
    to_v: nn.Linear
    to_qkv: nn.Linear

    def prepare(self) -> None:
        self.to_qkv = joined(self.to_q, self.to_k, self.to_v)
        del self.to_q, self.to_k, self.to_v


class Sites:
    """Numbers the places of a network that look at the past, while it is built."""

    def __init__(self) -> None:
        self.tails: list[tuple[int, int]] = []  # (channels, width) of each causal convolution
        self.attentions = 0

    def conv(self, channels: int, width: int) -> int:
        self.tails.append((channels, width))
        return len(self.tails) - 1

    def attention(self) -> int:
        self.attentions += 1
        return self.attentions - 1


class CausalConv(nn.Conv1d):
    """Convolution that sees only its own and earlier positions: ``[N, C, T] -> [N, C', T]``."""

    def __init__(self, sites: Sites, in_channels: int, out_channels: int, kernel: int, groups: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel, groups=groups)
        self.site = sites.conv(in_channels, kernel - 1)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:  # type: ignore[override]
        return super().forward(memory.left(self.site, x))


class Lookahead(nn.Module):
    """Lets a token see the next few: a convolution to the right, one to the left, and the token itself."""

    def __init__(self, dims: LookaheadDims, sites: Sites) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(dims.in_channels, dims.channels, dims.lookahead_tokens + 1)
        self.conv2 = CausalConv(sites, dims.channels, dims.in_channels, 3)
        self.tokens = dims.lookahead_tokens

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """``x [B, T+A, C]``, the last A vectors being context only: ``[B, T, C]``."""
        y = F.leaky_relu(self.conv1(x.transpose(1, 2)))  # [B, C', T]
        y = self.conv2(y, memory).transpose(1, 2)  # [B, T, C]
        return y + x[:, : y.shape[1]]
