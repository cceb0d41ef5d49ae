"""A stand-in for FlashInfer that computes what its documentation promises, and refuses what it does not allow.

Facts: https://docs.flashinfer.ai/api/attention.html (BatchPrefillWithPagedKVCacheWrapper) and
https://docs.flashinfer.ai/tutorials/kv_layout.html (page table).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__version__ = "0.0 (fake)"

BUFFERS = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")


class BatchPrefillWithPagedKVCacheWrapper:
    """Attention of packed queries to paged keys and values. Reads its page table when it runs, as a kernel does."""

    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False, **buffers: Tensor
    ) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert float_workspace_buffer.data_ptr() % 16 == 0
        assert kv_layout in ("NHD", "HND")
        self._layout = kv_layout
        self._captures = use_cuda_graph
        self._rows: int | None = None
        self._settings: dict[str, Any] = {}
        if use_cuda_graph:
            assert set(buffers) == set(BUFFERS)
            assert all(buffer.dtype == torch.int32 for buffer in buffers.values())
            requests = len(buffers["qo_indptr_buf"]) - 1
            assert len(buffers["paged_kv_indptr_buf"]) == requests + 1
            assert len(buffers["paged_kv_last_page_len_buf"]) == requests
        else:
            assert not buffers
        self._buffers = buffers

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        arguments = qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        assert all(each.dtype == torch.int32 and each.dim() == 1 for each in arguments)
        read = qo_indptr, paged_kv_indptr, paged_kv_last_page_len
        assert all(each.device.type == "cpu" for each in read), "the host reads them: a copy would wait"
        requests = len(qo_indptr) - 1
        assert len(paged_kv_indptr) == requests + 1
        assert len(paged_kv_last_page_len) == requests
        for ends in (qo_indptr, paged_kv_indptr):
            assert ends[0] == 0
            assert (ends.diff() > 0).all()
        assert len(paged_kv_indices) == paged_kv_indptr[-1]
        assert (paged_kv_last_page_len >= 1).all()
        assert (paged_kv_last_page_len <= page_size).all()
        assert num_qo_heads % num_kv_heads == 0
        assert not causal
        if self._captures:
            assert len(self._buffers["qo_indptr_buf"]) == requests + 1, "the batch size is fixed"
            assert len(paged_kv_indices) <= len(self._buffers["paged_kv_indices_buf"])
            self._rows = self._rows or int(qo_indptr[-1])
            assert qo_indptr[-1] <= self._rows
            for name, values in zip(BUFFERS, arguments, strict=True):
                self._buffers[name][: len(values)] = values
        else:
            self._buffers = dict(zip(BUFFERS, (each.clone() for each in arguments), strict=True))
        self._settings = {
            "q_shape": (int(qo_indptr[-1]), num_qo_heads, head_dim_qk),
            "kv_shape": (num_kv_heads, page_size, head_dim_qk),
            "q_dtype": q_data_type,
            "kv_dtype": kv_data_type or q_data_type,
        }

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        keys, values = paged_kv_cache
        heads, page, dim = self._settings["kv_shape"]
        assert q.shape == self._settings["q_shape"]
        assert q.dtype == self._settings["q_dtype"]
        assert q.stride(2) == 1
        for cache in (keys, values):
            assert cache.shape[1:] == ((heads, page, dim) if self._layout == "HND" else (page, heads, dim))
            assert cache.dtype == self._settings["kv_dtype"]
            assert cache.stride(3) == 1
        query_ends, page_ends, pages, last = (self._buffers[name].tolist() for name in BUFFERS)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for request, length in enumerate(last):
            mine = torch.tensor(pages[page_ends[request] : page_ends[request + 1]])
            count = (len(mine) - 1) * page + length
            k, v = (self._gather(cache, mine)[:, :count] for cache in (keys, values))  # [H, L, d]
            rows = slice(query_ends[request], query_ends[request + 1])
            group = q.shape[1] // heads
            attended = F.scaled_dot_product_attention(
                q[rows].transpose(0, 1).float(),
                k.float().repeat_interleave(group, 0),
                v.float().repeat_interleave(group, 0),
            )
            out[rows] = attended.transpose(0, 1).to(out.dtype)
        return out

    def _gather(self, cache: Tensor, pages: Tensor) -> Tensor:
        """Return the keys or values of ``pages``, ``[H, pages*page, d]``."""
        chosen = cache[pages]
        return (chosen.transpose(0, 1) if self._layout == "HND" else chosen.permute(2, 0, 1, 3)).flatten(1, 2)
