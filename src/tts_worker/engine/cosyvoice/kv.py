"""Preallocated memory of the networks: where keys, values and convolution contexts of many utterances live.

Owns the tensors and where in them things go. Everything here can run inside a CUDA graph: positions, slots and pages
are index tensors, nothing grows, nothing is read back to the host. It must not know what an utterance is, who holds a
slot or a page, or what the numbers mean.
With ``checked=True`` memory is filled with NaN, so that reading what nobody wrote shows in the very next output.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


def _memory(shape: list[int], dtype: torch.dtype, device: str | torch.device, checked: bool) -> Tensor:
    """Zeros, which on a CPU the operating system provides when they are first touched; NaN if checked."""
    if checked:
        return torch.full(shape, float("nan"), dtype=dtype, device=device)
    size = math.prod(shape)
    if torch.device(device).type != "cpu" or not size:
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes zeros: the gigabytes that a server keeps ready would be taken from others at once.
    return torch.frombuffer(_mapping(size * dtype.itemsize), dtype=dtype).view(shape)


def _mapping(size_bytes: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size_bytes)
    return mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class SlotPool:
    """Keys and values of the language model: one row (slot) per utterance, ``[layers, 2, slots, heads, len+1, dim]``.

    The extra last position is a bin: padding writes there, nobody reads it.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        heads: int,
        max_tokens: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        checked: bool = False,
    ) -> None:
        self.max_tokens = max_tokens
        self.checked = checked
        self.data = _memory([layers, 2, slots, heads, max_tokens + 1, head_dim], dtype, device, checked)
        self.lengths = torch.zeros(slots, dtype=torch.long, device=device)  # [slots] tokens written

    def reset(self, slots: Tensor) -> None:
        """Forget what ``slots`` ``[B]`` hold."""
        self.lengths[slots] = 0
        if self.checked:
            self.data[:, :, slots] = float("nan")


class SlotView:
    """Keys and values of ``slots [B]`` of a ``SlotPool`` in one forward pass: ``new [B]`` of the positions ``where
    [B, T]`` are written, the first ``context`` are read. ``all_seen``: none of these comes after one of those.
    ``kv [B, T, 2*heads, dim]``, of the pool's type, is where each layer leaves its keys, then values: all views are
    made here, once for all layers."""

    def __init__(self, pool: SlotPool, slots: Tensor, where: Tensor, new: Tensor, context: int, kv: Tensor) -> None:
        # [B, T, 2, heads, dim]
        span = where.shape[1]
        kv = kv.unflatten(2, (2, -1))
        self._pool = pool
        self._slots = slots
        self._context = context
        self._known = None
        if pool.checked:  # beyond its length a slot holds NaN, and NaN times an attention weight of zero is NaN
            known = torch.arange(context, device=slots.device) < (pool.lengths[slots] + new)[:, None]  # [B, context]
            self._known = known[:, None, :, None]
        # On a CPU, looking at numbers costs nothing, and copying does: one slot is written and read where it lies.
        self._alone = slots.shape[0] == 1 and not slots.is_cuda
        self.all_seen = False
        if self._alone:
            (slot,), (count,), begin = slots.tolist(), new.tolist(), where.tolist()[0][0]
            self.all_seen = span == 1 and context <= begin + 1
            self._new = kv[0, :count].permute(1, 2, 0, 3)  # [2, heads, new, dim]
            self._fresh = pool.data[:, :, slot].narrow(3, begin, count).unbind()  # the same, for each layer
            self._past = pool.data[:, :, slot : slot + 1, :, :context].flatten(0, 1).unbind()  # keys, values, keys, ..
        else:
            steps = torch.arange(span, device=new.device)
            self._positions = torch.where(steps < new[:, None], where, pool.max_tokens)  # padding goes to the bin
            self._keys_values = kv.unbind(2)

    def keys_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """Store what ``layer`` left in ``kv``; all keys and values, as far as they are read:
        ``[B, heads, context, dim]`` each."""
        if self._alone:
            self._fresh[layer].copy_(self._new)
            keys = self._past[2 * layer]
            values = self._past[2 * layer + 1]
        else:
            store = self._pool.data[layer]
            for which, new in enumerate(self._keys_values):
                store[which, self._slots[:, None], :, self._positions] = new
            keys, values = store[:, :, :, : self._context].index_select(1, self._slots).unbind()
        known = self._known
        return (keys, values) if known is None else (keys.masked_fill(~known, 0.0), values.masked_fill(~known, 0.0))


class Memory(Protocol):
    """What a streaming network asks of its past. Sites are numbered in the order in which the network visits them. Rows
    ``N`` are branches x utterances, branch-major (2 branches under guidance)."""

    def left(self, site: int, x: Tensor) -> Tensor:
        """``x [N, C, T]`` with the left context of convolution ``site`` before it; the end of ``x`` is remembered."""
        ...

    def keys_values(self, site: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values up to and with ``kv [2, N, heads, T, dim]``, each ``[N, heads, context, dim]``."""
        ...


class NoPast:
    """The whole sequence at once: zeros before its start, and attention over itself. Remembers nothing."""

    def __init__(self, tails: list[tuple[int, int]]) -> None:
        self._widths = [width for _, width in tails]

    def left(self, site: int, x: Tensor) -> Tensor:
        return F.pad(x, (self._widths[site], 0))

    def keys_values(self, site: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        return kv[0], kv[1]


class PagedMemory:
    """Past of a chunked network. A page is one chunk of the trained mask, so a page once written never changes and a
    voice's pages can be shared by all who speak with it. Page 0 stays zero: it fills the tables of short utterances.

    ``rows`` are the guided solver steps (1 for an encoder); keys and values are
    ``[2, layers, heads, rows, pages, page, dim]``, the context of convolution ``i`` is ``[rows, slots, C_i, width_i]``.
    """

    def __init__(
        self,
        rows: int,
        layers: int,
        heads: int,
        head_dim: int,
        page: int,
        tails: list[tuple[int, int]],
        *,
        pages: int,
        slots: int,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        checked: bool = False,
    ) -> None:
        self.page = page
        self.data = _memory([2, layers, heads, rows, pages, page, head_dim], dtype, device, checked)
        self.data[..., 0, :, :] = 0.0
        self.tails = [_memory([rows, slots, c, w], dtype, device, checked) for c, w in tails]
        self._tails_of: dict[tuple[int, int, int], list[Tensor]] = {}

    def tails_of(self, slot: int, rows: slice) -> list[Tensor]:
        """``[R, C_i, w_i]``: the contexts of one slot where they lie. Made once: in a pass there are hundreds."""
        key = slot, rows.start, rows.stop
        if key not in self._tails_of:
            self._tails_of[key] = [tail[rows, slot] for tail in self.tails]
        return self._tails_of[key]

    def reset(self, slots: Tensor) -> None:
        """Start ``slots [B]`` anew: before the first sample there is silence."""
        for tail in self.tails:
            tail[:, slots] = 0.0

    def copy_tails(self, source: int, target: int) -> None:
        """Let slot ``target`` go on where slot ``source`` stands (its pages are shared through the page table)."""
        for tail in self.tails:
            tail[:, target] = tail[:, source]

    def view(self, slots: Tensor, table: Tensor, fresh: Tensor, rows: slice = slice(0, 1)) -> PagedView:
        """The past of ``slots [B]``: pages ``table [B, m]`` in time order (0 where an utterance is shorter), of which
        ``fresh [B, n]`` are written by this call."""
        return PagedView(self, slots, table, fresh, rows)


class PagedView:
    """A ``Memory`` over some utterances and solver rows of a ``PagedMemory``."""

    def __init__(self, memory: PagedMemory, slots: Tensor, table: Tensor, fresh: Tensor, rows: slice) -> None:
        self._memory = memory
        self._slots = slots
        self._rows = rows
        self._table = table.flatten()
        self._fresh = fresh.flatten()
        self._pages = table
        self._batch = slots.shape[0]
        self._branches = rows.stop - rows.start
        self._layers = memory.data[:, :, :, rows].unbind(1)  # [2, H, R, pages, page, D] each
        # On a CPU, looking at numbers costs nothing, and copying does: pages of one utterance that lie side by side are
        # written and read where they are.
        self._lies: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None
        self._tails: list[Tensor] | None = None
        if self._batch == 1 and not table.is_cuda:
            self._tails = memory.tails_of(int(slots), rows)
            pages = _run_of(self._table)
            new = _run_of(self._fresh)
            if pages is not None and new is not None:
                self._lies = self._in_place(*pages), self._in_place(*new)

    def _in_place(self, first: int, count: int) -> Sequence[Tensor]:
        """So many pages of all layers: ``[2, R, H, count*page, D]`` each."""
        pages = self._memory.data[:, :, :, self._rows, first : first + count]
        return pages.flatten(4, 5).transpose(2, 3).unbind(1)

    def left(self, site: int, x: Tensor) -> Tensor:
        if self._tails is not None:
            tail = self._tails[site]  # [R, C, w]
            x = torch.cat([tail if tail.dtype == x.dtype else tail.to(x.dtype), x], dim=2)
            tail.copy_(x[:, :, -tail.shape[2] :])
            return x
        tail = self._memory.tails[site][self._rows]  # [R, slots, C, w]
        past = tail.index_select(1, self._slots).flatten(0, 1)  # [R*B, C, w]
        x = torch.cat([past.to(x.dtype), x], dim=2)  # [R*B, C, w+T]
        last = x[:, :, -tail.shape[3] :].unflatten(0, (self._branches, self._batch))
        tail.index_copy_(1, self._slots, last.to(tail.dtype))
        return x

    def keys_values(self, site: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        if self._lies is not None:
            past = self._lies[0][site]
            fresh = self._lies[1][site]
            fresh.copy_(kv)
            k, v = past.unbind() if past.dtype == kv.dtype else past.to(kv.dtype).unbind()
            return k, v
        # [2, H, R, pages, page, D]
        page = self._memory.page
        store = self._layers[site]
        new = kv.unflatten(3, (-1, page)).unflatten(1, (self._branches, -1))  # [2, R, B, H, n, page, D]
        new = new.permute(0, 3, 1, 2, 4, 5, 6).flatten(3, 4)  # [2, H, R, B*n, page, D]
        store.index_copy_(3, self._fresh, new.to(store.dtype))
        past = store.index_select(3, self._table).unflatten(3, (self._batch, -1))  # [2, H, R, B, m, page, D]
        k, v = past.flatten(4, 5).flatten(2, 3).transpose(1, 2).to(kv.dtype).unbind()  # [R*B, H, m*page, D]
        return k, v

    def plain(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The past as plain tensors, for a back end that cannot look into this memory; one fresh page each. Keys and
        values ``[layers, R*B, heads, (m-1)*page, dim]`` of the other pages, context ``[R*B, S]``, and the order
        ``[B, m*page]`` in which the columns of a mask then come, the fresh ones last."""
        page = self._memory.page
        batch = self._batch
        fresh = (self._pages == self._fresh[:, None]).to(torch.int8)  # [B, m]
        order = fresh.argsort(dim=1, stable=True)  # [B, m]
        past = self._pages.gather(1, order)[:, :-1].flatten()
        store = self._memory.data[:, :, :, self._rows].index_select(4, past)  # [2, layers, H, R, B*(m-1), page, D]
        store = store.unflatten(4, (batch, -1)).movedim(2, 4)  # [2, layers, R, B, H, m-1, page, D]
        keys, values = store.flatten(2, 3).flatten(4, 5).unbind(0)
        tails = [tail[self._rows].index_select(1, self._slots).flatten(2).flatten(0, 1) for tail in self._memory.tails]
        columns = order[:, :, None] * page + torch.arange(page, device=order.device)
        return keys, values, torch.cat(tails, dim=1), columns.flatten(1)

    def remember(self, keys: Tensor, values: Tensor, context: Tensor) -> None:
        """What such a back end made of the fresh page: as ``plain`` gives them, ``page`` positions long."""
        for which, new in enumerate((keys, values)):
            new = new.unflatten(1, (self._branches, self._batch)).movedim(3, 1)  # [layers, H, R, B, page, D]
            store = self._memory.data[which, :, :, self._rows]
            store.index_copy_(3, self._fresh, new.to(store.dtype))
        widths = [tail.shape[2] * tail.shape[3] for tail in self._memory.tails]
        for tail, new in zip(self._memory.tails, context.split(widths, dim=1), strict=True):
            last = new.unflatten(0, (self._branches, self._batch)).unflatten(2, tail.shape[2:])
            tail[self._rows].index_copy_(1, self._slots, last.to(tail.dtype))


def _run_of(pages: Tensor) -> tuple[int, int] | None:
    """The first of ``pages`` and how many they are, if they follow each other."""
    numbers = pages.tolist()
    return (numbers[0], len(numbers)) if numbers == [*range(numbers[0], numbers[0] + len(numbers))] else None
