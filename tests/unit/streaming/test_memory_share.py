"""The cache memory of engines that share a GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.streaming.engines import networks
from tts_worker.engine.cosyvoice.loader import CUDA_MEMORY_SHARE, cache_budget, weight_bytes

GB = 10**9


def test_replicas_on_one_gpu_get_equal_budgets() -> None:
    """The second one finds less free memory, which is what gave it 24 % instead of 60 %."""
    total, weights = 80 * GB, 2 * GB
    first = cache_budget(total - weights, total, weights, 0.5)
    second = cache_budget(int(total - weights - first - weights), total, weights, 0.5)
    assert first == pytest.approx(second)
    assert first + second + 2 * weights < total


@given(st.integers(1, 200), st.integers(1, 8), st.integers(0, 20))
def test_replicas_never_exceed_the_device(total_gb: int, replicas: int, weights_gb: int) -> None:
    total, free = total_gb * GB, float(total_gb * GB)
    for _ in range(replicas):
        free -= weights_gb * GB
        budget = cache_budget(int(max(0.0, free)), total, weights_gb * GB, 1 / replicas)
        assert 0 <= budget <= max(0.0, free)
        free -= budget


def test_engine_alone_uses_what_is_free() -> None:
    assert cache_budget(50 * GB, 80 * GB, 2 * GB, 1.0) == CUDA_MEMORY_SHARE * 50 * GB


def test_weights_count_every_parameter() -> None:
    loaded = networks("cosyvoice3")
    head = sum(each.numel() * each.element_size() for each in loaded.lm.parameters())
    assert weight_bytes(loaded) > head > 0
