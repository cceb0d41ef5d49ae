"""Replaces the flow encoder, the flow estimator and the vocoder of loaded networks by exported graphs.

The past stays in the paged memory of the engine: it is gathered into plain tensors before a call, and the new pages are
stored after it. Any number of utterances of any age and any number of chunks share a call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.blocks import Sites
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.networks.flow_encoder import EncoderPast
from tts_worker.engine.cosyvoice.networks.hift import Hift, StreamEnds
from tts_worker.engine.cosyvoice.networks.kv_cache import Memory, NoPast, PagedView
from tts_worker.errors import BundleError
from tts_worker.features.acceleration.onnx_graphs import (
    ENCODER,
    ESTIMATOR,
    VOCODER,
    VOCODER_CHUNK,
    GraphSpec,
    Sizes,
    context_widths,
    graph_specs,
)

FAR = 1 << 24  # a position beyond every utterance

# Largest relative error (root mean square) against PyTorch: float32 in another order of operations, and TF32.
FLOAT32_TOLERANCE = 1e-3
TF32_TOLERANCE = 1e-2


class Executor(Protocol):
    """Runs one graph on the device of the networks."""

    def admits(self, sizes: Sizes) -> bool:
        """Whether inputs of these sizes can be run."""
        ...

    def execute(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Run the graph in the order of the current CUDA stream, without waiting for it.

        Args:
            inputs: Contiguous tensors, in the order of the graph.
            outputs: Contiguous tensors that receive the results.
        """
        ...


@dataclass(frozen=True)
class BoundGraph:
    """A graph and what runs it."""

    spec: GraphSpec
    executor: Executor

    def __call__(self, *inputs: Tensor) -> list[Tensor] | None:
        """Run the graph in float32, or return None if the executor does not admit the sizes."""
        sizes = self.spec.sizes_of(inputs)
        if not self.executor.admits(sizes):
            return None
        ready = [(tensor.float() if tensor.is_floating_point() else tensor).contiguous() for tensor in inputs]
        outputs = [torch.empty(shape, device=inputs[0].device) for shape in self.spec.output_shapes(sizes)]
        self.executor.execute(ready, outputs)
        return outputs


def tolerance_of(allow_tf32: bool) -> float:
    """Return the largest ``parity_error`` that is accepted."""
    return TF32_TOLERANCE if allow_tf32 else FLOAT32_TOLERANCE


@torch.inference_mode()
def _run_both(spec: GraphSpec, executor: Executor, sizes: Sizes, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Run PyTorch and ``executor`` on the same random inputs; returns pairs of outputs."""
    inputs = [tensor.to(device) for tensor in spec.example(sizes, torch.Generator().manual_seed(0))]
    expected = spec.module(*inputs)
    actual = BoundGraph(spec, executor)(*inputs)
    assert actual is not None, f"{spec.file} does not admit {dict(sizes)}"
    return list(zip(expected, actual, strict=True))


def largest_difference(spec: GraphSpec, executor: Executor, sizes: Sizes, device: torch.device) -> float:
    """Return the largest absolute difference from PyTorch in any output."""
    return max(float((a - b).abs().max()) for a, b in _run_both(spec, executor, sizes, device))


def parity_error(spec: GraphSpec, executor: Executor, sizes: Sizes, device: torch.device) -> float:
    """Return the largest relative error (root mean square) of any output against PyTorch; infinite for NaN."""
    errors = [
        float((a - b).square().mean().sqrt() / a.square().mean().sqrt().clamp(min=1e-12))
        for a, b in _run_both(spec, executor, sizes, device)
    ]
    return max(error if math.isfinite(error) else math.inf for error in errors)


def install_graphs(networks: Networks, executors: Mapping[str, Executor]) -> None:
    """Run the parts of ``networks`` that have an executor on it (in place).

    A call whose sizes the executor does not admit is computed by PyTorch.
    """
    specs = graph_specs(networks)
    graphs = {file: BoundGraph(specs[file], executor) for file, executor in executors.items()}
    flow = networks.chunked_flow
    hift = networks.hift
    if ESTIMATOR in graphs:
        flow.decoder.estimator = GraphEstimator(flow, graphs[ESTIMATOR])
    if ENCODER in graphs:
        flow.mu = GraphEncoder(flow, graphs[ENCODER]).mu  # type: ignore[method-assign]
    if VOCODER in graphs:
        hift.decode = GraphVocoder(hift, graphs[VOCODER], graphs.get(VOCODER_CHUNK)).decode  # type: ignore[method-assign]


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


class GraphEstimator(nn.Module):
    """Replaces the estimator of a flow, for whole sequences and for chunks over the past of a stream."""

    def __init__(self, flow: Flow, graph: BoundGraph) -> None:
        super().__init__()
        self.sites: Sites = flow.estimator.sites
        self._torch = [flow.estimator]  # in a list: not a submodule, so that casts do not reach it
        self._dims = flow.dims.unet or flow.dims.dit
        self._page = flow.chunk_frames
        self._graph = graph

    def tables(self, t: Tensor) -> Tensor:
        return self._torch[0].tables(t)

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
        """Velocity ``[N, T, mel]``; arguments as those of ``Dit.forward``."""
        branches = x.shape[0] // start.shape[0]
        rows, frames = x.shape[:2]
        if isinstance(past, PagedView):
            plain = gather_past(past)
            context = gather_contexts(past)
        elif isinstance(past, NoPast):
            assert self._dims is not None
            keys = x.new_zeros(self.sites.attentions, rows, self._dims.heads, self._page, self._dims.head_dim)
            plain = _no_past(keys, start.shape[0], frames)
            context = x.new_zeros(rows, sum(context_widths(self.sites.tails)))
        else:
            raise BundleError("this back end does not support the memory of the flow: set backend to torch")
        visible = _visible(mask, plain, start.shape[0], frames).repeat(branches, 1, 1, 1)
        out = self._graph(x, mu, spk, cond, table, start.repeat(branches), visible, plain.keys, plain.values, context)
        if out is None:
            velocity: Tensor = self._torch[0](x, mu, spk, cond, table, start, mask, past)
            return velocity
        if isinstance(past, PagedView):
            store_pages(past, out[1], out[2])
            store_contexts(past, out[3])
        return out[0].to(x.dtype)


def _no_past(keys: Tensor, batch: int, frames: int) -> PlainPast:
    """The past of whole sequences: ``keys`` are zeros and belong to no position."""
    positions = torch.arange(frames, device=keys.device)
    beyond = torch.full([keys.shape[3]], frames, device=keys.device)
    return PlainPast(keys, keys, torch.cat([beyond, positions]).expand(batch, -1), frames)


def _visible(mask: Tensor | None, past: PlainPast, batch: int, frames: int) -> Tensor:
    """Convert the mask of the estimator to the order of the graph's keys: ``[B, 1, T, L]``, boolean.

    Args:
        mask: ``[B or N, 1, T, positions]``, boolean or additive; None if every position is visible.
        past: The keys and their positions.
        batch: Number of utterances.
        frames: T.
    """
    if mask is None:
        mask = torch.ones(1, 1, 1, past.length, dtype=torch.bool, device=past.keys.device)
    elif mask.dtype != torch.bool:
        mask = mask == 0
    mask = F.pad(mask[:batch], (0, past.positions.shape[1] - past.length))  # keys beyond every position
    mask = mask.expand(batch, -1, frames, -1)
    return mask.gather(3, past.positions[:, None, None].expand(-1, -1, frames, -1))


class GraphEncoder:
    """Replaces ``Flow.mu``: the token condition of either family."""

    def __init__(self, flow: Flow, graph: BoundGraph) -> None:
        self._flow = flow
        self._graph = graph

    def mu(
        self,
        tokens: Tensor,
        known: Tensor,
        start: Tensor,
        total: Tensor,
        context: int,
        chunked: bool,
        front: Memory | EncoderPast,
    ) -> Tensor:
        """Token condition; arguments as those of ``Flow.mu``."""
        tokens = tokens.clamp(min=0)
        if isinstance(front, EncoderPast):
            mu = self._encode(tokens, known, start, total, chunked, front)
        else:
            mu = self._look_ahead(tokens, known, front)
        return Flow.mu(self._flow, tokens, known, start, total, context, chunked, front) if mu is None else mu

    def _look_ahead(self, tokens: Tensor, known: Tensor, front: Memory) -> Tensor | None:
        if isinstance(front, PagedView):
            context = gather_contexts(front)
        else:
            width = sum(context_widths(self._flow.front_sites.tails))
            context = torch.zeros(tokens.shape[0], width, device=tokens.device)
        out = self._graph(tokens, known, context)
        if out is None:
            return None
        if isinstance(front, PagedView):
            store_contexts(front, out[1])
        return out[0]

    def _encode(
        self, tokens: Tensor, known: Tensor, start: Tensor, total: Tensor, chunked: bool, front: EncoderPast
    ) -> Tensor | None:
        dims = self._flow.dims.encoder
        assert dims is not None
        batch = tokens.shape[0]
        span = tokens.shape[1] - self._flow.dims.lookahead_tokens
        end = total[:, None].expand(-1, span)
        if chunked and dims.chunk_tokens:
            query = start[:, None] + torch.arange(span, device=start.device)
            end = torch.minimum((query // dims.chunk_tokens + 1) * dims.chunk_tokens, end)
        parts = ((front.tokens, dims.layers, 1), (front.frames, dims.up_layers, dims.upsample))
        inputs: list[Tensor] = []
        for memory, layers, up in parts:
            if isinstance(memory, PagedView):
                plain = gather_past(memory)
                context = gather_contexts(memory)
            else:
                sites = self._flow.encoder.token_sites if up == 1 else self._flow.encoder.frame_sites
                shape = (layers, batch, dims.heads, up * self._flow.dims.chunk_tokens, dims.output_size // dims.heads)
                plain = _no_past(torch.zeros(shape, device=tokens.device), batch, up * span)
                context = torch.zeros(batch, sum(context_widths(sites.tails)), device=tokens.device)
            if up == 1:
                # Both memories have the same page tables: the positions of frames follow from those of tokens.
                inputs.append(torch.where(plain.positions < plain.length, plain.positions, FAR))
            inputs += [plain.keys, plain.values, context]
        out = self._graph(tokens, known, start, end, *inputs)
        if out is None:
            return None
        for (memory, _, _), new in zip(parts, (out[1:4], out[4:7]), strict=True):
            if isinstance(memory, PagedView):
                store_pages(memory, new[0], new[1])
                store_contexts(memory, new[2])
        return out[0]


class GraphVocoder:
    """Replaces ``Hift.decode``; ``chunk`` is the graph for chunks within an utterance, if that differs."""

    def __init__(self, hift: Hift, final: BoundGraph, chunk: BoundGraph | None) -> None:
        self._hift = hift
        self._final = final
        self._chunk = chunk

    def decode(
        self, mel: Tensor, source: Tensor, final: bool = True, ends: StreamEnds | None = None, first: int = 0
    ) -> Tensor:
        """Audio; arguments as those of ``Hift.decode``. Windows of fixed sizes stay on PyTorch."""
        graph = self._final if final or self._chunk is None else self._chunk
        out = graph(mel, source) if ends is None else None
        if out is None:
            return Hift.decode(self._hift, mel, source, final, ends, first)
        return out[0][:, first * self._hift.dims.frame_samples :]
