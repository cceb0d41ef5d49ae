"""Attention of the flow to its pages by FlashInfer, in place of the Triton kernel of this project, to measure it.

FlashInfer (https://docs.flashinfer.ai) reads keys and values where they are, as ``ops.audio.paged_attention`` does.
It plans a pass on the host: ``FlowPool`` calls ``plan`` with the lengths and pages of all utterances before it runs or
replays the pass, whose layers and solver steps then share the plan. A chunk is a separate request, so that the chunk
mask becomes the length of the request: every frame of a chunk sees the pages up to its chunk.

The language model has no use for it: its decode steps follow each other without the host, which could not plan them.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.networks.blocks import Estimator
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.networks.kv_cache import PagedLibrary, PageRow, PageShape
from tts_worker.engine.cosyvoice.ops.audio import paged_attention, rotate_first_heads
from tts_worker.errors import BackendMismatch, BackendUnavailable
from tts_worker.features.acceleration.kernels import relative_difference
from tts_worker.features.acceleration.kernels.audio_cases import attention_arguments

log = logging.getLogger(__name__)

WORKSPACE_BYTES = 128 << 20  # as its documentation recommends
BRANCHES = (1, 2)  # of a solver step: the first one may have a tabulated branch


@dataclass(frozen=True)
class PagePlan:
    """A pass in FlashInfer's terms. A request is a chunk of an utterance in a branch; tensors are int32 on the host.

    Attributes:
        query_ends: ``[requests + 1]``, 0 and where the queries of each request end.
        page_ends: ``[requests + 1]``, 0 and where its pages end in ``pages``.
        pages: Pages of all requests, row * pages + page.
        last_lengths: ``[requests]`` frames in the last page of each request, at least 1.
    """

    query_ends: Tensor
    page_ends: Tensor
    pages: Tensor
    last_lengths: Tensor

    @classmethod
    def of(cls, rows: Sequence[PageRow], chunks: int, branches: int, shape: PageShape) -> PagePlan:
        pages: list[int] = []
        ends = [0]
        last = []
        for branch in range(branches):
            for row in rows:
                for chunk in range(chunks):
                    length = min(row.start + (chunk + 1) * shape.page, row.total)
                    count = -(-length // shape.page)
                    pages += [branch * shape.count + page for page in row.pages[:count]]
                    ends.append(len(pages))
                    last.append(length - (count - 1) * shape.page)
        queries = torch.arange(len(last) + 1, dtype=torch.int32) * shape.page
        return cls(queries, _int32(ends), _int32(pages), _int32(last))


def _int32(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


class FlashInfer:
    """FlashInfer's attention of many queries to paged keys and values.

    Args:
        module: The package ``flashinfer``.
        dtype: Of queries, keys and values.
        device: Of all tensors.
        shape: Sizes of the memory.
        captures: Whether passes are captured. A wrapper then keeps its buffers, and knows one number of requests.
    """

    def __init__(
        self, module: Any, dtype: torch.dtype, device: torch.device, shape: PageShape, *, captures: bool = False
    ) -> None:
        self._module = module
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self._captures = captures
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[tuple[int, int], Any] = {}  # by branches and requests
        self._planned: dict[int, Any] = {}  # by branches
        self._uploaded: torch.cuda.Event | None = None

    def plan(self, rows: Sequence[PageRow], chunks: int) -> None:
        if self._uploaded is not None:
            self._uploaded.synchronize()  # a wrapper has one pinned buffer, which the last pass may not have read yet
        for branches in BRANCHES:
            plan = PagePlan.of(rows, chunks, branches, self._shape)
            wrapper = self._wrapper(branches, len(plan.last_lengths))
            wrapper.plan(
                plan.query_ends,
                plan.page_ends,
                self._upload(plan.pages),
                plan.last_lengths,
                self._shape.heads,
                self._shape.heads,
                self._shape.head_dim,
                self._shape.page,
                causal=False,
                q_data_type=self._dtype,
                kv_data_type=self._dtype,
            )
            self._planned[branches] = wrapper
        if self._device.type == "cuda":
            self._uploaded = self._uploaded or torch.cuda.Event()
            self._uploaded.record()

    def _upload(self, pages: Tensor) -> Tensor:
        """Copy the pages to the device: the host does not need them, and ``plan`` would wait for its copy of them."""
        return pages.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else pages

    def store_and_attend(self, qkv: Tensor, rotations: Tensor | None, store: Tensor, fresh: Tensor) -> Tensor:
        if rotations is not None:
            qkv = rotate_first_heads(qkv, rotations)
        branches, page = store.shape[2], store.shape[4]
        chunks = qkv.unflatten(1, (-1, page)).unflatten(0, (branches, -1)).flatten(1, 2)  # [R, B*n, page, 3, H, d]
        new = chunks[:, :, :, 1:].permute(3, 4, 0, 1, 2, 5)  # [2, H, R, B*n, page, d]
        store.index_copy_(3, fresh.flatten(), new.to(store.dtype))
        keys, values = store.flatten(2, 3).transpose(1, 2).unbind()  # [R*pages, H, page, d] each, views
        out: Tensor = self._planned[branches].run(qkv[:, :, 0].flatten(0, 1), (keys, values))
        return out.view(*qkv.shape[:2], -1)

    def _wrapper(self, branches: int, requests: int) -> Any:
        key = branches, requests if self._captures else 0
        if key not in self._wrappers:
            buffers = {}
            if self._captures:
                sizes = {
                    "qo_indptr_buf": requests + 1,
                    "paged_kv_indptr_buf": requests + 1,
                    "paged_kv_indices_buf": requests * self._shape.longest,
                    "paged_kv_last_page_len_buf": requests,
                }
                buffers = {
                    name: torch.zeros(size, dtype=torch.int32, device=self._device) for name, size in sizes.items()
                }
            self._wrappers[key] = self._module.BatchPrefillWithPagedKVCacheWrapper(
                self._workspace, "HND", use_cuda_graph=self._captures, **buffers
            )
        return self._wrappers[key]


def flashinfer_library(
    flow: Flow, captures: bool
) -> tuple[Callable[[PageShape], PagedLibrary] | None, tuple[str, ...]]:
    """Choose FlashInfer as an engine's ``library``, after a check on the device."""
    dims = flow.dims.unet or flow.dims.dit
    assert dims is not None
    device: torch.device = flow.noise.device
    try:
        if not (flow.noise.is_cuda and isinstance(flow.estimator, Estimator)):
            raise BackendUnavailable("attention: FlashInfer is for a flow that runs on PyTorch and on CUDA")
        if flow.dtype == torch.float32:
            raise BackendUnavailable("attention: FlashInfer computes in half precision only, and half is off")
        module = find_flashinfer()
        check_flashinfer(module, PageShape(dims.heads, dims.head_dim, flow.chunk_frames), flow.dtype, device)
    except BackendUnavailable as error:
        log.warning("%s", error.message)
        return None, (error.message,)
    return partial(FlashInfer, module, flow.dtype, device, captures=captures), ()


def find_flashinfer() -> Any:
    """Import FlashInfer. Raises BackendUnavailable with the pip command if it is missing."""
    try:
        return importlib.import_module("flashinfer")
    except ImportError as error:
        if error.name == "flashinfer":
            raise BackendUnavailable("attention: needs FlashInfer: pip install flashinfer-python") from None
        raise BackendUnavailable(f"attention: FlashInfer cannot be imported: {error!s:.200}") from None


@torch.inference_mode()
def check_flashinfer(module: Any, shape: PageShape, dtype: torch.dtype, device: torch.device) -> None:
    """Compare FlashInfer with ``paged_attention`` on random data.

    Raises:
        BackendUnavailable: It does not support the dtype or the device, or its kernels cannot be compiled.
        BackendMismatch: Its numbers differ.
    """
    for chunks in (1, 2):
        arguments, tolerance = attention_arguments(shape.heads, shape.head_dim, shape.page, chunks, dtype, device)
        qkv, rotations, store, table, fresh, start, total = arguments
        small = replace(shape, count=store.shape[3], longest=table.shape[1])
        rows = list(_rows(table, start, total))
        stored = store.clone()
        expected = paged_attention.composition(qkv, rotations, store, table, fresh, start, total)
        try:
            library = FlashInfer(module, dtype, device, small)
            library.plan(rows, chunks)
            got = library.store_and_attend(qkv.clone(), rotations, stored, fresh)
        except BackendUnavailable:
            raise
        except Exception as error:  # of its compiler, the driver or an older version
            raise BackendUnavailable(f"attention: FlashInfer fails: {type(error).__name__}: {error!s:.200}") from error
        worst = max(relative_difference(got, expected), relative_difference(stored, store))
        if not worst <= tolerance:
            raise BackendMismatch(f"attention: FlashInfer differs by {worst:.2g} from PyTorch's operators")


def _rows(table: Tensor, start: Tensor, total: Tensor) -> Iterator[PageRow]:
    for pages, begin, end in zip(table.tolist(), start.tolist(), total.tolist(), strict=True):
        yield PageRow(pages, begin, end)
