"""Copies the paged past of a flow to plain tensors and back, for graphs that cannot read the memory of the engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_worker.engine.cosyvoice.networks.kv_cache import PagedView


@dataclass(frozen=True)
class PlainPast:
    """Keys and values of some utterances and solver rows in plain tensors.

    Attributes:
        keys: ``[layers, R*B, heads, L, dim]``.
        values: Like ``keys``.
        positions: ``[B, L + fresh]``: position of every key, those of the fresh pages last.
        length: Number of positions in the page tables. A key that belongs to none of them has one beyond.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    length: int


def gather_past(view: PagedView) -> PlainPast:
    """Copy keys and values.

    A past of no pages becomes one page of zeros beyond every position, so that no tensor is empty.
    """
    memory, fresh = view.memory, view.fresh
    batch, count = fresh.shape
    pages = view.table if view.table.shape[1] > count else F.pad(view.table, (0, 1))  # [B, m]
    is_fresh = (pages[:, :, None] == fresh[:, None]).any(2).to(torch.int8)
    order = is_fresh.argsort(dim=1, stable=True)  # [B, m], the fresh pages last
    past = pages.gather(1, order)[:, :-count].flatten()
    data = memory.data.flatten(3, 4)  # [2, layers, H, rows*pages, page, D]
    store = data.index_select(3, view.flat_index(past, memory.data.shape[4]))
    store = store.unflatten(3, (-1, batch, order.shape[1] - count)).flatten(3, 4)
    keys, values = store.transpose(2, 3).flatten(4, 5).unbind(0)
    positions = order[:, :, None] * memory.page + torch.arange(memory.page, device=order.device)
    return PlainPast(keys, values, positions.flatten(1), view.table.shape[1] * memory.page)


def gather_contexts(view: PagedView) -> Tensor:
    """All convolution contexts as one tensor ``[R*B, S]``, flattened, in the order of their sites."""
    slots, _, _ = view.indexed.indexes
    return torch.cat([tail.flatten(0, 1).index_select(0, slots).flatten(1) for tail in view.memory.tails], dim=1)


def store_pages(view: PagedView, keys: Tensor, values: Tensor) -> None:
    """Store the fresh pages that a graph computed; shapes as in ``gather_past``, all fresh pages long."""
    _, _, fresh = view.indexed.indexes
    for store, new in zip(view.memory.data.flatten(3, 4), (keys, values), strict=True):
        new = new.unflatten(3, (-1, view.memory.page)).transpose(1, 2).flatten(2, 3)  # [layers, H, R*B*n, page, D]
        store.index_copy_(2, fresh, new.to(store.dtype))


def store_contexts(view: PagedView, context: Tensor) -> None:
    """Store the contexts after this pass; shape as in ``gather_contexts``."""
    slots, _, _ = view.indexed.indexes
    tails = view.memory.tails
    widths = [tail.shape[2] * tail.shape[3] for tail in tails]
    for tail, new in zip(tails, context.split(widths, dim=1), strict=True):
        tail.flatten(0, 1).index_copy_(0, slots, new.unflatten(1, tail.shape[2:]).to(tail.dtype))
