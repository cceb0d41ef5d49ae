"""Flow and vocoder on CUDA, by tensors without values: no host access in a captured pass, and few kernel launches."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.fakes.cuda.launches import (
    META,
    FakeCudaRunner,
    FakeCudaStream,
    LaunchCounter,
    at_full_depth,
    count,
    fake_cuda,
    fake_networks,
)
from tests.unit.cosyvoice.networks import ONE_FAMILY, full_config
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool
from tts_worker.engine.cosyvoice.audio.vocoder_windows import VocoderWindows
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner

MAX_EULER_STEP_LAUNCHES = {"cosyvoice3": 160, "cosyvoice2": 440}
MAX_VOCODER_LAUNCHES = {"cosyvoice3": 290, "cosyvoice2": 290}
MAX_PARTIAL_WINDOW_LAUNCHES = 335
WINDOW_FRAMES = 82  # a chunk in the middle of an utterance


def euler_step_launches(family: str, layers: int) -> int:
    """Return the launches of a step of the solver, of an estimator with so many equal layers."""
    counters: list[LaunchCounter] = []
    networks = fake_networks(family, layers=layers)
    flow = networks.flow
    runner = EagerRunner(fixed_shapes=True)
    pool = FlowPool(flow, slots=20, pages=300, max_chunks=62, dtype=flow.dtype, runner=runner, page_bucket=8)
    states = [pool.open() for _ in range(2)]
    tokens = torch.zeros(2, 28, dtype=torch.long)
    inputs = states, tokens, [28, 28], torch.zeros(2, 80), torch.zeros(2, 50, 80)
    pool._null_at(0, flow.chunk_frames)  # the guidance without a voice, which all utterances share
    estimate = flow.estimator.velocity

    def counted(*args: object, **kwargs: object) -> Tensor:
        out, counter = count(estimate, *args, **kwargs)
        counters.append(counter)
        return out

    with patch.object(flow.estimator, "velocity", counted):
        pool.advance(*inputs)
    (step,) = counters  # the networks have one step
    return step.launches


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_euler_step_launches_few_kernels(family: str) -> None:
    flow = full_config(family).chunked_flow
    depth = flow.unet.mid_blocks if flow.unet else flow.dit.depth if flow.dit else 0
    with fake_cuda():
        launches = at_full_depth(euler_step_launches(family, 1), euler_step_launches(family, 2), depth)

    assert launches <= MAX_EULER_STEP_LAUNCHES[family]


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_vocoder_chunk_launches_few_kernels(family: str) -> None:
    with fake_cuda():
        networks = fake_networks(family, layers=1)
        runner = FakeCudaRunner()
        window = VocoderWindows(networks.hift, FakeCudaStream(), runner, [WINDOW_FRAMES], META)
        window.capture(1)

    # In a window that is not full, the vocoder that is not causal hides the padding from every layer.
    for key, counter in runner.counts.items():
        is_middle = family == "cosyvoice3" or key == ("vocoder", 1, WINDOW_FRAMES, False)
        limit = MAX_VOCODER_LAUNCHES[family] if is_middle else MAX_PARTIAL_WINDOW_LAUNCHES
        assert counter.launches <= limit, (key, counter.operators)
