"""Attention of a pass over given keys and values: PyTorch's, or on some CPUs as products of oneDNN.

PyTorch's attention leaves its products to MKL (see ``linear``). With AVX-512 on a processor of AMD, oneDNN's take so
much less time that attention head by head, with all scores in memory, is up to a third faster. The scores of a head
fit into its cache.
"""

from __future__ import annotations

from functools import cache
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_worker.engine.cosyvoice.networks.linear import Product, is_plain_product, onednn_product

_MIN_SCORES = 30_000
"""Scores of a head from which oneDNN is faster. Measured: 15,000 no, 30,000 by a tenth, 85,000 by a third."""


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
