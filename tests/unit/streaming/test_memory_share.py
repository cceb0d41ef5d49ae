"""The cache memory of engines that share a GPU."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cosyvoice.bundles import tiny
from tests.unit.streaming.engines import networks
from tools.bench.gpu_load import slots_for
from tts_worker.engine.cosyvoice import loader, memory
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.execution.settings import LM_TOKENS
from tts_worker.engine.cosyvoice.execution.streams import CudaStream, HostStream
from tts_worker.engine.cosyvoice.memory import (
    CUDA_MEMORY_SHARE,
    CUDA_WORKING_BYTES,
    MOST_CUDA_UTTERANCES,
    cuda_utterances,
    page_budget,
    weight_bytes,
)
from tts_worker.engine.cosyvoice.tokens.decoder import Decoder
from tts_worker.errors import BundleError
from tts_worker.settings import load_settings
from tts_worker.worker import running_worker

GB = 10**9


def test_replicas_on_one_gpu_get_equal_budgets() -> None:
    """The second one finds less free memory, which is what gave it 24 % instead of 60 %."""
    total, weights, caches = 80 * GB, 2 * GB, 3 * GB
    first = page_budget(total - weights, total, weights, caches, 0.5)
    second = page_budget(int(total - 2 * weights - caches - first), total, weights, caches, 0.5)
    assert first == pytest.approx(second)
    assert first + second + 2 * (weights + caches + CUDA_WORKING_BYTES) < total


@given(st.integers(1, 200), st.integers(1, 8), st.integers(0, 20), st.integers(0, 20))
def test_replicas_never_exceed_the_device(total_gb: int, replicas: int, weights_gb: int, caches_gb: int) -> None:
    total, free = total_gb * GB, float(total_gb * GB)
    for _ in range(replicas):
        free -= weights_gb * GB
        budget = page_budget(int(max(0.0, free)), total, weights_gb * GB, caches_gb * GB, 1 / replicas)
        assert budget == 0 or 0 < budget <= free - caches_gb * GB - CUDA_WORKING_BYTES
        free -= budget + caches_gb * GB * (budget > 0)


def test_engine_alone_uses_what_is_free() -> None:
    assert page_budget(50 * GB, 80 * GB, 2 * GB, 3 * GB, 1.0) == CUDA_MEMORY_SHARE * (47 * GB)
    assert page_budget(6 * GB, 8 * GB, 2 * GB, 3 * GB, 1.0) == 3 * GB - CUDA_WORKING_BYTES, "room for the activations"


@pytest.mark.parametrize("free_gb", [22, 78, 138])
def test_pages_take_85_percent_beside_the_other_caches(free_gb: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = networks("cosyvoice3")
    subject = SimpleNamespace(
        config=loaded.config,
        device=torch.device("cuda"),
        lm=loaded.lm,
        hift=loaded.hift,
        flow=SimpleNamespace(
            dtype=torch.bfloat16,
            parameters=loaded.flow.parameters,
            buffers=loaded.flow.buffers,
        ),
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_gb * GB, (free_gb + 2) * GB))
    monkeypatch.setattr(memory, "MAX_PAGES", 1 << 60)
    pages = memory.page_count(subject, 64, None)  # type: ignore[arg-type]
    decoder = Decoder(loaded, slots=64, max_tokens=LM_TOKENS, stream=HostStream(), runner=EagerRunner())
    room = free_gb * GB - decoder.pool.data.nbytes
    each = memory.page_bytes(loaded.config, torch.bfloat16)
    assert CUDA_MEMORY_SHARE == 0.85
    assert pages == int(CUDA_MEMORY_SHARE * room / each)


@pytest.mark.parametrize(("memory_gb", "utterances"), [(4, 16), (24, 77), (80, 256), (141, 256)])
def test_utterances_by_default_follow_the_memory(memory_gb: int, utterances: int) -> None:
    """A slot of the published language model takes 38 MB: 24 layers of two heads of 64, 3072 positions, bfloat16."""
    lm = SimpleNamespace(cache_layers=24, kv_heads=2, head_dim=64)
    assert cuda_utterances(SimpleNamespace(lm=lm), torch.bfloat16, memory_gb * GB) == utterances  # type: ignore[arg-type]


def test_large_gpu_takes_more_calls_than_promised() -> None:
    """128 calls that come and go need more slots than 128."""
    assert slots_for(128) < MOST_CUDA_UTTERANCES


def test_replicas_on_one_gpu_take_as_many_utterances(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = networks("cosyvoice3")
    on_cuda = SimpleNamespace(
        config=subject.config, device=torch.device("cuda"), lm=subject.lm, flow=subject.flow, hift=subject.hift
    )
    slot = memory.lm_cache_bytes(subject.config, 1, LM_TOKENS, torch.float32)
    total = 2 * 8 * 100 * slot
    taken = []
    for free in (total - weight_bytes(subject), total // 2 - weight_bytes(subject)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, total))
        taken.append(memory.default_utterances(on_cuda, 0.5))  # type: ignore[arg-type]
    assert taken == [98, 98]


async def test_memory_share_of_the_settings_reaches_the_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[loader.LoadOptions] = []

    def load(options: loader.LoadOptions, **kwargs: Any) -> None:
        loaded.append(options)
        raise BundleError("the test ends here")

    monkeypatch.setattr(loader, "load_engine", load)
    engines = {"cosy": {"kind": "cosyvoice", "bundle": str(tmp_path)}}
    settings = load_settings(flags={"engines": engines, "engine": {"memory_share": 0.5}}, replaced=("engines",))
    with pytest.raises(BundleError, match="ends here"):
        async with running_worker(settings):
            pass
    assert [options.memory_share for options in loaded] == [0.5]


def test_weights_count_every_parameter() -> None:
    loaded = networks("cosyvoice3")
    head = sum(each.numel() * each.element_size() for each in loaded.lm.parameters())
    assert weight_bytes(loaded) > head > 0


def test_memory_of_an_engine_before_is_free_for_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch keeps what a closed engine had: the driver would count it as taken, and weights would split it."""
    calls: list[str] = []

    def load(cls: type[Networks], *args: object, **kwargs: object) -> Networks:
        calls.append("weights")
        raise BundleError("the test ends here")

    monkeypatch.setattr(loader, "resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("cache"))
    monkeypatch.setattr(gc, "collect", lambda: calls.append("cycles"))
    monkeypatch.setattr(Networks, "load", classmethod(load))
    with pytest.raises(BundleError, match="ends here"):
        loader.load_engine(loader.LoadOptions(tiny("cosyvoice3")))
    assert calls == ["cycles", "cache", "weights"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_closed_stream_has_nothing_in_flight(is_lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that was allocated on another stream is given away as soon as its engine is dropped."""
    waits = 0

    class Stream:
        cuda_stream = 1

        def __init__(self, device: torch.device, priority: int) -> None:
            pass

        def synchronize(self) -> None:
            nonlocal waits
            waits += 1
            if is_lost:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    CudaStream(torch.device("cuda")).close()
    assert waits == 1
