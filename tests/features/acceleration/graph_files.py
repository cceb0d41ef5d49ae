"""Exported graphs of the tiny bundles, and bundles with weights that differ from the exported ones."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from unittest import mock

import torch

from tests.unit.cosyvoice.bundles import copy_of
from tests.unit.cosyvoice.networks import load_thin, tiny_bundle
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.features.acceleration.onnx_graphs import (
    ENCODER,
    ESTIMATOR,
    VOCODER,
    VOCODER_CHUNK,
    export_onnx,
)
from tts_worker.features.acceleration.onnx_networks import BoundGraph

GRAPHS = {
    "cosyvoice2": {ENCODER, ESTIMATOR, VOCODER},
    "cosyvoice3": {ENCODER, ESTIMATOR, VOCODER, VOCODER_CHUNK},
}
LAST_BIAS = {"cosyvoice2": "final_proj.bias", "cosyvoice3": "proj_out.bias"}


def fresh(family: str) -> Networks:
    """Networks that a test may change."""
    return load_thin(tiny_bundle(family))


@lru_cache
def networks(family: str) -> Networks:
    """Shared: tests must not change it."""
    return fresh(family)


@lru_cache
def exported(family: str) -> Path:
    """A folder with all graphs of a family, exported once in this process; tests must not change it."""
    folder = Path(tempfile.mkdtemp(prefix="graphs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    export_onnx(networks(family), folder)
    return folder


def with_other_weights(family: str, folder: Path) -> Path:
    """A copy of the tiny bundle whose flow differs in one bias."""
    path = copy_of(family, folder)
    state = torch.load(path / "flow.pt", weights_only=True)
    state[f"decoder.estimator.{LAST_BIAS[family]}"] += 1
    torch.save(state, path / "flow.pt")
    return path


@contextmanager
def counted_calls() -> Iterator[dict[str, list[dict[str, int]]]]:
    """Record the sizes of every call of a graph, by file; and whether it was left to PyTorch, under "torch"."""
    calls: dict[str, list[dict[str, int]]] = {}
    run = BoundGraph.__call__

    def counting(graph: BoundGraph, *inputs: torch.Tensor) -> list[torch.Tensor] | None:
        out = run(graph, *inputs)
        calls.setdefault("torch" if out is None else graph.spec.file, []).append(graph.spec.sizes_of(inputs))
        return out

    with mock.patch.object(BoundGraph, "__call__", counting):
        yield calls


def streamed_mel(of: Networks, *, chunks: int = 1, bucket: int = 1) -> list[torch.Tensor]:
    """Mel of utterances of other ages in one batch, with pages out of order and a short end.

    Args:
        of: The networks.
        chunks: Chunks in one pass.
        bucket: Rounds page tables and batches up.
    """
    generator = torch.Generator().manual_seed(1)
    pool = FlowPool(of.flow, slots=3, pages=6 * chunks + 4, max_chunks=3 * chunks + 1, checked=True, page_bucket=bucket)
    old, young, last = pool.open(), pool.open(), pool.open()
    mel = of.config.flow.mel
    spk = torch.randn(3, mel, generator=generator)
    full = 25 * chunks + 3

    def advance(states: list, known: list[int]) -> torch.Tensor:  # type: ignore[type-arg]
        n = len(states)
        tokens = torch.randint(0, 6561, (n, full), generator=generator)
        cond = torch.randn(n, chunks * of.flow.chunk_frames, mel, generator=generator)
        return pool.advance(states, tokens, known, spk[:n], cond)

    parts = [advance([old], [full]), advance([old, young], [full] * 2), advance([young, last], [full] * 2)]
    return [*parts, advance([last, old], [full, 9])[0]]
