"""Building blocks of the networks: embedding, chunk mask, attention over a past, causal convolution, look-ahead layer.

Batches are ``[N, T, C]``. ``N`` is branches x utterances, branch-major (classifier-free guidance runs two branches per
utterance); start positions are per utterance, ``[B]``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cache
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.networks.dims import LookaheadDims
from tts_worker.engine.cosyvoice.networks.kv_cache import Memory, PagedView
from tts_worker.engine.cosyvoice.networks.linear import (
    Linear,
    Product,
    by_columns,
    fuse_linear,
    is_plain_product,
    linear,
    onednn_product,
)
from tts_worker.engine.cosyvoice.ops.audio import causal_conv, pack_conv

MISH_LINEAR = 20.0  # from here on Mish is the identity in float32
_MIN_SCORES = 30_000
"""Scores of a head from which oneDNN is faster. Measured: 15,000 no, 30,000 by a tenth, 85,000 by a third."""


def embedding(rows: int, dim: int) -> nn.Embedding:
    """An embedding without initial values: random initialization is wasted and imports torch's compiler."""
    return nn.Embedding(rows, dim, _weight=torch.empty(rows, dim))


def chunk_mask(start: Tensor, total: Tensor, span: int, context: int, chunk: int) -> Tensor:
    """Attention mask ``[B, 1, span, context]``, True where a query attends to a key.

    Queries ``start [B] + 0..span`` see every key before the end of their chunk and before ``total [B]``; with
    ``chunk`` 0 they see all keys before ``total``.
    """
    end = total[:, None]  # [B, 1]
    if chunk:
        query = start[:, None] + torch.arange(span, device=start.device)  # [B, T]
        end = torch.minimum((query // chunk + 1) * chunk, end)
    return (torch.arange(context, device=start.device) < end[:, :, None])[:, None].expand(-1, -1, span, -1)


def sinusoid(t: Tensor, dim: int, scale: float = 1000.0) -> Tensor:
    """Sinusoidal time embedding: ``t [S]`` in 0..1 to ``[S, dim]``, sines first.

    The rates are computed in float64: ``exp`` differs in the last bit between CPUs, and one float32 bit in a rate
    changes the sine by 1e-4.
    """
    rates = torch.exp(torch.arange(dim // 2, device=t.device).double() * -(math.log(10000) / (dim // 2 - 1)))
    angle = scale * t[:, None] * rates.float()
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def mish(x: Tensor) -> Tensor:
    """Mish, ``x tanh(ln(1 + e^x))``, of any shape. PyTorch's own takes four times as long on a CPU."""
    # Half precision would round between the operations; an exported graph has one operator for it.
    if x.is_cuda or x.dtype != torch.float32 or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return F.mish(x)
    e = x.clamp(max=MISH_LINEAR).exp_()
    half = torch.addcmul(e, e, e, value=0.5)  # tanh(ln(1 + e)) == (e^2 + 2e) / (e^2 + 2e + 2)
    return torch.div(half, half + 1).mul_(x)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attend with ``q [N, H, T, d]`` to ``k, v [N, H, L, d]``: ``[N, T, H*d]``.

    ``mask [N or 1, 1, T, L]`` is True where a query sees a key, or is added to the scores; None hides nothing.
    """
    if is_plain_product(q) and q.shape[2] * k.shape[2] >= _MIN_SCORES:
        product = _product()
        if product is not None:
            return _by_heads(product, q, k, v, mask)
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


@cache
def _product() -> Product | None:
    return onednn_product() if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else None


def _by_heads(product: Product, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attend head by head with products of oneDNN, with all scores of a head, which fit into its cache, in memory.

    PyTorch's attention leaves its products to MKL (see ``linear``). With AVX-512 on a processor of AMD, oneDNN's take
    so much less time that this is up to a third faster.
    """
    count, heads, span, width = q.shape
    out = q.new_empty(count, span, heads, width)
    q = q * width**-0.5
    if mask is not None and mask.dtype == torch.bool:
        mask = q.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    masks = [None] if mask is None else mask[:, 0].unbind()
    # With gaps between its rows, oneDNN takes a thousand times as long for a matrix of weights.
    k, v = (part if part.stride()[2:] == (width, 1) else part.contiguous() for part in (k, v))
    rows = zip(q.unbind(), k.unbind(), v.transpose(2, 3).unbind(), out.transpose(1, 2).unbind(), strict=True)
    for row, bias in zip(rows, cycle(masks)):
        for query, key, values, result in zip(*(part.unbind() for part in row), strict=True):
            scores = product(query, key, None, "none", [], "")  # [T, L]
            if bias is not None:
                scores.add_(bias)
            result.copy_(product(scores.softmax(-1), values, None, "none", [], ""))
    return out.flatten(2)


def attend(qkv: Tensor, mask: Tensor | None, site: int, memory: Memory) -> Tensor:
    """Attention of ``qkv [N, T, 3, H, d]`` over the past and the new positions: ``[N, T, H*d]``."""
    if isinstance(memory, PagedView) and memory.has_library:
        return memory.attend(site, qkv, None)
    qkv = qkv.permute(2, 0, 3, 1, 4)  # [3, N, H, T, d], a view
    k, v = memory.keys_values(site, qkv[1:])  # [N, H, L, d]
    return attention(qkv[0], k, v, mask)


class Estimator(nn.Module, ABC):
    """Computes the velocity of the flow at a solver time. ``N`` are the rows of a pass: branches x utterances.

    Attributes:
        sites: Its convolutions and attentions over the past.
        mel: Channels of the state, the first ones of its input.
    """

    sites: Sites
    mel: int

    @abstractmethod
    def tables(self, t: Tensor) -> Tensor:
        """Return what depends on the times ``t [S]`` only, ``[S, ...]``."""

    @abstractmethod
    def inputs(self, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor) -> Tensor:
        """Concatenate the inputs, the state first: ``[N, T, I]``. Shapes as in ``forward``."""

    @abstractmethod
    def positions(self, start: Tensor, inputs: Tensor) -> Tensor | None:
        """Return the position embedding of ``inputs [N, T, I]`` from frames ``start [B]``, ``[N, ...]``."""

    @abstractmethod
    def velocity(
        self, inputs: Tensor, positions: Tensor | None, table: Tensor, mask: Tensor | None, past: Memory
    ) -> Tensor:
        """Compute the velocity ``[N, T, mel]``.

        Arguments as in ``forward``, and the results of ``inputs`` and ``positions``. If the past is fused, ``mask`` is
        ignored and ``table`` has one row.
        """

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
        """Compute the velocity ``[N, T, mel]``.

        Args:
            x: ``[N, T, mel]`` current state.
            mu: ``[N, T, mel]`` token condition.
            spk: ``[N, mel]`` speaker condition.
            cond: ``[N, T, mel]`` prompt mel.
            table: ``[N or 1, ...]``, a row of ``tables``.
            start: ``[B]`` position of the first frame.
            mask: ``[N or 1, 1, T, L]``.
            past: Past of this network.
        """
        inputs = self.inputs(x, mu, spk, cond)
        return self.velocity(inputs, self.positions(start, inputs), table, mask, past)


def use_product_dtype(network: nn.Module, dtype: torch.dtype) -> None:
    """Compute the products of ``network`` in ``dtype``. The weights of norms stay float32."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.ConvTranspose1d):
            module.to(dtype)


class FusedAttention(nn.Module):
    """Attention whose query, key and value projections are separate in the file and fused by ``prepare``."""

    to_q: Linear
    to_k: Linear
    to_v: Linear
    to_qkv: Linear

    def prepare(self) -> None:
        self.to_qkv = fuse_linear(self.to_q, self.to_k, self.to_v)
        del self.to_q, self.to_k, self.to_v


class Sites:
    """Numbers the convolutions and attentions of a network that read the past, while it is built."""

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
    """Causal convolution over a past: ``[N, C, T] -> [N, C', T]``."""

    bias: Tensor
    packed: Tensor
    matrix: Tensor | None  # [C', k*C], set by ``prepare``

    def __init__(self, sites: Sites, in_channels: int, out_channels: int, kernel: int, groups: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel, groups=groups)
        self.site = sites.conv(in_channels, kernel - 1)
        self.register_buffer("matrix", None, persistent=False)

    @torch.inference_mode(False)
    def prepare(self) -> None:
        """Store the weights as a matrix, as well, if they are on a CPU. A product takes less time than a convolution.

        Convolutions in groups stay what they are.
        """
        if self.groups == 1 and not self.weight.is_cuda:
            self.matrix = by_columns(self.weight.detach().permute(0, 2, 1).flatten(1))

    def pack(self) -> None:
        """Store the weights in the order of the fused operators, as well."""
        self.register_buffer("packed", pack_conv(self.weight, self.groups), persistent=False)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:  # type: ignore[override]
        x = memory.left(self.site, x)  # [N, C, w+T]
        # An exported graph has one operator for it.
        if self.matrix is None or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            return super().forward(x)
        rows = x.transpose(1, 2).contiguous()
        count, length, channels = rows.shape
        width = self.kernel_size[0]
        shape = count, length - width + 1, width * channels
        windows = rows.as_strided(shape, (length * channels, channels, 1))  # the last k inputs of each output
        return linear(windows, self.matrix, self.bias).transpose(1, 2)

    def fused(self, x: Tensor, memory: PagedView, has_mish: bool = False) -> Tensor:
        """Like ``forward`` over ``x [N, T, C]``, with Mish on request: ``[N, T, C']``."""
        return causal_conv(x, *memory.past(self.site), self.packed, self.bias, self.groups, has_mish)


class Lookahead(nn.Module):
    """Look-ahead layer: a convolution over the next tokens, a causal one, and a residual connection."""

    def __init__(self, dims: LookaheadDims, sites: Sites) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(dims.in_channels, dims.channels, dims.lookahead_tokens + 1)
        self.conv2 = CausalConv(sites, dims.channels, dims.in_channels, 3)
        self.tokens = dims.lookahead_tokens

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """``x [B, T+A, C] -> [B, T, C]``; the last A vectors are look-ahead only."""
        y = F.leaky_relu(self.conv1(x.transpose(1, 2)))  # [B, C', T]
        y = self.conv2(y, memory).transpose(1, 2)  # [B, T, C]
        return y + x[:, : y.shape[1]]
