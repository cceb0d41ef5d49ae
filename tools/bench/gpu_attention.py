"""Times and numbers of everything on this machine that computes attention to slots and pages, at the model's sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from tools.bench.gpu_flashinfer import FlashInfer, check_flashinfer, find_flashinfer
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.networks.kv_cache import PageRow, PageShape
from tts_worker.engine.cosyvoice.ops import FusedOperator
from tts_worker.engine.cosyvoice.ops.audio import paged_attention
from tts_worker.engine.cosyvoice.ops.language_model import attention_splits, slot_attention
from tts_worker.errors import BackendUnavailable
from tts_worker.features.acceleration.graphs import CudaGraphRunner
from tts_worker.features.bench.stats import percentile

Figures = dict[str, Any]
BATCHES = (1, 8)
BRANCHES = 2


@dataclass(frozen=True)
class Sizes:
    """What to measure.

    Attributes:
        past_pages: Pages of the past of each utterance.
        contexts: Positions in the slots of the language model.
        repeats: Calls that are timed.
    """

    past_pages: tuple[int, ...] = (4, 24)
    contexts: tuple[int, ...] = (256, 2048)
    repeats: int = 50


@torch.inference_mode()
def measure_attention(flow: Flow, cache: Tensor, groups: int, sizes: Sizes) -> Figures:
    """Measure attention.

    Args:
        flow: The flow; its sizes, dtype and device are used.
        cache: ``[layers, 2, S, K, P, d]``, like that of the language model.
        groups: Query heads per key head.
        sizes: What to measure.

    Returns:
        By shape and back end: milliseconds of a call as by ``time_of``, and the largest difference from float32
        relative to the largest value; or why a back end was skipped.
    """
    figures: Figures = {}
    for batch in BATCHES:
        for past in sizes.past_pages:
            figures[f"pages batch {batch} past {past}"] = _pages(flow, batch, past, sizes.repeats)
        for context in sizes.contexts:
            figures[f"slots batch {batch} context {context}"] = _slots(cache, groups, batch, context, sizes.repeats)
    return figures


def _slots(cache: Tensor, groups: int, batch: int, context: int, repeats: int) -> Figures:
    heads, dim = cache.shape[3], cache.shape[5]
    device = cache.device
    cache = torch.randn(1, 2, batch, heads, context + 1, dim, device=device).to(cache.dtype)
    queries = torch.randn(batch, groups * heads, dim, device=device).to(cache.dtype)
    ends = torch.full((batch,), context, device=device)
    rest = 0, torch.arange(batch, device=device), ends[:, None] - 1, ends, attention_splits(context)
    exact = slot_attention.composition(queries.float(), cache.float(), *rest)
    calls = dict(_own(slot_attention, queries, cache, *rest))
    return figures_of(calls, exact, repeats)


def _pages(flow: Flow, batch: int, past: int, repeats: int) -> Figures:
    dims = flow.dims.unet or flow.dims.dit
    assert dims is not None
    device = flow.noise.device
    shape = PageShape(dims.heads, dims.head_dim, flow.chunk_frames, batch * (past + 1) + 1, past + 1)
    sizes = 2, shape.heads, BRANCHES, shape.count, shape.page, shape.head_dim
    store = torch.randn(sizes, device=device).to(flow.dtype)
    table = torch.arange(1, shape.count, device=device).view(batch, -1)
    qkv = torch.randn(BRANCHES * batch, shape.page, 3, shape.heads, shape.head_dim, device=device).to(flow.dtype)
    start = torch.full((batch,), past * shape.page, device=device)
    rest = table, table[:, -1:], start, start + shape.page
    exact = paged_attention.composition(qkv.float(), None, store.float(), *rest)
    calls: dict[str, Callable[[], Tensor] | str] = dict(_own(paged_attention, qkv, None, store, *rest))
    try:
        module = _usable_flashinfer(replace(shape, count=0, longest=0), flow.dtype, device)
        library = FlashInfer(module, flow.dtype, device, shape)
        rows = [PageRow(pages, past * shape.page, (past + 1) * shape.page) for pages in table.tolist()]
        library.plan(rows, 1)
        calls["flashinfer"] = partial(library.store_and_attend, qkv, None, store, table[:, -1:])
    except BackendUnavailable as error:
        calls["flashinfer"] = error.message
    figures = figures_of(calls, exact, repeats)
    if "ms" in figures["flashinfer"]:
        figures["flashinfer"]["plan_ms"] = time_ms(lambda: library.plan(rows, 1), repeats, device)
    return figures


def _usable_flashinfer(shape: PageShape, dtype: torch.dtype, device: torch.device) -> Any:
    if device.type != "cuda":
        raise BackendUnavailable("needs a CUDA device")
    module = find_flashinfer()
    check_flashinfer(module, shape, dtype, device)
    return module


def _own(operator: FusedOperator[..., Tensor], *arguments: Any) -> Iterator[tuple[str, Callable[[], Tensor] | str]]:
    """Yield the composition and the kernel of ``operator``, or why the kernel is not used."""
    yield "gather", partial(operator.composition, *arguments)
    if operator.is_fused(arguments[0]):
        yield "kernel", partial(operator, *arguments)
    else:
        yield "kernel", kernel_fault(operator)


def kernel_fault(operator: FusedOperator[..., Any]) -> str:
    """Return why the kernel of ``operator`` is not used."""
    return operator.fault or "fused kernels need a CUDA device and triton"


def figures_of(calls: Mapping[str, Callable[[], Tensor] | str], exact: Tensor, repeats: int) -> Figures:
    """Return the time of each way to compute ``exact`` and its difference from it, or why it was skipped."""
    figures: Figures = {}
    for name, call in calls.items():
        if isinstance(call, str):
            figures[name] = {"skipped": call}
        else:
            difference = largest_difference(call(), exact)
            figures[name] = {**time_of(call, repeats, exact.device), "difference": difference}
    return figures


def largest_difference(got: Tensor, exact: Tensor) -> float:
    """Return the largest difference from ``exact`` relative to its largest value."""
    return float(f"{float((got.to(exact.dtype) - exact).abs().max() / exact.abs().max()):.2g}")


def time_of(call: Callable[[], Tensor], repeats: int, device: torch.device) -> Figures:
    """Return the milliseconds of a call, and whether they are the median of a captured graph, as it runs in service.

    Without one (on a CPU, or if the capture is refused) they contain the launches of its kernels, which take the host
    longer than a device takes for a small one.
    """
    if device.type == "cuda":
        stream = torch.cuda.Stream(device)
        runner = CudaGraphRunner(stream)
        torch.cuda.synchronize(device)
        with torch.cuda.stream(stream):
            runner.capture(("call",), lambda: (call(),), ())
            with runner.timing() as times:
                for _ in range(repeats * bool(runner.keys)):
                    runner.run(("call",), lambda: (call(),), ())
        if times:
            return {"ms": round(percentile(times["call",], 50) or 0.0, 4), "captured": True}
    return {"ms": time_ms(call, repeats, device), "captured": False}


def time_ms(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the mean time of a call, with the launches of all of them."""
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began_s = perf_counter()
    for _ in range(repeats):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return round(1000 * (perf_counter() - began_s) / repeats, 4)
