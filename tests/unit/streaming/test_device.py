"""What a GPU would do, rehearsed on the CPU: recordings with buffers that stay, results that come late."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.unit.streaming.engines import (
    FAMILIES,
    KEY,
    PROMPTED,
    bundle,
    engine,
    hear,
    leave,
    networks,
    settings,
    speak,
)
from tests.unit.streaming.test_engine import Held, assert_alike
from tts_worker.audio.pcm import to_pcm
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.streaming.config import TextMode
from tts_worker.engine.streaming.graphs import Compute, FakeGraphRunner, Tensors, _CapturedGraph, single_output
from tts_worker.engine.streaming.load import load_networks
from tts_worker.engine.streaming.render import MelResampler, to_int16
from tts_worker.engine.streaming.streams import ExecutionStream, ExecutionStreams, HostStream, PendingCopy, TimingEvent
from tts_worker.types import Audio, Boundary, Cancel, Done, EndText, Open, Text, UtteranceKey

TEXT = segments(("Hello, ", Boundary.CLAUSE), ("world and you.", Boundary.SENTENCE), (" it is.", Boundary.END))


@pytest.mark.parametrize("family", FAMILIES)
def test_recordings_replayed_from_fixed_buffers_say_the_same(family: str) -> None:
    small = {"max_passage_s": 6, "lm_tokens": 512, "decode_batch": 4, "render_batch": 2, "checked": False}
    expected = [speak(engine(family, settings(**small)), TEXT, key=UtteranceKey("s", n)) for n in range(1)]
    tokens = FakeGraphRunner()
    sound = FakeGraphRunner()
    subject = engine(family, settings(**small), runners=(tokens, sound))
    subject.warm_up()
    recorded = tokens.captured_graphs, sound.captured_graphs
    keys = [UtteranceKey("s", n) for n in range(3)]
    heard: dict[UtteranceKey, EngineOutput] = {}
    for key in keys:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        for segment in TEXT:
            subject.handle(Text(key, segment))
        subject.handle(EndText(key))
    hear(subject, heard)

    assert (tokens.captured_graphs, sound.captured_graphs) == recorded, "nothing is recorded once callers are there"
    assert tokens.eager_calls == 0
    assert sound.replays > 2 * sound.eager_calls  # ends of audio_segments have odd shapes
    for key in keys:
        assert heard[key].words == expected[0].words
        assert_alike(heard[key].pcm, expected[0].pcm)


def test_a_rehearsal_finds_what_a_recording_would_miss() -> None:
    runner = FakeGraphRunner()
    hidden = [1.0]
    run = single_output(runner)

    def compute(x: Tensor) -> Tensor:
        return x + hidden[0]

    one = torch.ones(2)
    assert run("key", compute, (one,)).tolist() == [2.0, 2.0]
    first = run("key", compute, (one * 3,))
    assert first.tolist() == [4.0, 4.0]
    second = run("key", lambda x: x * 0, (one * 5,))
    assert second is first, "the output lies where it lay"
    assert second.tolist() == [6.0, 6.0], "what was recorded is played, whatever is asked for"


class _Later:
    """Numbers that are there after so many looks."""

    def __init__(self, numbers: Tensor, looks: int) -> None:
        self._numbers = numbers.clone()
        self._looks = looks

    @property
    def ready(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def wait(self) -> Tensor:
        return self._numbers


class LateStream(HostStream):
    """A device that takes its time."""

    def __init__(self, looks: Sequence[int]) -> None:
        super().__init__()
        self._looks = looks
        self._fetched = 0

    def to_host(self, numbers: Tensor) -> PendingCopy:
        self._fetched += 1
        return _Later(numbers, self._looks[self._fetched % len(self._looks)])


def two(tokens: ExecutionStream, sound: ExecutionStream) -> ExecutionStreams:
    """As on CUDA."""
    return ExecutionStreams(tokens, sound, sound)


@pytest.mark.parametrize("mode", TextMode)
def test_results_that_come_late_change_nothing(mode: TextMode) -> None:
    text = segments(("Hello ", Boundary.WORD), ("world and ", Boundary.WORD), ("you.", Boundary.END))
    expected = speak(engine("cosyvoice3", settings(text_mode=mode)), text)
    subject = engine("cosyvoice3", settings(text_mode=mode), streams=two(LateStream([0, 3, 1]), LateStream([2, 5])))
    keys = [UtteranceKey("s", n) for n in range(3)]
    heard: dict[UtteranceKey, EngineOutput] = {}
    for key in keys:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        for segment in text:
            subject.handle(Text(key, segment))
        subject.handle(EndText(key))
    hear(subject, heard)
    assert [heard[key].content for key in keys] == [expected.content] * 3


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 13, 21])
def test_a_cancel_while_something_is_on_the_device_frees_everything(steps: int) -> None:
    subject = engine("cosyvoice2", streams=two(LateStream([3, 1]), LateStream([4])))
    speak(subject, TEXT)
    free = Held(subject).now
    leave(subject, TEXT[0], steps)
    assert Held(subject).now == free
    assert speak(subject, TEXT).ends == [Done(KEY)]


def test_tokens_are_drawn_while_sound_is_made() -> None:
    """Two streams are for nothing if one waits for the other."""
    subject = engine(
        "cosyvoice3", streams=two(LateStream([1]), LateStream([300])), script=lambda key, run: [*range(200), 6562]
    )
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, TEXT[0]))
    while not subject._audio.is_busy:
        subject.step(0.0)
    drawn = subject.timings.tokens
    while subject._audio.is_busy:
        subject.step(0.0)
    assert subject.timings.tokens >= drawn + bundle("cosyvoice3").config.flow.chunk_tokens
    subject.handle(Cancel(KEY))


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_stays_near(family: str) -> None:
    """bfloat16 has 8 bits; what adds up over the solver's steps is kept in float32."""
    half = load_networks(bundle(family), torch.device("cpu"), half=True)
    assert half.flow.time_tables.dtype is half.lm.llm_decoder.weight.dtype is torch.bfloat16
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
    assert subject.components.pool._estimator.data.dtype is torch.bfloat16
    assert speak(subject, TEXT[:1]).samples == 60 * 960


def test_sixteen_bits_are_made_on_the_device_as_on_the_host() -> None:
    sound = torch.tensor([0.0, 1.0, -1.0, 2.0, -9.0, float("nan"), 0.5 / 32768, 1.5 / 32768, 0.123456, -0.999999])
    assert to_int16(sound).numpy().tobytes() == to_pcm(sound.numpy())


@pytest.mark.parametrize("speed", [0.5, 0.73, 1.0, 1.31, 2.0])
@pytest.mark.parametrize("cuts", [(7,), (1, 1, 5), (30, 2, 1, 17), (50, 50)])
def test_a_pace_is_the_same_however_the_mel_was_cut(speed: float, cuts: tuple[int, ...]) -> None:
    mel = torch.randn(1, 4, sum(cuts), generator=torch.Generator().manual_seed(1))
    whole = MelResampler(speed)
    pieces = MelResampler(speed)
    expected = whole.push(mel, True)
    parts = mel.split(list(cuts), dim=2)
    out = torch.cat([pieces.push(part, n == len(cuts) - 1) for n, part in enumerate(parts)], dim=2)
    assert out.shape[2] == MelResampler.output_frames(sum(cuts), speed)
    assert torch.equal(out, expected)
    if speed in (0.5, 1.0):  # where no frame is left over, it is plain linear interpolation
        size = MelResampler.output_frames(sum(cuts), speed)
        plain = torch.nn.functional.interpolate(mel, size=size, mode="linear")
        assert torch.allclose(out, plain, atol=1e-6)


def test_late_events_are_audio_only() -> None:
    subject = engine("cosyvoice3", streams=two(LateStream([2]), LateStream([2])))
    subject.handle(Open(KEY, PROMPTED, 100))
    subject.handle(Text(KEY, TEXT[0]))
    events = [event for _ in range(200) if subject.has_work for event in subject.step(0.0)]
    assert [type(event) for event in events] == [Audio]
    assert events[0].samples == 100  # type: ignore[union-attr]


class _Waited(_Later):
    """Numbers that are there only for those who wait, and notes that somebody did."""

    def __init__(self, numbers: Tensor, waited: list[str], name: str) -> None:
        super().__init__(numbers, 10**9)
        self._waited = waited
        self._name = name

    def wait(self) -> Tensor:
        self._waited.append(self._name)
        return super().wait()


class WaitingStream(HostStream):
    """A device on which nothing is ever there before it is waited for."""

    def __init__(self, waited: list[str], name: str) -> None:
        super().__init__()
        self._waited = waited
        self._name = name

    def to_host(self, numbers: Tensor) -> PendingCopy:
        return _Waited(numbers, self._waited, self._name)


def test_what_is_expected_first_is_waited_for_alone() -> None:
    """Whoever waits for tokens and then at once for sound leaves the language model idle meanwhile; whoever waits for
    tokens while the sound is there already lets the listener wait."""
    waited: list[str] = []
    streams = two(WaitingStream(waited, "tokens"), WaitingStream(waited, "sound"))
    subject = engine("cosyvoice3", streams=streams, script=lambda key, run: [*range(200), 6562])
    # tokens come soon, sound does not
    subject.timings.token_s = 1e-9
    subject.timings.chunk_s = 1e9
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, TEXT[0]))
    while not subject._audio.is_busy:
        subject.step(0.0)
    waited.clear()
    while subject._audio.is_busy:
        subject.step(0.0)
    assert waited.count("tokens") >= 3, "the tokens of the next chunk were drawn meanwhile"
    assert waited[-1] == "sound"

    # and the other way round
    subject.timings.token_s = 1e9
    subject.timings.chunk_s = 1e-9
    while not (subject._audio.is_busy and subject._tokens.is_busy):
        subject.step(0.0)
    waited.clear()
    subject.step(0.0)
    assert waited == ["sound"]
    subject.handle(Cancel(KEY))


class Refusing(FakeGraphRunner):
    """A device that does not record what it is asked to."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.asked = 0
        self._after = after

    def _capture(self, compute: Compute, inputs: Tensors, outputs: Tensors) -> _CapturedGraph:
        self.asked += 1
        if self.asked > self._after:
            raise RuntimeError("operation not permitted when stream is capturing")
        return super()._capture(compute, inputs, outputs)


@pytest.mark.parametrize("after", [0, 3])
def test_what_cannot_be_recorded_is_computed(caplog: pytest.LogCaptureFixture, after: int) -> None:
    small = settings(max_passage_s=6, lm_tokens=512, decode_batch=2, render_batch=1, checked=False)
    expected = speak(engine("cosyvoice3", small), TEXT[:1])
    tokens = Refusing(after)
    sound = Refusing(after)
    subject = engine("cosyvoice3", small, runners=(tokens, sound))
    subject.warm_up()
    assert_alike(speak(subject, TEXT[:1]).pcm, expected.pcm)
    assert (tokens.captured_graphs, sound.captured_graphs) == (after, after)
    assert tokens.asked == sound.asked == after + 1, "it does not try for ever"
    assert sum("computing without graphs" in message for message in caplog.messages) == 2


class _Tick:
    """A moment of a device's clock."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def ms_since(self, earlier: TimingEvent) -> float:
        assert isinstance(earlier, _Tick)
        return self.at_ms - earlier.at_ms


class TickingStream(LateStream):
    """A device with a clock of its own: whatever it does takes so long."""

    def __init__(self, each_ms: float) -> None:
        super().__init__([1])
        self._each_ms = each_ms
        self._now_ms = 0.0

    def record_event(self) -> TimingEvent:
        self._now_ms += self._each_ms
        return _Tick(self._now_ms)


def test_stages_are_timed_by_the_device_and_not_by_who_asked_it() -> None:
    subject = engine("cosyvoice3", streams=two(TickingStream(7.0), TickingStream(11.0)))
    heard = speak(subject, TEXT[:1])
    parts = [dict(chunk.meta.stages_ms) for chunk in heard.audio if chunk.meta.wall_ms]
    assert parts
    for part in parts:
        assert (part["flow"], part["vocoder"]) == (11.0, 11.0)
        assert part["lm"] % 7.0 == 0.0
    assert parts[0]["lm"] >= 14.0
    assert subject.timings.chunk_s == pytest.approx(0.022)
