"""Preallocated KV caches and convolution contexts for many utterances.

Everything here can run inside a CUDA graph: positions, slots and pages are index tensors, nothing grows and nothing is
read back to the host. ``Decoder`` allocates the slots of the language model, ``FlowPool`` slots and pages of the flow.
With ``checked=True`` the memory is filled with NaN, so that a read of unwritten memory shows in the next output.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_worker.engine.cosyvoice.ops.audio import paged_attention
from tts_worker.errors import OutOfMemory


def _allocate(shape: list[int], dtype: torch.dtype, device: str | torch.device, checked: bool) -> Tensor:
    """Zeros (NaN if ``checked``); on a CPU the operating system commits the pages on first use.

    Raises:
        OutOfMemory: A CPU has no such memory.
    """
    if checked:
        return torch.full(shape, float("nan"), dtype=dtype, device=device)
    size = math.prod(shape)
    if torch.device(device).type != "cpu" or not size:
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros would write to the memory and so commit the gigabytes that a server reserves.
    size_bytes = size * dtype.itemsize
    try:
        mapping = _anonymous_mapping(size_bytes)
    except (OSError, OverflowError):
        size_gb = size_bytes / 1e9
        raise OutOfMemory(
            f"{size_gb:.1f} GB of memory for caches cannot be reserved: set memory_gb or max_utterances lower"
        ) from None
    return torch.frombuffer(mapping, dtype=dtype).view(shape)


def _anonymous_mapping(size_bytes: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size_bytes)
    return mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class SlotPool:
    """KV cache of the language model, one slot per utterance: ``[layers, 2, slots, heads, max_tokens+1, dim]``.

    The extra last position takes the writes of padding and is never read.

    Attributes:
        data: Keys and values.
        lengths: Written positions per slot ``[slots]``.
        max_tokens: Positions of a slot, and the position that takes the writes of padding.
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
        self.data = _allocate([layers, 2, slots, heads, max_tokens + 1, head_dim], dtype, device, checked)
        self.lengths = torch.zeros(slots, dtype=torch.long, device=device)

    def reset(self, slots: Tensor) -> None:
        """Clear ``slots [B]``: nothing is written there. Their memory keeps its values (``erase``)."""
        self.lengths[slots] = 0
        if self.checked:
            self.data[:, :, slots] = float("nan")

    def erase(self, slot: int, begin: int, end: int) -> None:
        """Zero the positions ``begin`` to ``end`` of a slot.

        A pass over many slots reads all of them up to the longest. Their masks hide what is not theirs unless it is NaN
        or infinite, as a broken sequence leaves it behind.
        """
        if not self.checked:
            self.data[:, :, slot, :, begin:end] = 0.0

    def gather(self, layer: int, slots: Tensor, ends: Tensor, context: int) -> tuple[Tensor, Tensor]:
        """Copy keys and values of ``slots [B]``, ``[B, heads, context, dim]`` each.

        Args:
            layer: The layer.
            slots: The slots.
            ends: ``[B]`` written positions. Those behind are arbitrary; with ``checked`` they are zero.
            context: Number of positions.
        """
        keys, values = self.data[layer, :, :, :, :context].index_select(1, slots).unbind()
        if not self.checked:
            return keys, values
        unwritten = (torch.arange(context, device=slots.device) >= ends[:, None])[:, None, :, None]
        return keys.masked_fill(unwritten, 0.0), values.masked_fill(unwritten, 0.0)


class SlotView:
    """Keys and values of one slot of a ``SlotPool`` during one forward pass, written and read in place.

    For CPUs, where values can be read and copies are expensive. All views are created here, once for all layers.

    Args:
        pool: The cache.
        slot: The slot.
        begin: Position of the first new vector.
        count: Number of new vectors.
        context: Number of positions that are read.
        kv: ``[T, 2*heads, dim]`` in the pool's dtype; each layer writes its keys, then its values there. The first
            ``count`` are stored.
    """

    def __init__(self, pool: SlotPool, slot: int, begin: int, count: int, context: int, kv: Tensor) -> None:
        new = kv if count == kv.shape[0] else kv[:count]
        self._new = new.unflatten(1, (2, -1)).permute(1, 2, 0, 3)  # [2, heads, new, dim]
        self._targets = pool.data[:, :, slot].narrow(3, begin, count).unbind()  # [2, heads, new, dim] per layer
        self._past = pool.data[:, :, slot : slot + 1, :, :context].flatten(0, 1).unbind()  # keys, values, keys, ..
        self._unwritten: Tensor | None = None
        if pool.checked and context > begin + count:  # NaN, and NaN times an attention weight of zero is NaN
            self._unwritten = (torch.arange(context) >= begin + count)[:, None]

    def keys_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """Store the contents of ``kv`` for ``layer``; return keys and values, ``[1, heads, context, dim]`` each."""
        self._targets[layer].copy_(self._new)
        keys = self._past[2 * layer]
        values = self._past[2 * layer + 1]
        if self._unwritten is None:
            return keys, values
        return keys.masked_fill(self._unwritten, 0.0), values.masked_fill(self._unwritten, 0.0)


class AttentionMemory(Protocol):
    """Interface to the past of a network of attentions.

    Sites number the convolutions and attentions in the order the network visits them. Rows ``N`` are branches x
    utterances, branch-major (2 branches under classifier-free guidance).
    """

    def keys_values(self, site: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Append ``kv [2, N, heads, T, dim]``; return all keys and values, ``[N, heads, context, dim]`` each."""
        ...


class Memory(AttentionMemory, Protocol):
    """Interface to the past of a network that also has convolutions."""

    def left(self, site: int, x: Tensor) -> Tensor:
        """Prepend the left context of convolution ``site`` to ``x [N, C, T]`` and store the end of ``x``."""
        ...


@dataclass(frozen=True)
class PageRow:
    """What an utterance has in a pass.

    Attributes:
        pages: Its pages in time order, those of this pass last.
        start: Frames before this pass, whole pages of them.
        total: Frames that exist after it, at least one more.
    """

    pages: Sequence[int]
    start: int
    total: int


@dataclass(frozen=True)
class PageShape:
    """Sizes of the memory that attention reads.

    Attributes:
        heads: Of queries, keys and values.
        head_dim: Size of a head.
        page: Frames of a page.
        count: Pages of a solver row.
        longest: Most pages of an utterance.
    """

    heads: int
    head_dim: int
    page: int
    count: int = 0
    longest: int = 0


class PagedLibrary(Protocol):
    """Interface to a library that attends to pages."""

    def plan(self, rows: Sequence[PageRow], chunks: int) -> None:
        """Prepare the next pass, of ``chunks`` new chunks for each of ``rows``. Not inside a CUDA graph."""
        ...

    def store_and_attend(self, qkv: Tensor, rotations: Tensor | None, store: Tensor, fresh: Tensor) -> Tensor:
        """``paged_attention`` as planned; rotates ``qkv`` in place.

        Args:
            qkv: ``[N, T, 3, H, d]``.
            rotations: ``[N, T, 1, d/2]`` complex, for head 0, or None.
            store: ``[2, H, R, pages, page, d]``, changed in place.
            fresh: ``[B, T/page]`` the pages to write.

        Returns:
            ``[N, T, H*d]``.
        """
        ...


class NoPast:
    """Memory for a whole sequence at once: zero left context, attention over the sequence itself."""

    def __init__(self, tails: list[tuple[int, int]]) -> None:
        self._widths = [width for _, width in tails]

    def left(self, site: int, x: Tensor) -> Tensor:
        return F.pad(x, (self._widths[site], 0))

    def keys_values(self, site: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        return kv[0], kv[1]


class PagedMemory:
    """Paged past of a chunked network.

    A page is one chunk of the trained mask: a written page never changes, and the pages of a voice's prompt are shared
    by all its utterances. Page 0 stays zero and pads the page tables of short utterances.

    ``rows`` are the guided solver steps (1 for an encoder). Keys and values are
    ``[2, layers, heads, rows, pages, page, dim]``; the context of convolution ``i`` is ``[rows, slots, C_i, width_i]``.
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
        self.slots = slots
        self.data = _allocate([2, layers, heads, rows, pages, page, head_dim], dtype, device, checked)
        self.data[..., 0, :, :] = 0.0
        self.tails = [_allocate([rows, slots, c, w], dtype, device, checked) for c, w in tails]
        self._tails_of: dict[tuple[int, int, int], list[Tensor]] = {}

    def tails_of(self, slot: int, rows: slice) -> list[Tensor]:
        """Views ``[R, C_i, w_i]`` of one slot's contexts; cached, as a pass uses hundreds of them."""
        key = slot, rows.start, rows.stop
        if key not in self._tails_of:
            self._tails_of[key] = [tail[rows, slot] for tail in self.tails]
        return self._tails_of[key]

    def reset(self, slots: Tensor) -> None:
        """Clear the contexts of ``slots [B]`` (silence before the first sample)."""
        for tail in self.tails:
            tail[:, slots] = 0.0

    def copy_tails(self, source: int, target: int) -> None:
        """Copy the contexts of slot ``source`` to slot ``target`` (pages are shared through the page table)."""
        for tail in self.tails:
            tail[:, target] = tail[:, source]

    def view(
        self,
        slots: Tensor,
        table: Tensor,
        fresh: Tensor,
        rows: slice = slice(0, 1),
        start: Tensor | None = None,
        total: Tensor | None = None,
        library: PagedLibrary | None = None,
    ) -> PagedView:
        """View the past of ``slots [B]``: pages ``table [B, m]`` in time order, padded with 0.

        This pass writes the pages ``fresh [B, n]``. The fused operators need to know that it begins at position
        ``start [B]`` and that positions before ``total [B]`` exist. ``library`` computes attention, if given.
        """
        return PagedView(self, slots, table, fresh, rows, start, total, library)


class IndexedPast:
    """A ``Memory`` over a ``PagedMemory``: solver rows, slots and pages by tensors alone, so that it can be compiled.

    Args:
        memory: The memory.
        slots: ``[N]``: row * slots + slot.
        pages: ``[N*m]``: row * pages + page, in time order.
        fresh: ``[N*n]``: those that this pass writes.
    """

    def __init__(self, memory: PagedMemory, slots: Tensor, pages: Tensor, fresh: Tensor) -> None:
        self._memory = memory
        self.indexes = slots, pages, fresh

    def left(self, site: int, x: Tensor) -> Tensor:
        slots, _, _ = self.indexes
        tails = self._memory.tails[site].flatten(0, 1)  # [rows*slots, C, w]
        x = torch.cat([tails.index_select(0, slots).to(x.dtype), x], dim=2)  # [N, C, w+T]
        tails.index_copy_(0, slots, x[:, :, -tails.shape[2] :].to(tails.dtype))
        return x

    def keys_values(self, site: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        _, pages, fresh = self.indexes
        store = self._memory.data[:, site].flatten(2, 3)  # [2, H, rows*pages, page, D]
        new = kv.unflatten(3, (-1, self._memory.page)).transpose(1, 2).flatten(2, 3)  # [2, H, N*n, page, D]
        store.index_copy_(2, fresh, new.to(store.dtype))
        past = store.index_select(2, pages).unflatten(2, (kv.shape[1], -1))  # [2, H, N, m, page, D]
        k, v = past.flatten(3, 4).transpose(1, 2).to(kv.dtype).unbind()  # [N, H, m*page, D]
        return k, v


class PagedView:
    """A ``Memory`` over some utterances and solver rows of a ``PagedMemory``.

    Attributes:
        memory: The memory.
        table: ``[B, m]`` pages in time order, padded with 0.
        fresh: ``[B, n]`` pages that this pass writes.
    """

    def __init__(
        self,
        memory: PagedMemory,
        slots: Tensor,
        table: Tensor,
        fresh: Tensor,
        rows: slice,
        start: Tensor | None = None,
        total: Tensor | None = None,
        library: PagedLibrary | None = None,
    ) -> None:
        self.memory = memory
        self._library = library
        self._extent = start, total
        self.fresh = fresh
        self._slots = slots
        self._rows = rows
        self._indexed: IndexedPast | None = None
        self.table = table
        self._batch = slots.shape[0]
        # On a CPU reading tensor values is free and copying is not: consecutive pages of a single utterance are written
        # and read in place.
        self._in_place: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None
        self._tails: list[Tensor] | None = None
        if self._batch == 1 and not table.is_cuda:
            self._tails = memory.tails_of(int(slots), rows)
            pages = _consecutive(table.flatten())
            new = _consecutive(fresh.flatten())
            if pages is not None and new is not None:
                self._in_place = self._page_views(*pages), self._page_views(*new)

    def _page_views(self, first: int, count: int) -> Sequence[Tensor]:
        """Views of ``count`` consecutive pages, ``[2, R, H, count*page, D]`` per layer."""
        pages = self.memory.data[:, :, :, self._rows, first : first + count]
        return pages.flatten(4, 5).transpose(2, 3).unbind(1)

    @property
    def is_fused(self) -> bool:
        """Whether the fused operators are used."""
        return self._extent[0] is not None and paged_attention.is_fused(self.table)

    @property
    def has_library(self) -> bool:
        """Whether a library computes attention."""
        return self._library is not None

    def attend(self, site: int, qkv: Tensor, rotations: Tensor | None) -> Tensor:
        """``ops.audio.paged_attention`` at ``site``: ``qkv [N, T, 3, heads, dim]`` to ``[N, T, heads*dim]``."""
        if self._library is not None:
            layer = self.memory.data[:, site, :, self._rows]
            return self._library.store_and_attend(qkv, rotations, layer, self.fresh)
        start, total = self._extent
        assert start is not None
        assert total is not None
        layer = self.memory.data[:, site, :, self._rows]  # [2, H, R, pages, page, D]
        return paged_attention(qkv, rotations, layer, self.table, self.fresh, start, total)

    def past(self, site: int) -> tuple[Tensor, Tensor]:
        """Contexts of convolution ``site``, ``[R, slots, C, w]``, and the slots ``[B]`` of this view."""
        return self.memory.tails[site][self._rows], self._slots

    def left(self, site: int, x: Tensor) -> Tensor:
        if self._tails is not None:
            tail = self._tails[site]  # [R, C, w]
            parts = [tail if tail.dtype == x.dtype else tail.to(x.dtype), x]
            if x.stride(1) == 1:  # channels next to each other in memory stay there
                x = torch.cat([part.transpose(1, 2) for part in parts], dim=1).transpose(1, 2)
            else:
                x = torch.cat(parts, dim=2)
            tail.copy_(x[:, :, -tail.shape[2] :])
            return x
        return self.indexed.left(site, x)

    def keys_values(self, site: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        if self._in_place is not None:
            past = self._in_place[0][site]
            fresh = self._in_place[1][site]
            fresh.copy_(kv)
            k, v = past.unbind() if past.dtype == kv.dtype else past.to(kv.dtype).unbind()
            return k, v
        return self.indexed.keys_values(site, kv)

    @property
    def indexed(self) -> IndexedPast:
        """The same past by flat indexes."""
        if self._indexed is None:
            memory = self.memory
            pages = memory.data.shape[4]
            self._indexed = IndexedPast(
                memory,
                self.flat_index(self._slots, memory.slots),
                self.flat_index(self.table.flatten(), pages),
                self.flat_index(self.fresh.flatten(), pages),
            )
        return self._indexed

    def flat_index(self, index: Tensor, count: int) -> Tensor:
        """Return ``row * count + index`` for each solver row."""
        rows = torch.arange(self._rows.start, self._rows.stop, device=index.device)
        return (rows[:, None] * count + index).flatten()


def _consecutive(pages: Tensor) -> tuple[int, int] | None:
    """First page and count if ``pages`` are consecutive, otherwise None."""
    numbers = pages.tolist()
    is_run = all(second == first + 1 for first, second in pairwise(numbers))
    return (numbers[0], len(numbers)) if is_run else None
