"""The code for CUDA, on the CPU: the numbers of the CPU, and no race between the streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from tests.fakes.cuda.device import SimulatedDevice, SimulatedStream, simulated_cuda
from tests.fakes.graph_runner import FakeGraphRunner
from tests.unit.streaming.engines import ONE_FAMILY, bundle, cancel_two, engine, settings, voice
from tests.unit.streaming.test_device import TEXT, speak_together
from tests.unit.streaming.test_engine import assert_pcm_close
from tests.unit.streaming.test_first_chunk import record_batches
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.loader import load_networks
from tts_worker.engine.cosyvoice.networks.lm_inputs import Kind
from tts_worker.engine.cosyvoice.ops import FusedOperator
from tts_worker.engine.cosyvoice.ops.language_model import slot_attention
from tts_worker.engine.cosyvoice.token_generator import Script
from tts_worker.engine.cosyvoice.tokens.decoder import Decoder, DecodeRow
from tts_worker.types import Done, SynthesisParams
from tts_worker.voices.files import Voice

VOICES = {"prompted": 60, "plain": 0}
PARAMS = [
    SynthesisParams(name, seed=seed, speed=speed)
    for seed, (name, speed) in enumerate((("prompted", 1.0), ("plain", 0.8)))
]
CROWD = len(PARAMS)


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    with simulated_cuda() as simulated:
        yield simulated


def script(family: str) -> Script:
    eos = bundle(family).config.lm.eos_id
    return lambda key, run: [*range(100, 155 + key.generation), eos]


def voices(family: str) -> dict[str, Voice]:
    return {name: voice(family, tokens) for name, tokens in VOICES.items()}


def usual_engine(family: str) -> CosyVoiceEngine:
    return engine(family, script=script(family), voices=voices(family))


def cuda_engine(family: str, device: SimulatedDevice) -> CosyVoiceEngine:
    """Build an engine whose every computation is replayed after its warm-up."""
    networks = load_networks(bundle(family), torch.device("cpu"), half=False)
    networks.chunked_flow.pack()
    config = settings(
        max_segment_s=4, lm_tokens=256, decode_batch=CROWD, render_batch=CROWD, checked=False, graphs=True
    )
    subject = engine(
        family,
        config,
        loaded=networks,
        script=script(family),
        graph_runners=(FakeGraphRunner(), FakeGraphRunner()),
        streams=device.streams(),
        voices=voices(family),
    )
    device.watch()
    return subject


@dataclass(frozen=True)
class WarmEngine:
    """An engine after its warm-up.

    Attributes:
        subject: The engine.
        device: Its device.
        batches: Batches of first chunks that it has submitted before their ids were read.
    """

    subject: CosyVoiceEngine
    device: SimulatedDevice
    batches: list[int]


@pytest.fixture(scope="module")
def warm_engine() -> Callable[[str], WarmEngine]:
    """Engines of the families, which tests leave idle: the warm-up takes longer than what is tested after it."""

    @cache
    def warm_up(family: str) -> WarmEngine:
        with simulated_cuda() as device, pytest.MonkeyPatch.context() as patch:
            batches = record_batches(patch)
            subject = cuda_engine(family, device)
            subject.warm_up()
        return WarmEngine(subject, device, batches)

    return warm_up


def record_kernels_outside_of_graphs(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set of the fused operators that run outside of graphs from now on."""
    inside = 0
    outside: set[str] = set()

    def in_graph(self: FakeGraphRunner, *args: Any, run: Any = FakeGraphRunner.run) -> Any:
        nonlocal inside
        inside += 1
        try:
            return run(self, *args)
        finally:
            inside -= 1

    def counted(self: FusedOperator[..., Any], *args: Any, call: Any = FusedOperator.__call__) -> Any:
        if not inside:
            outside.add(self.name)
        return call(self, *args)

    monkeypatch.setattr(FakeGraphRunner, "run", in_graph)
    monkeypatch.setattr(FusedOperator, "__call__", counted)
    return outside


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_code_for_cuda_speaks_like_the_cpu(
    family: str, warm_engine: Callable[[str], WarmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Voices with and without a prompt, another pace, batches; in the warm-up, first chunks across the streams."""
    warm = warm_engine(family)
    with simulated_cuda(warm.device):
        outside = record_kernels_outside_of_graphs(monkeypatch)
        outputs = speak_together(warm.subject, PARAMS)

    assert warm.device.faults == []
    assert warm.batches
    assert warm.subject.components.eager_keys == {}
    assert outside == {"plan_draws"}, "others would be compiled for new sizes while calls wait; it has a single binary"
    expected = speak_together(usual_engine(family), PARAMS)
    for output, same in zip(outputs, expected, strict=True):
        assert [type(end) for end in output.ends] == [Done]
        assert output.words == same.words
        assert_pcm_close(output.pcm, same.pcm)


def test_cancelled_utterances_leave_no_race(warm_engine: Callable[[str], WarmEngine]) -> None:
    """Their slots, pages and tensors are used again while work on them is in flight."""
    warm = warm_engine("cosyvoice3")
    with simulated_cuda(warm.device):
        for steps in (1, 2, 3, 5, 8, 13):
            cancel_two(warm.subject, TEXT[0], steps)

    assert warm.device.faults == []


def test_kernel_that_fails_for_another_engine_leaves_the_graphs(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are switched off for the process, but what is captured with them goes on."""
    runner = FakeGraphRunner()
    networks = load_networks(bundle("cosyvoice3"), torch.device("cpu"), half=False)
    decoder = Decoder(networks, slots=1, max_tokens=640, stream=device.streams().tokens, runner=runner)
    decoder.capture(1)
    monkeypatch.setattr(slot_attention, "fault", "it differs in float32")

    slot = decoder.acquire()
    items = decoder.start(slot, 1, [(Kind.SOS, 0), (Kind.TEXT, 5), (Kind.TASK, 0)])
    row = DecodeRow(slot, networks.config.lm.eos_id, 99, 99)
    decoder.prefill([row], [items])
    decoder.burst([row], 2)

    assert runner.eager_keys == {}


def test_missing_wait_is_noticed(device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests detect: an audio stream that reads ids before they are drawn."""
    monkeypatch.setattr(SimulatedStream, "wait_for", lambda self, event: None)
    cuda_engine("cosyvoice3", device)._speak_sentence("prompted", 1.0)  # the first sentence of a warm-up

    assert any("on audio reads what tokens may still use" in fault for fault in device.faults)


@pytest.fixture
def watching(device: SimulatedDevice) -> SimulatedDevice:
    device.watch()
    return device


def test_unordered_write_is_noticed(watching: SimulatedDevice) -> None:
    streams = watching.streams()
    with streams.tokens:
        x = torch.zeros(4)
    with streams.flow:
        streams.flow.wait_for(streams.tokens.record_event())
        y = x + 1
    assert watching.faults == []
    with streams.tokens:
        x.add_(1)
    assert watching.faults == ["aten::add_ on tokens writes what audio may still use, written by aten::zeros"]
    with streams.flow:
        y.add_(1)
    assert len(watching.faults) == 1, "a stream is ordered"


def test_host_that_waited_orders_what_follows(watching: SimulatedDevice) -> None:
    streams = watching.streams()
    with streams.tokens:
        x = torch.zeros(4)
        copy = streams.tokens.to_host(x)
    assert not copy.ready
    assert copy.ready
    with streams.flow:
        torch.add(x, 1)
    assert watching.faults == []
    x.add_(1)  # on the default stream, which no one has ordered
    assert len(watching.faults) == 1


def test_memory_freed_too_early_is_noticed(watching: SimulatedDevice) -> None:
    streams = watching.streams()
    for waits in (True, False):
        with streams.tokens:
            x = torch.zeros(4)
        streams.flow.wait_for(streams.tokens.record_event())
        with streams.flow:
            torch.add(x, 1)
        if waits:
            streams.tokens.wait_for(streams.flow.record_event())
        del x
        with streams.tokens:
            torch.zeros(4)
    assert watching.faults == ["what aten::zeros wrote on tokens was freed while audio may still use it"]


def test_value_read_by_the_host_is_noticed(watching: SimulatedDevice) -> None:
    with watching.streams().tokens:
        x = torch.zeros(4)
        bool(x.sum() > 0)
    assert watching.faults == ["the host reads a value by aten::_local_scalar_dense"]
