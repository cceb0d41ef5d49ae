"""The language model on CUDA, by tensors without values: no host access in a captured step, and few kernel launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.fakes.cuda.launches import (
    FakeCudaRunner,
    FakeCudaStream,
    HostAccess,
    LaunchCounter,
    at_full_depth,
    count,
    fake_cuda,
    fake_networks,
)
from tests.unit.cosyvoice.networks import full_config
from tts_worker.engine.cosyvoice.audio.chunks import Chunk
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool, FlowPrompt
from tts_worker.engine.cosyvoice.audio.renderer import Renderer, RenderRequest, RenderState
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStreams
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item, Kind
from tts_worker.engine.cosyvoice.tokens.decoder import Decoder, DecodeRow

FIRST_DRAWS = 11  # 8 to the boundary of the first chunk, 3 of look-ahead
DEPTH = full_config("cosyvoice3").qwen.layers
MAX_STEP_LAUNCHES = 250
MAX_STEP_LAUNCHES_WITHOUT_KERNELS = 520
MAX_PREFILL_LAUNCHES = 260
MAX_LAUNCHES_AROUND_A_PREFILL = 3
MAX_LAUNCHES_AROUND_A_BURST = 10


@dataclass
class Subject:
    """A decoder of tensors without values and its runner."""

    decoder: Decoder
    runner: FakeCudaRunner
    eos: int

    @classmethod
    def of(cls, family: str, layers: int | None = None) -> Subject:
        """Tiny networks, or the official ones with so many layers."""
        networks = fake_networks(family, layers=layers)
        runner = FakeCudaRunner()
        decoder = Decoder(networks, slots=64, max_tokens=3072, stream=FakeCudaStream(), runner=runner)
        return cls(decoder, runner, networks.config.lm.eos_id)

    def rows(self, batch: int, length: int = 0) -> list[DecodeRow]:
        """Slots that hold ``length`` inputs."""
        for slot in range(batch):
            self.decoder._cached_items[slot] = [(Kind.SPEECH, 1)] * length
        return [DecodeRow(slot, self.eos, 0, 100) for slot in range(batch)]

    def step(self, batch: int, length: int) -> LaunchCounter:
        """Return the counts of a decode step."""
        self.runner.clear()
        self.decoder.burst(self.rows(batch, length), 1)
        (counter,) = self.runner.counts.values()
        return counter


@pytest.mark.parametrize("batch", [1, 16])
def test_decode_step_launches_few_kernels(batch: int) -> None:
    with fake_cuda():
        subject = Subject.of("cosyvoice3", 1)  # CosyVoice2 has the same layers
        short, long = (subject.step(batch, length) for length in (200, 2000))
        two, three = (Subject.of("cosyvoice3", layers).step(batch, 2000) for layers in (2, 3))

    assert three.launches == at_full_depth(long.launches, two.launches, 3), "the layers are equal"
    assert at_full_depth(long.launches, two.launches, DEPTH) <= MAX_STEP_LAUNCHES
    assert short.launches < long.launches
    # Nothing but the attention depends on the context: keys and values are read where they are.
    assert "index_select" not in long.operators
    assert {**long.bytes_moved, "slot_attention": 0} == {**short.bytes_moved, "slot_attention": 0}


def test_decode_step_runs_without_kernels() -> None:
    with fake_cuda(fused=False):
        one, two = (Subject.of("cosyvoice3", layers).step(2, 200).launches for layers in (1, 2))

    assert at_full_depth(one, two, DEPTH) <= MAX_STEP_LAUNCHES_WITHOUT_KERNELS


@pytest.mark.parametrize("fused", [False, True])  # another model of the process may have switched them on
def test_steps_of_cosyvoice_300m_leave_the_host_alone(fused: bool) -> None:
    items: list[Item] = [(Kind.SOS, 0), (Kind.SPEAKER, 0), *[(Kind.TEXT, 5)] * 20, (Kind.TASK, 0)]
    with fake_cuda(fused=fused):
        subject = Subject.of("cosyvoice1")
        step = subject.step(2, 200)
        (row,) = subject.rows(1)
        subject.runner.clear()
        subject.decoder.prefill([row], [items])
        (prefill,) = subject.runner.counts.values()

    assert 0 < step.launches < prefill.launches, step.operators


def test_two_contexts_suffice_with_the_kernel() -> None:
    with fake_cuda():
        decoder = Subject.of("cosyvoice3", 1).decoder
        assert {decoder._decode_context(length) for length in range(1, 3073)} == {512, 3072}
    with fake_cuda(fused=False):
        decoder = Subject.of("cosyvoice3", 1).decoder
        assert len({decoder._decode_context(length) for length in range(1, 3073)}) == 12


def test_prefill_and_burst_launch_few_kernels() -> None:
    items: list[Item] = [(Kind.SOS, 0), *[(Kind.TEXT, 5)] * 20, (Kind.TASK, 0), *[(Kind.SPEECH, 7)] * 125]
    prefills = []
    with fake_cuda():
        for layers in (1, 2):
            subject = Subject.of("cosyvoice3", layers)
            (row,) = subject.rows(1)
            subject.decoder.prefill([row], [items])
            (prefill,) = subject.runner.counts.values()
            prefills.append(prefill.launches)
        subject.runner.run = lambda key, compute, inputs: (torch.empty(1, 1, dtype=torch.long),)  # type: ignore
        _, around = count(subject.decoder.prefill, [row], [items])
        _, burst = count(subject.decoder.burst, [row], 8)

    assert at_full_depth(prefills[0], prefills[1], DEPTH) <= MAX_PREFILL_LAUNCHES
    assert around.launches <= MAX_LAUNCHES_AROUND_A_PREFILL, around.operators
    assert burst.launches <= MAX_LAUNCHES_AROUND_A_BURST, burst.operators


@pytest.mark.parametrize(
    "access",
    [
        Tensor.tolist,
        Tensor.item,
        Tensor.cpu,
        Tensor.numpy,
        bool,
        int,
        lambda x: torch.tensor([1]),
        lambda x: x.new_tensor([1]),
        lambda x: x.to("cpu"),
        lambda x: x.to(torch.float32).to(device="cpu"),
        lambda x: x.to(torch.device("cpu"), torch.float32),
        torch.nonzero,
        lambda x: x[x > 0],
    ],
)
def test_host_access_in_a_captured_step_raises(access: Callable[[Tensor], object]) -> None:
    def compute(x: Tensor) -> tuple[Tensor]:
        access(x)
        return (x,)

    with fake_cuda():
        value = torch.zeros(1, dtype=torch.long)
        assert value.is_cuda
        with pytest.raises((HostAccess, RuntimeError, TypeError)):  # PyTorch has three words for "no values"
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


class _UnreadStream(FakeCudaStream):
    is_asynchronous = True


@pytest.mark.parametrize(
    ("family", "fused"),
    [("cosyvoice3", True), ("cosyvoice3", False), pytest.param("cosyvoice2", False, marks=pytest.mark.long)],
)
def test_device_computes_the_first_chunk_without_values(family: str, fused: bool) -> None:
    """Whatever reads one between the prefill and the vocoder raises."""
    with fake_cuda(fused=fused):
        networks = fake_networks(family)
        flow = networks.config.flow
        runner = FakeCudaRunner()
        stream = _UnreadStream()
        decoder = Decoder(networks, slots=4, max_tokens=3072, stream=stream, runner=runner)
        pool = FlowPool(networks.flow, slots=8, pages=60, max_chunks=24, dtype=networks.flow.dtype, runner=runner)
        renderer = Renderer(networks, pool, ExecutionStreams(stream, stream, stream), runner)
        prompt = tuple(range(42))
        mel = torch.zeros(84, flow.mel)
        voice = FlowPrompt(prompt=prompt, prompt_mel=mel, spk=torch.zeros(1, flow.mel))
        voice.flow = pool.open()
        pool.advance([voice.flow], torch.zeros(1, 28, dtype=torch.long), [28], voice.spk, mel[None, :50])

        rows = [DecodeRow(slot, networks.config.lm.eos_id, 99, 100) for slot in (0, 1)]
        ids, copy, _ = decoder.prefill_and_burst(rows, [[(Kind.SOS, 0), (Kind.TEXT, 5)]] * 2, 3)
        chunk = Chunk(0, 8, FIRST_DRAWS, False)
        requests = [
            RenderRequest(RenderState(voice, 1), chunk, (), column)
            for column in ids.repeat(4, 1)[:FIRST_DRAWS].unbind(1)
        ]
        mels = renderer.flow(requests).result().frames
        audio = renderer.vocode(requests, mels)

        assert [chunk.count for chunk in audio.chunks] == [3840] * 2, "16 frames less the look-ahead of the vocoder"
        assert {key[0] for key in runner.counts} == {"prefill", "decode", "flow", "null", "vocoder"}
        with pytest.raises(HostAccess):
            copy.wait()
