"""The cache memory of engines that share a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.streaming.engines import networks
from tts_worker.engine.cosyvoice import loader
from tts_worker.engine.cosyvoice.backends.graphs import EagerRunner
from tts_worker.engine.cosyvoice.backends.streams import HostStream
from tts_worker.engine.cosyvoice.decoder import Decoder
from tts_worker.engine.cosyvoice.engine_config import LM_TOKENS
from tts_worker.engine.cosyvoice.loader import CUDA_MEMORY_SHARE, CUDA_WORKING_BYTES, page_budget, weight_bytes

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
        lm=loaded.lm,
        hift=loaded.hift,
        flow=SimpleNamespace(
            dtype=torch.bfloat16,
            noise=SimpleNamespace(device=torch.device("cuda")),
            parameters=loaded.flow.parameters,
            buffers=loaded.flow.buffers,
        ),
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_gb * GB, (free_gb + 2) * GB))
    monkeypatch.setattr(loader, "MAX_PAGES", 1 << 60)
    pages = loader.page_count(subject, 64, None)  # type: ignore[arg-type]
    decoder = Decoder(loaded, slots=64, max_tokens=LM_TOKENS, stream=HostStream(), runner=EagerRunner())
    room = free_gb * GB - decoder._pool.data.nbytes
    each = loader.page_bytes(loaded.config, torch.bfloat16)
    assert CUDA_MEMORY_SHARE == 0.85
    assert pages == int(CUDA_MEMORY_SHARE * room / each)


def test_weights_count_every_parameter() -> None:
    loaded = networks("cosyvoice3")
    head = sum(each.numel() * each.element_size() for each in loaded.lm.parameters())
    assert weight_bytes(loaded) > head > 0
