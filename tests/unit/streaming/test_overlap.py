"""The flow on its own stream, concurrent with tokens and vocoder: identical audio, no leaks."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.unit.cosyvoice.bundles import tiny
from tests.unit.streaming.engines import (
    FAMILIES,
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
)
from tests.unit.streaming.test_engine import ResourceUsage
from tests.unit.streaming.test_faults import CROWD, FailingRunner, assert_outputs_close, crowd_script
from tts_worker.engine.cosyvoice import loader
from tts_worker.engine.cosyvoice.audio.renderer import FlowOutput, RenderRequest, VocoderOutput
from tts_worker.engine.cosyvoice.audio_runner import FlowPass
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner, GraphRunner
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStreams, HostStream, ThreadStream, streams_for
from tts_worker.engine.cosyvoice.loader import LoadOptions, load_engine
from tts_worker.engine.worker_thread import StreamFuture
from tts_worker.errors import ConfigError
from tts_worker.types import Boundary, Cancel, Done, EndText, Failed, Hold, Open, Release, Segment, Text, UtteranceKey

T = TypeVar("T")
TEXT = segments(("Hello world and ", Boundary.CLAUSE), ("you.", Boundary.SENTENCE), (" So it is.", Boundary.END))
LONG = segments(("Hello world and you, that it is", Boundary.END))


def long_script(key: UtteranceKey, run: int) -> Sequence[int]:
    return [*range(150), 6562]


class _LateFuture(StreamFuture[T]):
    """A future that reports its end after ``polls`` polls."""

    def __init__(self, work: Callable[[], T], polls: int) -> None:
        super().__init__(work)
        self._polls = polls
        self.run()

    @property
    def is_done(self) -> bool:
        self._polls -= 1
        return self._polls < 0


class SlowStream(HostStream):
    """A stream whose work ends after ``polls`` polls, or when it is waited for."""

    def __init__(self, polls: Sequence[int]) -> None:
        super().__init__()
        self._polls = polls
        self.future = 0

    def submit(self, work: Callable[[], T]) -> StreamFuture[T]:
        self.future += 1
        return _LateFuture(work, self._polls[self.future % len(self._polls)])


def flow_stream(flow: HostStream) -> ExecutionStreams:
    host = HostStream()
    return ExecutionStreams(host, flow, host)


def run_crowd(
    subject: CosyVoiceEngine, texts: Sequence[str] = ("Hello world",) * 3
) -> dict[UtteranceKey, EngineOutput]:
    for key, text in zip(CROWD, texts, strict=True):
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, Segment.whole(text)))
        subject.handle(EndText(key))
    outputs: dict[UtteranceKey, EngineOutput] = {}
    run_until_idle(subject, outputs)
    return outputs


@pytest.fixture(scope="module")
def plain() -> dict[str, EngineOutput]:
    return {family: synthesize(engine(family), TEXT) for family in FAMILIES}


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_flow_thread_gives_identical_audio(plain: dict[str, EngineOutput], family: str) -> None:
    subject = engine(family, settings(overlap=True))
    assert isinstance(subject.components.streams.flow, ThreadStream)
    for _ in range(2):
        output = synthesize(subject, TEXT)
        assert output.pcm == plain[family].pcm
        assert (output.words, output.ends) == (plain[family].words, plain[family].ends)
    alone = run_crowd(engine("cosyvoice2", script=crowd_script))
    together = run_crowd(engine("cosyvoice2", settings(overlap=True), script=crowd_script))
    assert [together[key].content for key in CROWD] == [alone[key].content for key in CROWD]
    subject.close()


@examples(deadline=None, max_examples=10)
@given(polls=st.lists(st.integers(0, 12), min_size=1, max_size=4), pause=st.sets(st.integers(0, 60), max_size=4))
def test_flow_latency_does_not_change_audio(plain: dict[str, EngineOutput], polls: list[int], pause: set[int]) -> None:
    subject = engine("cosyvoice3", streams=flow_stream(SlowStream(polls)))
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    for segment in TEXT:
        subject.handle(Text(KEY, segment))
    subject.handle(EndText(KEY))
    outputs = {KEY: EngineOutput()}
    for step in range(61):
        if step in pause:
            subject.handle(Hold(KEY))
            for _ in range(3):
                assert not subject.step(0.0), "a held utterance emits nothing"
            subject.handle(Release(KEY))
        for event in subject.step(0.0):
            (outputs[KEY].ends if isinstance(event, Done) else outputs[KEY].audio).append(event)  # type: ignore[attr-defined]
    run_until_idle(subject, outputs)
    assert outputs[KEY].pcm == plain["cosyvoice3"].pcm
    assert outputs[KEY].words == plain["cosyvoice3"].words


def test_flow_runs_one_chunk_ahead_of_vocoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = engine(
        "cosyvoice3", script=long_script, streams=flow_stream(SlowStream([10**9]))
    )  # done only when waited for
    renderer = subject.components.renderer
    done = list[tuple[str, int]]()
    flow = renderer.flow
    vocode = renderer.vocode
    monkeypatch.setattr(
        renderer, "flow", lambda requests: (done.append(("flow", subject.timings.tokens)), flow(requests))[1]
    )
    monkeypatch.setattr(
        renderer,
        "vocode",
        lambda requests, mels: (done.append(("vocoder", subject.timings.tokens)), vocode(requests, mels))[1],
    )
    assert synthesize(subject, LONG).ends == [Done(KEY)]
    names = [name for name, _ in done]
    chunks = len(names) // 2
    assert chunks >= 5
    assert names == ["flow"] + ["flow", "vocoder"] * (chunks - 1) + ["vocoder"], "one chunk ahead, never two"
    drawn = [tokens for name, tokens in done if name == "flow"]
    assert drawn[1] >= drawn[0] + bundle("cosyvoice3").config.flow.chunk_tokens, "the language model did not wait"


@pytest.mark.parametrize("credit", [10, 20_000, 60_000])
def test_overlap_computes_no_extra_frames(credit: int) -> None:
    computed = []
    for streams in (None, flow_stream(SlowStream([10**9]))):
        subject = engine("cosyvoice3", script=long_script, streams=streams)
        subject.handle(Open(KEY, PROMPTED, credit))
        subject.handle(Text(KEY, LONG[0]))
        subject.handle(EndText(KEY))
        run_until_idle(subject, {})
        computed.append((subject.components.renderer.flow_frames, subject.components.renderer.vocoder_frames))
    assert computed[0] == computed[1]


@pytest.mark.parametrize("polls", [[2], [10**9]])
def test_cancel_with_overlap_frees_resources(polls: list[int]) -> None:
    subject = engine("cosyvoice2", streams=flow_stream(SlowStream(polls)))
    synthesize(subject, TEXT)
    free = ResourceUsage.of(subject)
    for steps in (3, 8, 21):
        cancel_two(subject, TEXT[0], steps)
        assert ResourceUsage.of(subject) == free, steps


@pytest.mark.parametrize("work", ["open", "advance"])
def test_cancel_while_waiting_for_flow_thread_frees_pages(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that the thread takes after the cancel are returned, too."""
    subject = engine("cosyvoice3", settings(overlap=True), script=long_script)
    synthesize(subject, TEXT)
    free = ResourceUsage.of(subject)
    pool = subject.components.pool
    at_work = threading.Event()
    may_continue = threading.Event()
    original = getattr(pool, work)

    def blocking(*args: object) -> object:
        at_work.set()
        assert may_continue.wait(60)
        return original(*args)

    monkeypatch.setattr(pool, work, blocking)
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, LONG[0]))
    while not at_work.is_set():
        subject.step(0.0)
    subject.handle(Cancel(KEY))
    result = StreamFuture.result

    def releasing_result(future: StreamFuture[object]) -> object:
        may_continue.set()  # once the engine waits for it
        return result(future)

    monkeypatch.setattr(StreamFuture, "result", releasing_result)
    run_until_idle(subject, {})
    assert ResourceUsage.of(subject) == free
    subject.close()


def test_random_cancels_during_flow_leak_nothing() -> None:
    subject = engine("cosyvoice3", settings(overlap=True))
    expected = synthesize(subject, TEXT).pcm
    free = ResourceUsage.of(subject)
    rng = np.random.default_rng(3)
    for turn in range(40):
        key = UtteranceKey("s", turn)
        subject.handle(Open(key, PROMPTED, int(rng.integers(0, 60_000))))
        subject.handle(Text(key, TEXT[0]))
        for _ in range(int(rng.integers(0, 14))):
            subject.step(0.0)
        subject.handle(Cancel(key))
    assert synthesize(subject, TEXT).pcm == expected, "pages were released while the flow wrote them"
    assert ResourceUsage.of(subject) == free
    subject.close()


@pytest.mark.parametrize("on_call", [2, 3, 5])
def test_transient_batch_fault_fails_no_utterance(on_call: int) -> None:
    """Flow and vocoder passes alternate; one of them fails once."""
    batch = settings(render_batch=4, decode_batch=4)

    def run(audio: GraphRunner) -> dict[UtteranceKey, EngineOutput]:
        subject = engine(
            "cosyvoice2",
            batch,
            script=crowd_script,
            graph_runners=(EagerRunner(), audio),
            streams=flow_stream(SlowStream([1, 4])),
        )
        return run_crowd(subject)

    failing = FailingRunner(torch.OutOfMemoryError("out of memory"), on_call)
    expected_crowd = run(EagerRunner())
    outputs = run(failing)
    assert failing.calls > on_call
    for key in CROWD:
        assert outputs[key].ends == [Done(key)]
        assert_outputs_close(outputs[key], expected_crowd[key])


@pytest.mark.parametrize("first", [2, 3, 5])
def test_persistent_fault_fails_one_utterance(first: int) -> None:
    def run(audio: GraphRunner) -> dict[UtteranceKey, EngineOutput]:
        subject = engine(
            "cosyvoice2",
            settings(render_batch=4, decode_batch=4),
            script=crowd_script,
            graph_runners=(EagerRunner(), audio),
            streams=flow_stream(SlowStream([2])),
        )
        outputs = run_crowd(subject)
        assert (len(subject.sequences), subject.components.decoder.free_slots) == (0, settings().max_utterances)
        return outputs

    expected_crowd = run(EagerRunner())
    outputs = run(FailingRunner(ValueError("numbers"), first, times=2))  # fails the batch, then one of its members
    failed = [key for key in CROWD if isinstance(outputs[key].ends[0], Failed)]
    assert len(failed) == 1
    for key in CROWD:
        assert len(outputs[key].ends) == 1
        if key not in failed:
            assert_outputs_close(outputs[key], expected_crowd[key])


def queued_samples(subject: CosyVoiceEngine) -> dict[UtteranceKey, int]:
    """Return the samples of the frames before and in the vocoder, by utterance."""
    runner = subject.audio
    renderer = subject.components.renderer
    waiting = [*runner.mel_queue, *([runner.vocoder_pass.mel] if runner.vocoder_pass else [])]
    samples = dict.fromkeys(subject.sequences, 0)
    for mel in waiting:
        for job, frames in zip(mel.jobs, mel.output.frames, strict=True):
            samples[job.sequence.key] += renderer.samples(frames)
    return samples


def test_samples_before_the_vocoder_count_as_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the vocoder retries a batch one by one while the flow continues: credit must not be exceeded."""
    config = settings(render_batch=4, decode_batch=4)
    subject = engine("cosyvoice3", config, script=long_script, streams=flow_stream(SlowStream([1])))
    vocode = subject.components.renderer.vocode
    failed = False

    def fails(requests: Sequence[RenderRequest], mels: Sequence[Tensor]) -> VocoderOutput:
        nonlocal failed
        if len(requests) > 1 and not failed and subject.audio.flow_pass is not None:
            failed = True
            raise torch.OutOfMemoryError("out of memory")
        return vocode(requests, mels)

    monkeypatch.setattr(subject.components.renderer, "vocode", fails)
    for key in CROWD:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, LONG[0]))
        subject.handle(EndText(key))
    most = 0
    while subject.has_work:
        subject.step(0.0)
        queued = queued_samples(subject)
        assert {key: sequence.in_flight_samples for key, sequence in subject.sequences.items()} == queued
        most = max([most, *queued.values()])
    assert failed
    assert most


def test_queued_chunk_is_emitted_before_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow fails at the next chunk of an utterance while the vocoder retries a batch with it one by one."""
    lengths = {"s0": 5, "s1": 5, "s2": 150}
    config = settings(render_batch=4, decode_batch=4, smooth_start=False)
    subject = engine(
        "cosyvoice3",
        config,
        script=lambda key, run: [*range(lengths[key.session]), 6562],
        streams=flow_stream(SlowStream([0, 90])),
    )
    renderer = subject.components.renderer
    met = False
    flow = renderer.run_flow
    vocode = renderer.vocode

    def failing_flow(requests: Sequence[RenderRequest]) -> FlowOutput:
        if len(requests) == 1 and requests[0].chunk.begin:
            raise ValueError("numbers")
        return flow(requests)

    def failing_vocode(requests: Sequence[RenderRequest], mels: Sequence[Tensor]) -> VocoderOutput:
        nonlocal met
        if len(requests) > 1:
            in_flight = subject.audio.flow_pass
            met = isinstance(in_flight, FlowPass) and len(in_flight.jobs) == 1
            raise ValueError("numbers")
        return vocode(requests, mels)

    monkeypatch.setattr(renderer, "run_flow", failing_flow)
    monkeypatch.setattr(renderer, "vocode", failing_vocode)
    for key in CROWD:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, LONG[0]))
        subject.handle(EndText(key))
    outputs: dict[UtteranceKey, EngineOutput] = {key: EngineOutput() for key in CROWD}
    run_until_idle(subject, outputs)
    assert met
    *others, failing = CROWD
    assert [outputs[key].ends for key in others] == [[Done(key)] for key in others]
    assert isinstance(outputs[failing].ends[0], Failed)
    assert outputs[failing].samples


def test_thread_stream_orders_work_and_reports_errors() -> None:
    stream = ThreadStream()
    go = threading.Event()
    future = stream.submit(lambda: (go.wait(), 1 // 0)[1])
    assert not future.is_done
    entered = threading.Event()

    def enter() -> None:
        with stream:
            entered.set()

    other = threading.Thread(target=enter)
    other.start()
    assert not entered.is_set()
    go.set()
    other.join()
    assert future.is_done
    with pytest.raises(ZeroDivisionError):
        future.result()
    assert stream.submit(lambda: threading.current_thread().name).result() == "tts-flow"
    stream.close()
    stream.close()
    assert not stream.thread.is_alive()


def test_flow_thread_ends_with_its_engine() -> None:
    subject = engine("cosyvoice3", settings(overlap=True))
    synthesize(subject, TEXT)
    stream = subject.components.streams.flow
    assert isinstance(stream, ThreadStream)
    thread = stream.thread
    pool_ref = weakref.ref(subject.components.pool)
    del stream, subject  # as after a fault: without close
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert pool_ref() is None


@pytest.mark.parametrize(("threads", "caller_threads", "flow"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (8, 2, 6)])
def test_flow_gets_two_thirds_of_threads(threads: int, caller_threads: int, flow: int) -> None:
    torch.set_num_threads(threads)
    streams = streams_for(torch.device("cpu"), overlap=True)
    try:
        assert torch.get_num_threads() == caller_threads
        assert streams.flow.submit(torch.get_num_threads).result() == flow
    finally:
        streams.close()
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("threads", "overlap", "expected"), [(2, None, False), (3, None, True), (1, True, True), (4, False, False)]
)
def test_overlap_defaults_to_available_threads(
    threads: int, overlap: bool | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "Networks", SimpleNamespace(load=lambda *_, **__: networks("cosyvoice3")))
    subject = load_engine(LoadOptions(tiny("cosyvoice3"), device="cpu", threads=threads, overlap=overlap))
    assert isinstance(subject.components.streams.flow, ThreadStream) is expected
    subject.close()
    torch.set_num_threads(1)


def test_engine_without_acceleration_uses_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "Networks", SimpleNamespace(load=lambda *_, **__: networks("cosyvoice3")))
    subject = load_engine(LoadOptions(tiny("cosyvoice3"), device="cpu", threads=8, acceleration="off"))
    assert not isinstance(subject.components.streams.flow, ThreadStream)
    assert not subject.settings.acceleration
    subject.close()
    torch.set_num_threads(1)


def test_other_back_end_contradicts_acceleration_off() -> None:
    options = LoadOptions(tiny("cosyvoice3"), device="cpu", acceleration="off", backend="tensorrt")
    with pytest.raises(ConfigError, match="tensorrt needs acceleration: auto"):
        load_engine(options)
