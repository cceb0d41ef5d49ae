"""Flow and vocoder on CUDA, by fake tensors: no host access in a captured pass, and few kernel launches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.unit.cosyvoice.fake_cuda import (
    FakeCudaRunner,
    FakeCudaStream,
    LaunchCounter,
    count,
    fake_cuda,
    fake_networks,
)
from tests.unit.cosyvoice.networks import FAMILIES
from tts_worker.engine.cosyvoice.backends.streams import ExecutionStreams
from tts_worker.engine.cosyvoice.flow_pool import FlowPool
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.renderer import Renderer, VocoderShape

MAX_EULER_STEP_LAUNCHES = {"cosyvoice3": 489, "cosyvoice2": 945}
MAX_VOCODER_LAUNCHES = {"cosyvoice3": 637, "cosyvoice2": 657}
# A chunk in the middle of an utterance.
VOCODER_SHAPES = {
    "cosyvoice3": VocoderShape(50, 32, 29, 24, 0, False),
    "cosyvoice2": VocoderShape(50, 16, 8, 8, 960, False),
}


def flow_pool(networks: Networks, runner: FakeCudaRunner) -> FlowPool:
    return FlowPool(
        networks.flow,
        slots=20,
        pages=300,
        max_chunks=62,
        dtype=networks.flow.time_tables.dtype,
        runner=runner,
        page_bucket=8,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_euler_step_launches_few_kernels(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[LaunchCounter] = []
    with fake_cuda():
        networks = fake_networks(family)
        pool = flow_pool(networks, FakeCudaRunner())
        estimate = networks.flow.estimator.forward

        def counted(*args: object, **kwargs: object) -> Tensor:
            out, counter = count(estimate, *args, **kwargs)
            steps.append(counter)
            return out

        monkeypatch.setattr(networks.flow.estimator, "forward", counted)
        states = [pool.open() for _ in range(2)]
        tokens = torch.zeros(2, 28, dtype=torch.long)
        pool.advance(states, tokens, [28, 28], torch.zeros(2, 80), torch.zeros(2, 50, 80))

    assert len(steps) > networks.config.flow.steps
    for step in steps[-networks.config.flow.steps :]:
        assert step.launches <= MAX_EULER_STEP_LAUNCHES[family], step.operators


@pytest.mark.parametrize("family", FAMILIES)
def test_vocoder_chunk_launches_few_kernels(family: str) -> None:
    shape = VOCODER_SHAPES[family]
    with fake_cuda():
        networks = fake_networks(family)
        runner = FakeCudaRunner()
        stream = FakeCudaStream()
        renderer = Renderer(networks, flow_pool(networks, runner), ExecutionStreams(stream, stream, stream), runner)
        state = networks.hift.start(1, torch.device("cpu"))
        mel = torch.zeros(1, 80, 60)
        inputs = (
            mel[:, :, : shape.frames],
            mel[:, :, : shape.cached_mel],
            mel[:, 0, : shape.cached_f0],
            state.phase,
            state.start,
            mel.new_zeros(1, shape.tail),
            stream.to_device([0]),
        )
        runner.run(("vocoder",), renderer._vocoder_fn(shape), inputs)

    counter = runner.counts["vocoder",]
    assert counter.launches <= MAX_VOCODER_LAUNCHES[family], counter.operators
