"""The language model on CUDA, by fake tensors: no host access in a captured step, and few kernel launches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.unit.cosyvoice.fake_cuda import (
    FakeCudaRunner,
    FakeCudaStream,
    HostAccess,
    LaunchCounter,
    count,
    fake_cuda,
    fake_networks,
)
from tts_worker.engine.cosyvoice.decoder import Decoder, DecodeRow

MAX_STEP_LAUNCHES = 514


def decode_step(family: str, batch: int) -> LaunchCounter:
    """Return the counts of one decode step."""
    with fake_cuda():
        networks = fake_networks(family)
        runner = FakeCudaRunner()
        decoder = Decoder(networks, slots=64, max_tokens=3072, stream=FakeCudaStream(), runner=runner)
        decoder.burst([DecodeRow(slot, networks.config.lm.eos_id, 0, 100) for slot in range(batch)], 1)
    (counter,) = runner.counts.values()
    return counter


@pytest.mark.parametrize(("family", "batch"), [("cosyvoice3", 1), ("cosyvoice2", 16)])
def test_decode_step_launches_few_kernels(family: str, batch: int) -> None:
    counter = decode_step(family, batch)

    assert counter.launches <= MAX_STEP_LAUNCHES, counter.operators


@pytest.mark.parametrize("access", [Tensor.tolist, Tensor.item, Tensor.cpu, bool, int, lambda x: torch.tensor([1])])
def test_host_access_in_a_captured_step_raises(access: Callable[[Tensor], object]) -> None:
    def compute(x: Tensor) -> tuple[Tensor]:
        access(x)
        return (x,)

    with fake_cuda():
        value = torch.zeros(1, dtype=torch.long)
        assert value.is_cuda
        with pytest.raises((HostAccess, RuntimeError)):
            FakeCudaRunner().run("key", compute, (value,))


def test_launch_counts_follow_the_operators() -> None:
    def compute(x: Tensor) -> Tensor:
        x = torch.nn.functional.conv1d(x[:, :4], x.new_zeros(4, 4, 1))  # 2: two kernels of cuDNN, and new_zeros
        return x.transpose(1, 2).reshape(-1) * 2.0  # a copy, a product

    with fake_cuda():
        _, counter = count(compute, torch.zeros(2, 8, 16))

    assert counter.operators == {"new_zeros": 1, "convolution": 2, "clone": 1, "mul": 1}
    assert counter.launches == 5
    assert counter.bytes_moved["mul"] == 2 * 2 * 4 * 16 * 4
