"""Device behavior simulated on the CPU: graphs with static buffers, and late results."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from itertools import cycle, product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.fakes.graph_runner import FakeGraphRunner
from tests.unit.streaming.engines import (
    KEY,
    ONE_FAMILY,
    PROMPTED,
    bundle,
    cancel_two,
    engine,
    networks,
    run_until_idle,
    settings,
    synthesize,
    voice,
)
from tests.unit.streaming.test_engine import ResourceUsage, assert_pcm_close
from tts_worker.audio.pcm import to_pcm
from tts_worker.engine.cosyvoice.audio.prosody import Prosody
from tts_worker.engine.cosyvoice.audio.renderer import MelResampler
from tts_worker.engine.cosyvoice.audio.vocoder_windows import to_int16
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.graph_runner import Compute, EagerRunner, Tensors
from tts_worker.engine.cosyvoice.execution.settings import TextMode
from tts_worker.engine.cosyvoice.execution.streams import (
    CudaStream,
    ExecutionStream,
    ExecutionStreams,
    HostStream,
    PendingCopy,
    TimingEvent,
)
from tts_worker.engine.cosyvoice.loader import load_networks
from tts_worker.features.acceleration.graphs import CapturedGraph, CudaGraphRunner
from tts_worker.types import Audio, Boundary, Cancel, EndText, Open, Segment, SynthesisParams, Text, UtteranceKey

TEXT = segments(("Hello, ", Boundary.CLAUSE), ("world and you.", Boundary.SENTENCE), (" it is.", Boundary.END))


def captured_graphs(runner: FakeGraphRunner) -> int:
    return sum(each.captured for each in runner.computations)


@pytest.mark.parametrize(
    ("family", "stride"), [pytest.param("cosyvoice2", 1, marks=pytest.mark.long), ("cosyvoice3", 2)]
)
def test_every_computation_is_replayed_after_the_warm_up(family: str, stride: int) -> None:
    """Voices with and without a prompt, every pace, first, middle and last chunks, alone and in batches.

    The last chunk of the voice without a prompt has 27 tokens: two chunks of the mask, which take one pass with a
    stride of two.
    """
    small = settings(
        max_segment_s=4, lm_tokens=256, decode_batch=2, render_batch=2, stride_chunks=stride, checked=False
    )
    eos = bundle(family).config.lm.eos_id
    shared: dict[str, Any] = {
        "script": lambda key, run: [*range(100, 174 + key.generation), eos],
        "voices": {"prompted": voice(family), "plain": voice(family, 0), "short": voice(family, 3)},
    }
    runners = FakeGraphRunner(), FakeGraphRunner()
    subject = engine(family, small, graph_runners=runners, **shared)
    subject.warm_up()
    assert subject.info.degraded == ()
    graphs = [captured_graphs(runner) for runner in runners]
    assert all(runner.replays == 0 for runner in runners), "the warm-up does not count"

    params = [SynthesisParams("prompted", seed=3, speed=speed) for speed in (0.5, 1.0, 2.0)]
    params += [SynthesisParams("plain", seed=3), SynthesisParams("short", seed=3, speed=0.77)]
    outputs = speak_together(subject, params)

    counts = {each.name: each for each in subject.report().computations}
    assert set(counts) == {"prefill", "decode", "flow", "null", "vocoder"}
    assert {name: each.eager_calls for name, each in counts.items()} == dict.fromkeys(counts, 0)
    assert [captured_graphs(runner) for runner in runners] == graphs, "nothing is captured while clients wait"
    expected = speak_together(engine(family, small, **shared), params)
    for output, same in zip(outputs, expected, strict=True):
        assert output.words == same.words
        assert_pcm_close(output.pcm, same.pcm)


def test_warm_up_speaks_again_after_the_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture empties the allocator: otherwise the first calls pay for the memory, of either first chunk and pace."""
    small = settings(max_segment_s=4, lm_tokens=256, decode_batch=1, render_batch=1, checked=False)
    voices = {"prompted": voice("cosyvoice3"), "plain": voice("cosyvoice3", 0)}
    runners = FakeGraphRunner(), FakeGraphRunner()
    subject = engine("cosyvoice3", small, graph_runners=runners, voices=voices)
    spoken: list[tuple[str, bool, bool]] = []
    speak = subject.speak

    def record(key: UtteranceKey, params: SynthesisParams, segments: Iterable[Segment]) -> bytes:
        is_captured = all(captured_graphs(runner) > 0 for runner in runners)
        spoken.append((params.voice, params.speed == 1.0, is_captured))
        return speak(key, params, segments)

    monkeypatch.setattr(subject, "speak", record)
    subject.warm_up()

    after_captures = [(name, is_plain) for name, is_plain, is_captured in spoken if is_captured]
    assert sorted(after_captures) == sorted(product(voices, (False, True)))


def test_decode_steps_of_cosyvoice_300m_are_replayed() -> None:
    """With and without a prompt, together: what a slot knows of its speaker is part of the captured state."""
    family = "cosyvoice1"
    small = settings(lm_tokens=512, decode_batch=2, checked=False)
    voices = {"prompted": voice(family, 10), "plain": voice(family, 0)}
    subject = engine(family, small, graph_runners=(FakeGraphRunner(), EagerRunner()), voices=voices)
    assert subject.components.capture(small)
    assert subject.components.degraded == ()

    params = [SynthesisParams(name, seed=seed) for seed, name in enumerate(voices)]
    outputs = speak_together(subject, params)

    counts = {each.name: each for each in subject.report().computations if each.captured}
    assert set(counts) == {"prefill", "decode"}
    assert all(each.replays and not each.eager_calls for each in counts.values())
    expected = speak_together(engine(family, small, voices=voices), params)
    for output, same in zip(outputs, expected, strict=True):
        assert output.words == same.words
        assert_pcm_close(output.pcm, same.pcm)


def speak_together(subject: CosyVoiceEngine, params: Sequence[SynthesisParams]) -> list[EngineOutput]:
    """Speak utterances at the same time, each with its own parameters."""
    outputs: dict[UtteranceKey, EngineOutput] = {}
    keys = [UtteranceKey("s", n) for n in range(len(params))]
    for key, each in zip(keys, params, strict=True):
        subject.handle(Open(key, each, PLENTY_SAMPLES))
        subject.handle(Text(key, TEXT[0]))
        subject.handle(EndText(key))
    run_until_idle(subject, outputs)
    return [outputs[key] for key in keys]


def test_fake_graph_exposes_uncaptured_state() -> None:
    runner = FakeGraphRunner()
    hidden = [1.0]

    def compute(x: Tensor) -> Tensors:
        return (x + hidden[0],)

    one = torch.ones(2)
    runner.capture(("key",), compute, (one,))
    (first,) = runner.run(("key",), compute, (one * 3,))
    assert first.tolist() == [4.0, 4.0]
    (second,) = runner.run(("key",), lambda x: (x * 0,), (one * 5,))
    assert second is first, "the output buffer is static"
    assert second.tolist() == [6.0, 6.0], "a replay runs the captured function"


def test_replays_of_utterances_are_timed_by_key() -> None:
    """On their own inputs: a graph reads as much of the memory as they say, so that made-up ones show nothing."""
    runner = FakeGraphRunner()

    def compute(x: Tensor) -> Tensors:
        return (x + 1,)

    for size in (1, 2, 3):
        runner.capture(("key", size), compute, (torch.ones(size),))

    runner.run(("key", 1), compute, (torch.ones(1),))
    with runner.timing() as times:
        for size in (1, 2, 1):
            runner.run(("key", size), compute, (torch.ones(size),))
        runner.run(("none", 1), compute, (torch.ones(1),))
    runner.run(("key", 2), compute, (torch.ones(2),))

    assert runner.keys == (("key", 1), ("key", 2), ("key", 3))
    assert {key: len(each) for key, each in times.items()} == {("key", 1): 2, ("key", 2): 1}
    assert all(ms > 0 for each in times.values() for ms in each)
    assert runner.replays == 5


class _InvalidCapture:
    """In place of ``torch.cuda.graph``: the body did what a capture forbids."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *args: object) -> None:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.fixture
def four_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch with four streams, not 32, which it gives out in turn, whether they are in use or not."""
    handles = cycle(range(4))

    def stream(device: torch.device, priority: int) -> SimpleNamespace:
        return SimpleNamespace(cuda_stream=next(handles), synchronize=lambda: None)

    monkeypatch.setattr(torch.cuda, "Stream", stream)


@pytest.mark.usefixtures("four_streams")
def test_engine_takes_no_stream_that_another_one_uses() -> None:
    """A capture on it would take up what the other engine submits. Engines are loaded again as often as one likes."""
    device = torch.device("cuda")
    first = CudaStream(device)
    for _ in range(9):
        other = CudaStream(device)
        assert other.cuda_stream.cuda_stream != first.cuda_stream.cuda_stream
        other.close()


@pytest.mark.usefixtures("four_streams")
def test_streams_are_shared_when_all_are_in_use() -> None:
    streams = [CudaStream(torch.device("cuda")) for _ in range(5)]

    assert len({each.cuda_stream.cuda_stream for each in streams}) == 4


def test_kernel_that_cannot_be_built_for_a_shape_leaves_the_others() -> None:
    """Triton's errors, such as too little shared memory for a size, are no ``RuntimeError``."""

    class OutOfResources(Exception):
        pass

    def compute(x: Tensor) -> Tensors:
        if len(x) > 4:
            raise OutOfResources("out of resource: shared memory")
        return (x + 1,)

    runner = FakeGraphRunner()
    for size in (8, 4):
        runner.capture(("key", size), compute, (torch.ones(size),))

    assert runner.refused == {("key", 8): "OutOfResources: out of resource: shared memory"}
    assert runner.keys == (("key", 4),)


def test_graph_keeps_what_its_computation_refers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads and writes that memory by address. A fake graph calls the computation, and so keeps it, too."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", int)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda *args, **kwargs: nullcontext())
    runner = CudaGraphRunner(SimpleNamespace(device_index=0))  # type: ignore[arg-type]
    table = torch.ones(2)
    is_alive = weakref.ref(table)
    runner.capture(("key",), lambda x, table=table: (x + table,), (torch.ones(2),))
    del table

    assert is_alive() is not None
    runner.clear()
    assert is_alive() is None


@pytest.mark.parametrize("has_ended", [False, True])
def test_invalid_capture_concerns_its_key_only(has_ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 leaves the allocator in the capture, which then refuses to return memory: no engine would start."""
    open_pools = {1}

    def end(device: int, pool: int) -> None:
        assert device == 0
        if has_ended:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        open_pools.discard(pool)

    def empty_cache() -> None:
        if open_pools:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    handles = iter((1, 2))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", _InvalidCapture)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    stream: Any = SimpleNamespace(device_index=0)
    runner = CudaGraphRunner(stream)

    runner.capture(("key",), lambda x: (x + 1,), (torch.ones(1),))

    assert list(runner.refused) == [("key",)]
    assert runner.run(("key",), lambda x: (x + 1,), (torch.ones(1),))[0].tolist() == [2.0]
    assert (open_pools == set()) is not has_ended


class _LateCopy:
    """A copy that is ready after ``polls`` polls."""

    def __init__(self, tensor: Tensor, polls: int) -> None:
        self._tensor = tensor.clone()
        self._polls = polls

    @property
    def ready(self) -> bool:
        self._polls -= 1
        return self._polls < 0

    def wait(self) -> Tensor:
        return self._tensor


class LateStream(HostStream):
    """A stream with late copies."""

    is_asynchronous = True

    def __init__(self, polls: Sequence[int]) -> None:
        super().__init__()
        self._polls = polls
        self._fetched = 0

    def to_host(self, tensor: Tensor) -> PendingCopy:
        self._fetched += 1
        return _LateCopy(tensor, self._polls[self._fetched % len(self._polls)])


def two_streams(tokens: ExecutionStream, audio: ExecutionStream) -> ExecutionStreams:
    """Return streams for tokens and audio, as on CUDA."""
    return ExecutionStreams(tokens, audio, audio)


def test_frames_of_a_pass_count_with_its_time() -> None:
    """The host launches passes long before a device has computed them."""
    subject = engine("cosyvoice3", streams=two_streams(LateStream([2]), LateStream([3])))
    chunks = []
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    for segment in segments(("Hello world and you, that it is of the world.", Boundary.END)):
        subject.handle(Text(KEY, segment))
    subject.handle(EndText(KEY))
    timings = subject.timings
    while subject.has_work:
        before = timings.flow_ms, timings.flow_frames, timings.vocoder_frames
        subject.step(0.0)
        after = timings.flow_ms, timings.flow_frames, timings.vocoder_frames
        chunks.append(tuple(new > old for old, new in zip(before, after, strict=True)))
    assert set(chunks) == {(False, False, False), (True, True, True)}
    renderer = subject.components.renderer
    assert (timings.flow_frames, timings.vocoder_frames) == (renderer.flow_frames, renderer.vocoder_frames)


@pytest.mark.parametrize("mode", TextMode)
def test_late_results_do_not_change_audio(mode: TextMode) -> None:
    text = segments(("Hello ", Boundary.WORD), ("world and ", Boundary.WORD), ("you.", Boundary.END))
    expected = synthesize(engine("cosyvoice3", settings(text_mode=mode)), text)
    subject = engine(
        "cosyvoice3", settings(text_mode=mode), streams=two_streams(LateStream([0, 3, 1]), LateStream([2, 5]))
    )
    keys = [UtteranceKey("s", n) for n in range(3)]
    outputs: dict[UtteranceKey, EngineOutput] = {}
    for key in keys:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        for segment in text:
            subject.handle(Text(key, segment))
        subject.handle(EndText(key))
    run_until_idle(subject, outputs)
    assert [outputs[key].content for key in keys] == [expected.content] * 3


def test_cancel_during_device_work_frees_resources() -> None:
    subject = engine("cosyvoice2", streams=two_streams(LateStream([3, 1]), LateStream([4])))
    expected = synthesize(subject, TEXT)
    free = ResourceUsage.of(subject)
    for steps in (1, 2, 3, 5, 8, 13, 21):
        cancel_two(subject, TEXT[0], steps)
        assert ResourceUsage.of(subject) == free, steps
    assert synthesize(subject, TEXT).content == expected.content


def test_awaited_audio_leaves_in_the_same_step() -> None:
    """Otherwise the next step would only emit it, and the device would idle meanwhile."""
    never = LateStream([1 << 30])
    subject = engine("cosyvoice3", settings(smooth_start=False), streams=two_streams(never, never))
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, TEXT[0]))
    subject.handle(EndText(KEY))
    while KEY in subject.sequences:
        output = subject.sequences[KEY].output
        subject.step(0.0)
        assert not output.waiting_samples
    assert output.rendered_samples > 0


def test_decode_overlaps_rendering() -> None:
    """The stages run concurrently: one does not wait for the other."""
    subject = engine(
        "cosyvoice3",
        streams=two_streams(LateStream([1]), LateStream([300])),
        script=lambda key, run: [*range(200), 6562],
    )
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, TEXT[0]))
    while not subject.audio.is_busy:
        subject.step(0.0)
    drawn = subject.timings.tokens
    while subject.audio.is_busy:
        subject.step(0.0)
    assert subject.timings.tokens >= drawn + bundle("cosyvoice3").config.flow.chunk_tokens
    subject.handle(Cancel(KEY))


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_half_precision_is_close_to_float32(family: str) -> None:
    """bfloat16 has 8 significant bits; the solver state accumulates in float32."""
    half = load_networks(bundle(family), torch.device("cpu"), half=True)
    assert half.flow.dtype is half.lm.llm_decoder.weight.dtype is torch.bfloat16
    assert half.hift.conv_post.weight.dtype is torch.float32

    def mel(loaded: Networks) -> Tensor:
        flow = loaded.flow
        tokens = torch.arange(100, 160)[None]
        spk = flow.speaker(torch.ones(1, flow.dims.spk_embed))
        prompt = torch.zeros(1, 0, flow.dims.mel)
        lengths = torch.tensor([60])
        return flow.mel(tokens, lengths, prompt, lengths * 0, spk, chunked=True, final=True)

    exact = mel(networks(family))
    near = mel(half)
    assert 0 < float((near - exact).square().mean().sqrt()) < 0.1 * float(exact.std())

    subject = engine(family, loaded=half, script=lambda key, run: [*range(100, 160), 6562 - (family == "cosyvoice2")])
    assert subject.components.pool.estimator.data.dtype is torch.bfloat16
    assert synthesize(subject, TEXT[:1]).samples == 60 * 960


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_half_precision_keeps_rotary_angles(family: str) -> None:
    exact, half = (load_networks(bundle(family), torch.device("cpu"), half=half) for half in (False, True))
    for one, other in ((exact.lm, half.lm), (exact.flow, half.flow), (exact.hift, half.hift)):
        expected = {name: each for name, each in one.named_buffers() if name.endswith("inv_freq")}
        for name, each in other.named_buffers():
            if name in expected:
                assert torch.equal(each, expected[name]), name
    # The language model computes its angles from positions: those of a late one are right to half a unit of bfloat16.
    late = half.lm.rotations(3073, half.lm.llm_decoder.weight)[-1].double()
    exponent = torch.arange(0, half.lm.dims.head_dim, 2).double() / half.lm.dims.head_dim
    angle = 3072 / half.lm.dims.rope_theta**exponent
    assert float((late - torch.stack([angle.cos(), -angle.sin(), angle.sin()])).abs().max()) < 2**-8
    if (dit := half.flow.dims.dit) is not None:
        rotary = half.flow.estimator.get_submodule("rotary_embed")
        angles = rotary.angles(torch.tensor([1500]), 1)[0, 0].double()  # type: ignore[operator]
        exponent = torch.arange(0, dit.head_dim, 2).double() / dit.head_dim
        assert float((angles - 1500 / 10_000.0**exponent).abs().max()) < 1e-3


def test_device_int16_conversion_matches_host() -> None:
    audio = torch.tensor([0.0, 1.0, -1.0, 2.0, -9.0, float("nan"), 0.5 / 32768, 1.5 / 32768, 0.123456, -0.999999])
    assert to_int16(audio).numpy().tobytes() == to_pcm(audio.numpy())


@pytest.mark.parametrize("speed", [0.5, 0.73, 1.0, 1.31, 2.0])
@pytest.mark.parametrize("cuts", [(7,), (1, 1, 5), (30, 2, 1, 17), (50, 50)])
def test_resampling_does_not_depend_on_mel_splits(speed: float, cuts: tuple[int, ...]) -> None:
    mel = torch.randn(1, 4, sum(cuts), generator=torch.Generator().manual_seed(1))
    prosody = Prosody.steady(speed)
    expected = MelResampler().push(mel, True, prosody)
    pieces = MelResampler()
    parts = mel.split(list(cuts), dim=2)
    out = torch.cat([pieces.push(part, n == len(cuts) - 1, prosody) for n, part in enumerate(parts)], dim=2)
    size = int(sum(cuts) / speed)
    assert out.shape[2] == size
    assert torch.equal(out, expected)
    if speed in (0.5, 1.0):  # without a remainder, the result equals linear interpolation
        plain = torch.nn.functional.interpolate(mel, size=size, mode="linear")
        assert torch.allclose(out, plain, atol=1e-6)


def test_late_audio_stays_within_credit() -> None:
    subject = engine("cosyvoice3", streams=two_streams(LateStream([2]), LateStream([2])))
    subject.handle(Open(KEY, PROMPTED, 100))
    subject.handle(Text(KEY, TEXT[0]))
    events = [event for _ in range(200) if subject.has_work for event in subject.step(0.0)]
    assert [type(event) for event in events] == [Audio]
    assert events[0].samples == 100  # type: ignore[union-attr]


class _BlockingCopy(_LateCopy):
    """A copy that is never ready without waiting. Records that it was waited for."""

    def __init__(self, tensor: Tensor, waited: list[str], name: str) -> None:
        super().__init__(tensor, 10**9)
        self._waited = waited
        self._name = name

    def wait(self) -> Tensor:
        self._waited.append(self._name)
        return super().wait()


class BlockingStream(HostStream):
    """A stream on which every copy must be waited for."""

    def __init__(self, waited: list[str], name: str) -> None:
        super().__init__()
        self._waited = waited
        self._name = name

    def to_host(self, tensor: Tensor) -> PendingCopy:
        return _BlockingCopy(tensor, self._waited, self._name)


def test_engine_waits_for_the_earliest_stage_only() -> None:
    """Waiting for both stages would leave the language model idle, or delay finished audio."""
    waited: list[str] = []
    streams = two_streams(BlockingStream(waited, "tokens"), BlockingStream(waited, "audio"))
    subject = engine("cosyvoice3", streams=streams, script=lambda key, run: [*range(200), 6562])
    # Tokens are expected soon, audio late.
    subject.timings.token_s = 1e-9
    subject.timings.chunk_s = 1e9
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, TEXT[0]))
    while not subject.audio.is_busy:
        subject.step(0.0)
    waited.clear()
    while subject.audio.is_busy:
        subject.step(0.0)
    assert waited.count("tokens") >= 3, "tokens of the next chunk were drawn during rendering"
    assert waited[-1] == "audio"

    # The opposite.
    subject.timings.token_s = 1e9
    subject.timings.chunk_s = 1e-9
    while not (subject.audio.is_busy and subject.tokens.is_busy):
        subject.step(0.0)
    waited.clear()
    subject.step(0.0)
    assert waited == ["audio"]
    subject.handle(Cancel(KEY))


class FailingCaptureRunner(FakeGraphRunner):
    """Fails the captures with the given numbers."""

    def __init__(self, failing: Collection[int], error: RuntimeError) -> None:
        super().__init__()
        self.attempts = 0
        self.freed = 0
        self._failing = failing
        self._error = error

    def _capture(self, compute: Compute, inputs: Tensors, outputs: Tensors) -> CapturedGraph:
        self.attempts += 1
        if self.attempts in self._failing:
            raise self._error
        return super()._capture(compute, inputs, outputs)

    def _free_memory(self) -> None:
        self.freed += 1


def test_refused_capture_concerns_its_shape_only(caplog: pytest.LogCaptureFixture) -> None:
    small = settings(max_segment_s=4, lm_tokens=512, decode_batch=2, render_batch=1, checked=False)
    expected = synthesize(engine("cosyvoice3", small), TEXT[:1])
    tokens = FailingCaptureRunner([1, 3], RuntimeError("operation not permitted when stream is capturing"))
    audio = FailingCaptureRunner([1], torch.OutOfMemoryError("out of memory"))  # the largest unconditional pass
    subject = engine("cosyvoice3", small, graph_runners=(tokens, audio))
    subject.warm_up()
    assert_pcm_close(synthesize(subject, TEXT[:1]).pcm, expected.pcm)
    for runner, refused in ((tokens, 2), (audio, 1)):
        assert len(runner.refused) == runner.freed == refused
        assert captured_graphs(runner) == runner.attempts - refused >= 2, "other shapes are captured"
        assert {counts.name for counts in runner.computations if counts.refused} == {
            str(key[0]) for key in runner.refused
        }
    assert len(subject.info.degraded) == 2
    for reason, name in zip(subject.info.degraded, ("prefill", "null"), strict=True):
        assert reason.startswith(name)
    assert sum("the capture failed" in message for message in caplog.messages) == 3


def test_report_names_operations_and_missing_graphs() -> None:
    small = settings(max_segment_s=4, lm_tokens=512, decode_batch=2, render_batch=1, checked=False)
    audio = FakeGraphRunner()
    subject = engine("cosyvoice3", small, graph_runners=(FakeGraphRunner(), audio))
    subject.warm_up()
    parts = subject.components.start_s
    captures = [f"capture_{name}" for name in ("tokens", "flow", "vocoder")]
    assert [*parts] == ["attention", "first_sentence", *captures, "more_sentences"]
    assert min(parts.values()) > 0
    assert subject.components.eager_keys == {}, "the warm-up does not count"
    audio.clear()  # as if nothing had been captured
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, TEXT[0]))
    subject.handle(EndText(KEY))
    notes = []
    while subject.has_work:
        subject.step(0.0)
        notes.append(subject.report().last_step)
    assert any(note.startswith("decode") and "graph" not in note for note in notes)
    assert "render, flow without a graph, vocoder without a graph" in notes
    counts = {each.name: each for each in subject.report().computations}
    assert counts["flow"].eager_calls > 0
    assert counts["flow"].replays == 0 < counts["decode"].replays
    keys = subject.components.eager_keys
    assert {key.split()[0] for key in keys} == {"flow", "null", "vocoder"}
    assert sum(keys.values()) == sum(each.eager_calls for each in counts.values())


class _FakeTimingEvent:
    """A timing event of a simulated device clock."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def ms_since(self, earlier: TimingEvent) -> float:
        assert isinstance(earlier, _FakeTimingEvent)
        return self.at_ms - earlier.at_ms


class TimedStream(LateStream):
    """A stream with a simulated clock: every pass takes ``each_ms``."""

    def __init__(self, each_ms: float) -> None:
        super().__init__([1])
        self._each_ms = each_ms
        self._now_ms = 0.0

    def record_event(self) -> TimingEvent:
        self._now_ms += self._each_ms
        return _FakeTimingEvent(self._now_ms)


def test_stage_timings_use_the_device_clock() -> None:
    subject = engine("cosyvoice3", streams=two_streams(TimedStream(7.0), TimedStream(11.0)))
    output = synthesize(subject, TEXT[:1])
    parts = [dict(chunk.meta.stages_ms) for chunk in output.audio if chunk.meta.wall_ms]
    assert parts
    for part in parts:
        assert (part["flow"], part["vocoder"]) == (11.0, 11.0)
        assert part["lm"] % 7.0 == 0.0
    assert parts[0]["lm"] >= 14.0
    assert subject.timings.chunk_s == pytest.approx(0.022)
