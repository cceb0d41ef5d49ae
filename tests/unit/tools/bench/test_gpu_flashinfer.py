"""Attention of the flow by FlashInfer: its inputs, its numbers against gathered pages, and the fallback."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.fakes.cuda import claimed_cuda
from tests.fakes.graph_runner import FakeGraphRunner
from tests.features.acceleration.test_fused_audio import fused_networks
from tests.unit.cosyvoice.networks import apart, networks
from tests.unit.cosyvoice.test_flow import LIMIT, RATIO, Speech, advance
from tests.unit.tools.bench import fake_flashinfer
from tools.bench.gpu_flashinfer import FlashInfer, PagePlan, check_flashinfer, flashinfer_library
from tts_worker.engine.cosyvoice import ops
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig
from tts_worker.engine.cosyvoice.networks.blocks import chunk_mask
from tts_worker.engine.cosyvoice.networks.kv_cache import PageRow, PageShape
from tts_worker.engine.cosyvoice.ops.audio import paged_attention
from tts_worker.errors import BackendMismatch, BackendUnavailable
from tts_worker.features.acceleration.accelerator import use_kernels

CPU = torch.device("cpu")
SHAPE = PageShape(2, 16, 10, count=40, longest=12)


@st.composite
def passes(draw: st.DrawFn) -> tuple[list[PageRow], int]:
    """Utterances of any length in a pass; the last chunk of each may be partial or missing."""
    chunks = draw(st.integers(1, 3))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        past = draw(st.integers(0, 8))
        pages = draw(st.permutations(range(SHAPE.count)))[: past + chunks]
        start = past * SHAPE.page
        rows.append(PageRow(pages, start, start + draw(st.integers(1, chunks * SHAPE.page))))
    return rows, chunks


@given(passes(), st.integers(1, 2))
@settings(max_examples=30)
def test_requests_read_what_the_chunk_mask_shows(subject: tuple[list[PageRow], int], branches: int) -> None:
    rows, chunks = subject
    plan = PagePlan.of(rows, chunks, branches, SHAPE)
    start, total = (torch.tensor([getattr(row, name) for row in rows]) for name in ("start", "total"))
    span = chunks * SHAPE.page
    mask = chunk_mask(start, total, span, SHAPE.longest * SHAPE.page, SHAPE.page)[:, 0]  # [B, T, L]
    visible = mask[:, :: SHAPE.page].sum(2).flatten().repeat(branches)  # by request

    assert plan.query_ends.tolist() == [n * SHAPE.page for n in range(len(visible) + 1)]
    counts = plan.page_ends.diff()
    assert torch.equal((counts - 1) * SHAPE.page + plan.last_lengths, visible.int())
    requests = plan.pages.split(counts.tolist())
    for number, request in enumerate(requests):
        branch, utterance = divmod(number // chunks, len(rows))
        assert request.tolist() == [branch * SHAPE.count + page for page in rows[utterance].pages[: len(request)]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_library_has_the_numbers_of_gathered_pages(dtype: torch.dtype) -> None:
    """Two branches, rotated heads, one and two chunks, a partial chunk, and a slice of memory."""
    check_flashinfer(fake_flashinfer, SHAPE, dtype, CPU)


@pytest.mark.parametrize(
    ("family", "captures", "fused"),
    [("cosyvoice2", False, False), ("cosyvoice3", True, False), ("cosyvoice3", False, True)],
)
def test_flow_by_the_library_equals_the_offline_one(family: str, captures: bool, fused: bool) -> None:
    """A voice, utterances of other lengths that share its pages, one of which ends in the middle of a chunk."""
    speeches = [Speech(family, 68, 40, 1), Speech(family, 38, 0, 2)]
    expected = [speech.offline() for speech in speeches]
    runner = FakeGraphRunner() if captures else EagerRunner()
    library = partial(FlashInfer, fake_flashinfer, torch.float32, CPU, captures=captures)
    with claimed_cuda() if fused else nullcontext():
        pool = FlowPool(
            (fused_networks if fused else networks)(family).flow,
            slots=3,
            pages=12,
            max_chunks=4,
            checked=not captures,
            runner=runner,
            page_bucket=4 if captures else 1,
            library=library,
        )
        if captures:
            pool.capture(2, [1])
        voice = pool.open()
        advance(pool, [voice], speeches[:1])
        states = [pool.open(voice), pool.open()]
        mels: list[list[Tensor]] = [[expected[0][:, : RATIO * 25]], []]
        for _ in range(2):
            for mel, out in zip(mels, advance(pool, states, speeches), strict=True):
                mel.append(out.clone())  # a replay reuses its output
    for mel, whole in zip(mels, expected, strict=True):
        assert apart(torch.cat(mel, dim=1), whole) < LIMIT
    if captures:
        assert not any(counts.eager_calls for counts in runner.computations if counts.name == "flow")


class _Inexact(fake_flashinfer.BatchPrefillWithPagedKVCacheWrapper):
    """Ignores that the last page may be partial."""

    def plan(self, *arguments: Any, **settings: Any) -> None:
        *others, last = arguments[:4]
        super().plan(*others, torch.full_like(last, arguments[7]), *arguments[4:], **settings)


class _Failing(fake_flashinfer.BatchPrefillWithPagedKVCacheWrapper):
    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize(
    ("wrapper", "error", "message"),
    [(_Inexact, BackendMismatch, "differs"), (_Failing, BackendUnavailable, "no kernel image")],
)
def test_faulty_library_is_refused(wrapper: type, error: type[Exception], message: str) -> None:
    module = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=wrapper)
    with pytest.raises(error, match=message):
        check_flashinfer(module, SHAPE, torch.float32, CPU)


def flow_of(dtype: torch.dtype) -> Any:
    """The tiny flow, as if it computed in ``dtype``."""
    flow = networks("cosyvoice3").flow
    parts = {name: getattr(flow, name) for name in ("dims", "noise", "estimator", "chunk_frames")}
    return SimpleNamespace(**parts, dtype=dtype)


@pytest.mark.parametrize(
    ("installed", "is_cuda", "dtype", "reason"),
    [
        (fake_flashinfer, True, torch.bfloat16, None),
        (None, True, torch.bfloat16, "pip install flashinfer-python"),
        (fake_flashinfer, True, torch.float32, "half precision only"),
        (fake_flashinfer, False, torch.bfloat16, "on CUDA"),
    ],
)
def test_library_that_cannot_be_used_is_told(
    installed: ModuleType | None,
    is_cuda: bool,
    dtype: torch.dtype,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", installed)
    monkeypatch.setattr(Tensor, "is_cuda", is_cuda)

    build, missing = flashinfer_library(flow_of(dtype), True)

    assert (build is None) is (reason is not None)
    assert [*missing] == [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(missing) == (reason is not None)
    assert all(str(reason) in each for each in missing)


def test_engine_without_the_library_is_degraded() -> None:
    config = StreamingConfig(pages=12, lm_tokens=128, library=flashinfer_library)
    part = Components.build(networks("cosyvoice3"), None, {}, config)  # type: ignore[arg-type]
    assert any("FlashInfer" in reason for reason in part.degraded)


def test_gathering_excludes_the_kernels_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "is_cuda", True)
    both = {"slot_attention", "paged_attention"}
    for gathers, names in ((True, both), (False, set())):
        use_kernels(networks("cosyvoice3"), CPU, StreamingConfig(kernels=False, gathers=gathers))
        assert {name for name, operator in ops.OPERATORS.items() if operator.is_excluded} == names
        with monkeypatch.context() as patch:
            patch.setattr(ops.kernel_switch, "is_on", True)
            assert paged_attention.is_fused(torch.zeros(1)) is not bool(names)
